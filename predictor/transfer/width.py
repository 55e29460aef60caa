"""Decode steps across layouts: the literal Eq. 1 of the paper and the laws scored beside it.

``floor_split`` moves each part of a step by its own mechanism::

    s'(b) = h + D' + K'(b) + x·E'(b) + A'(b) + g(b)·(w/w')^γ

with ``h`` fixed cost (launches, sampling, host), ``D`` dense and attention weights, ``K`` cache reads, ``E`` expert
bytes of the busiest rank over the HBM peak, ``A`` all-reduces, and ``g`` what is left of the growth with batch. ``x``
comes from the ladder's own growth (:mod:`predictor.transfer.identify`), ``h`` is what the terms leave of the cheapest
step. At equal layout and context every term cancels and the measured step is returned exactly. ``simulated`` multiplies
the measured step by the ratio of simulated steps. ``combined`` (the default) is the geometric mean of the two, weighted
by how far public kernel tables back the simulation on the platform: two estimates whose errors differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, log2
from typing import Literal, get_args

from predictor.errors import AnchorRefused, BadInput
from predictor.step.curve import DecodeCurve
from predictor.transfer.constants import TransferConstants, default_constants
from predictor.transfer.context import KernelContext
from predictor.transfer.identify import split_ladder
from predictor.transfer.prefill import prefill_ratio
from predictor.transfer.terms import step_terms

WidthLaw = Literal["combined", "floor_split", "simulated", "eq1", "scale", "unchanged"]

RHO_BOUNDS = (0.5, 1.0)  # paper B.1: an ideal halving, and no gain
MIN_EXCESS_MS = 1.0  # paper §3.1.2: below it the ratio of excesses is noise
# No kernel reads experts faster than the HBM peak; half of the bytes is margin for a router that touches fewer experts
# than a uniform one (0.78 is the least recorded) and for drafted tokens of one request, which route alike.
_LEAST_SLOWNESS = 0.5
# Weight of the simulated shape over batch against that of the terms: neither is preferred.
_SHAPE_WEIGHT = 0.5
# Batches added above a ladder's last one, so that terms which bend there (distinct experts) are followed.
_EXTENSION_FACTORS = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Shrink:
    """Measured ρ per doubling at rising batches (paper B.1)."""

    batches: tuple[float, ...]
    rho: tuple[float, ...]

    def at(self, batch: float) -> float:
        """Interpolated in log batch, held at the ends."""
        if batch <= self.batches[0]:
            return self.rho[0]
        for low, high, left, right in zip(self.batches, self.batches[1:], self.rho, self.rho[1:], strict=False):
            if batch <= high:
                return left + (right - left) * log(batch / low) / log(high / low)
        return self.rho[-1]


def measured_shrink(curve: DecodeCurve, half_width: DecodeCurve) -> Shrink | None:
    """ρ per doubling from a sibling harvested at half the width (paper §3.1.2, B.1).

    The ratio of the excesses above each sweep's own batch-1 step, at shared batches above 1 whose excess at the half
    width is at least 1 ms, clamped to [0.5, 1]. None where no batch qualifies.
    """
    floor, half_floor = curve.step_ms[0], half_width.step_ms[0]
    steps, half_steps = (dict(zip(c.batches, c.step_ms, strict=True)) for c in (curve, half_width))
    shared = sorted(set(steps) & set(half_steps) - {min(curve.batches), min(half_width.batches)})
    pairs = [(b, steps[b] - floor, half_steps[b] - half_floor) for b in shared]
    kept = [(b, excess / half) for b, excess, half in pairs if half >= MIN_EXCESS_MS and excess >= MIN_EXCESS_MS]
    if not kept:
        return None
    low, high = RHO_BOUNDS
    return Shrink(tuple(float(b) for b, _ in kept), tuple(min(high, max(low, ratio)) for _, ratio in kept))


def check_movable(source: KernelContext, target: KernelContext) -> None:
    """Raise AnchorRefused where the two sides differ in what no width law moves."""
    differing = [
        f"{field} {getattr(source, field)!r} against {getattr(target, field)!r}"
        for field in ("engine", "precision", "draft_depth", "tokens_per_step")
        if getattr(source, field) != getattr(target, field)
    ]
    for name in ("card", "platform"):
        a, b = getattr(source, name).name, getattr(target, name).name
        differing += [f"{name} {a} against {b}"] if a != b else []
    if differing:
        raise AnchorRefused(f"no width law moves between kernel sets that differ in {', '.join(differing)}")


def move_decode(
    curve: DecodeCurve,
    source: KernelContext,
    target: KernelContext,
    law: WidthLaw = "combined",
    constants: TransferConstants | None = None,
    shrink: Shrink | None = None,
    slowness: float | None = None,
) -> DecodeCurve:
    """Carry a decode sweep from one layout (and context) to another.

    Batches are those of the sweep, and multiples of its last one, over the whole replica. ``shrink`` is used by ``eq1``
    only. ``slowness`` of expert reads is told by the sweep itself unless :func:`expert_slowness` told it from several.
    Identity at equal layout and context, exactly.
    """
    check_movable(source, target)
    known = constants or default_constants(source.platform)
    if law == "unchanged" or source == target:
        return curve
    ratio = source.gpus / target.gpus
    if law == "scale":
        return _scaled(curve, [step * ratio for step in curve.step_ms], ratio)
    if law == "eq1":
        return equation_1(curve, source.gpus, target.gpus, shrink)
    moves = {"floor_split": _floor_split, "simulated": _simulated, "combined": _combined}
    if law in moves:
        return moves[law](curve, source, target, known, slowness)
    raise BadInput(f"width law {law!r} is not known; known: {', '.join(get_args(WidthLaw))}")


def expert_slowness(
    sweeps: Sequence[tuple[DecodeCurve, KernelContext]], constants: TransferConstants | None = None
) -> float:
    """How much slower than the HBM peak one layout's sweeps read experts, told by all of them together."""
    known = constants or default_constants(sweeps[0][1].platform)
    batches = [float(b) for curve, _ in sweeps for b in curve.batches]
    steps = [step for curve, _ in sweeps for step in curve.step_ms]
    terms = [step_terms(side, b, known) for curve, side in sweeps for b in curve.batches]
    split = split_ladder(batches, steps, terms, 1.0 / known.expert_prior_share, known.prior_weight)
    return max(_LEAST_SLOWNESS, split.expert_slowness)


