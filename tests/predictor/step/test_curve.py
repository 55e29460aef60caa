"""A sweep filled in by another context's sweep."""

from hypothesis import given
from hypothesis import strategies as st

from predictor.step.curve import DecodeCurve, filled_by


def test_what_context_adds_is_linear_in_the_batch_while_the_step_bends() -> None:
    """vLLM's CPU build, 135M model: at prompts of 128 and 384; batch 2 at 384 was measured apart."""
    dense = DecodeCurve((1, 2, 4, 8, 16), (77.9, 69.3, 107.8, 122.9, 189.0), 148.0)
    sparse = DecodeCurve((1, 4, 16), (82.3, 121.1, 230.3), 404.0)
    filled = filled_by(sparse, dense)
    assert filled.batches == dense.batches
    assert filled.context_tokens == 404.0
    assert abs(filled.at(2) / 79.1 - 1.0) < 0.05
    assert abs(sparse.at(2) / 79.1 - 1.0) > 0.25  # a line in log batch between 1 and 4


@given(
    st.lists(st.floats(1.0, 100.0), min_size=5, max_size=5),
    st.floats(0.0, 0.5),
    st.floats(0.0, 5.0),
)
def test_a_cost_that_is_linear_in_the_batch_is_found_exactly(steps: list[float], slope: float, fixed: float) -> None:
    batches = (1, 2, 4, 8, 16)
    dense = DecodeCurve(batches, tuple(steps), 100.0)
    there = [step + fixed + slope * batch for batch, step in zip(batches, steps, strict=True)]
    sparse = DecodeCurve((1, 4, 16), (there[0], there[2], there[4]), 400.0)
    filled = filled_by(sparse, dense)
    assert all(abs(a - b) < 1e-9 for a, b in zip(filled.step_ms, there, strict=True))
    assert [filled.step_ms[i] for i in (0, 2, 4)] == list(sparse.step_ms)  # measured ones to the last bit


def test_without_two_shared_batches_nothing_is_added() -> None:
    dense, sparse = DecodeCurve((1, 2, 4), (1.0, 2.0, 3.0), 10.0), DecodeCurve((4, 8), (4.0, 6.0), 20.0)
    assert filled_by(sparse, dense) == sparse
