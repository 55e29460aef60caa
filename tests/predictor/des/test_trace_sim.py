"""Traces in time: who sends when, what is cached, what is loaded, where requests go."""

import gzip
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.corpus import CorpusAbsent, data_dir
from predictor.des.export import COLUMNS, write_csv, write_parquet
from predictor.des.fleet import HandoffTimes
from predictor.des.metrics import HostTimes
from predictor.des.play import PlayRules, agentx_rules
from predictor.des.prefix_cache import PrefixCache
from predictor.des.replay import engine_blocks, engine_hit_tokens
from predictor.des.replica_cache import Visible, reuse_rules
from predictor.des.routing import Candidate, RoundRobin, StickySession
from predictor.des.rules import QueuePolicy, SchedulerRules
from predictor.des.sessions import session_trees
from predictor.des.tiers import offload_rule
from predictor.des.trace_sim import DecodePool, Reuse, TraceResult, simulate_trace
from predictor.errors import BadFile, BadInput, DoesNotFit
from predictor.offload import HostTier
from predictor.step.model import PrefillCurve, TableStepModel
from predictor.workload.block_size import BlockSize, Tail
from predictor.workload.fitting import Fitting
from predictor.workload.json_stream import open_trace
from predictor.workload.trace import TraceReader, TraceRequest

BLOCK = 64
STEP = TableStepModel((10.0, 10.1, 10.2, 10.3), (1e-5,) * 4, PrefillCurve(5.0, 0.1, 0.0, 5.0))
RULES = SchedulerRules("vLLM", max_running=64, token_budget=8192, block_tokens=16)
POOL_TOKENS = 64 * 4000
REUSE = Reuse(BLOCK, reuse_rules("vLLM"))


def read(*rows: dict[str, Any]) -> list[TraceRequest]:
    full = [{"input_length": 64, "output_length": 4} | row for row in rows]
    return list(TraceReader(map(json.dumps, full), block_size=BlockSize(BLOCK, Tail.FLOOR)))


def session(
    name: str, turns: int, *, context: int = 20, new: int = 3, think: float = 100.0, start: float = 0.0
) -> list[Any]:
    rows: list[dict[str, Any]] = []
    for turn in range(turns):
        blocks = context + turn * new
        rows.append(
            {
                "session_id": name,
                "request_id": f"{name}:{turn}",
                "timestamp": start,
                "input_length": BLOCK * blocks + 10,
                "think_time": think if turn else 0.0,
                "new_blocks": new if turn else context,
            }
        )
        if turn:
            rows[-1] |= {"prefix_from": f"{name}:{turn - 1}", "prefix_blocks": blocks - new}
    return rows


def play(requests: Iterable[TraceRequest], rules: PlayRules = PlayRules(), **options: Any) -> TraceResult:
    given: dict[str, Any] = {"kv_tokens": POOL_TOKENS, "reuse": REUSE, "play": rules} | options
    return simulate_trace(STEP, requests, RULES, **given)


def table(result: TraceResult) -> dict[str, dict[str, float]]:
    columns = result.simulation.requests
    rows = zip(columns["id"], columns["arrival_ms"], columns["e2e_ms"], columns["cached_tokens"], strict=True)
    return {
        result.names[int(number)]: {"arrival": arrival, "end": arrival + e2e, "cached": cached}
        for number, arrival, e2e, cached in rows
    }


@st.composite
def forests(draw: st.DrawFn) -> list[TraceRequest]:
    """Session trees whose requests wait for any earlier ones of their tree."""
    rows: list[dict[str, Any]] = []
    for tree in range(draw(st.integers(1, 5))):
        names: list[str] = []
        for number in range(draw(st.integers(1, 6))):
            waits = draw(st.lists(st.sampled_from(names), unique=True, max_size=3)) if names else []
            names.append(f"t{tree}/{number}")
            rows.append(
                {
                    "request_id": names[-1],
                    "session_id": f"t{tree}/s{number}",
                    "parent_session_id": f"t{tree}",
                    "timestamp": draw(st.integers(0, 2000)),
                    "input_length": draw(st.integers(1, 3000)),
                    "output_length": draw(st.integers(0, 20)),
                    "think_time": draw(st.sampled_from([0, 0, 5, 700])),
                    "wait_on": waits,
                }
            )
    return read(*rows)


