"""Long prompts in small chunks: runs of like prompt steps equal the reference, and there are few of them."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.des.fleet import HandoffTimes, ReplicaSpec, simulate_fleet
from predictor.des.rules import Admission, QueuePolicy, SchedulerRules, Victim
from predictor.des.simulator import simulate
from predictor.step.model import PrefillCurve, TableStepModel
from predictor.types import Arrival, Workload
from tests.predictor.des.test_equality import FEW, HOSTS, StaircaseModel, assert_same

MIXED = SchedulerRules("any", max_running=16, token_budget=128, block_tokens=16)
SGLANG = SchedulerRules(
    "any",
    max_running=16,
    token_budget=16384,
    chunk_tokens=256,
    block_tokens=16,
    chunk_floor_tokens=16,
    mixed_steps=False,
    single_chunked_request=True,
    admission=Admission.ESTIMATE_RATIO,
    victim=Victim.FEWEST_GENERATED,
    requeue_front=False,
)
ATOM = SchedulerRules(
    "any",
    max_running=16,
    token_budget=256,
    block_tokens=16,
    chunk_floor_tokens=64,
    mixed_steps=False,
    admission=Admission.TAKE_FULL_PROMPT,
)
RESERVING = replace(MIXED, admission=Admission.RESERVE_MAX_OUTPUT, block_tokens=32)


@st.composite
def long_prompts(draw: st.DrawFn) -> Workload:
    """Prompts of up to dozens of chunks, whose arrivals and ends fall inside the runs."""
    return Workload(
        isl_tokens=draw(st.integers(300, 9000)),
        osl_tokens=draw(st.sampled_from([2, 17, 120])),
        concurrency=draw(st.integers(1, 8)),
        arrival=draw(st.sampled_from([Arrival.CLOSED, Arrival.CLOSED, Arrival.POISSON])),
        request_rate_per_s=draw(st.floats(0.2, 10.0)),
        length_range_frac=draw(st.sampled_from([0.1, 0.6, 1.0])),
        requests_per_client=draw(st.integers(1, 4)),
        seed=draw(st.integers(0, 1000)),
    )


@FEW
@given(st.data())
@pytest.mark.parametrize("base", [MIXED, SGLANG, ATOM, RESERVING], ids=["vllm", "sgl", "atom", "trt"])
def test_chunk_runs_equal_the_reference(base: SchedulerRules, data: st.DataObject) -> None:
    """Several prompts under a cap, polling, tight pools, drafting and ranks in lockstep included."""
    rules = replace(
        base,
        overlap_depth=data.draw(st.sampled_from([0, 1])),
        long_prefill_tokens=data.draw(st.sampled_from([0, 0, 48, 100])) if base is not SGLANG else 0,
        queue_policy=data.draw(st.sampled_from([QueuePolicy.FCFS, QueuePolicy.SHORTEST_PREFILL])),
    )
    workload, host = data.draw(long_prompts()), data.draw(HOSTS)
    model = StaircaseModel(data.draw(st.sampled_from([None, 5000.0])), data.draw(st.sampled_from([1.0, 1.0, 2.37])))
    one = -(-(workload.isl_tokens + workload.osl_tokens + 4) // rules.block_tokens) + 3
    blocks = one * data.draw(st.sampled_from([1, 2, 3, 1000]))
    results = {
        engine: simulate(model, workload, rules, kv_blocks=blocks, host=host, engine=engine)
        for engine in ("runs", "timed_runs", "stepwise")
    }
    assert_same(results["runs"], results["stepwise"])
    assert_same(results["timed_runs"], results["stepwise"])
    ranked = ReplicaSpec(model, rules, blocks, ranks=data.draw(st.integers(2, 3)))
    split: dict[str, Any] = {
        "prefill": replace(ranked, ranks=data.draw(st.integers(1, 2))),
        "handoff": HandoffTimes(5.0, 1e6, 1e3),
    }
    for pools in ({}, split):
        runs, steps = (
            simulate_fleet(ranked, workload, host=host, engine=engine, **pools) for engine in ("timed_runs", "stepwise")
        )
        assert_same(runs, steps)


@pytest.mark.parametrize("rules", [MIXED, SGLANG, ATOM, RESERVING], ids=["vllm", "sgl", "atom", "trt"])
def test_a_long_prompt_takes_few_runs(rules: SchedulerRules) -> None:
    """A thousand chunks and more, in a handful of runs a request."""
    workload = Workload(130_000, 90, concurrency=4, requests_per_client=2)
    model = TableStepModel((5.0,), (1e-5,), PrefillCurve(9.0, 0.02, 1e-7, 3.0))
    result = simulate(model, workload, rules, kv_blocks=100_000)
    assert result.steps > 500 * result.completed
    assert result.runs < 8 * result.completed
