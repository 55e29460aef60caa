"""Load of the busiest expert-parallel rank, and how many experts a step reads (paper §3.1.2, App. B.3).

An MoE layer under expert parallelism ends when its busiest rank ends. With ``t`` tokens, ``E`` experts, ``R`` ranks::

    I_n = E[max_r n_r] / n̄      routed tokens of the busiest rank over the mean
    I_d = E[max_r d_r] / d̄      distinct experts it reads over the mean

Both are expectations of a per-layer maximum. ``R = 1`` gives 1. Without a recording the router is uniform: top-k of E
without replacement, sampled with a fixed seed (chance only, no skew). A recording (:mod:`predictor.expert_replay`)
multiplies that by its measured skew. Replicas of hot experts without a recording follow Eq. 3::

    I' = 1 + (I − 1) · E / (E + R)

Factors are evaluated at the anchor's EP and at the target's EP apart: one value on both sides of a transfer ratio would
cancel, and a wider EP would look free. Tokens are those of the whole EP group in one step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import erf, log, pow, sqrt
from typing import Literal

import numpy as np
import numpy.typing as npt

from predictor.errors import BadInput, DataUnavailable

Phase = Literal["decode", "prefill"]
IntArray = npt.NDArray[np.int64]

# Seed of the sampled router; any constant does, this one is the paper's arXiv number.
_SEED = 261104032
# Sampling effort: the standard error of both factors stays under 0.5% at every grid point.
_DRAWS_TOKENS = 32768
_MAX_TRIALS = 2048
_MIN_TRIALS = 32
_MIN_SAMPLED_TOKENS = 512
_TOUCHES_PER_EXPERT = 8  # from here on every expert is read (a miss has probability e^-8) and I_d is 1


@dataclass(frozen=True, slots=True)
class ImbalanceFactors:
    """Busiest rank over the mean, in routed tokens (``i_n``) and distinct experts read (``i_d``), and where from."""

    i_n: float
    i_d: float
    source: str = "uniform router"


EVEN = ImbalanceFactors(1.0, 1.0, "no expert parallelism")


@dataclass(frozen=True, slots=True)
class RecordedPoint:
    """Factors of a recorded router at one EP, phase, token count and number of replicas; ``i_d`` where known."""

    ep: int
    phase: Phase
    tokens: int
    i_n: float
    i_d: float | None = None
    redundant: int = 0


@dataclass(frozen=True, slots=True)
class RecordedRouting:
    """Replay of one checkpoint's recorded routing on one kind of prompt."""

    model: str
    prompts: str
    experts: int
    topk: int
    points: tuple[RecordedPoint, ...]
    source: str

    def at(self, ep: int, phase: Phase, redundant: int) -> tuple[RecordedPoint, ...]:
        """Points of one layout and phase, by token count."""
        chosen = (p for p in self.points if (p.ep, p.phase, p.redundant) == (ep, phase, redundant))
        return tuple(sorted(chosen, key=lambda point: point.tokens))


@dataclass(frozen=True, slots=True)
class RankLoad:
    """What the busiest rank computes in one MoE layer: routed rows and distinct experts read."""

    rows: float
    experts_read: float


def imbalance(
    experts: int,
    topk: int,
    ep: int,
    tokens: float,
    phase: Phase,
    redundant: int = 0,
    recording: RecordedRouting | None = None,
) -> ImbalanceFactors:
    """Busiest-rank factors of a step of ``tokens`` tokens at width ``ep``.

    Range: 1 ≤ topk ≤ experts, 1 ≤ ep ≤ experts, tokens ≥ 1. Replicas the recording did not replay follow Eq. 3.

    >>> imbalance(256, 8, 1, 64, "decode")
    ImbalanceFactors(i_n=1.0, i_d=1.0, source='no expert parallelism')
    >>> round(imbalance(256, 8, 8, 64, "decode").i_d, 1)
    1.1
    """
    _check(experts, topk, ep, tokens, redundant)
    if ep == 1:
        return EVEN
    uniform = uniform_factors(experts, topk, ep, tokens)
    if recording is not None:
        return _recorded(recording, experts, topk, ep, tokens, phase, redundant)
    if redundant:
        return ImbalanceFactors(
            with_replicas(uniform.i_n, experts, redundant),
            with_replicas(uniform.i_d, experts, redundant),
            f"uniform router, {redundant} replicas by Eq. 3",
        )
    return uniform