def check_dependencies(requests: Sequence[TraceRequest], seen: dict[str, dict[str, float]]) -> None:
    for request in requests:
        if request.waits_on:
            ready = max(seen[name]["end"] for name in request.waits_on) + request.think_time_ms
            assert seen[request.request_id]["arrival"] == pytest.approx(ready)


@settings(max_examples=40, deadline=None)
@given(forests(), st.integers(1, 4), st.integers(1, 3))
def test_slots_serve_every_request_once_in_order(requests: list[TraceRequest], slots: int, replicas: int) -> None:
    result = play(requests, PlayRules(slots=slots), replicas=replicas)
    seen = table(result)
    assert sorted(result.names) == sorted(request.request_id for request in requests)
    assert result.simulation.completed == len(requests)
    assert result.simulation.totals.output_tokens == sum(max(1, request.output_tokens) for request in requests)
    check_dependencies(requests, seen)
    spans = defaultdict(list)
    for request in requests:
        spans[request.tree_id].append((seen[request.request_id]["arrival"], seen[request.request_id]["end"]))
    lives = [(min(a for a, _ in each), max(b for _, b in each)) for each in spans.values()]
    for begin, _ in lives:
        assert sum(a <= begin < b - 1e-6 for a, b in lives) <= slots


@settings(max_examples=40, deadline=None)
@given(forests(), st.integers(1, 30))
def test_open_replay_keeps_times_and_dependencies(requests: list[TraceRequest], lookahead: int) -> None:
    by_time = sorted(requests, key=lambda request: request.arrival_ms or 0.0)
    order = {request.request_id: index for index, request in enumerate(by_time)}
    if any(order[name] > order[request.request_id] for request in requests for name in request.waits_on):
        lookahead = len(requests)  # a row before what it waits for is only seen in time when read ahead
        by_time = requests
    seen = table(play(by_time, PlayRules(lookahead_records=lookahead)))
    assert len(seen) == len(requests)
    for request in requests:
        if not request.waits_on:
            assert seen[request.request_id]["arrival"] == pytest.approx(request.arrival_ms)
    if lookahead >= len(requests):
        check_dependencies(requests, seen)


def test_the_same_seed_gives_the_same_result() -> None:
    requests = read(*session("a", 9), *session("b", 9), *session("c", 9))
    rules = PlayRules(slots=2, start_frac=(0.0, 0.9), warm_up_requests=2, seed=3)
    first, second = play(requests, rules), play(requests, rules)
    assert table(first) == table(second)
    assert table(play(requests, PlayRules(slots=2, start_frac=(0.0, 0.9), warm_up_requests=2, seed=4))) != table(first)


def test_recorded_start_offsets_do_not_keep_slots_empty() -> None:
    # SemiAnalysisAI/InferenceX #2375: offsets of up to 70 h kept the asked concurrency from ever being reached
    requests = read(*session("a", 3), *session("b", 3, start=70 * 3.6e6), *session("c", 3, start=35 * 3.6e6))
    seen = table(play(requests, PlayRules(slots=3)))
    assert [seen[f"{name}:0"]["arrival"] for name in "abc"] == [0.0, 0.0, 0.0]


def test_pauses_are_capped_and_idle_time_is_cut() -> None:
    requests = read(*session("a", 3, think=5e6), *session("b", 2, think=2e6))
    capped = table(play(requests, PlayRules(slots=1, think_cap_ms=1000.0)))
    assert capped["a:1"]["arrival"] - capped["a:0"]["end"] == pytest.approx(1000.0)
    idle = table(play(requests, PlayRules(slots=2, idle_cap_ms=10.0)))
    last_end = max(idle["a:0"]["end"], idle["b:0"]["end"])
    assert idle["b:1"]["arrival"] == pytest.approx(last_end + 10.0)
    # b's pause was cut by the time skipped; a's by as much, and then again once nothing was in flight
    assert idle["a:1"]["arrival"] == pytest.approx(idle["b:1"]["end"] + 10.0)


