"""Served runs through the public API: solve an anchor's ladders for steps, move them, price the target's run.

Vendor-neutral. A corpus hands over anchors and targets as :class:`ServedTarget`; what comes back is what a benchmark
would have reported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, log

from predictor.anchors.schedule import ClosedLoopRun, Schedule, schedule
from predictor.anchors.solve import (
    ServedPoint,
    SolvedLadder,
    decode_curve_from_served,
    knot,
    mean_context,
    mean_prompt,
    price_mean,
    prompt_token_ms,
)
from predictor.step.curve import DecodeCurve
from predictor.step.model import PrefillCurve
from predictor.transfer import (
    KernelContext,
    TransferConstants,
    WidthLaw,
    expert_slowness,
    move_decode,
    move_prefill,
    refine_decode,
)
from predictor.transfer.simulated import simulated_token_ms
from predictor.transfer.terms import step_terms

Shape = tuple[int, int]

# Measured over simulated cost of a prompt token by GPU vendor and engine: medians over the corpora's P2 anchors with
# two prompt lengths (121 layouts). It prices a prompt where one length was measured.
PROMPT_COST_OVER_SIMULATED = {
    ("amd", "vllm"): 2.0,
    ("amd", "sglang"): 2.0,
    ("amd", "atom"): 1.25,
    ("nvidia", "vllm"): 1.45,
    ("nvidia", "sglang"): 1.6,
    ("nvidia", "tensorrt-llm"): 1.15,
}
# A step that prefills costs this many times a decode step's fixed part on top of its tokens: it runs outside the
# captured graph. DeepSeek-V4-Pro on MI355X: prefill steps of 143 ms at 1024 and 782 ms at 8192 tokens leave 52 ms at
# none (arXiv 2611.04032 App. E); the fixed part of its public ladders at the same width is 17–18 ms.
PREFILL_FIXED_FACTOR = 3.0
MAX_PREFILL_FIXED_MS = 60.0
_SPLIT_ITERATIONS = 60


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One anchor run: how it was driven and what it reported."""

    run: ClosedLoopRun
    tpot_ms: float
    requests_per_s: float | None = None
    ttft_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ServedMeans:
    """What a benchmark of one replica (or one split) would report."""

    tpot_ms: float
    ttft_ms: float
    requests_per_s: float


@dataclass(frozen=True, slots=True)
class ServedAnchor:
    """An anchor solved for steps: its side of a transfer, ladders and prompt cost by shape."""

    side: KernelContext
    ladders: Mapping[Shape, SolvedLadder]
    runs: Mapping[Shape, tuple[MeasuredRun, ...]]
    prefill: PrefillCurve
    slowness: float  # of expert reads, told by all ladders together


def rate_per_s(plan: Schedule, curve: DecodeCurve, prefill: PrefillCurve, isl_tokens: float) -> float:
    """Requests a second over the whole run, its ramps included."""
    return plan.requests / price_mean(plan.total, curve, prefill, isl_tokens) * 1e3


def token_curve(curve: DecodeCurve, tokens_per_step: float) -> DecodeCurve:
    """Steps as time a committed token."""
    return DecodeCurve(
        curve.batches,
        tuple(step / tokens_per_step for step in curve.step_ms),
        curve.context_tokens,
        curve.tail_ms_per_request / tokens_per_step,
    )


def solve_anchor(
    side: KernelContext,
    runs: Mapping[Shape, Sequence[MeasuredRun]],
    constants: TransferConstants,
) -> ServedAnchor:
    """Solve every ladder of an anchor."""
    per_token = measured_token_ms(side, runs, constants)
    if per_token is None:
        per_token = expected_token_ms(side)
    ladders: dict[Shape, SolvedLadder] = {}
    fixed = 0.0
    for shape, measured in runs.items():
        points = [ServedPoint(m.run, m.tpot_ms, m.ttft_ms) for m in measured]
        fixed = 0.0
        for _ in range(3):
            prefill = PrefillCurve(fixed, per_token, 0.0, fixed)
            solved = decode_curve_from_served(points, prefill, side.tokens_per_step)
            here = replace(side, context_tokens=solved.curve.context_tokens)
            terms = step_terms(here, solved.curve.batches[0], constants)
            left = solved.curve.step_ms[0] - terms.total(1.0 / constants.expert_prior_share)
            left = max(left, constants.fixed_min_frac * solved.curve.step_ms[0])
            fixed = min(MAX_PREFILL_FIXED_MS, PREFILL_FIXED_FACTOR * left)
        ladders[shape] = solved
    curves = [ladder.curve for ladder in ladders.values()]
    sweeps = [(curve, replace(side, context_tokens=curve.context_tokens)) for curve in curves]
    return ServedAnchor(
        side,
        ladders,
        {s: tuple(r) for s, r in runs.items()},
        PrefillCurve(fixed, per_token, 0.0, fixed),
        expert_slowness(sweeps, constants),
    )


def measured_token_ms(
    side: KernelContext, runs: Mapping[Shape, Sequence[MeasuredRun]], constants: TransferConstants
) -> float | None:
    """Cost a prompt token from two prompt lengths of one answer length, ms; None with a single length."""
    shapes = sorted(runs)
    for short in shapes:
        for long in shapes:
            if long[0] > short[0] and long[1] == short[1]:
                return _from_pair(side, runs[short], runs[long], constants)
    return None