def imbalance_at_both(
    experts: int,
    topk: int,
    anchor_ep: int,
    target_ep: int,
    tokens: float,
    phase: Phase,
    redundant: int = 0,
    recording: RecordedRouting | None = None,
) -> tuple[ImbalanceFactors, ImbalanceFactors]:
    """Factors at the anchor's and at the target's EP; replicas are the target's."""
    anchor = imbalance(experts, topk, anchor_ep, tokens, phase, 0, recording)
    return anchor, imbalance(experts, topk, target_ep, tokens, phase, redundant, recording)


def with_replicas(factor: float, experts: int, redundant: int) -> float:
    """Bound of a factor under EPLB without a recording (Eq. 3): a single slot's share of routed mass stays hot.

    >>> round(with_replicas(1.6, 384, 48), 4)
    1.5333
    """
    return 1.0 + (factor - 1.0) * experts / (experts + redundant)


# ---- uniform router ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def uniform_factors(experts: int, topk: int, ep: int, tokens: float) -> ImbalanceFactors:
    """Factors of a sampled uniform router, linear in log tokens between powers of two.

    Beyond the sampled sizes the rank counts are Gaussian (central limit): see :func:`large_step_i_n`.
    """
    grid, i_n, i_d = _uniform_table(experts, topk, ep)
    if tokens > grid[-1]:
        return ImbalanceFactors(min(i_n[-1], large_step_i_n(experts, topk, ep, tokens)), 1.0)
    return ImbalanceFactors(_at(grid, i_n, tokens), _at(grid, i_d, tokens))


def large_step_i_n(experts: int, topk: int, ep: int, tokens: float) -> float:
    """I_n of many tokens on equal ranks: ``1 + M_R · sqrt(ep / (ep − 1) · v / t) / (k / ep)``.

    ``v`` is the variance of one token's picks on one rank (hypergeometric) and ``M_R`` the expected largest of ``ep``
    standard normals; the counts sum to a constant, hence ``ep / (ep − 1)``.
    """
    if ep == 1:
        return 1.0
    variance = topk / ep * (1 - 1 / ep) * (experts - topk) / max(1, experts - 1)
    return 1.0 + _expected_max_normal(ep) * sqrt(ep / (ep - 1) * variance / tokens) * ep / topk


@lru_cache(maxsize=256)
def _uniform_table(experts: int, topk: int, ep: int) -> tuple[list[float], list[float], list[float]]:
    """Token grid (powers of two), I_n and I_d.

    The running minimum removes sampling noise only: both expectations fall with tokens, I_n because S_t/t is a reverse
    martingale and the maximum is convex.
    """
    last = max(_MIN_SAMPLED_TOKENS, _TOUCHES_PER_EXPERT * experts / topk)
    grid = [1]
    while grid[-1] < last:
        grid.append(grid[-1] * 2)
    factors = [_sample(experts, topk, ep, tokens) for tokens in grid]
    i_n = np.minimum.accumulate([f[0] for f in factors])
    i_d = np.minimum.accumulate([f[1] for f in factors])
    return [float(t) for t in grid], i_n.tolist(), i_d.tolist()


