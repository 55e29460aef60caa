"""Constants of a collective from measured points: one ``α + m/B``, or two where the library switches kernels.

This is how a platform's or a cluster's own profile (nccl-tests, rccl-tests, an RDMA benchmark) becomes records of
:class:`predictor.cards.Collective`. Errors are relative to the measured time, since a profile spans six decades.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from predictor.errors import BadInput

_SPLIT_GAIN = 0.5  # two kernels are kept only where they at least halve the squared relative error
_MIN_POINTS = 2  # per kernel


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """One timed message."""

    size_bytes: float
    time_us: float


@dataclass(frozen=True, slots=True)
class FittedPiece:
    """``α + m/B`` above ``min_bytes``."""

    min_bytes: float
    alpha_us: float
    bandwidth_gb_s: float

    def us(self, size_bytes: float) -> float:
        """Time of a message."""
        return self.alpha_us + size_bytes / (self.bandwidth_gb_s * 1e3)


def fit(points: Sequence[MeasuredPoint]) -> tuple[FittedPiece, ...]:
    """One or two pieces through the points, by least squares of relative errors with α ≥ 0 and B > 0.

    The switch size lies half way (in log size) between the last point of one piece and the first of the next.

    >>> (piece,) = fit([MeasuredPoint(m, 5 + m / 50e3) for m in (1e3, 1e4, 1e5, 1e6)])
    >>> round(piece.alpha_us, 6), round(piece.bandwidth_gb_s, 6)
    (5.0, 50.0)
    """
    ordered = sorted(points, key=lambda point: (point.size_bytes, point.time_us))
    if len(ordered) < _MIN_POINTS or any(p.size_bytes <= 0 or p.time_us <= 0 for p in ordered):
        raise BadInput(f"{len(ordered)} measured points; two or more with positive size and time are needed")
    whole, error = _line(ordered, 0.0)
    best: tuple[FittedPiece, ...] = (whole,)
    best_error = _SPLIT_GAIN * error
    for split in range(_MIN_POINTS, len(ordered) - _MIN_POINTS + 1):
        below, above = ordered[:split], ordered[split:]
        switch = (below[-1].size_bytes * above[0].size_bytes) ** 0.5
        (first, e1), (second, e2) = _line(below, 0.0), _line(above, switch)
        if e1 + e2 < best_error:
            best, best_error = (first, second), e1 + e2
    return best


def predict_us(pieces: Sequence[FittedPiece], size_bytes: float) -> float:
    """Time of a message on fitted pieces."""
    chosen = pieces[0]
    for piece in pieces[1:]:
        if size_bytes > piece.min_bytes:
            chosen = piece
    return chosen.us(size_bytes)


def _line(points: Sequence[MeasuredPoint], min_bytes: float) -> tuple[FittedPiece, float]:
    """Best ``α + s·m`` under α ≥ 0, s > 0, with its squared relative error: the free solution, or a bound."""
    candidates = [_free(points), _through_zero(points), _flat(points)]
    scored = [
        (sum(((a + s * p.size_bytes) / p.time_us - 1.0) ** 2 for p in points), a, s)
        for a, s in candidates
        if a >= 0.0 and s > 0.0
    ]
    error, alpha, slope = min(scored, default=(inf, 0.0, 0.0))
    if error == inf:
        raise BadInput("measured times fall with size throughout: no bandwidth can be read from them")
    return FittedPiece(min_bytes, alpha, 1e-3 / slope), error


def _free(points: Sequence[MeasuredPoint]) -> tuple[float, float]:
    """Weighted least squares of 1 = α/t + s·m/t."""
    u = [1.0 / p.time_us for p in points]
    v = [p.size_bytes / p.time_us for p in points]
    uu, vv, uv = sum(x * x for x in u), sum(x * x for x in v), sum(x * y for x, y in zip(u, v, strict=True))
    determinant = uu * vv - uv * uv
    if determinant <= 1e-12 * uu * vv:
        return -1.0, -1.0
    return (sum(u) * vv - sum(v) * uv) / determinant, (sum(v) * uu - sum(u) * uv) / determinant


def _through_zero(points: Sequence[MeasuredPoint]) -> tuple[float, float]:
    v = [p.size_bytes / p.time_us for p in points]
    return 0.0, sum(v) / sum(x * x for x in v)


def _flat(points: Sequence[MeasuredPoint]) -> tuple[float, float]:
    """All latency: a slope too small to see, so that the bandwidth stays finite."""
    u = [1.0 / p.time_us for p in points]
    return sum(u) / sum(x * x for x in u), 1e-12