def test_warm_up_is_not_measured() -> None:
    requests = read(*session("a", 8), *session("b", 8))
    result = play(requests, PlayRules(slots=2, warm_up_requests=3))
    assert result.simulation.completed == 16 - 6
    assert result.names[:6] == ["a:0", "b:0", "a:1", "b:1", "a:2", "b:2"]
    seen = table(result)
    assert (
        seen["a:3"]["arrival"] == seen["b:3"]["arrival"]
    )  # both slots begin when the last warm-up request has finished
    assert result.simulation.hit_rate > 0.8


def test_nothing_is_sent_after_the_measured_time() -> None:
    requests = read(*(row for name in "abcdef" for row in session(name, 30)))
    whole = table(play(requests, PlayRules(slots=2)))
    cut = table(play(requests, PlayRules(slots=2, duration_ms=3000.0)))
    assert 0 < len(cut) < len(whole)
    assert max(row["arrival"] for row in cut.values()) < 3000.0
    assert {name: whole[name] for name in cut} == cut


def test_agentx_rules() -> None:
    rules = agentx_rules(64)
    assert (rules.slots, rules.think_cap_ms, rules.idle_cap_ms) == (64, 300_000.0, 10_000.0)


def test_a_trace_is_read_as_it_is_played() -> None:
    taken = 0

    def counted() -> Iterator[TraceRequest]:
        nonlocal taken
        for request in read(*(row for number in range(40) for row in session(f"s{number}", 2))):
            taken += 1
            yield request

    def watched(requests: Iterator[TraceRequest]) -> Iterator[TraceRequest]:
        for served, request in enumerate(requests):
            assert taken - served <= 4  # one more than a tree is read to see that it ended
            yield request

    play(watched(counted()), PlayRules(slots=1))
    assert taken == 80


def test_bad_ways_to_play() -> None:
    untimed = read({"request_id": "a"})
    with pytest.raises(BadFile, match="'a' has no timestamp and waits for nothing"):
        play(untimed)
    late = [*read({"request_id": "a", "timestamp": 9000}), *read({"request_id": "b", "timestamp": 5})]
    with pytest.raises(BadFile, match="'b' arrived at 5 ms and stands over 1 records"):
        play(late, PlayRules(lookahead_records=1))
    split = read({"session_id": "s"}, {"session_id": "t"}, {"session_id": "s"})
    with pytest.raises(BadFile, match="'s' was complete; to play in slots, sort the trace by session tree"):
        list(session_trees(split))
    with pytest.raises(BadInput, match="belong to slots"):
        PlayRules(warm_up_requests=3)
    with pytest.raises(BadInput, match="replicas 0"):
        play(untimed, replicas=0)
    with pytest.raises(DoesNotFit):
        play(read({"timestamp": 0, "input_length": POOL_TOKENS}))


def test_a_turn_finds_its_context() -> None:
    requests = read(*session("a", 6), *session("b", 6))
    seen = table(play(requests, PlayRules(slots=1)))
    cache = PrefixCache(None)
    for request in requests:
        hit = cache.use(engine_blocks(request, BLOCK)).hit_blocks
        assert seen[request.request_id]["cached"] == engine_hit_tokens(hit, request.input_tokens, BLOCK)


@pytest.mark.parametrize(("visible", "found"), [(Visible.SCHEDULED, 1), (Visible.COMPUTED, 0), (Visible.COMPLETED, 0)])
def test_a_block_is_found_when_the_engine_says_so(visible: Visible, found: int) -> None:
    # both are admitted in one step: a block is reusable when it is scheduled, computed or done with, not when asked for
    engine = {"scheduled": "vLLM", "computed": "SGLang", "completed": "TensorRT-LLM"}[visible.value]
    rows = [{"timestamp": at, "input_length": 650, "hash_ids": [*range(10)]} for at in (0, 0)]
    result = play(read(*rows), reuse=Reuse(BLOCK, reuse_rules(engine)))
    assert sorted(row["cached"] for row in table(result).values()) == [0, 640 * found]


def test_completed_requests_are_found_by_every_engine() -> None:
    rows = [{"timestamp": at, "input_length": 650, "hash_ids": [*range(10)]} for at in (0, 5000)]
    for engine in ("vLLM", "SGLang", "ATOM", "TensorRT-LLM"):
        result = play(read(*rows), reuse=Reuse(BLOCK, reuse_rules(engine)))
        assert [row["cached"] for row in table(result).values()] == [0, 640]


