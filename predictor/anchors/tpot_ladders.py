"""Ladders of served runs that recorded no TTFT, solved for their steps and the cost of a prompt.

TPOT alone does not tell what a prompt stalls the others by from what a step grows by: both rise with the load. Two
prompt lengths tell the cost a prompt token ``c``; with one it is expected from the kernel models. The fixed part ``F``
of a step that prefills is told, within bounds, by :mod:`predictor.anchors.prompt_fixed`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from predictor.anchors.prompt_fixed import drawn_fixed_ms, told_fixed_ms
from predictor.anchors.solve import (
    ServedPoint,
    SolvedLadder,
    decode_curve_from_served,
    knot,
    mean_context,
    prompt_token_ms,
)
from predictor.step.model import PrefillCurve
from predictor.transfer import KernelContext, TransferConstants
from predictor.transfer.simulated import simulated_token_ms
from predictor.transfer.terms import step_terms

Shape = tuple[int, int]

# Measured over simulated cost of a prompt token by GPU vendor and engine: medians over the corpora's P2 anchors with
# two prompt lengths (121 layouts). It prices a prompt where one length was measured.
PROMPT_COST_OVER_SIMULATED = {
    ("amd", "vLLM"): 2.0,
    ("amd", "SGLang"): 2.0,
    ("amd", "ATOM"): 1.25,
    ("nvidia", "vLLM"): 1.45,
    ("nvidia", "SGLang"): 1.6,
    ("nvidia", "TensorRT-LLM"): 1.15,
}


@dataclass(frozen=True, slots=True)
class ServedAnchor:
    """An anchor solved for steps: ladders by shape, and what a prompt costs."""

    ladders: Mapping[Shape, SolvedLadder]
    prefill: PrefillCurve


def solve_anchor(
    side: KernelContext,
    runs: Mapping[Shape, Sequence[ServedPoint]],
    constants: TransferConstants,
) -> ServedAnchor:
    """Solve every ladder of an anchor."""
    per_token = measured_token_ms(side, runs, constants)
    if per_token is None:
        per_token = expected_token_ms(side)
    told = told_fixed_ms(side, runs, constants)
    ladders: dict[Shape, SolvedLadder] = {}
    fixed = 0.0
    for shape, measured in runs.items():
        fixed = 0.0
        for _ in range(3):
            prefill = PrefillCurve(fixed, per_token, 0.0, fixed)
            solved = decode_curve_from_served(measured, prefill, side.tokens_per_step)
            here = replace(side, context_tokens=solved.curve.context_tokens)
            terms = step_terms(here, solved.curve.batches[0], constants)
            left = solved.curve.step_ms[0] - terms.total(1.0 / constants.expert_prior_share)
            left = max(left, constants.fixed_min_frac * solved.curve.step_ms[0])
            fixed = drawn_fixed_ms(told, left)
        ladders[shape] = solved
    return ServedAnchor(ladders, PrefillCurve(fixed, per_token, 0.0, fixed))


def measured_token_ms(
    side: KernelContext, runs: Mapping[Shape, Sequence[ServedPoint]], constants: TransferConstants
) -> float | None:
    """Cost a prompt token from two prompt lengths of one answer length, ms; None with a single length."""
    shapes = sorted(runs)
    for short in shapes:
        for long in shapes:
            if long[0] > short[0] and long[1] == short[1]:
                return _from_pair(side, runs[short], runs[long], constants)
    return None


def _from_pair(
    side: KernelContext, short: Sequence[ServedPoint], long: Sequence[ServedPoint], constants: TransferConstants
) -> float | None:
    near, far = (replace(side, context_tokens=mean_context(runs[0].run)) for runs in (short, long))
    cache = [
        (
            batch,
            (step_terms(far, batch, constants).kv_ms - step_terms(near, batch, constants).kv_ms) / side.tokens_per_step,
        )
        for batch in sorted({knot(m.run) for m in long})
    ]
    value = prompt_token_ms(short, long, cache)
    return max(value, 1e-3) if value is not None else None


def expected_token_ms(side: KernelContext) -> float:
    """What a prompt token is expected to cost before any prompt was measured."""
    return PROMPT_COST_OVER_SIMULATED[(side.platform.vendor, side.engine)] * simulated_token_ms(side)
