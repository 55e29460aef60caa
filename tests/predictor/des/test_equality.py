"""Runs, lean and stepwise give the same simulation: every metric, on random workloads under every kind of rules."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from predictor.des.fleet import HandoffTimes, PipelineShape, ReplicaSpec, simulate_fleet
from predictor.des.metrics import HostTimes, SimulationResult
from predictor.des.request import Request
from predictor.des.routers import ROUTERS
from predictor.des.rules import (
    Admission,
    PrefillDelayer,
    QueuePolicy,
    RankRouting,
    RatioSchedule,
    SchedulerRules,
    Victim,
)
from predictor.des.simulator import simulate
from predictor.step.model import DecodeLine, PrefillCurve
from predictor.types import Arrival, StartMode, Workload

LADDER = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)


class StaircaseModel:
    """Graph-padded steps whose context slope steepens past a kink, as a roofline's does."""

    def __init__(self, kink_tokens: float | None = None, tokens_per_step: float = 1.0) -> None:
        self.prefill = PrefillCurve(9.7, 0.021, 1.3e-7, 3.1, 0.7)
        self.tokens_per_step = tokens_per_step
        self._kink = kink_tokens

    def decode_line(self, batch: int, context_tokens: float = 0.0) -> DecodeLine:
        padded = next((size for size in LADDER if size >= batch), batch)
        intercept, slope = 5.3 + 0.023 * padded, 1.7e-5
        if self._kink is None:
            return DecodeLine(intercept, slope)
        if context_tokens < self._kink:
            return DecodeLine(intercept, slope, self._kink)
        return DecodeLine(intercept - slope * self._kink, 2 * slope)