def _sample(experts: int, topk: int, ep: int, tokens: int) -> tuple[float, float]:
    """Mean over trials of both maxima over the mean. The draws do not depend on EP, so factors rise with EP."""
    trials = min(_MAX_TRIALS, max(_MIN_TRIALS, _DRAWS_TOKENS // tokens))
    rng = np.random.default_rng(np.random.SeedSequence(_SEED, spawn_key=(experts, topk, tokens)))
    picks = _sample_topk(rng, trials * tokens, experts, topk)
    cells = picks + np.repeat(np.arange(trials, dtype=np.int32) * experts, tokens)
    counts = np.bincount(cells.ravel(), minlength=trials * experts).reshape(trials, experts)
    starts = rank_starts(experts, ep)
    rows = np.add.reduceat(counts, starts, axis=1)
    distinct = np.add.reduceat((counts > 0).astype(np.int64), starts, axis=1)
    i_n = rows.max(axis=1).mean() * ep / (tokens * topk)
    i_d = distinct.max(axis=1).mean() / distinct.mean()
    return float(i_n), float(i_d)


def _sample_topk(rng: "np.random.Generator", draws: int, experts: int, topk: int) -> npt.NDArray[np.int32]:
    """Shape (topk, draws): uniform subsets without replacement (Floyd's algorithm over all draws at once)."""
    picks = np.empty((topk, draws), dtype=np.int32)
    for row in range(topk):
        top = experts - topk + row
        pick = rng.integers(0, top + 1, size=draws, dtype=np.int32)
        seen = np.zeros(draws, dtype=np.bool_)
        for earlier in picks[:row]:
            seen |= earlier == pick
        picks[row] = np.where(seen, top, pick)
    return picks


def rank_starts(experts: int, ep: int) -> IntArray:
    """First expert of each rank in contiguous placement, as engines place them without load balancing."""
    return np.arange(ep, dtype=np.int64) * experts // ep


@lru_cache(maxsize=256)
def _expected_max_normal(count: int) -> float:
    """Expected largest of ``count`` standard normals: the integral of x · d(Φ(x)^count), by midpoints."""
    step, edge = 1 / 64, 8.0
    points = [-edge + step * i for i in range(int(2 * edge / step) + 1)]
    powers = [(0.5 + 0.5 * erf(x / sqrt(2))) ** count for x in points]
    return sum((x + step / 2) * (high - low) for x, (low, high) in zip(points, pairwise(powers), strict=False))


def _at(grid: Sequence[float], values: Sequence[float], tokens: float) -> float:
    """Linear in log tokens, held at both ends."""
    return float(np.interp(log(tokens), [log(t) for t in grid], values))


# ---- recorded router -----------------------------------------------------------------------------------------------


def _recorded(
    recording: RecordedRouting, experts: int, topk: int, ep: int, tokens: float, phase: Phase, redundant: int
) -> ImbalanceFactors:
    """Uniform factors times the recorded skew, which is interpolated in log tokens and held at the ends."""
    if (recording.experts, recording.topk) != (experts, topk):
        raise BadInput(
            f"recording of {recording.model} is for {recording.experts} experts top-{recording.topk}, "
            f"the model has {experts} top-{topk}"
        )
    points = recording.at(ep, phase, redundant)
    by_eq3 = not points and redundant > 0
    points = points or recording.at(ep, phase, 0)
    uniform = uniform_factors(experts, topk, ep, tokens)
    if not points:
        missing = f"uniform router: the recording of {recording.model} holds no {phase} at EP{ep}"
        return ImbalanceFactors(
            with_replicas(uniform.i_n, experts, redundant), with_replicas(uniform.i_d, experts, redundant), missing
        )
    i_n = uniform.i_n * _skew(points, [point.i_n for point in points], experts, topk, "i_n", tokens)
    with_d = [point for point in points if point.i_d is not None]
    i_d = uniform.i_d
    if with_d:
        i_d *= _skew(with_d, [point.i_d or 1.0 for point in with_d], experts, topk, "i_d", tokens)
    if by_eq3:
        i_n, i_d = with_replicas(i_n, experts, redundant), with_replicas(i_d, experts, redundant)
    source = f"recorded router, {recording.prompts}" + ("" if with_d else ", experts read of a uniform router")
    return ImbalanceFactors(max(1.0, i_n), max(1.0, i_d), source + (", replicas by Eq. 3" if by_eq3 else ""))


def _skew(
    points: Sequence[RecordedPoint],
    values: Sequence[float],
    experts: int,
    topk: int,
    field: Literal["i_n", "i_d"],
    tokens: float,
) -> float:
    """Recorded factor over the uniform one at the recorded token counts, read at ``tokens``."""
    ratios = [
        value / getattr(uniform_factors(experts, topk, point.ep, point.tokens), field)
        for point, value in zip(points, values, strict=True)
    ]
    return _at([point.tokens for point in points], ratios, tokens)


def _check(experts: int, topk: int, ep: int, tokens: float, redundant: int) -> None:
    if not 1 <= topk <= experts:
        raise BadInput(f"topk is {topk}; legal is 1 to {experts} (experts)")
    if not 1 <= ep <= experts:
        raise BadInput(f"ep is {ep}; legal is 1 to {experts} (experts)")
    if tokens < 1:
        raise BadInput(f"tokens is {tokens}; legal is 1 or more")
    if redundant < 0:
        raise BadInput(f"redundant is {redundant}; legal is 0 or more")


# ---- distinct experts ----------------------------------------------------------------------------------------------

# Share of the independent prediction that real tokens touch, against mean routings an expert x = t·k/E. Measured at its
# bottom only, at 64 tokens of a 1/32 router, so x = 2 (paper B.3). One token touches exactly k and many tokens touch
# all, so both ends are 1; the shape between, straight in log x, is assumed. gpt-oss's is fitted to latency, so it holds
# grouped GEMM efficiency too.
_BOTTOM_TOUCHES = 2.0
COVERAGE_BOTTOM = {"independent": 1.0, "deepseek": 0.89, "gpt-oss": 0.78}
# Checkpoints with the router kind that was measured: DeepSeek-V3's sigmoid router with a balancing bias.
_DEEPSEEK_ROUTERS = ("deepseek", "kimi", "glm")


def router_family(model: str) -> str:
    """Coverage family of a checkpoint by its name; ``independent`` where nobody measured.

    >>> router_family("DeepSeek-R1-0528"), router_family("gpt-oss-120b"), router_family("Qwen3.5-397B-A17B")
    ('deepseek', 'gpt-oss', 'independent')
    """
    name = model.lower()
    if "gpt-oss" in name:
        return "gpt-oss"
    return "deepseek" if any(part in name for part in _DEEPSEEK_ROUTERS) else "independent"


def distinct_experts(experts: int, topk: int, tokens: float, family: str = "independent") -> float:
    """Distinct experts that ``tokens`` tokens touch in a layer: ``E · (1 − (1 − k/E)^t)`` times the coverage.

    >>> round(distinct_experts(256, 8, 64), 1), round(distinct_experts(256, 8, 64, "deepseek"), 1)
    (222.4, 198.0)
    """
    if family not in COVERAGE_BOTTOM:
        raise BadInput(f"router family is {family!r}; legal is {', '.join(COVERAGE_BOTTOM)}")
    independent = experts * (1.0 - pow(1.0 - topk / experts, tokens))
    return independent * _coverage(experts, topk, tokens, COVERAGE_BOTTOM[family])


def _coverage(experts: int, topk: int, tokens: float, bottom: float) -> float:
    """1 at one token, ``bottom`` at x = 2, 1 again as far above in log x as one token is below."""
    one_token = topk / experts
    if one_token >= _BOTTOM_TOUCHES or tokens <= 1:
        return 1.0
    depth = log(_BOTTOM_TOUCHES / one_token)
    distance = abs(log(tokens * one_token / _BOTTOM_TOUCHES)) / depth
    return bottom + (1.0 - bottom) * min(1.0, distance)


def busiest_rank(
    experts: int,
    topk: int,
    ep: int,
    tokens: float,
    phase: Phase,
    redundant: int = 0,
    recording: RecordedRouting | None = None,
    family: str = "independent",
) -> RankLoad:
    """Rows and experts of the rank that gates the layer: ``I_n · t·k/R`` rows over ``I_d · d/R`` experts."""
    factors = imbalance(experts, topk, ep, tokens, phase, redundant, recording)
    held = (experts + redundant) / ep
    read = factors.i_d * distinct_experts(experts, topk, tokens, family) / ep
    return RankLoad(factors.i_n * tokens * topk / ep, min(held, read))


# ---- few experts ---------------------------------------------------------------------------------------------------


def few_experts_slowdown(curve: Sequence[tuple[int, float]], experts_read: float) -> float:
    """How much slower than saturated a grouped GEMM over few experts reads HBM, at least 1 (paper B.3).

    ``curve`` holds (experts, share of HBM peak) of the expert dtype, rising; linear in log experts between its points.
    Charged by the group size of one rank. Sharding by TP cuts the bytes without cutting the group and is not charged.

    >>> few_experts_slowdown(((1, 0.25), (16, 0.80)), 1)
    3.2
    """
    if not curve:
        raise DataUnavailable("no few-experts bandwidth curve for this GPU and expert format")
    saturated = max(share for _, share in curve)
    return max(
        1.0, saturated / _at([float(n) for n, _ in curve], [share for _, share in curve], max(1.0, experts_read))
    )