def refine_decode(
    curve: DecodeCurve,
    side: KernelContext,
    constants: TransferConstants | None = None,
    slowness: float | None = None,
) -> DecodeCurve:
    """A sparse sweep filled between, below and above its batches by the terms of its own layout.

    Measured steps are kept to the last bit. Between loads a factor of eight apart the terms follow what a straight
    line in log batch cannot: distinct experts and cache bytes. How a simulated step bends over batch at one layout is
    as good a guide, whatever its level, so both count alike. Other loads of public AMD ladders: 6.0% by lines in log
    batch, 3.3% by terms, 2.9% by both.
    """
    known = constants or default_constants(side.platform)
    by_terms = _floor_split(curve, side, side, known, slowness)
    return _geometric_mean(by_terms, _simulated(curve, side, side, known), _SHAPE_WEIGHT)


def equation_1(curve: DecodeCurve, width: int, target_width: int, shrink: Shrink | None = None) -> DecodeCurve:
    """``s_w'(b) = f + (s_w(b) − f)·ρ`` with f the cheapest step of the sweep (paper Eq. 1).

    ρ is w/w' unless measured; a measured ρ is raised to the number of doublings.

    >>> equation_1(DecodeCurve((1, 8), (10.0, 14.0), 0.0), 4, 8).step_ms
    (10.0, 12.0)
    """
    floor = min(curve.step_ms)
    doublings = log2(target_width / width)
    ratios = [shrink.at(b) ** doublings if shrink else width / target_width for b in curve.batches]
    steps = [floor + (step - floor) * rho for step, rho in zip(curve.step_ms, ratios, strict=True)]
    return _scaled(curve, steps, ratios[-1])


def _scaled(curve: DecodeCurve, steps: Sequence[float], tail_ratio: float) -> DecodeCurve:
    return DecodeCurve(curve.batches, tuple(steps), curve.context_tokens, curve.tail_ms_per_request * tail_ratio)


