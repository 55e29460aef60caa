"""The benchmark of a workload by the small client: closed loops and open arrivals, the lengths a simulation draws.

Lengths and arrival gaps come from the same generators and seed as the simulator's, so a prediction and its verification
send the very same requests.
"""

import asyncio
from collections.abc import Callable, Sequence
from statistics import fmean, median

import httpx
import numpy as np

from agent.bench.client import Completion, Endpoint, complete, connect, now_ms
from agent.bench.prompts import PromptSource
from agent.failures import EndpointFailed
from predictor.anchors.import_formats.run import BenchRun, Latency, RequestTimes
from predictor.types import Arrival, Workload
from predictor.workload.synthetic import arrival_gaps_ms, lengths, request_count

TOOL = "inferasim client"
# As many failures as this are told with the result; more end the benchmark.
FAILED_FRAC = 0.05
Say = Callable[[str], None]


class Benchmark:
    """One run: who is asked, how far it is, what came back."""

    def __init__(self, endpoint: Endpoint, workload: Workload, vocabulary: int, seed: int, say: Say) -> None:
        self.endpoint = endpoint
        self.workload = workload
        self.total = request_count(workload)
        drawn = lengths(workload, seed)
        self.shapes = [next(drawn) for _ in range(self.total)]
        self.gaps_ms = arrival_gaps_ms(workload, seed)
        self.prompts = PromptSource(seed + 7919, vocabulary, endpoint.token_ids)
        self.done: list[Completion] = []
        self.failed: list[EndpointFailed] = []
        self.say = say
        self._next = 0

    async def run(self) -> float:
        """Send everything; returns the duration in ms."""
        async with connect(self.endpoint) as client:
            begun = now_ms()
            if self.workload.arrival is Arrival.CLOSED:
                await _all([self._client(client) for _ in range(min(self.workload.concurrency, self.total))])
            else:
                await self._arrivals(client)
            return now_ms() - begun

    async def _client(self, client: httpx.AsyncClient) -> None:
        """One closed-loop client: its next request goes out when the last one is done."""
        while (shape := self._take()) is not None:
            await self._one(client, shape)

    async def _arrivals(self, client: httpx.AsyncClient) -> None:
        """Requests at their times, whatever became of the ones before."""
        running: list[asyncio.Task[None]] = []
        due = now_ms()
        try:
            while (shape := self._take()) is not None:
                due += next(self.gaps_ms)
                await asyncio.sleep(max(0.0, due - now_ms()) / 1e3)
                running.append(asyncio.create_task(self._one(client, shape)))
            await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _take(self) -> tuple[int, int] | None:
        if self._next >= self.total:
            return None
        self._next += 1
        return self.shapes[self._next - 1]

    async def _one(self, client: httpx.AsyncClient, shape: tuple[int, int]) -> None:
        prompt, answer = shape
        try:
            self.done.append(await complete(client, self.endpoint, self.prompts.prompt(prompt), answer))
        except EndpointFailed as error:
            self.failed.append(error)
            if len(self.failed) > max(1.0, FAILED_FRAC * self.total):
                raise EndpointFailed(f"{len(self.failed)} of {self._next} requests failed, the last: {error}") from None
        finished = len(self.done)
        if finished and finished % max(1, self.total // 10) == 0:
            self.say(f"{finished} of {self.total} requests")


async def _all(jobs: Sequence["asyncio._CoroutineLike[None]"]) -> None:
    """Run together; the first failure cancels the others."""
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run_benchmark(
    endpoint: Endpoint, workload: Workload, vocabulary: int, *, seed: int = 0, say: Say = lambda text: None
) -> BenchRun:
    """Send a workload to an endpoint and summarise it as a benchmark tool would."""
    benchmark = Benchmark(endpoint, workload, vocabulary, seed, say)
    duration_ms = asyncio.run(benchmark.run())
    if not benchmark.done:
        raise benchmark.failed[-1] if benchmark.failed else EndpointFailed(f"{endpoint.url}: no request was sent")
    return summarise(benchmark.done, workload, duration_ms, len(benchmark.failed), endpoint.url)


def summarise(done: Sequence[Completion], workload: Workload, duration_ms: float, failed: int, origin: str) -> BenchRun:
    """Completions as the record all benchmark formats become."""
    tokens = sum(one.output_tokens for one in done)
    prompts = [one.prompt_tokens for one in done]
    gaps = [
        (after.at_ms - before.at_ms) / after.tokens
        for one in done
        for before, after in zip(one.chunks, one.chunks[1:], strict=False)
    ]
    closed = workload.arrival is Arrival.CLOSED
    return BenchRun(
        origin=origin,
        tool=TOOL,
        concurrency=workload.concurrency if closed else None,
        requests=len(done),
        failed=failed,
        request_rate_per_s=None if closed else workload.request_rate_per_s,
        burstiness=workload.burstiness,
        duration_s=duration_ms / 1e3,
        ttft=_latency([one.ttft_ms for one in done]),
        tpot=_latency([one.span_ms for one in done if one.output_tokens > 1]),
        itl=_latency(gaps),
        e2e=_latency([one.e2e_ms for one in done]),
        mean_prompt_tokens=fmean(prompts),
        mean_output_tokens=tokens / len(done),
        requests_per_s=len(done) / duration_ms * 1e3,
        output_tok_s=tokens / duration_ms * 1e3,
        total_tok_s=(tokens + sum(prompts)) / duration_ms * 1e3,
        cached_prompt_frac=sum(one.cached_tokens for one in done) / max(1, sum(prompts)),
        prompt_range=(min(prompts), max(prompts)),
        details=tuple(RequestTimes(one.prompt_tokens, one.output_tokens, one.ttft_ms, one.e2e_ms) for one in done),
    )


def _latency(values: Sequence[float]) -> Latency:
    if not values:
        return Latency()
    p90, p99 = np.percentile(values, [90, 99]).tolist()
    return Latency(fmean(values), median(values), p90, p99)
