"""Schedule once, price many: the integer run log of a closed loop on one replica.

A closed loop without think time never reads the clock: which requests share a step follows from lengths, slots and the
token budget alone. So one schedule serves every step price, and every mean is linear in the prices::

    mean TPOT = Σ_b τ(b)·d(b) + τ_n·c + τ_r·G + τ_F·F,     likewise mean TTFT and the total time

with ``d(b)`` the decode step over ``b`` requests, ``c`` ms a prompt token, ``G`` ms a prompt and ``F`` ms a step that
prefills. That makes a served run a linear equation in the step times, which :mod:`predictor.anchors.solve` solves.
Benchmark harnesses start all clients at once, send 10·C requests and draw lengths on 80–100% of nominal; so does this.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from predictor.errors import BadInput

Discipline = Literal["mixed", "prefill_first"]
Start = Literal["burst", "staggered"]

_SEED = 20260720


@dataclass(frozen=True, slots=True)
class ClosedLoopRun:
    """One benchmark run: C clients at once, ``requests_per_client`` each, lengths on ``[range · nominal, nominal]``.

    ``mixed`` steps carry decodes and chunks together; ``prefill_first`` stops decoding while prompts are prefilled.
    ``poll_steps`` > 1: new requests are noticed only every so many decode steps. ``staggered`` starts spread the
    clients over one answer instead of sending all at once.
    """

    clients: int
    isl_tokens: int
    osl_tokens: int
    length_range_frac: float = 0.8
    requests_per_client: int = 10
    max_running: int = 1 << 30
    token_budget: int = 8192
    discipline: Discipline = "mixed"
    chunked: bool = True
    poll_steps: int = 1
    start: Start = "burst"

    def __post_init__(self) -> None:
        if min(self.clients, self.isl_tokens, self.osl_tokens, self.requests_per_client, self.max_running) < 1:
            raise BadInput(f"a closed loop needs clients, lengths and slots of at least 1: {self}")


@dataclass(frozen=True, slots=True)
class Usage:
    """Weights of one mean over the run: on decode steps by batch, prompt tokens, prompts, and steps with a prompt."""

    decode: Mapping[int, float]
    prompt_tokens: float
    prompts: float
    prefill_steps: float

    def price(
        self,
        decode_ms: Callable[[int], float],
        per_token_ms: float,
        per_prompt_ms: float,
        per_prefill_step_ms: float,
    ) -> float:
        """The mean in ms."""
        steps = sum(weight * decode_ms(batch) for batch, weight in self.decode.items())
        prompts = self.prompt_tokens * per_token_ms + self.prompts * per_prompt_ms
        return steps + prompts + self.prefill_steps * per_prefill_step_ms


@dataclass(frozen=True, slots=True)
class Schedule:
    """Weights of mean TPOT, mean TTFT and total time, and what the run carried."""

    tpot: Usage
    ttft: Usage
    total: Usage
    requests: int
    prompt_tokens: int
    output_tokens: int
    mean_running: float


class _Tally:
    """Sums of weights by kind of cost, one each for TPOT, TTFT and the clock."""

    def __init__(self) -> None:
        self.decode: list[defaultdict[int, float]] = [defaultdict(float) for _ in range(3)]
        self.tokens = [0.0, 0.0, 0.0]
        self.prompts = [0.0, 0.0, 0.0]
        self.steps = [0.0, 0.0, 0.0]

    def decode_steps(self, batch: int, count: int, tpot: float, waiting: float) -> None:
        for kind, weight in enumerate((tpot, waiting, 1.0)):
            self.decode[kind][batch] += weight * count

    def prefill(self, tokens: int, prompts: int, tpot: float, waiting: float) -> None:
        for kind, weight in enumerate((tpot, waiting, 1.0)):
            self.tokens[kind] += weight * tokens
            self.prompts[kind] += weight * prompts
            self.steps[kind] += weight

    def usage(self, kind: int, requests: float) -> Usage:
        decode = {batch: weight / requests for batch, weight in self.decode[kind].items()}
        return Usage(decode, self.tokens[kind] / requests, self.prompts[kind] / requests, self.steps[kind] / requests)


def drawn_lengths(nominal: int, range_frac: float, count: int, stream: int) -> list[int]:
    """Lengths uniform on ``[range · nominal, nominal]``; the same every time."""
    low = max(1, round(nominal * range_frac))
    rng = np.random.default_rng(np.random.SeedSequence(_SEED, spawn_key=(stream, nominal)))
    drawn: list[int] = rng.integers(low, nominal, size=count, endpoint=True).tolist()
    return drawn


@lru_cache(maxsize=4096)
def schedule(run: ClosedLoopRun) -> Schedule:
    """Play one run and return the weights of its means."""
    count = run.clients * run.requests_per_client
    prompts = drawn_lengths(run.isl_tokens, run.length_range_frac, count, 0)
    outputs = drawn_lengths(run.osl_tokens, run.length_range_frac, count, 1)
    tally = _Tally()
    # (request, prompt tokens left); the head may be partly prefilled.
    starts = [i * run.osl_tokens // run.clients if run.start == "staggered" else 0 for i in range(run.clients)]
    first = sum(start == 0 for start in starts)
    queue: deque[list[int]] = deque([i, prompts[i]] for i in range(first))
    started, sent = first, first
    ends: list[tuple[int, int]] = []  # (decode step at which it ends, request)
    clock = 0  # decode steps done
    share = 0.0  # Σ 1/(outputs − 1) over decoding requests: weight of a step in the mean TPOT
    busy = 0.0
    decode_steps = 0
    held = 0  # decode steps since new requests were last noticed
    noticed = len(queue)
    waiting = len(queue)  # without a first token yet
    budget = run.token_budget
    while queue or ends or started < run.clients:
        if not queue and not ends:  # nobody is left before the next client starts
            clock = max(clock, starts[started])
        while started < run.clients and starts[started] <= clock:
            queue.append([sent, prompts[sent]])
            started, sent, waiting = started + 1, sent + 1, waiting + 1
            noticed = len(queue)
        running = len(ends)
        done_tokens, finished = 0, []
        if noticed and running < run.max_running:
            room = budget - (running if run.discipline == "mixed" else 0)
            slots = run.max_running - running
            position = 0
            while position < noticed and position < slots and room > 0:
                request, left = queue[position]
                part = min(left, room) if run.chunked else left
                if part > room and done_tokens:
                    break
                queue[position][1] -= part
                room -= part
                done_tokens += part
                if queue[position][1]:
                    break
                finished.append(request)
                position += 1
        if done_tokens:
            for _ in finished:
                queue.popleft()
            noticed -= len(finished)
            tally.prefill(done_tokens, len(finished), share, waiting)
            if run.discipline == "mixed" and running:
                tally.decode_steps(running, 1, share, waiting)
                clock += 1
                busy += running
                decode_steps += 1
            for request in finished:
                waiting -= 1
                gaps = outputs[request] - 1
                share += 1.0 / max(1, gaps)
                heapq.heappush(ends, (clock + gaps, request))
        else:
            steps = ends[0][0] - clock
            if started < run.clients:
                steps = max(1, min(steps, starts[started] - clock))
            if run.poll_steps > 1 and len(queue) > noticed:
                steps = min(steps, run.poll_steps - held)
            tally.decode_steps(running, steps, share, waiting)
            clock += steps
            busy += running * steps
            decode_steps += steps
            held += steps
        while ends and ends[0][0] <= clock:
            _, request = heapq.heappop(ends)
            share -= 1.0 / max(1, outputs[request] - 1)
            if sent < count - (run.clients - started):
                queue.append([sent, prompts[sent]])
                sent += 1
                waiting += 1
        if run.poll_steps <= 1 or held >= run.poll_steps or not ends:
            noticed, held = len(queue), 0
    return Schedule(
        tpot=tally.usage(0, count),
        ttft=tally.usage(1, count),
        total=tally.usage(2, 1.0),
        requests=count,
        prompt_tokens=sum(prompts),
        output_tokens=sum(outputs),
        mean_running=busy / max(1, decode_steps),
    )