def _from_pair(
    side: KernelContext, short: Sequence[MeasuredRun], long: Sequence[MeasuredRun], constants: TransferConstants
) -> float | None:
    near, far = (replace(side, context_tokens=mean_context(runs[0].run)) for runs in (short, long))
    cache = [
        (
            batch,
            (step_terms(far, batch, constants).kv_ms - step_terms(near, batch, constants).kv_ms) / side.tokens_per_step,
        )
        for batch in sorted({knot(m.run) for m in long})
    ]
    value = prompt_token_ms(
        [ServedPoint(m.run, m.tpot_ms) for m in short], [ServedPoint(m.run, m.tpot_ms) for m in long], cache
    )
    return max(value, 1e-3) if value is not None else None


def expected_token_ms(side: KernelContext) -> float:
    """What a prompt token is expected to cost before any prompt was measured."""
    return PROMPT_COST_OVER_SIMULATED[(side.platform.vendor, side.engine)] * simulated_token_ms(side)


@dataclass(frozen=True, slots=True)
class MovedSteps:
    """Step curve (time a token) and prompt cost at a target's layout and shape."""

    curve: DecodeCurve
    prefill: PrefillCurve


def move_anchor(
    anchor: ServedAnchor,
    shape: Shape,
    target: KernelContext,
    constants: TransferConstants,
    law: WidthLaw = "combined",
) -> MovedSteps:
    """Carry one ladder of an anchor to a target."""
    ladder = anchor.ladders[shape]
    source = replace(anchor.side, context_tokens=ladder.curve.context_tokens)
    if source == target:
        curve = refine_decode(ladder.curve, source, constants, anchor.slowness)
    else:
        curve = move_decode(ladder.curve, source, target, law, constants, slowness=anchor.slowness)
    prefill = ladder.prefill
    if law not in ("unchanged", "scale"):
        prefill = move_prefill(prefill, source, target, constants)
    return MovedSteps(token_curve(curve, target.tokens_per_step), prefill)


def predict_colocated(moved: MovedSteps, run: ClosedLoopRun) -> ServedMeans:
    """What a run on one replica reports, before any residual of the anchor."""
    plan = schedule(run)
    isl = mean_prompt(run)
    return ServedMeans(
        tpot_ms=price_mean(plan.tpot, moved.curve, moved.prefill, isl),
        ttft_ms=price_mean(plan.ttft, moved.curve, moved.prefill, isl),
        requests_per_s=rate_per_s(plan, moved.curve, moved.prefill, isl),
    )


@dataclass(frozen=True, slots=True)
class SplitPools:
    """A disaggregated deployment under a closed loop."""

    decode_workers: int
    prefill_workers: int
    prefill: PrefillCurve  # at the prefill workers' layout
    handoff_ms: float = 0.0


def predict_split(moved: MovedSteps, pools: SplitPools, run: ClosedLoopRun) -> ServedMeans:
    """What a split reports: decode without stalls, and a prefill pool that may be the narrower pass.

    Fixed point of ``rate = min(C / (TTFT + n·TPOT(B)), prefill rate)``, ``B = rate · n · TPOT(B) / decode workers``.
    Ramps at both ends of the run cost what they cost a colocated run of the same lengths.
    """
    isl, answer = mean_prompt(run), mean_answer(run)
    prompt_ms = pools.prefill.prompt_ms(round(isl))
    most = pools.prefill_workers / (prompt_ms - pools.prefill.fixed_ms)
    batch = run.clients / pools.decode_workers
    tpot = rate = 0.0
    for _ in range(_SPLIT_ITERATIONS):
        tpot = moved.curve.at(batch)
        rate = min(run.clients / (prompt_ms + pools.handoff_ms + answer * tpot), most)
        wanted = rate * answer * tpot / pools.decode_workers
        batch = max(1.0, min(run.max_running, 0.5 * (batch + wanted)))
    ttft = run.clients / rate - answer * tpot
    return ServedMeans(tpot, ttft, rate * 1e3 * ramp_share(run))


def mean_answer(run: ClosedLoopRun) -> float:
    """Mean answer length of a run, tokens."""
    return run.osl_tokens * (1.0 + run.length_range_frac) / 2.0


def ramp_share(run: ClosedLoopRun) -> float:
    """Share of the clients that are busy on average, from burst to last answer, with steps of equal length."""
    plan = schedule(replace(run, isl_tokens=1))
    return plan.output_tokens / (min(run.clients, run.max_running) * sum(plan.total.decode.values()))


def rate_residual(anchor: ServedAnchor, shape: Shape, clients: float) -> float:
    """Measured over reproduced requests a second of the anchor's ladder, log-interpolated to a load; 1 if unknown."""
    ladder = anchor.ladders[shape]
    curve = token_curve(ladder.curve, anchor.side.tokens_per_step)
    points = []
    for m in anchor.runs[shape]:
        if m.requests_per_s is None:
            continue
        rate = rate_per_s(schedule(m.run), curve, ladder.prefill, mean_prompt(m.run))
        points.append((m.run.clients, log(m.requests_per_s / rate)))
    if not points:
        return 1.0
    return exp(log_interpolate(sorted(points), clients))


def log_interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """Values over rising loads, linear in log load and held at the ends."""
    if x <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if x <= x1:
            return y0 + (y1 - y0) * log(x / x0) / log(x1 / x0)
    return points[-1][1]
