"""Step times out of served runs: what people have is benchmark files, what a step model needs is steps.

Under continuous batching every admitted prompt stalls the others' decode, so a mean TPOT is 1.14–1.41 times the step
(paper G.1); feeding it to a simulator counts the stalls twice. A closed loop's means are linear in the step prices
(:mod:`predictor.anchors.schedule`), so a ladder of loads is a small linear system::

    TPOT_j = Σ_k Φ_jk · s_k + τ_j(c, G, F),     Φ from the schedule at load j, interpolated in log batch between knots

Two prompt lengths at equal loads tell the cost a prompt token ``c`` (what the longer prompt adds, less the cache it
makes a step read); with one length ``c`` must be given. A ladder whose unknowns outnumber its runs says so.

Where TTFT was recorded it is one more linear mean, and all ladders of a layout are solved together
(:func:`solve_ladders`): steps by shape and batch, ``c``, ``G``, ``F`` and the host time ``H`` of a request, none
negative. A light load tells ``H + F + c·n``, the burst of a heavy one ``F`` and ``G`` without ``H``.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import log
from statistics import median

import numpy as np

from predictor.anchors.schedule import ClosedLoopRun, Schedule, Usage, schedule
from predictor.errors import BadInput
from predictor.linear import non_negative_least_squares
from predictor.step.curve import DecodeCurve
from predictor.step.model import PrefillCurve

Shape = tuple[int, int]  # nominal prompt and answer tokens

# Weights of a joint solution, on relative errors. A repeated TTFT differs by 2.5–3.7% and a repeated TPOT by 0.4–0.7%
# (public runs of one image, medians); cache bytes tie two shapes' steps to some tens of percent.
TTFT_WEIGHT = 0.35
SHAPE_TIE_WEIGHT = 2.0
# No prompt is free: a tenth of a token's expected cost is beyond the GPU's peak. Runs that leave prompts to the host
# alone (few loads, one short answer length) are solved for less.
LEAST_TOKEN_SHARE = 0.1
TOKEN_PRIOR_WEIGHT = 0.1
# Ridge that keeps F, G and H at zero unless runs ask for them, against sizes at which they would matter, ms.
RIDGE = 0.02
_RIDGE_SIZES_MS = {"F": 10.0, "G": 10.0, "H": 50.0}

_MIN_LOADS_FOR_SLOPE = 3
# Steps solved from noisy runs stay above this share of the run's own TPOT: a stall cannot be all of it.
_MIN_STEP_FRAC = 0.2


@dataclass(frozen=True, slots=True)
class ServedPoint:
    """One benchmark run and what it reported, ms."""

    run: ClosedLoopRun
    tpot_ms: float
    ttft_ms: float | None = None


@dataclass(frozen=True, slots=True)
class SolvedLadder:
    """Step curve of one ladder, how well it reproduces the runs, and whether the runs determine it."""

    curve: DecodeCurve
    prefill: PrefillCurve
    residual_pct: float  # median over the runs of |reproduced / measured − 1|
    determined: bool
    notes: tuple[str, ...] = ()


def interpolation_weights(knots: Sequence[float], batch: float) -> list[tuple[int, float]]:
    """Indices and weights of log-linear interpolation in batch, held at the ends.

    >>> interpolation_weights([1, 4], 2)
    [(0, 0.5), (1, 0.5)]
    """
    if batch <= knots[0]:
        return [(0, 1.0)]
    if batch >= knots[-1]:
        return [(len(knots) - 1, 1.0)]
    right = bisect_left(knots, batch)
    share = log(batch / knots[right - 1]) / log(knots[right] / knots[right - 1])
    return [(right - 1, 1.0 - share), (right, share)]


def decode_row(usage: Usage, knots: Sequence[float]) -> list[float]:
    """Weights of a mean on the step at each knot."""
    row = [0.0] * len(knots)
    for batch, weight in usage.decode.items():
        for index, share in interpolation_weights(knots, batch):
            row[index] += weight * share
    return row


def stall_ms(usage: Usage, prefill: PrefillCurve, isl_tokens: float) -> float:
    """What prompts add to a mean: their tokens, their fixed part a step, their cost each."""
    per_token = prefill.per_token_ms + prefill.per_token2_ms * isl_tokens
    return usage.price(lambda _: 0.0, per_token, prefill.per_request_ms, prefill.mixed_fixed_ms)


def price_mean(usage: Usage, curve: DecodeCurve, prefill: PrefillCurve, isl_tokens: float) -> float:
    """A mean of a run from a step curve and prompt coefficients, ms."""
    return usage.price(curve.at, 0.0, 0.0, 0.0) + stall_ms(usage, prefill, isl_tokens)


def mean_prompt(run: ClosedLoopRun) -> float:
    """Mean prompt length of a run, tokens."""
    return run.isl_tokens * (1.0 + run.length_range_frac) / 2.0


def mean_context(run: ClosedLoopRun) -> float:
    """Mean context of a sequence in decode, tokens: its prompt and half of its answer."""
    return mean_prompt(run) + run.osl_tokens * (1.0 + run.length_range_frac) / 4.0


def knot(run: ClosedLoopRun) -> int:
    """Batch that stands for a load: its clients, up to the running cap."""
    return min(run.clients, run.max_running)


def prompt_token_ms(
    short: Sequence[ServedPoint], long: Sequence[ServedPoint], cache_ms: Sequence[tuple[int, float]]
) -> float | None:
    """Cost a prompt token from two ladders of one layout at equal loads.

    What the longer prompt adds to TPOT, less the cache it makes a step read, against the prompt tokens that stall a
    token: the slope over loads, as the median of the slopes between any two (Theil and Sen). A difference that does not
    grow with load belongs to the steps, and loads at which the two ran different batches say nothing. With two loads or
    fewer, the slope through the origin of the heaviest.

    ``cache_ms`` gives, for each batch, what the longer context adds to a step. None without a shared load above one.
    """
    added = dict(cache_ms)
    by_load = {point.run.clients: point for point in short}
    pairs = []
    for point in long:
        other = by_load.get(point.run.clients)
        if other is None or point.run.clients < 2 or knot(other.run) != knot(point.run):
            continue
        tokens = schedule(point.run).tpot.prompt_tokens - schedule(other.run).tpot.prompt_tokens
        if tokens > 0.0:
            pairs.append((tokens, point.tpot_ms - other.tpot_ms - added.get(knot(point.run), 0.0)))
    if not pairs:
        return None
    slopes = [(d1 - d0) / (t1 - t0) for (t0, d0), (t1, d1) in combinations(sorted(pairs), 2) if t1 > t0]
    if len(pairs) < _MIN_LOADS_FOR_SLOPE:
        tokens, difference = max(pairs)
        return difference / tokens
    return median(slopes)


def decode_curve_from_served(
    points: Sequence[ServedPoint], prefill: PrefillCurve, tokens_per_step: float = 1.0
) -> SolvedLadder:
    """Solve a ladder of loads at one shape for its steps.

    ``prefill`` is in ms of wall time; ``tokens_per_step`` scales the curve from time a token to time a verify step.
    Loads that run the same batch (a running cap) are averaged by least squares.
    """
    if not points:
        raise BadInput("a served ladder needs at least one run")
    ordered = sorted(points, key=lambda point: point.run.clients)
    knots = sorted({knot(point.run) for point in ordered})
    plans: list[Schedule] = [schedule(point.run) for point in ordered]
    measured = np.array([point.tpot_ms for point in ordered])
    stalls = np.array(
        [stall_ms(plan.tpot, prefill, mean_prompt(p.run)) for plan, p in zip(plans, ordered, strict=True)]
    )
    matrix = np.array([decode_row(plan.tpot, knots) for plan in plans])
    solution, _, rank, _ = np.linalg.lstsq(matrix / measured[:, None], (measured - stalls) / measured, rcond=None)
    floor = [_MIN_STEP_FRAC * min(p.tpot_ms for p in ordered if knot(p.run) == k) for k in knots]
    steps = [max(low, float(value)) for low, value in zip(floor, solution, strict=True)]
    reproduced = matrix @ np.array(steps) + stalls
    notes = []
    if any(step == low for step, low in zip(steps, floor, strict=True)):
        notes.append("stalls exceed a run's TPOT: its step is held at a fifth of it")
    determined = int(rank) == len(knots) and len(ordered) > 1
    if not determined:
        notes.append("fewer independent runs than batches: steps between them are interpolated")
    curve = DecodeCurve(
        tuple(knots),
        tuple(step * tokens_per_step for step in steps),
        mean_context(ordered[0].run),
        prefill.per_token_ms * tokens_per_step,
    )
    residual = float(np.median(np.abs(reproduced / measured - 1.0)) * 100.0)
    return SolvedLadder(curve, prefill, residual, determined, tuple(notes))


@dataclass(frozen=True, slots=True)
class SolvedLayout:
    """All ladders of one layout, solved together: curves by shape, prompt coefficients, host time of a request."""

    curves: Mapping[Shape, DecodeCurve]
    prefill: PrefillCurve
    host_ms: float


def solve_ladders(
    ladders: Mapping[Shape, Sequence[ServedPoint]],
    added_cache_ms: Callable[[Shape, Shape, int], float],
    ttft_weights: Mapping[Shape, float] | None = None,
    token_prior_ms: float | None = None,
) -> SolvedLayout:
    """Solve the ladders of one layout for steps, ``c``, ``G``, ``F`` and ``H`` by non-negative least squares.

    ``added_cache_ms(short, long, batch)`` is what the longer shape's cache adds to a step. ``ttft_weights`` lowers a
    shape's TTFT where its record is in doubt. ``token_prior_ms`` is what a prompt token is expected to cost: it decides
    where one prompt length leaves ``c`` and ``H`` indistinct.
    """
    shapes = sorted(ladders)
    knots = {shape: sorted({knot(point.run) for point in ladders[shape]}) for shape in shapes}
    columns = {pair: i for i, pair in enumerate((s, b) for s in shapes for b in knots[s])}
    size = len(columns)
    names = {"c": size, "G": size + 1, "F": size + 2, "H": size + 3}
    rows: list[list[float]] = []
    rhs: list[float] = []

    def add(entries: Mapping[int, float], value: float, weight: float) -> None:
        row = [0.0] * (size + len(names))
        for column, entry in entries.items():
            row[column] += entry * weight
        rows.append(row)
        rhs.append(value * weight)

    for shape in shapes:
        first = columns[(shape, knots[shape][0])]
        for point in ladders[shape]:
            plan = schedule(point.run)
            means = [(plan.tpot, point.tpot_ms, 1.0, 0.0)]
            if point.ttft_ms is not None:
                means.append((plan.ttft, point.ttft_ms, TTFT_WEIGHT * (ttft_weights or {}).get(shape, 1.0), 1.0))
            for usage, measured, weight, host in means:
                steps = {first + i: value for i, value in enumerate(decode_row(usage, knots[shape]))}
                prompt = {"c": usage.prompt_tokens, "G": usage.prompts, "F": usage.prefill_steps, "H": host}
                add(steps | {names[name]: value for name, value in prompt.items()}, measured, weight / measured)
    for short, long in _pairs(shapes):
        scale = min(point.tpot_ms for point in ladders[short])
        for batch in sorted(set(knots[short]) & set(knots[long])):
            tie = {columns[(long, batch)]: 1.0, columns[(short, batch)]: -1.0}
            add(tie, added_cache_ms(short, long, batch), SHAPE_TIE_WEIGHT / scale)
    if token_prior_ms is not None:
        add({names["c"]: 1.0}, token_prior_ms, TOKEN_PRIOR_WEIGHT / token_prior_ms)
    for name, typical in _RIDGE_SIZES_MS.items():
        add({names[name]: 1.0}, 0.0, RIDGE / typical)
    solution = non_negative_least_squares(np.array(rows), np.array(rhs))
    per_token, per_request, fixed, host_ms = (float(value) for value in solution[size:])
    per_token = max(per_token, LEAST_TOKEN_SHARE * (token_prior_ms or 0.0))
    curves = {}
    for shape in shapes:
        floor = _MIN_STEP_FRAC * min(point.tpot_ms for point in ladders[shape])
        steps_ms = tuple(max(floor, float(solution[columns[(shape, b)]])) for b in knots[shape])
        curves[shape] = DecodeCurve(tuple(knots[shape]), steps_ms, mean_context(ladders[shape][0].run), per_token)
    return SolvedLayout(curves, PrefillCurve(fixed, per_token, 0.0, fixed, per_request), host_ms)


def _pairs(shapes: Sequence[Shape]) -> list[tuple[Shape, Shape]]:
    return [(a, b) for i, a in enumerate(shapes) for b in shapes[i + 1 :]]
