"""Split pools, lockstep ranks and the invariants every simulation keeps."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from predictor.des.clients import new_requests
from predictor.des.clock import TickPrices
from predictor.des.fleet import HandoffTimes, PipelineShape, ReplicaSpec, simulate_fleet
from predictor.des.pages import Pool
from predictor.des.planner import scheduler_for
from predictor.des.rules import Admission, SchedulerRules, Victim
from predictor.des.simulator import simulate
from predictor.errors import BadInput, DoesNotFit
from predictor.step.model import PrefillCurve, TableStepModel
from predictor.types import Arrival, Workload

MODEL = TableStepModel(
    tuple(6 + 0.05 * batch for batch in range(1, 300)), (1e-5,) * 299, PrefillCurve(8, 0.02, 1e-7, 3)
)
VLLM = SchedulerRules("vllm", max_running=32, token_budget=2048, block_tokens=16)
SGLANG = SchedulerRules(
    "sglang",
    max_running=32,
    token_budget=4096,
    chunk_tokens=1024,
    block_tokens=1,
    mixed_steps=False,
    single_chunked_request=True,
    admission=Admission.ESTIMATE_RATIO,
    victim=Victim.FEWEST_GENERATED,
    requeue_front=False,
    ignore_eos=False,
)
TENSORRT = SchedulerRules(
    "trtllm", 32, 4096, 32, chunked_prefill=False, admission=Admission.RESERVE_MAX_OUTPUT, chunk_floor_tokens=1
)
ATOM = SchedulerRules(
    "atom", 32, 2048, 16, mixed_steps=False, admission=Admission.TAKE_FULL_PROMPT, chunk_floor_tokens=64
)


def test_a_split_request_pays_prefill_host_handoff_and_the_wait_for_a_boundary() -> None:
    handoff = HandoffTimes(0.5, 1e6, 1000.0, layers=10, layer_streamed=True)
    pool = ReplicaSpec(MODEL, VLLM, 10_000)
    workload = Workload(1000, 11, 1, requests_per_client=1)
    result = simulate_fleet(pool, workload, prefill=pool, handoff=handoff, prefill_host_ms=4.0)
    expected = MODEL.prefill.prompt_ms(1000) + 4.0 + 0.5 + 1000 * 1000.0 / 10 / 1e6
    assert result.ttft_ms.mean == pytest.approx(expected, rel=1e-12)
    steps = sum(MODEL.decode_line(1).at(1000 + token) for token in range(1, 11))
    assert result.e2e_ms.mean == pytest.approx(expected + steps, rel=1e-12)


def test_only_the_last_layer_of_a_streamed_cache_is_exposed() -> None:
    streamed = HandoffTimes(0.12, 47.9e6, 1e5, layers=61, layer_streamed=True)
    whole = HandoffTimes(0.12, 47.9e6, 1e5, layers=61)
    assert (whole.handoff_ms(8192) - 0.12) / (streamed.handoff_ms(8192) - 0.12) == pytest.approx(61)


def test_prefill_replicas_add_capacity() -> None:
    decode = ReplicaSpec(MODEL, VLLM, 10_000, replicas=2)
    handoff = HandoffTimes(0.1, 1e6, 0.0)
    workload = Workload(2000, 20, 32)

    def throughput(replicas: int) -> float:
        prefill = ReplicaSpec(MODEL, VLLM, 10_000, replicas=replicas)
        return simulate_fleet(decode, workload, prefill=prefill, handoff=handoff).output_tok_s

    assert throughput(2) > 1.6 * throughput(1)


def test_ranks_multiply_the_pool_and_cost_the_slowest() -> None:
    workload = Workload(500, 100, 16)
    one = simulate_fleet(ReplicaSpec(MODEL, VLLM, 10_000), workload)
    four = simulate_fleet(ReplicaSpec(MODEL, VLLM, 10_000, ranks=4), workload)
    assert four.itl_ms.p50 < one.itl_ms.p50  # a quarter of the batch a rank
    tight = simulate_fleet(ReplicaSpec(MODEL, VLLM, 4 * 38, ranks=4), workload)
    assert tight.preemptions == 0
    assert simulate_fleet(ReplicaSpec(MODEL, VLLM, 4 * 38), workload).mean_running < tight.mean_running


def test_what_can_never_be_served_is_refused() -> None:
    with pytest.raises(DoesNotFit, match="KV blocks"):
        simulate(MODEL, Workload(1000, 100, 1), VLLM, kv_blocks=10)
    with pytest.raises(DoesNotFit, match="chunked prefill is off"):
        simulate(MODEL, Workload(5000, 100, 1), TENSORRT, kv_blocks=10_000)
    with pytest.raises(BadInput, match="attention DP inside a pipeline"):
        ReplicaSpec(MODEL, VLLM, 10, ranks=2, pipeline=PipelineShape(2))


@pytest.mark.parametrize("engine", ["runs", "timed_runs", "lean", "stepwise"])
def test_the_same_seed_gives_the_same_bits_and_another_gives_others(engine: str) -> None:
    workload = Workload(300, 60, 8, arrival=Arrival.POISSON, request_rate_per_s=9.0, length_range_frac=0.5)

    def latencies(seed: int) -> list[float]:
        result = simulate(MODEL, workload, VLLM, kv_blocks=400, engine=engine, seed=seed)
        return list(result.requests["e2e_ms"])

    assert latencies(1) == latencies(1) != latencies(2)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rules=st.sampled_from([VLLM, SGLANG, TENSORRT, ATOM]),
    prompt=st.integers(2, 1500),
    output=st.integers(1, 200),
    clients=st.integers(1, 20),
    frac=st.sampled_from([0.1, 0.6, 1.0]),
    room=st.sampled_from([1, 2, 5, 100]),
    grow=st.sampled_from([1.0, 2.4]),
)
def test_nobody_is_lost_and_the_pool_is_never_exceeded(
    rules: SchedulerRules, prompt: int, output: int, clients: int, frac: float, room: int, grow: float
) -> None:
    """Each request is served once, with the tokens it asked for; KV in use stays within the pool at every step."""
    workload = Workload(prompt, output, clients, length_range_frac=frac, requests_per_client=3)
    prices = TickPrices(TableStepModel((1.0,), (0.0,), MODEL.prefill, tokens_per_step=grow))
    pool = Pool((rules.blocks(prompt + output + 4) + 2) * room)
    scheduler = scheduler_for(rules, pool, grow=prices.grow, unit=prices.context_units)
    waiting = list(new_requests(workload, 0))
    total = len(waiting)
    sent, done, gaps, stamp = 0, {}, 0, 0
    while True:
        while waiting and sent - len(done) < clients:
            scheduler.submit(waiting.pop(0), stamp)
            sent += 1
        steps = scheduler.plan(stamp, stamp - 1)
        if not steps:
            break
        gaps += scheduler.weight * steps + scheduler.late_weight * (steps - 1)
        stamp += 1
        for request in scheduler.commit(steps, stamp):
            assert request.id not in done
            done[request.id] = request
        scheduler.pages.settle()
        assert 0 <= scheduler.pages.available() <= pool.total
    gaps += sum(gap.weight for gap in scheduler.gaps)
    assert len(done) == total
    assert scheduler.pages.available() == pool.total
    assert scheduler.load == 0
    if grow == 1.0:
        assert gaps == sum(request.output_tokens - 1 for request in done.values())
    assert all(request.first <= request.finished for request in done.values())