def test_answers_are_found_only_where_they_return() -> None:
    # ai-dynamo/dynamo #13964: simulated outputs had no identity, so the next turn's generated part never hit
    rows = [
        {"session_id": "s", "request_id": "s:0", "input_length": 64 * 4, "output_length": 129, "new_blocks": 4},
        {"session_id": "s", "input_length": 64 * 8, "prefix_from": "s:0", "prefix_blocks": 4, "new_blocks": 4},
    ]
    for returns, cached in ((False, 64 * 4), (True, 64 * 6)):
        reuse = Reuse(BLOCK, reuse_rules("vLLM"), answers_return=returns)
        seen = table(play(read(*rows), PlayRules(slots=1), reuse=reuse))
        assert [row["cached"] for row in seen.values()] == [0, cached]


def test_running_requests_leave_the_cache_less_room() -> None:
    # two idle contexts of 30 blocks and a running one of 20 fit the pool of 100; not so its answer of some 44 blocks
    def idle(at: int, first: int) -> dict[str, Any]:
        ids = [*range(first, first + 30)]
        return {"timestamp": at, "input_length": BLOCK * 30 + 1, "hash_ids": ids, "output_length": 2}

    running = {"timestamp": 2000, "input_length": BLOCK * 20 + 1, "hash_ids": [*range(200, 220)], "output_length": 3000}
    rows = [idle(0, 0), idle(1000, 100), running, idle(30_000, 0)]
    pool = BLOCK * 100
    assert 0 < table(play(read(*rows), kv_tokens=pool))["#3"]["cached"] < BLOCK * 15
    short = [*rows[:2], running | {"output_length": 100}, rows[3]]
    assert table(play(read(*short), kv_tokens=pool))["#3"]["cached"] == BLOCK * 30
    # the pressure counts although it has passed when the context returns
    late = [*rows[:3], idle(60_000, 0)]
    assert 0 < table(play(read(*late), kv_tokens=pool))["#3"]["cached"] < BLOCK * 15


def tier(dram_blocks: int, bytes_per_token: float = 1e5, rule: str = "vllm-native") -> HostTier:
    return HostTier(dram_blocks * BLOCK, bytes_per_token, 1e9, offload_rule(rule))


def test_a_host_tier_keeps_what_hbm_cannot() -> None:
    requests = read(*(row for turn in range(4) for name in "abcd" for row in session(name, 4)[turn : turn + 1]))
    pool = BLOCK * 45  # one context and a half, of four
    without = play(requests, kv_tokens=pool)
    with_tier = play(requests, kv_tokens=pool, reuse=Reuse(BLOCK, REUSE.rules, tier(400)))
    assert with_tier.simulation.hit_rate > without.simulation.hit_rate + 0.2
    assert with_tier.loads.requests > 0
    assert with_tier.loads.tokens % BLOCK == 0
    assert without.loads.requests == 0


def test_a_load_delays_its_own_request_only() -> None:
    context = {"input_length": BLOCK * 40 + 1, "output_length": 2}
    rows = [
        context | {"timestamp": 0, "hash_ids": [*range(40)]},
        context | {"timestamp": 2000, "hash_ids": [*range(100, 140)]},
        {"timestamp": 3995, "input_length": 1, "output_length": 50, "hash_ids": []},
        context | {"timestamp": 4000, "hash_ids": [*range(40)]},  # evicted by the second, found in DRAM
    ]
    slow = play(read(*rows), kv_tokens=BLOCK * 50, reuse=Reuse(BLOCK, REUSE.rules, tier(400)))
    columns = slow.simulation.requests
    by_name = {
        slow.names[int(n)]: (t, q)
        for n, t, q in zip(columns["id"], columns["ttft_ms"], columns["queue_ms"], strict=True)
    }
    assert slow.loads.tokens in (30 * BLOCK, 31 * BLOCK)  # the head of the evicted context is still in HBM
    load_ms = slow.loads.tokens * 1e5 / 1e9 * 1e3
    assert slow.loads.exposed_ms == pytest.approx(load_ms)
    assert by_name["#3"][0] > load_ms
    others = play(read(*rows[:3]), kv_tokens=BLOCK * 50).simulation.requests
    running = others["e2e_ms"][others["output_tokens"] == 50][0]
    assert columns["e2e_ms"][columns["output_tokens"] == 50][0] == pytest.approx(running, abs=40.0)  # only its own step
    assert columns["cached_tokens"][columns["id"] == 3][0] == BLOCK * 40


