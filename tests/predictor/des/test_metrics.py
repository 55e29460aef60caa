"""Weighted samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.des.metrics import Samples, expand_runs


@given(
    st.lists(st.tuples(st.floats(0.01, 1e4), st.integers(1, 9)), min_size=1, max_size=40),
    st.floats(0.0, 100.0),
)
def test_percentiles_are_those_of_the_expanded_list(pairs: list[tuple[float, int]], percent: float) -> None:
    values, weights = zip(*pairs, strict=True)
    samples = Samples.of(values, weights)
    expanded = np.repeat(values, weights)
    assert samples.percentile(percent) == pytest.approx(float(np.percentile(expanded, percent)), rel=1e-12)
    assert samples.mean == pytest.approx(float(np.mean(expanded)), rel=1e-12)
    assert samples.count == len(expanded)


def test_runs_expand_to_their_gaps() -> None:
    values, weights = expand_runs(np.array([[10.0, 0.5, 3.0, 2.0], [7.0, 0.0, 1.0, 5.0]]))
    assert values.tolist() == [10.0, 10.5, 11.0, 7.0]
    assert weights.tolist() == [2.0, 2.0, 2.0, 5.0]


def test_no_samples_have_no_mean() -> None:
    assert np.isnan(Samples.of([]).mean)
    assert np.isnan(Samples.of([]).p99)
