"""Traces in time: who sends when, what waits for what, what is counted and exported."""

import gzip
import io
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.corpus import CorpusAbsent, data_dir
from predictor.des.export import COLUMNS, write_csv, write_parquet
from predictor.des.metrics import HostTimes
from predictor.des.play import PlayRules, agentx_rules
from predictor.des.replica_cache import reuse_rules
from predictor.des.routing import Candidate
from predictor.des.sessions import session_trees
from predictor.des.trace_sim import Reuse, simulate_trace
from predictor.errors import BadFile, BadInput, DoesNotFit
from predictor.step.model import PrefillCurve, TableStepModel
from predictor.workload.fitting import Fitting
from predictor.workload.json_stream import open_trace
from predictor.workload.trace import TraceReader, TraceRequest
from tests.predictor.des.trace_play import POOL_TOKENS, RULES, check_dependencies, play, read, session, table


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
