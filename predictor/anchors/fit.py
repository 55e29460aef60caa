"""Fit ``T(n) = F + c1·n + c2·n²`` to a prefill sweep (paper §3.1.1)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from predictor.errors import BadInput

# Relative weights: a sweep spans two decades of lengths, and each length should count alike.
_MIN_POINTS_FOR_QUADRATIC = 4


@dataclass(frozen=True, slots=True)
class PrefillFit:
    """Coefficients in ms, ms/token, ms/token² and the root mean square residual in ms."""

    fixed_ms: float
    per_token_ms: float
    per_token2_ms: float
    rms_residual_ms: float


def fit_prefill(tokens: Sequence[int], step_ms: Sequence[float], quadratic: bool = True) -> PrefillFit:
    """Least squares on relative errors with all coefficients kept non-negative.

    Terms a negative coefficient would need are dropped, the quadratic first: a step never gets cheaper with length.
    Fewer than four lengths cannot tell a quadratic term from noise, so it is left at zero, as without ``quadratic``.

    >>> fit = fit_prefill([1000, 2000, 4000, 8000], [20.0, 30.0, 50.0, 90.0])
    >>> round(fit.fixed_ms, 6), round(fit.per_token_ms, 9), fit.per_token2_ms < 1e-12
    (10.0, 0.01, True)
    """
    if len(tokens) != len(step_ms) or not tokens:
        raise BadInput(f"a prefill sweep needs as many times as lengths, got {len(step_ms)} and {len(tokens)}")
    if min(tokens) <= 0 or not all(math.isfinite(value) and value > 0 for value in step_ms):
        raise BadInput("a prefill sweep needs positive lengths and times")
    n = np.asarray(tokens, dtype=float)
    y = np.asarray(step_ms, dtype=float)
    columns = {"F": np.ones_like(n), "c1": n, "c2": n * n}
    distinct = len(set(tokens))
    names = ["F", "c1", "c2"] if quadratic and distinct >= _MIN_POINTS_FOR_QUADRATIC else ["F", "c1"]
    if distinct == 1:
        names = ["c1"]
    while True:
        matrix = np.stack([columns[name] for name in names], axis=1) / y[:, None]
        scale = matrix.max(axis=0)
        solution, *_ = np.linalg.lstsq(matrix / scale, np.ones_like(y), rcond=None)
        coefficients = dict(zip(names, solution / scale, strict=True))
        negative = [name for name in ("c2", "F", "c1") if coefficients.get(name, 0.0) < 0.0]
        if not negative:
            break
        names.remove(negative[0])
    fixed, c1, c2 = (float(coefficients.get(name, 0.0)) for name in ("F", "c1", "c2"))
    residual = y - (fixed + c1 * n + c2 * n * n)
    return PrefillFit(fixed, c1, c2, float(np.sqrt(np.mean(residual**2))))