def summary(result: SimulationResult) -> dict[str, float]:
    """Every metric of a result."""
    metrics = {
        "completed": result.completed,
        "steps": result.steps,
        "preemptions": result.preemptions,
        "duration_ms": result.duration_ms,
        "output_tok_s": result.output_tok_s,
        "total_tok_s": result.total_tok_s,
        "mean_running": result.mean_running,
        "mixed_step_frac": result.mixed_step_frac,
        "prompt_step_frac": result.prompt_step_frac,
        "itl_count": result.itl_ms.count,
    }
    for name in ("ttft_ms", "ttft_from_admission_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        samples = getattr(result, name)
        metrics |= {f"{name}_mean": samples.mean}
        metrics |= {f"{name}_p{percent}": samples.percentile(percent) for percent in (0, 50, 90, 99, 100)}
    return metrics


def assert_same(first: SimulationResult, second: SimulationResult) -> None:
    ours, theirs = summary(first), summary(second)
    for name, value in ours.items():
        other = theirs[name]
        assert value == pytest.approx(other, rel=1e-9, nan_ok=True), name
    ours_requests, theirs_requests = first.requests, second.requests
    for column in ("id", "arrival_ms", "ttft_ms", "e2e_ms", "preemptions", "cached_tokens"):
        assert ours_requests[column].tolist() == pytest.approx(theirs_requests[column].tolist(), rel=1e-9), column


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    arrival = draw(st.sampled_from([Arrival.CLOSED, Arrival.CLOSED, Arrival.POISSON, Arrival.CONSTANT, Arrival.GAMMA]))
    start = draw(st.sampled_from(list(StartMode)))
    return Workload(
        isl_tokens=draw(st.integers(2, 3000)),
        osl_tokens=draw(st.integers(2, 400)),
        concurrency=draw(st.integers(1, 24)),
        arrival=arrival,
        request_rate_per_s=draw(st.floats(0.2, 40.0)),
        burstiness=draw(st.sampled_from([0.3, 2.0])),
        length_range_frac=draw(st.sampled_from([0.05, 0.5, 0.8, 1.0])),
        requests_per_client=draw(st.integers(1 if start is not StartMode.WARM else 2, 6)),
        start=start,
        think_time_ms=draw(st.sampled_from([0.0, 0.0, 37.0])),
        seed=draw(st.integers(0, 1000)),
    )


def pool(draw: st.DrawFn, workload: Workload, rules: SchedulerRules) -> int:
    """From one request's need (with room for what the rules ask beside it) to endless."""
    tokens = workload.isl_tokens + workload.osl_tokens + 4 + 2 * rules.draft_tokens + rules.block_tokens
    one = -(-tokens // rules.block_tokens) + 2
    return one * draw(st.sampled_from([1, 1, 2, 3, 5, 1000]))


VLLM_LIKE = st.builds(
    SchedulerRules,
    engine=st.just("any"),
    max_running=st.integers(4, 256),
    token_budget=st.sampled_from([64, 100, 512, 2048, 8192]),
    block_tokens=st.sampled_from([1, 16, 16, 64]),
    watermark_frac=st.sampled_from([0.0, 0.0, 0.05]),
    overlap_depth=st.sampled_from([0, 1]),
    long_prefill_tokens=st.sampled_from([0, 0, 300]),
    queue_policy=st.sampled_from([QueuePolicy.FCFS, QueuePolicy.FCFS, QueuePolicy.SHORTEST_PREFILL]),
)
TENSORRT_LIKE = st.builds(
    SchedulerRules,
    engine=st.just("any"),
    max_running=st.integers(4, 64),
    token_budget=st.sampled_from([3000, 8192]),
    block_tokens=st.just(32),
    chunked_prefill=st.booleans(),
    admission=st.just(Admission.RESERVE_MAX_OUTPUT),
    overlap_depth=st.sampled_from([0, 1]),
)
SGLANG_LIKE = st.builds(
    SchedulerRules,
    engine=st.just("any"),
    max_running=st.integers(4, 64),
    token_budget=st.sampled_from([2048, 16384]),
    chunk_tokens=st.sampled_from([512, 2048, 8192]),
    block_tokens=st.sampled_from([1, 16]),
    chunk_floor_tokens=st.just(16),
    mixed_steps=st.just(False),
    single_chunked_request=st.just(True),
    admission=st.just(Admission.ESTIMATE_RATIO),
    victim=st.just(Victim.FEWEST_GENERATED),
    requeue_front=st.just(False),
    keep_hash_on_preempt=st.just(False),
    clip_max_new_tokens=st.sampled_from([4096, 50]),
    ratio=st.sampled_from([RatioSchedule(), RatioSchedule(start=0.1, decay_steps=20)]),
    ignore_eos=st.booleans(),
    overlap_depth=st.sampled_from([0, 1]),
    queue_policy=st.sampled_from([QueuePolicy.FCFS, QueuePolicy.LONGEST_OUTPUT]),
)
ATOM_LIKE = st.builds(
    SchedulerRules,
    engine=st.just("any"),
    max_running=st.integers(4, 64),
    token_budget=st.sampled_from([256, 2048, 16384]),
    block_tokens=st.just(16),
    chunk_floor_tokens=st.just(64),
    mixed_steps=st.just(False),
    admission=st.just(Admission.TAKE_FULL_PROMPT),
    overlap_depth=st.sampled_from([0, 1]),
)
ATOM_DELAYED = st.builds(
    replace,
    ATOM_LIKE,
    delayer=st.builds(
        PrefillDelayer,
        wait_ticks=st.sampled_from([5, 200]),
        partial_ticks=st.sampled_from([3, 100]),
        stalled_ticks=st.sampled_from([2, 10]),
        kv_frac=st.sampled_from([0.5, 0.9]),
    ),
)
HOSTS = st.builds(
    HostTimes,
    ms_per_request=st.sampled_from([0.0, 45.0]),
    us_per_prompt_token=st.sampled_from([0.0, 7.0]),
    poll_interval_steps=st.sampled_from([0, 0, 10, 30]),
    first_wave_stall_ms=st.sampled_from([0.0, 2000.0]),
)
MODELS = st.builds(
    StaircaseModel,
    kink_tokens=st.sampled_from([None, 5000.0, 20000.5]),
    tokens_per_step=st.sampled_from([1.0, 1.0, 2.37]),
)


FEW = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))


@FEW
@given(st.data())
@pytest.mark.parametrize(
    "rules_like", [VLLM_LIKE, TENSORRT_LIKE, SGLANG_LIKE, ATOM_LIKE], ids=["vllm", "trt", "sgl", "atom"]
)
def test_runs_lean_and_stepwise_agree(rules_like: st.SearchStrategy[SchedulerRules], data: st.DataObject) -> None:
    rules = data.draw(rules_like)
    workload, model, host = data.draw(workloads()), data.draw(MODELS), data.draw(HOSTS)
    acceptance: tuple[float, ...] = ()
    if model.tokens_per_step > 1.0 and data.draw(st.booleans()):
        acceptance, rules = (0.8, 0.6), replace(rules, draft_tokens=2, token_budget=3 * rules.token_budget)
    blocks = data.draw(st.composite(lambda draw: pool(draw, workload, rules))())
    results = {
        engine: simulate(model, workload, rules, kv_blocks=blocks, host=host, engine=engine, acceptance=acceptance)
        for engine in ("runs", "timed_runs", "lean", "stepwise")
    }
    for engine in ("runs", "timed_runs", "lean"):
        assert_same(results[engine], results["stepwise"])
    assert results["runs"].runs <= results["lean"].runs == results["stepwise"].steps


