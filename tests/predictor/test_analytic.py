"""The closed form: exact where it can be worked out by hand, and monotone where it must be."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.analytic import Limits, closed_loop
from predictor.step.model import PrefillCurve, TableStepModel
from predictor.types import StartMode, Workload

FREE = PrefillCurve(0.0, 1e-9, 0.0, 0.0)
FLAT = TableStepModel((10.0,) * 512, (0.0,) * 512, FREE)
LOADED = TableStepModel(
    tuple(5.0 + 0.05 * batch for batch in range(1, 513)), (1e-5,) * 512, PrefillCurve(10.0, 0.01, 1e-8, 2.0)
)
WIDE = Limits(10_000.0, 16_384)


def test_without_prefill_a_closed_loop_is_clients_over_steps() -> None:
    loop = closed_loop(FLAT, Workload(1000, 101, 8), 8, WIDE)
    assert loop.tpot_ms == pytest.approx(10.0, rel=1e-6)
    assert loop.requests_per_s == pytest.approx(8 / 1.0, rel=1e-4)  # 100 gaps of 10 ms


def test_one_client_sees_the_prompt_and_the_bare_step() -> None:
    loop = closed_loop(LOADED, Workload(1000, 11, 1), 1, WIDE)
    assert loop.ttft_ms == pytest.approx(10.0 + 0.01 * 1000 + 1e-8 * 1000**2)
    assert loop.tpot_ms == pytest.approx(5.05 + 1e-5 * 1005.5, rel=1e-6)


def test_clients_in_step_stall_for_half_of_the_other_cohorts() -> None:
    """Four cohorts of 16 prompts, 205 ms each: TTFT 2.5 cohorts, and 1.5 cohorts of stall an answer."""
    curve = PrefillCurve(0.0, 205.0 / 16_384, 0.0, 0.0)
    model = TableStepModel((7.0,) * 64, (0.0,) * 64, curve)
    loop = closed_loop(model, Workload(1024, 1024, 64), 64, WIDE)
    assert loop.ttft_ms == pytest.approx(2.5 * 205.0)
    assert loop.tpot_ms == pytest.approx(7.0 + 1.5 * 205.0 / 1023)


def test_clients_beyond_the_cap_wait_in_the_queue() -> None:
    free = closed_loop(FLAT, Workload(1000, 101, 16), 16, WIDE)
    capped = closed_loop(FLAT, Workload(1000, 101, 16), 16, replace(WIDE, max_running=8.0))
    assert capped.running == 8
    assert capped.requests_per_s == pytest.approx(free.requests_per_s / 2, rel=1e-6)
    assert capped.ttft_ms > 900


@given(
    st.integers(1, 400),
    st.integers(16, 20_000),
    st.integers(2, 2_000),
    st.sampled_from([1.0, 0.8]),
    st.sampled_from(list(StartMode)),
)
def test_littles_law_holds(clients: int, isl: int, osl: int, range_frac: float, start: StartMode) -> None:
    workload = Workload(isl, osl, clients, length_range_frac=range_frac, start=start)
    loop = closed_loop(LOADED, workload, clients, WIDE)
    assert loop.requests_per_s * loop.e2e_ms / 1000.0 == pytest.approx(clients, rel=1e-9)


@given(st.integers(1, 256), st.integers(16, 8_000), st.integers(2, 2_000))
def test_more_tokens_never_cost_less(clients: int, isl: int, osl: int) -> None:
    base = closed_loop(LOADED, Workload(isl, osl, clients), clients, WIDE)
    longer_prompt = closed_loop(LOADED, Workload(isl * 2, osl, clients), clients, WIDE)
    longer_answer = closed_loop(LOADED, Workload(isl, osl * 2, clients), clients, WIDE)
    assert longer_prompt.ttft_ms >= base.ttft_ms
    assert longer_prompt.e2e_ms >= base.e2e_ms
    assert longer_answer.e2e_ms >= base.e2e_ms
