"""How fast a ladder reads its experts, told by its own growth with batch.

A MoE step over ``b`` tokens touches ``D(b)`` distinct experts. What a measured ladder gains from one load to the next,
beyond cache, dense weights and all-reduces, is expert bytes and work per token::

    s(b) − dense − kv(b) − allreduce(b) = h + x · E(b) + y · b,    h, x, y ≥ 0

with ``E(b)`` the expert bytes over the HBM peak. ``x`` is how much slower than the peak the engine's kernels read
experts on this GPU. It decides how much of a light step is expert streaming, which a wider layout cuts, and how much is
fixed. Where growth cannot tell ``x`` from ``y`` it is drawn to a prior by one ridge row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from predictor.linear import non_negative_least_squares
from predictor.transfer.terms import StepTerms


@dataclass(frozen=True, slots=True)
class LadderSplit:
    """``h``, ``x`` and ``y`` of a ladder; ms, a ratio, ms a request."""

    fixed_ms: float
    expert_slowness: float
    per_request_ms: float


def split_ladder(
    batches: Sequence[float],
    step_ms: Sequence[float],
    terms: Sequence[StepTerms],
    prior_slowness: float,
    prior_weight: float,
) -> LadderSplit:
    """Solve a ladder for its fixed part, its expert slowness and its cost a request, on relative errors."""
    steps = np.asarray(step_ms, dtype=float)
    known = np.array([term.dense_ms + term.kv_ms + term.allreduce_ms for term in terms])
    experts = np.array([term.expert_ms for term in terms])
    has_experts = bool((experts > 0.0).any())
    columns = [np.ones_like(steps), experts, np.asarray(batches, dtype=float)]
    matrix = np.stack(columns, axis=1) / steps[:, None]
    rhs = (steps - known) / steps
    if not has_experts:
        fixed, per_request = non_negative_least_squares(matrix[:, [0, 2]], rhs)
        return LadderSplit(float(fixed), prior_slowness, float(per_request))
    weight = prior_weight * float(np.median(matrix[:, 1]))
    matrix = np.vstack([matrix, [0.0, weight, 0.0]])
    rhs = np.append(rhs, weight * prior_slowness)
    fixed, slowness, per_request = non_negative_least_squares(matrix, rhs)
    return LadderSplit(float(fixed), float(slowness), float(per_request))