def test_routing_decides_what_is_found() -> None:
    requests = read(*(row for name in "abcdef" for row in session(name, 6)))
    spread = play(requests, PlayRules(slots=3), replicas=2, router=RoundRobin())
    sticky = play(requests, PlayRules(slots=3), replicas=2, router=StickySession(RoundRobin()))
    assert sticky.simulation.hit_rate > spread.simulation.hit_rate
    assert set(spread.hit_rates()) == {0, 1}


def test_each_attention_dp_rank_has_its_own_cache() -> None:
    requests = read(*(row for name in "abcdef" for row in session(name, 6)))
    spread = play(requests, PlayRules(slots=3), ranks=2, rank_router=RoundRobin)
    sticky = play(requests, PlayRules(slots=3), ranks=2, rank_router=lambda: StickySession(RoundRobin()))
    whole = play(requests, PlayRules(slots=3))
    assert spread.simulation.hit_rate < sticky.simulation.hit_rate == whole.simulation.hit_rate
    assert spread.simulation.completed == 36
    check_dependencies(requests, table(sticky))


def test_loads_queue_on_the_link_of_their_rank() -> None:
    context = {"input_length": BLOCK * 40 + 1, "output_length": 2}
    rows = [context | {"timestamp": 3000 * n, "hash_ids": [*range(100 * n, 100 * n + 40)]} for n in range(4)]
    rows += [context | {"timestamp": 20_000, "hash_ids": rows[n]["hash_ids"]} for n in (0, 1)]
    reuse = Reuse(BLOCK, REUSE.rules, tier(400))
    waits = {}
    for ranks in (1, 2):
        result = play(read(*rows), kv_tokens=BLOCK * 45, reuse=reuse, ranks=ranks, rank_router=RoundRobin)
        assert result.loads.requests == 2
        waits[ranks] = result.loads.exposed_ms / result.loads.tokens
    # together on one link the second load waits for the first: 1 + 2 loads in all, on two links 1 + 1
    assert waits[1] / waits[2] == pytest.approx(1.5, rel=0.05)


def test_a_split_deployment_decodes_elsewhere() -> None:
    requests = read(*session("a", 4), *session("b", 4))
    handoff = HandoffTimes(floor_ms=7.0, bandwidth_bytes_per_ms=1e9, kv_bytes_per_token=0.0)
    pool = DecodePool(STEP, RULES, POOL_TOKENS, handoff, replicas=2, ranks=2, gpus_per_replica=4)
    split = play(requests, PlayRules(slots=2), decode=pool, replicas=2, router=StickySession(RoundRobin()))
    together = play(requests, PlayRules(slots=2), replicas=2, router=StickySession(RoundRobin()))
    assert split.gpus == 2 + 8
    assert split.simulation.completed == 8
    assert split.simulation.hit_rate == together.simulation.hit_rate > 0.5  # found where the prompt was prefilled
    assert set(split.hit_rates()) == {0, 1}
    assert split.simulation.ttft_ms.p50 > together.simulation.ttft_ms.p50 + 6.0
    check_dependencies(requests, table(split))


def test_serving_the_longest_prefix_first_beats_the_order_of_arrival() -> None:
    # eight contexts, a pool for three, one request at a time: first come, first served visits them in turn (paper A.1)
    requests = read(*(row for name in "abcdefgh" for row in session(name, 8, context=40, new=1, think=0.0)))
    rates = {}
    for policy in (QueuePolicy.FCFS, QueuePolicy.LPM):
        rules = replace(RULES, max_running=1, queue_policy=policy)
        reuse = Reuse(BLOCK, reuse_rules("SGLang"))
        result = simulate_trace(STEP, requests, rules, kv_tokens=BLOCK * 150, play=PlayRules(slots=8), reuse=reuse)
        check_dependencies(requests, table(result))
        rates[policy] = result.simulation.hit_rate
    assert rates[QueuePolicy.FCFS] < 0.1
    assert rates[QueuePolicy.LPM] > 0.8


