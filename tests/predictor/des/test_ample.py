"""A pool that never runs short: the written-out scheduler decides what the general one decides, run by run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.des import planner
from predictor.des.ample import AmpleScheduler
from predictor.des.mixed import MixedScheduler
from predictor.des.pages import Pool
from predictor.des.planner import scheduler_for
from predictor.des.rules import Admission, QueuePolicy, SchedulerRules
from predictor.des.schedule import schedule
from predictor.types import Workload

ENDLESS = 10**7


@st.composite
def mixed_rules(draw: st.DrawFn) -> SchedulerRules:
    return SchedulerRules(
        "any",
        max_running=draw(st.integers(1, 40)),
        token_budget=draw(st.integers(48, 600)),
        block_tokens=16,
        overlap_depth=draw(st.sampled_from([0, 1])),
        chunk_floor_tokens=draw(st.sampled_from([1, 16])),
        draft_tokens=draw(st.sampled_from([0, 3])),
        admission=draw(st.sampled_from([Admission.FITS_FULL_ISL, Admission.RESERVE_MAX_OUTPUT])),
    )


@given(
    rules=mixed_rules(),
    isl=st.integers(1, 1500),
    osl=st.integers(1, 120),
    clients=st.integers(1, 30),
    range_frac=st.sampled_from([1.0, 0.5, 0.05]),
    tokens_per_step=st.sampled_from([1.0, 2.3]),
    seed=st.integers(0, 9),
)
def test_it_plans_the_runs_of_the_general_scheduler(
    rules: SchedulerRules, isl: int, osl: int, clients: int, range_frac: float, tokens_per_step: float, seed: int
) -> None:
    workload = Workload(isl, osl, clients, length_range_frac=range_frac, requests_per_client=4, seed=seed)
    ours = schedule(workload, rules, kv_blocks=ENDLESS, tokens_per_step=tokens_per_step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "takes", lambda *_, **__: False)
        theirs = schedule(workload, rules, kv_blocks=ENDLESS, tokens_per_step=tokens_per_step)
    assert ours.runs.tolist() == theirs.runs.tolist()
    assert ours.requests.tolist() == theirs.requests.tolist()


@pytest.mark.parametrize(
    ("rules", "options"),
    [
        (SchedulerRules("any", 8, 64, 16), {"poll_interval_steps": 3}),
        (SchedulerRules("any", 8, 64, 16), {"prefill_only": True}),
        (SchedulerRules("any", 8, 64, 16), {"ample_pool": False}),
        (SchedulerRules("any", 8, 64, 16, long_prefill_tokens=20), {}),
        (SchedulerRules("any", 8, 64, 16, queue_policy=QueuePolicy.SHORTEST_PREFILL), {}),
    ],
    ids=["polling", "prefill pool", "counted pool", "capped prompts", "ordered queue"],
)
def test_what_it_does_not_know_goes_to_the_general_one(rules: SchedulerRules, options: dict[str, int]) -> None:
    plain = scheduler_for(SchedulerRules("any", 8, 64, 16), Pool(ENDLESS), ample_pool=True)
    assert type(plain) is AmpleScheduler
    other = scheduler_for(rules, Pool(ENDLESS), **{"ample_pool": True} | options)  # type: ignore[arg-type]
    assert type(other) is MixedScheduler
