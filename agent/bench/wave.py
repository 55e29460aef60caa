"""A single wave: so many requests at once, no arrival after, timed while all of them decode together.

That window begins when the last request has its first token and ends when the first request has its last, so every gap
in it is one engine step at the full batch, with no prefill in between (paper §3.1.1).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

import httpx

from agent.bench.client import Completion, Endpoint, Watch, complete, connect
from agent.bench.metrics import Counters, read_counters
from agent.bench.prompts import PromptSource

# Server counters are read a few tokens inside the window, so that the reading itself falls into it.
MARGIN_TOKENS = 3


@dataclass(frozen=True, slots=True)
class Wave:
    """One wave and the server's counters at both ends of its window."""

    completions: tuple[Completion, ...]
    counters_before: Counters
    counters_after: Counters

    @property
    def batch(self) -> int:
        """Requests at once."""
        return len(self.completions)


@dataclass(frozen=True, slots=True)
class WaveReading:
    """What a wave says of one step, ms; three readings that do not share a fault."""

    batch: int
    steps: int  # gaps in the window
    median_gap_ms: float
    span_ms: float
    server_ms: float | None
    prompt_tokens: int
    tokens_per_chunk: float
    first_tokens_ms: float  # from sending to the last first token: all prefills of the wave
    ids_counted: bool = False


class _Edges(Watch):
    """Raises one flag when every request has its first token, and one shortly before the first is done."""

    def __init__(self, requests: int, max_tokens: int) -> None:
        self._waiting = set(range(requests))
        self._after_first = max(1, max_tokens - MARGIN_TOKENS)
        self.all_decode = asyncio.Event()
        self.one_ends = asyncio.Event()
        self._last_started = -1

    def token(self, index: int, total: int) -> None:
        """See :class:`~agent.bench.client.Watch`."""
        if self._waiting:
            self._waiting.discard(index)
            if not self._waiting:
                self._last_started = index
        elif index == self._last_started and total >= MARGIN_TOKENS:
            self.all_decode.set()
        if total >= self._after_first:
            self.one_ends.set()


async def send_wave(
    client: httpx.AsyncClient,
    endpoint: Endpoint,
    prompts: PromptSource,
    batch: int,
    prompt_tokens: int,
    max_tokens: int,
) -> Wave:
    """Send ``batch`` fresh prompts at once and wait for all answers; the first failure cancels the others."""
    edges = _Edges(batch, max_tokens)
    readings: list[Counters] = []

    async def count(flag: asyncio.Event) -> None:
        await flag.wait()
        readings.append(await read_counters(client, endpoint))

    watchers = [asyncio.create_task(count(edges.all_decode)), asyncio.create_task(count(edges.one_ends))]
    requests = [
        asyncio.create_task(complete(client, endpoint, prompts.prompt(prompt_tokens), max_tokens, edges, index))
        for index in range(batch)
    ]
    try:
        done = await asyncio.gather(*requests)
    finally:
        for task in (*requests, *watchers):
            task.cancel()
        await asyncio.gather(*requests, *watchers, return_exceptions=True)
    before, after = (readings[0], readings[1]) if len(readings) == 2 else (Counters(), Counters())
    return Wave(tuple(done), before, after)


def read_wave(wave: Wave) -> WaveReading | None:
    """The readings of a wave; None where fewer than two steps had all requests decoding."""
    begin = max(completion.first_ms for completion in wave.completions)
    end = min(completion.last_ms for completion in wave.completions)
    gaps: list[float] = []
    spans: list[float] = []
    for completion in wave.completions:
        inside = [chunk for chunk in completion.chunks if begin <= chunk.at_ms <= end]
        gaps += [(after.at_ms - before.at_ms) / after.tokens for before, after in pairwise(inside)]
        tokens = sum(chunk.tokens for chunk in inside[1:])
        if tokens:
            spans.append((inside[-1].at_ms - inside[0].at_ms) / tokens)
    if len(gaps) < 2 * wave.batch or not spans:
        return None
    return WaveReading(
        batch=wave.batch,
        steps=len(gaps) // wave.batch,
        median_gap_ms=median(gaps),
        span_ms=median(spans),
        server_ms=wave.counters_after.step_ms_since(wave.counters_before),
        prompt_tokens=round(fmean(completion.prompt_tokens for completion in wave.completions)),
        tokens_per_chunk=fmean(completion.tokens_per_chunk for completion in wave.completions),
        first_tokens_ms=begin - min(completion.sent_ms for completion in wave.completions),
        ids_counted=all(completion.ids_counted for completion in wave.completions),
    )


def run_wave(endpoint: Endpoint, prompts: PromptSource, batch: int, prompt_tokens: int, max_tokens: int) -> Wave:
    """One wave from synchronous code."""

    async def run() -> Wave:
        async with connect(endpoint) as client:
            return await send_wave(client, endpoint, prompts, batch, prompt_tokens, max_tokens)

    return asyncio.run(run())


def spread_pct(values: Sequence[float]) -> float:
    """Largest over smallest of repeats, in percent above it."""
    return (max(values) / min(values) - 1.0) * 100.0
