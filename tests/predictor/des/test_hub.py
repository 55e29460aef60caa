"""Order of events at one tick, and ties built on purpose."""

import pytest

from predictor.des.replica import steps_until
from predictor.des.rules import SchedulerRules
from predictor.des.simulator import simulate
from predictor.step.model import PrefillCurve, TableStepModel
from predictor.types import Arrival, Workload

# A prompt step and a decode step of 10 ms each, whatever they hold: every boundary is a multiple of 10 ms.
EVEN = TableStepModel((10.0,), (0.0,), PrefillCurve(10.0, 0.0, 0.0, 0.0))
VLLM = SchedulerRules("vllm", max_running=64, token_budget=8192, block_tokens=16)


@pytest.mark.parametrize("engine", ["runs", "lean", "stepwise"])
def test_an_arrival_on_a_boundary_enters_the_step_that_begins_there(engine: str) -> None:
    workload = Workload(
        100, 40, 1, arrival=Arrival.CONSTANT, request_rate_per_s=20.0, requests_per_client=50
    )  # every 50 ms
    result = simulate(EVEN, workload, VLLM, kv_blocks=10_000, engine=engine)
    assert result.ttft_ms.mean == 10.0
    assert result.ttft_ms.percentile(100) == 10.0
    assert result.e2e_ms.mean == 400.0


@pytest.mark.parametrize("engine", ["runs", "lean", "stepwise"])
def test_an_arrival_between_boundaries_waits_for_the_next_one(engine: str) -> None:
    workload = Workload(100, 5, 1, arrival=Arrival.CONSTANT, request_rate_per_s=1000.0 / 33.0, requests_per_client=2)
    result = simulate(EVEN, workload, VLLM, kv_blocks=10_000, engine=engine)
    # First at 33, its steps end at 43, 53, 63, 73, 83; the second comes at 66 and waits until 73.
    assert result.requests["ttft_ms"].tolist() == pytest.approx([10.0, 17.0], rel=1e-12)


def test_steps_until_is_exact_on_boundaries() -> None:
    first, growth = 10**16 + 7, 3 * 10**11 + 1
    for steps in (1, 2, 17, 1000, 123_456):
        total = steps * first + growth * (steps * (steps - 1) // 2)
        assert steps_until(total, first, growth) == steps
        assert steps_until(total + 1, first, growth) == steps + 1
