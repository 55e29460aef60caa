"""The monotone curve goes through its points and never leaves the range of the two beside it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.step.interpolate import MonotoneSweep

sweeps = st.lists(st.tuples(st.integers(1, 1024), st.floats(0.5, 500.0)), min_size=1, max_size=10).map(
    lambda pairs: sorted(dict(pairs).items())
)


@given(sweeps)
def test_it_goes_through_its_points(points: list[tuple[int, float]]) -> None:
    curve = MonotoneSweep([b for b, _ in points], [t for _, t in points])
    for batch, step in points:
        assert curve.at(batch) == pytest.approx(step)


@given(sweeps, st.floats(0.0, 1.0))
def test_between_two_points_it_stays_between_them(points: list[tuple[int, float]], share: float) -> None:
    curve = MonotoneSweep([b for b, _ in points], [t for _, t in points])
    for (low, first), (high, second) in pairwise(points):
        value = curve.at(low + share * (high - low))
        assert min(first, second) * (1 - 1e-9) <= value <= max(first, second) * (1 + 1e-9)


def test_a_power_law_is_exact() -> None:
    curve = MonotoneSweep((1, 4, 16, 64), tuple(5.0 * b**0.5 for b in (1, 4, 16, 64)))
    assert curve.at(8) == pytest.approx(5.0 * 8**0.5)


def test_it_is_held_outside() -> None:
    curve = MonotoneSweep((2, 8), (10.0, 20.0))
    assert (curve.at(1), curve.at(100)) == (10.0, 20.0)