@FEW
@given(st.data())
@pytest.mark.parametrize(
    "rules_like", [VLLM_LIKE, SGLANG_LIKE, ATOM_LIKE, ATOM_DELAYED], ids=["vllm", "sgl", "atom", "delayed"]
)
def test_fleets_agree(rules_like: st.SearchStrategy[SchedulerRules], data: st.DataObject) -> None:
    """Replicas behind a router, ranks in lockstep, and split pools, in three engines of time."""
    rules = replace(data.draw(rules_like), rank_routing=data.draw(st.sampled_from(list(RankRouting))))
    workload, model, host = data.draw(workloads()), data.draw(MODELS), data.draw(HOSTS)
    blocks = data.draw(st.composite(lambda draw: pool(draw, workload, rules))())
    decode = ReplicaSpec(
        model,
        rules,
        blocks,
        replicas=data.draw(st.integers(1, 3)),
        ranks=data.draw(st.integers(1, 3)),
        router=data.draw(st.sampled_from(ROUTERS)),
    )
    split: dict[str, Any] = {}
    if data.draw(st.booleans()):
        prefill_rules = replace(rules, max_running=data.draw(st.integers(1, 8)), delayer=None)
        split["prefill"] = ReplicaSpec(
            StaircaseModel(), prefill_rules, blocks, data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
        )
        split["handoff"] = HandoffTimes(
            data.draw(st.sampled_from([0.0, 5.0])), 1e6, 1e3, layers=10, layer_streamed=data.draw(st.booleans())
        )
        split["prefill_host_ms"] = data.draw(st.sampled_from([0.0, 3.0]))
    results = {
        engine: simulate_fleet(decode, workload, host=host, engine=engine, **split)
        for engine in ("timed_runs", "lean", "stepwise")
    }
    assert_same(results["timed_runs"], results["stepwise"])
    assert_same(results["lean"], results["stepwise"])


class GroupCache:
    """Prefixes of request groups, the latest few of them: what is found depends on who was let in before whom."""

    def __init__(self, groups: int, kept: int) -> None:
        self._groups, self._kept = groups, kept
        self._latest: dict[int, int] = {}  # tokens by group, latest last

    def lookup(self, request: Request) -> int:
        return min(self._latest.get(request.id * 7 % self._groups, 0), request.prompt_tokens)

    def insert(self, request: Request) -> None:
        group = request.id * 7 % self._groups
        self._latest[group] = max(self._latest.pop(group, 0), request.prompt_tokens // 16 * 16)
        while len(self._latest) > self._kept:
            del self._latest[next(iter(self._latest))]


CACHED_RULES = {
    "vllm": VLLM_LIKE,
    "trt": TENSORRT_LIKE,
    "sgl": SGLANG_LIKE,
    "atom": ATOM_LIKE,
    "lpm": st.builds(
        replace, SGLANG_LIKE, queue_policy=st.just(QueuePolicy.LPM), lpm_queue_limit=st.sampled_from([1, 4, 128])
    ),
    "lpm mixed": st.builds(
        replace, VLLM_LIKE, queue_policy=st.just(QueuePolicy.LPM), lpm_queue_limit=st.sampled_from([4, 128])
    ),
}


@FEW
@given(st.data())
@pytest.mark.parametrize("rules_like", list(CACHED_RULES.values()), ids=list(CACHED_RULES))
def test_prefix_caches_agree(rules_like: st.SearchStrategy[SchedulerRules], data: st.DataObject) -> None:
    """What is cached, and a queue that is ordered by it, are the same whether time goes by runs or by steps."""
    rules = data.draw(rules_like)
    workload, model, host = data.draw(workloads()), data.draw(MODELS), data.draw(HOSTS)
    groups, kept = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 6))
    blocks = data.draw(st.composite(lambda draw: pool(draw, workload, rules))())
    replicas = data.draw(st.integers(1, 2))
    spec = ReplicaSpec(model, rules, blocks, replicas, prefix_cache=lambda: GroupCache(groups, kept))
    results = {
        engine: simulate_fleet(spec, workload, host=host, engine=engine)
        for engine in ("timed_runs", "lean", "stepwise")
    }
    alone = simulate(
        model, workload, rules, kv_blocks=blocks, host=host, engine="runs", prefix_cache=GroupCache(groups, kept)
    )
    assert_same(results["timed_runs"], results["stepwise"])
    assert_same(results["lean"], results["stepwise"])
    if replicas == 1:
        assert_same(alone, results["stepwise"])


