"""The fixed part of a step that prefills, where no TTFT was recorded.

Such a step is launched kernel by kernel, outside the captured graph, whatever its tokens. A ladder shows the time only
as a stall of the others, and a stall a prompt rises with the load as work a request does. With the growth of cache and
expert reads known, and a decoded token taken to cost a share of a prompt token, two prompt lengths tell it::

    TPOT − streams(b) = h + x·E(b) + c·(prompt tokens + s·rows) + F·(steps with a prompt),    h, x, c, F ≥ 0

What one ladder says is noisy (quartiles a factor of two apart), so it is drawn towards what ladders say in the median.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from predictor.anchors.schedule import schedule
from predictor.anchors.solve import ServedPoint, Shape, mean_context
from predictor.linear import non_negative_least_squares
from predictor.transfer import KernelContext, TransferConstants
from predictor.transfer.terms import step_terms

# Cost of a decoded token over a prompt token's: 0 where weight reads hide its arithmetic, 1 where nothing does.
ROW_SHARE = 0.5
# Medians of what the two-length ladders of public AMD runs tell by the equation above: 5.3 times a decode step's own
# fixed part (66 layouts), and 30 ms, which those without speculation tell whatever their decode step (39 layouts).
FIXED_OVER_DECODE = 5.3
TYPICAL_FIXED_MS = 30.0
# One ladder moves it by at most this factor. Upwards that is 60 ms; DeepSeek-V4-Pro on MI355X: prefill steps of 143 ms
# at 1024 and 782 ms at 8192 tokens leave 52 ms at none (arXiv 2611.04032 App. E).
DRAWN_FACTOR = 2.0


def told_fixed_ms(
    side: KernelContext, runs: Mapping[Shape, Sequence[ServedPoint]], constants: TransferConstants
) -> float | None:
    """What an anchor's own ladders say, ms; None with one prompt length, where ``F`` and ``c`` are one unknown."""
    if len({prompt for prompt, _ in runs}) < 2:
        return None
    rows, rhs = [], []
    for _, measured in sorted(runs.items()):
        here = replace(side, context_tokens=mean_context(measured[0].run))
        for point in measured:
            row, known_ms = _equation(here, point, constants)
            rows.append(row / point.tpot_ms)
            rhs.append(1.0 - known_ms / point.tpot_ms)
    matrix = np.array(rows)
    experts = matrix[:, 1]
    if not experts.any():
        return float(non_negative_least_squares(matrix[:, [0, 2, 3]], np.array(rhs))[-1])
    weight = constants.prior_weight * float(np.median(experts))
    matrix = np.vstack([matrix, [0.0, weight, 0.0, 0.0]])
    return float(non_negative_least_squares(matrix, np.append(rhs, weight / constants.expert_prior_share))[-1])


def _equation(side: KernelContext, point: ServedPoint, constants: TransferConstants) -> tuple[np.ndarray, float]:
    """Weights of ``h``, ``x``, ``c`` and ``F`` in a run's TPOT, and its known streams, ms a token."""
    usage = schedule(point.run).tpot
    steps = experts_ms = decoded = known_ms = 0.0
    for batch, weight in usage.decode.items():
        terms = step_terms(side, batch, constants)
        a_token = weight / side.tokens_per_step
        known_ms += a_token * (terms.dense_ms + terms.kv_ms + terms.allreduce_ms)
        steps += a_token
        experts_ms += a_token * terms.expert_ms
        decoded += a_token * side.step_tokens(batch)
    tokens = usage.prompt_tokens + ROW_SHARE * decoded
    return np.array([steps, experts_ms, tokens, usage.prefill_steps]), known_ms


def drawn_fixed_ms(told_ms: float | None, decode_fixed_ms: float) -> float:
    """``F`` from a ladder's own word and from a decode step's fixed part, ms.

    >>> [drawn_fixed_ms(told, 10.0) for told in (None, 0.0, 40.0, 200.0)]
    [30.0, 15.0, 40.0, 60.0]
    """
    typical = min(FIXED_OVER_DECODE * decode_fixed_ms, TYPICAL_FIXED_MS)
    if told_ms is None:
        return typical
    return min(max(told_ms, typical / DRAWN_FACTOR), typical * DRAWN_FACTOR)
