"""The prefill fit returns what it was given and never a negative cost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.anchors.fit import fit_prefill
from predictor.errors import BadInput

LENGTHS = [512, 1024, 2048, 4096, 8192]


@given(st.floats(0.1, 200), st.floats(1e-3, 0.2), st.floats(1e-8, 1e-5))
def test_an_exact_sweep_is_recovered(fixed: float, linear: float, quadratic: float) -> None:
    times = [fixed + linear * n + quadratic * n * n for n in LENGTHS]
    fit = fit_prefill(LENGTHS, times)
    for n, time in zip(LENGTHS, times, strict=True):
        assert fit.fixed_ms + fit.per_token_ms * n + fit.per_token2_ms * n * n == pytest.approx(time, rel=1e-6)


@given(st.lists(st.floats(0.1, 1e4), min_size=5, max_size=5))
def test_no_coefficient_is_negative(times: list[float]) -> None:
    fit = fit_prefill(LENGTHS, times)
    assert min(fit.fixed_ms, fit.per_token_ms, fit.per_token2_ms) >= 0.0


@pytest.mark.parametrize(("tokens", "times"), [([], []), ([1], [1.0, 2.0]), ([0], [1.0]), ([5], [float("nan")])])
def test_impossible_sweeps_are_refused(tokens: list[int], times: list[float]) -> None:
    with pytest.raises(BadInput):
        fit_prefill(tokens, times)