@FEW
@given(st.data())
@pytest.mark.parametrize("rules_like", [VLLM_LIKE, SGLANG_LIKE, ATOM_LIKE], ids=["vllm", "sgl", "atom"])
def test_pipelines_agree_step_by_step(rules_like: st.SearchStrategy[SchedulerRules], data: st.DataObject) -> None:
    """A run of a micro-batch's steps is timed as if each had been planned, tight pools included."""
    rules = data.draw(rules_like)
    workload, model = data.draw(workloads()), data.draw(MODELS)
    blocks = data.draw(st.composite(lambda draw: pool(draw, workload, rules))())
    shape = PipelineShape(
        data.draw(st.integers(1, 4)),
        data.draw(st.sampled_from([0.0, 0.97])),
        data.draw(st.sampled_from([0.0, 0.33])),
        data.draw(st.sampled_from([0.0, 0.0063])),
    )
    spec = ReplicaSpec(model, rules, blocks, pipeline=shape)
    runs, steps = (simulate_fleet(spec, workload, engine=engine) for engine in ("timed_runs", "lean"))
    assert_same(runs, steps)


@FEW
@given(st.data())
@pytest.mark.parametrize("rules_like", list(CACHED_RULES.values()), ids=list(CACHED_RULES))
def test_pipelines_agree_with_one_whose_every_stage_is_an_event(
    rules_like: st.SearchStrategy[SchedulerRules], data: st.DataObject
) -> None:
    """The reference shares no line of the way through the stages, of planning, or of timing, with what it checks."""
    rules = data.draw(rules_like)
    workload, model = data.draw(workloads()), data.draw(MODELS)
    blocks = data.draw(st.composite(lambda draw: pool(draw, workload, rules))())
    if rules.admission is Admission.ESTIMATE_RATIO:  # what micro-batches retract from a tight pool is approximated
        blocks = 100_000
    shape = PipelineShape(
        data.draw(st.integers(1, 4)),
        data.draw(st.sampled_from([0.0, 0.97])),
        data.draw(st.sampled_from([0.0, 0.33])),
        data.draw(st.sampled_from([0.0, 0.0063])),
    )
    cache = (lambda: GroupCache(3, 2)) if data.draw(st.booleans()) else None
    spec = ReplicaSpec(model, rules, blocks, data.draw(st.integers(1, 2)), pipeline=shape, prefix_cache=cache)
    stall = HostTimes(first_wave_stall_ms=data.draw(st.sampled_from([0.0, 2000.0])))
    runs, steps = (simulate_fleet(spec, workload, host=stall, engine=engine) for engine in ("timed_runs", "stepwise"))
    assert_same(runs, steps)


def test_a_long_clock_loses_nothing() -> None:
    """20,000 requests over hours: a float clock would differ in the ninth digit of a latency by now."""
    workload = Workload(
        300, 12, arrival=Arrival.POISSON, request_rate_per_s=1.7, length_range_frac=0.3, requests_per_client=20_000
    )
    rules = SchedulerRules("any", max_running=32, token_budget=2048, block_tokens=16, overlap_depth=1)
    runs, steps = (
        simulate(StaircaseModel(), workload, rules, kv_blocks=2000, engine=engine) for engine in ("runs", "stepwise")
    )
    assert runs.duration_ms > 1e7
    for column in ("ttft_ms", "e2e_ms", "tpot_ms"):
        assert runs.requests[column].tolist() == pytest.approx(steps.requests[column].tolist(), rel=1e-13, nan_ok=True)
    assert summary(runs) == pytest.approx(summary(steps), rel=1e-12)
