"""Lengths and arrival times of synthetic traffic, drawn from a seed in blocks.

Fixed lengths in a closed loop draw nothing, and then nothing of ``numpy.random`` is loaded: a tenth of what a single
prediction takes to start.
"""

from collections.abc import Iterator
from math import floor
from typing import Literal

import numpy as np

from predictor.errors import BadInput
from predictor.types import Arrival, Workload

BLOCK = 4096  # requests drawn at a time, so that a million of them need no memory


Stream = Literal["lengths", "arrivals", "acceptance"]
SPAWN_KEYS: dict[Stream, int] = {"lengths": 0, "arrivals": 1, "acceptance": 2}


def generator(workload: Workload, seed: int, stream: Stream) -> "np.random.Generator":
    """One of the independent streams of random numbers of the workload's seed and the caller's."""
    return np.random.default_rng(np.random.SeedSequence([workload.seed, seed], spawn_key=(SPAWN_KEYS[stream],)))


def request_count(workload: Workload) -> int:
    """Requests the workload sends in all."""
    return workload.requests_per_client * workload.concurrency


def bounds(nominal_tokens: int, range_frac: float) -> tuple[int, int]:
    """Shortest and longest length: whole tokens between ``range_frac`` of nominal and nominal.

    >>> bounds(1024, 0.8)
    (819, 1024)
    """
    if not 0.0 < range_frac <= 1.0:
        raise BadInput(f"length_range_frac is {range_frac}, must be in (0, 1]")
    return max(1, floor(nominal_tokens * range_frac)), nominal_tokens


def lengths(workload: Workload, seed: int) -> Iterator[tuple[int, int]]:
    """Prompt and output tokens of one request after another, without end."""
    for tokens, name in ((workload.isl_tokens, "isl_tokens"), (workload.osl_tokens, "osl_tokens")):
        if tokens < 1:
            raise BadInput(f"{name} is {tokens}, must be at least 1")
    if workload.length_range_frac == 1.0:
        fixed = (workload.isl_tokens, workload.osl_tokens)
        while True:
            yield fixed
    rng = generator(workload, seed, "lengths")
    prompts = bounds(workload.isl_tokens, workload.length_range_frac)
    outputs = bounds(workload.osl_tokens, workload.length_range_frac)
    while True:
        prompt_block = rng.integers(*prompts, size=BLOCK, endpoint=True).tolist()
        output_block = rng.integers(*outputs, size=BLOCK, endpoint=True).tolist()
        yield from zip(prompt_block, output_block, strict=True)


def arrival_gaps_ms(workload: Workload, seed: int) -> Iterator[float]:
    """Times between arrivals of open traffic, without end.

    Poisson: exponential gaps. Constant: equal gaps. Gamma: shape ``burstiness`` at the same mean, so that 1 is Poisson
    and less is burstier.
    """
    rate = workload.request_rate_per_s
    if rate is None or rate <= 0.0:
        raise BadInput(f"request_rate_per_s is {rate}; {workload.arrival.value} arrivals need a positive rate")
    mean_ms = 1000.0 / rate
    if workload.arrival is Arrival.CONSTANT:
        while True:
            yield mean_ms
    shape = 1.0 if workload.arrival is Arrival.POISSON else workload.burstiness
    if shape <= 0.0:
        raise BadInput(f"burstiness is {shape}, must be positive")
    rng = generator(workload, seed, "arrivals")
    while True:
        if shape == 1.0:
            yield from rng.exponential(mean_ms, BLOCK).tolist()
        else:
            yield from rng.gamma(shape, mean_ms / shape, BLOCK).tolist()