def test_reuse_that_was_not_simulated_is_flagged() -> None:
    # inference-sim/inference-sim #829: no prefix information must not look like no hits
    untold = play(read({"timestamp": 0}))
    assert [flag.code for flag in untold.flags] == ["requests_without_block_ids"]
    assert [flag.code for flag in play(read({"timestamp": 0}), reuse=None).flags] == ["no_prefix_cache"]
    assert play(read({"timestamp": 0, "new_blocks": 1})).flags == ()


def test_throughput_counts_all_gpus() -> None:
    result = play(read(*session("a", 3)), PlayRules(slots=1), replicas=2, gpus_per_replica=4)
    assert result.gpus == 8
    assert result.total_tok_s_per_gpu == pytest.approx(result.simulation.total_tok_s / 8)
    assert result.output_tok_s_per_gpu == pytest.approx(result.simulation.output_tok_s / 8)
    columns = result.simulation.requests
    slowest = max(columns["e2e_ms"] / columns["output_tokens"])
    assert result.normalized_interactivity_tok_s(100.0) == pytest.approx(1000.0 / slowest)


def test_oversized_requests_leave_their_session_going() -> None:
    rows = [
        {"session_id": "s", "request_id": "a", "input_length": 100},
        {"session_id": "s", "request_id": "b", "input_length": 900},
        {"session_id": "s", "request_id": "c", "input_length": 950},
        {"session_id": "s", "request_id": "d", "input_length": 200, "wait_on": "c", "joins": ["a"]},
    ]
    fitting = Fitting(read(*rows), most_tokens=500)
    kept = list(fitting)
    assert [request.request_id for request in kept] == ["a", "d"]
    assert kept[1].waits_on == ("a",)
    assert fitting.dropped == 2
    assert set(table(play(kept, PlayRules(slots=1)))) == {"a", "d"}


def test_export(tmp_path: Path) -> None:
    result = play(read(*session("a", 3)), PlayRules(slots=1))
    text = io.StringIO()
    write_csv(result, text)
    header, *rows = text.getvalue().splitlines()
    assert tuple(header.split(",")) == COLUMNS
    assert [row.split(",")[0] for row in rows] == ["a:0", "a:1", "a:2"]
    parquet = pytest.importorskip("pyarrow.parquet")
    with open(tmp_path / "requests.parquet", "wb") as sink:
        write_parquet(result, sink)
    stored = parquet.read_table(tmp_path / "requests.parquet").to_pydict()
    assert stored["request_id"] == ["a:0", "a:1", "a:2"]
    assert [f"{value!r}" for value in stored["ttft_ms"]] == [row.split(",")[4] for row in rows]


def test_a_real_engine_found_as_much() -> None:
    # ai-dynamo/dynamo lib/bench/testdata: cached tokens and worker of each request, as the engine reported them
    try:
        file = data_dir() / "traces" / "dynamo_agent_17req.jsonl.gz"
    except CorpusAbsent:
        pytest.skip("the measured data is not on this machine")
    with gzip.open(file, "rt") as lines:
        recorded = {row["request_id"]: row for row in map(json.loads, lines)}

    class Recorded:
        def choose(self, request: TraceRequest, replicas: Sequence[Candidate]) -> int:
            return int(recorded[request.request_id]["measured"]["worker"])

    model = TableStepModel((28.0, 28.1, 28.2, 28.3), (1e-5,) * 4, PrefillCurve(60.0, 0.14, 0.0, 30.0))
    measured = sum(row["measured"]["cached_tokens"] for row in recorded.values())
    prompts = sum(row["input_length"] for row in recorded.values())
    rates = {}
    for returns in (False, True):
        reuse = Reuse(16, reuse_rules("TensorRT-LLM"), answers_return=returns)
        requests = TraceReader(open_trace(file))
        result = simulate_trace(
            model, requests, RULES, kv_tokens=400_000, reuse=reuse, router=Recorded(), replicas=2, host=HostTimes()
        )
        rates[returns] = result.simulation.hit_rate
    assert measured / prompts == pytest.approx(0.7555, abs=1e-4)
    assert rates[False] == pytest.approx(0.691, abs=0.002)  # inputs only
    assert rates[True] == pytest.approx(measured / prompts, abs=0.02)
