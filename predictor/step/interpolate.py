"""Monotone cubic interpolation of a measured sweep in log batch and log step."""

from bisect import bisect_right
from collections.abc import Sequence
from math import exp, log


def tangents(x: Sequence[float], y: Sequence[float]) -> list[float]:
    """Slopes at the knots that keep a cubic Hermite curve monotone between them (Fritsch and Carlson 1980).

    Inside, the weighted harmonic mean of the two secants where they agree in sign, else zero; at the ends the
    three-point formula, limited so that it does not overshoot.

    >>> tangents([0.0, 1.0, 2.0], [0.0, 1.0, 2.0])
    [1.0, 1.0, 1.0]
    """
    count = len(x)
    if count < 2:
        return [0.0] * count
    step = [x[i + 1] - x[i] for i in range(count - 1)]
    secant = [(y[i + 1] - y[i]) / step[i] for i in range(count - 1)]
    if count == 2:
        return [secant[0], secant[0]]
    inner = []
    for i in range(1, count - 1):
        left, right = secant[i - 1], secant[i]
        if left * right <= 0.0:
            inner.append(0.0)
            continue
        first, second = 2.0 * step[i] + step[i - 1], step[i] + 2.0 * step[i - 1]
        inner.append((first + second) / (first / left + second / right))
    return [_end(step[0], step[1], secant[0], secant[1]), *inner, _end(step[-1], step[-2], secant[-1], secant[-2])]


def _end(near: float, far: float, secant: float, following: float) -> float:
    slope = ((2.0 * near + far) * secant - near * following) / (near + far)
    if slope * secant <= 0.0:
        return 0.0
    if secant * following <= 0.0 and abs(slope) > 3.0 * abs(secant):
        return 3.0 * secant
    return slope


class MonotoneSweep:
    """Step over batch through measured points, monotone between any two of them; held below the first.

    >>> MonotoneSweep((1, 4, 16), (10.0, 20.0, 40.0)).at(2) > 10.0
    True
    """

    __slots__ = ("_log_batch", "_log_step", "_tangent", "batches", "step_ms")

    def __init__(self, batches: Sequence[float], step_ms: Sequence[float]) -> None:
        self.batches = tuple(batches)
        self.step_ms = tuple(step_ms)
        self._log_batch = [log(batch) for batch in batches]
        self._log_step = [log(step) for step in step_ms]
        self._tangent = tangents(self._log_batch, self._log_step)

    def at(self, batch: float) -> float:
        """Step in ms; the last measured step at and above the last batch."""
        batches = self.batches
        if batch <= batches[0]:
            return self.step_ms[0]
        if batch >= batches[-1]:
            return self.step_ms[-1]
        left = bisect_right(batches, batch) - 1
        width = self._log_batch[left + 1] - self._log_batch[left]
        t = (log(batch) - self._log_batch[left]) / width
        square, cube = t * t, t * t * t
        value = (
            (2.0 * cube - 3.0 * square + 1.0) * self._log_step[left]
            + (cube - 2.0 * square + t) * width * self._tangent[left]
            + (3.0 * square - 2.0 * cube) * self._log_step[left + 1]
            + (cube - square) * width * self._tangent[left + 1]
        )
        return exp(value)