def refined_batches(batches: Sequence[int]) -> tuple[int, ...]:
    """Batches of a sweep, the powers of two between and below them, and multiples of the last one.

    >>> refined_batches([4, 32])[:6]
    (1, 2, 4, 8, 16, 32)
    """
    last = batches[-1]
    between = {2**i for i in range(last.bit_length()) if 2**i < last}
    return tuple(sorted({*batches, *between, *(last * factor for factor in _EXTENSION_FACTORS)}))


def _floor_split(
    curve: DecodeCurve,
    source: KernelContext,
    target: KernelContext,
    constants: TransferConstants,
    slowness: float | None = None,
) -> DecodeCurve:
    here = [step_terms(source, b, constants) for b in curve.batches]
    if slowness is None:
        slowness = expert_slowness([(curve, source)], constants)
    left = [step - t.total(slowness) for step, t in zip(curve.step_ms, here, strict=True)]
    fixed = max(min(left), constants.fixed_min_frac * curve.step_ms[0])
    shrink = (source.gpus / target.gpus) ** constants.growth_exponent - 1.0
    # What the terms leave of a step, moved: interpolated between measured batches, while the terms are exact at each.
    moved = tuple(value + max(0.0, value - fixed) * shrink for value in left)
    tail = curve.tail_ms_per_request * prefill_ratio(source, target, curve.tail_ms_per_request, constants)
    rest = DecodeCurve(curve.batches, moved, curve.context_tokens, tail)
    # At a measured batch the step moves by differences, so that a layout moved onto itself returns it to the last bit.
    measured = {
        batch: step + (there.total(slowness) - t.total(slowness)) + max(0.0, value - fixed) * shrink
        for batch, step, t, there, value in zip(
            curve.batches,
            curve.step_ms,
            here,
            [step_terms(target, b, constants) for b in curve.batches],
            left,
            strict=True,
        )
    }
    floor = constants.fixed_min_frac * min(curve.step_ms)
    batches = refined_batches(curve.batches)
    steps = [
        measured[b] if b in measured else rest.at(b) + step_terms(target, b, constants).total(slowness) for b in batches
    ]
    return DecodeCurve(batches, tuple(max(floor, step) for step in steps), target.context_tokens, tail)


def _simulated(
    curve: DecodeCurve,
    source: KernelContext,
    target: KernelContext,
    constants: TransferConstants,
    slowness: float | None = None,
) -> DecodeCurve:
    """``s'(b) = s(b) · S'(b)/S(b)`` with S simulated; the ratio s/S is interpolated between measured batches."""
    from predictor.transfer.simulated import simulated_step_ms  # kernel models load only where they are needed

    scale = DecodeCurve(
        curve.batches,
        tuple(step / simulated_step_ms(source, b) for b, step in zip(curve.batches, curve.step_ms, strict=True)),
        curve.context_tokens,
    )
    tail = curve.tail_ms_per_request * prefill_ratio(source, target, curve.tail_ms_per_request, constants)
    known = dict(zip(curve.batches, curve.step_ms, strict=True)) if source == target else {}
    batches = refined_batches(curve.batches)
    steps = tuple(known.get(b) or scale.at(b) * simulated_step_ms(target, b) for b in batches)
    return DecodeCurve(batches, steps, target.context_tokens, tail)


def _combined(
    curve: DecodeCurve,
    source: KernelContext,
    target: KernelContext,
    constants: TransferConstants,
    slowness: float | None = None,
) -> DecodeCurve:
    by_terms = _floor_split(curve, source, target, constants, slowness)
    if constants.simulated_weight == 0.0:
        return by_terms
    return _geometric_mean(by_terms, _simulated(curve, source, target, constants), constants.simulated_weight)


def _geometric_mean(first: DecodeCurve, second: DecodeCurve, weight: float) -> DecodeCurve:
    """Of two curves on the same batches; equal steps come back unchanged."""
    steps = [
        a if a == b else a ** (1.0 - weight) * b**weight for a, b in zip(first.step_ms, second.step_ms, strict=True)
    ]
    return DecodeCurve(first.batches, tuple(steps), first.context_tokens, first.tail_ms_per_request)
