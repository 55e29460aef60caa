"""The fixed part of a prompt step, told by ladders of two prompt lengths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.anchors.prompt_fixed import (
    DRAWN_FACTOR,
    FIXED_OVER_DECODE,
    ROW_SHARE,
    TYPICAL_FIXED_MS,
    drawn_fixed_ms,
    told_fixed_ms,
)
from predictor.anchors.schedule import ClosedLoopRun, schedule
from predictor.anchors.solve import ServedPoint, mean_context
from predictor.profiles.loader import model_card, platform
from predictor.transfer import KernelContext, default_constants
from predictor.transfer.terms import step_terms
from predictor.types import Dtype, Layout, Precision

SHAPES = ((1024, 1024), (8192, 1024))
LOADS = (1, 2, 4, 8, 16, 32, 64)
TOKEN_MS = 0.03


def side(model: str, context_tokens: float = 1024.0) -> KernelContext:
    fp8 = Precision(weight=Dtype.FP8, linear=Dtype.FP8, expert=Dtype.FP8, kv=Dtype.FP8)
    return KernelContext(model_card(model), platform("MI355X"), Layout(tp=2), fp8, "vLLM", context_tokens)


def ladder(model: str, shape: tuple[int, int], fixed_ms: float) -> list[ServedPoint]:
    """Runs of steps that the equation describes: 5 ms fixed, experts at the HBM peak, half a prompt token a row."""
    points = []
    for clients in LOADS:
        run = ClosedLoopRun(clients, *shape)
        here = side(model, mean_context(run))
        constants = default_constants(here.platform)

        def step_ms(batch: int, here: KernelContext = here) -> float:
            terms = step_terms(here, batch, default_constants(here.platform))
            return 5.0 + terms.total(1.0) + ROW_SHARE * TOKEN_MS * batch

        assert constants.expert_prior_share == 1.0
        tpot = schedule(run).tpot.price(step_ms, TOKEN_MS, 0.0, fixed_ms)
        points.append(ServedPoint(run, tpot))
    return points


@pytest.mark.parametrize("model", ["MiniMax-M2.5", "Llama-3.1-70B"])
@pytest.mark.parametrize("fixed_ms", [0.0, 15.0, 45.0])
def test_ladders_of_the_equation_return_its_fixed_part(model: str, fixed_ms: float) -> None:
    here = side(model)
    runs = {shape: ladder(model, shape, fixed_ms) for shape in SHAPES}
    assert told_fixed_ms(here, runs, default_constants(here.platform)) == pytest.approx(fixed_ms, abs=0.5)


def test_one_prompt_length_tells_nothing() -> None:
    here = side("MiniMax-M2.5")
    runs = {(1024, 1024): ladder("MiniMax-M2.5", (1024, 1024), 15.0)}
    assert told_fixed_ms(here, runs, default_constants(here.platform)) is None


@given(st.none() | st.floats(0.0, 500.0), st.floats(0.01, 100.0))
def test_a_ladder_moves_it_by_a_bounded_factor(told_ms: float | None, decode_fixed_ms: float) -> None:
    typical = min(FIXED_OVER_DECODE * decode_fixed_ms, TYPICAL_FIXED_MS)
    drawn = drawn_fixed_ms(told_ms, decode_fixed_ms)
    assert typical / DRAWN_FACTOR <= drawn <= typical * DRAWN_FACTOR
    if told_ms is None:
        assert drawn == typical
    elif typical / DRAWN_FACTOR <= told_ms <= typical * DRAWN_FACTOR:
        assert drawn == told_ms
