"""Simulated and closed-form predictors agree where nothing queues, and both with arithmetic by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.analytic import Limits, closed_loop
from predictor.des.metrics import HostTimes
from predictor.des.rules import SchedulerRules
from predictor.des.simulator import simulate
from predictor.step.model import PrefillCurve, TableStepModel
from predictor.types import Workload

MODEL = TableStepModel((6.0, 6.5, 7.0), (2e-5,) * 3, PrefillCurve(9.0, 0.02, 1e-7, 3.0, 0.4))
VLLM = SchedulerRules("vllm", max_running=8, token_budget=8192, block_tokens=16)


@settings(max_examples=30, deadline=None)
@given(isl=st.integers(1, 30_000), osl=st.integers(2, 500))
def test_one_client_meets_no_queue(isl: int, osl: int) -> None:
    workload = Workload(isl, osl, 1, requests_per_client=2)
    simulated = simulate(MODEL, workload, VLLM, kv_blocks=10_000, host=HostTimes(11.0))
    closed = closed_loop(MODEL, workload, 1, Limits(8, 8192), host_ms=11.0)
    assert simulated.ttft_ms.mean == pytest.approx(closed.ttft_ms, rel=1e-9)
    assert simulated.tpot_ms.mean == pytest.approx(closed.tpot_ms, rel=1e-9)
    assert simulated.e2e_ms.mean == pytest.approx(closed.e2e_ms, rel=1e-9)


def test_two_clients_by_hand() -> None:
    """Both prompts share the first step; then they decode together, and the second wave repeats it."""
    workload = Workload(100, 4, 2, requests_per_client=2)
    result = simulate(MODEL, workload, VLLM, kv_blocks=10_000)
    prefill = 9.0 + 2 * (100 * 0.02 + 100**2 * 1e-7 + 0.4)
    steps = [6.5 + 2e-5 * 2 * (100 + token) for token in (1, 2, 3)]
    assert result.ttft_ms.mean == pytest.approx(prefill, rel=1e-12)
    assert result.tpot_ms.mean == pytest.approx(sum(steps) / 3, rel=1e-12)
    assert result.duration_ms == pytest.approx(2 * (prefill + sum(steps)), rel=1e-12)
    assert result.output_tok_s == pytest.approx(16 / result.duration_ms * 1000, rel=1e-12)
    assert (result.steps, result.itl_ms.count, result.mixed_step_frac) == (8, 12, 0.0)


def test_a_prompt_in_chunks_costs_the_whole_and_a_fixed_part_a_step() -> None:
    rules = SchedulerRules("vllm", max_running=8, token_budget=1000, block_tokens=16)
    result = simulate(MODEL, Workload(2500, 2, 1, requests_per_client=1), rules, kv_blocks=10_000)
    expected = 3 * 9.0 + 2500 * 0.02 + 2500**2 * 1e-7 + 0.4
    assert result.ttft_ms.mean == pytest.approx(expected, rel=1e-12)


def test_a_prompt_that_joins_stalls_the_decoders_by_its_mixed_step() -> None:
    """A budget of one prompt: the second waits a step, and is prefilled beside the first one's decode row."""
    workload = Workload(100, 50, 2, requests_per_client=1)
    rules = SchedulerRules("vllm", max_running=8, token_budget=100, block_tokens=16)
    result = simulate(MODEL, workload, rules, kv_blocks=10_000)
    mixed = 6.0 + 2e-5 * 101 + 3.0 + 99 * 0.02 + 99**2 * 1e-7  # 99 tokens of the second prompt beside one decode row
    assert result.itl_ms.percentile(100) == pytest.approx(mixed, rel=1e-12)
    assert result.mixed_step_frac == pytest.approx(2 / result.steps)


def test_overlap_wastes_a_row_and_delays_what_comes_by_a_step() -> None:
    plain = SchedulerRules("vllm", max_running=8, token_budget=8192, block_tokens=16)
    ahead = SchedulerRules("vllm", max_running=8, token_budget=8192, block_tokens=16, overlap_depth=1)
    workload = Workload(100, 20, 1, requests_per_client=5)
    one, other = (simulate(MODEL, workload, rules, kv_blocks=10_000) for rules in (plain, ahead))
    wasted = 6.0 + 2e-5 * 120
    assert other.steps == one.steps + 5
    assert other.ttft_ms.percentile(100) == pytest.approx(one.ttft_ms.mean + wasted, rel=1e-9)
    assert other.tpot_ms.mean == pytest.approx(one.tpot_ms.mean, rel=1e-12)


def test_polling_makes_a_request_wait_and_a_stall_delays_the_first_wave() -> None:
    workload = Workload(100, 41, 1, requests_per_client=4)
    plain = simulate(MODEL, workload, VLLM, kv_blocks=1000)
    polled = simulate(MODEL, workload, VLLM, kv_blocks=1000, host=HostTimes(poll_interval_steps=10))
    assert polled.ttft_ms.mean == plain.ttft_ms.mean  # an idle engine sees all
    stalled = simulate(MODEL, workload, VLLM, kv_blocks=1000, host=HostTimes(first_wave_stall_ms=800.0))
    assert stalled.ttft_ms.mean == pytest.approx(plain.ttft_ms.mean + 800.0 / 4, rel=1e-12)
    busy = Workload(100, 41, 2, length_range_frac=0.5, requests_per_client=10)
    waits = simulate(MODEL, busy, VLLM, kv_blocks=1000, host=HostTimes(poll_interval_steps=10)).ttft_ms.mean
    assert waits > simulate(MODEL, busy, VLLM, kv_blocks=1000).ttft_ms.mean + 15.0  # some 4 steps of 6.5 ms
