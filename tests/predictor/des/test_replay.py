"""Replays: golden values of the sample traces, order apart from policy, and what a hit rate means."""

import json
from pathlib import Path
from typing import Any

import pytest

from evals.corpus import CorpusAbsent, data_dir
from evals.prefix_cache import Orders, differences, run_golden
from predictor.des.prefix_cache import Eviction, PrefixCache
from predictor.des.replay import (
    engine_blocks,
    engine_hit_tokens,
    hit_rates,
    prompt_of,
    recorded_order,
    replay,
    replay_longest,
    round_robin_order,
)
from predictor.errors import BadInput
from predictor.workload.block_size import BlockSize, Tail
from predictor.workload.json_stream import open_trace
from predictor.workload.trace import TraceReader, TraceRequest

B64 = BlockSize(64, Tail.FLOOR)
# contexts that fit the pool one by one and not together, as in the paper's A.1
SESSIONS, TURNS, CONTEXT_BLOCKS, NEW_BLOCKS = 8, 12, 40, 2


def folder() -> Path:
    try:
        return data_dir() / "traces"
    except CorpusAbsent:
        pytest.skip("the measured data is not on this machine")


def sessions(think_time: int = 0) -> list[TraceRequest]:
    """Agentic sessions, one behind another in the file: a long context that grows by a little each turn."""
    rows: list[str] = []
    for session in range(SESSIONS):
        for turn in range(TURNS):
            blocks = CONTEXT_BLOCKS + turn * NEW_BLOCKS
            fields: dict[str, Any] = {
                "session_id": f"s{session}",
                "request_id": f"s{session}:{turn}",
                "input_length": 64 * blocks,
                "output_length": 5,
                "think_time": think_time,
                "recorded_api_time": 1000,
                "new_blocks": CONTEXT_BLOCKS if turn == 0 else NEW_BLOCKS,
            }
            if turn:
                fields |= {"prefix_from": f"s{session}:{turn - 1}", "prefix_blocks": blocks - NEW_BLOCKS}
            rows.append(json.dumps(fields))
    return list(TraceReader(rows, block_size=B64))


def block_frac(hits: tuple[int, ...], requests: list[TraceRequest]) -> float:
    return hit_rates(requests, hits, B64).block_frac


@pytest.mark.parametrize("name", ["dynamo_agent_17req", "mooncake_arxiv_first1000", "agentic_coding_small"])
def test_golden_hit_rates(name: str) -> None:
    goldens = json.loads((folder() / "golden_hit_rates.json").read_text())["traces"][f"{name}.jsonl.gz"]
    reader = TraceReader(open_trace(folder() / f"{name}.jsonl.gz"))
    orders = Orders(list(reader))
    assert reader.block_size == BlockSize(goldens["block_size"], Tail(goldens["tail"]))
    for golden in goldens["runs"]:
        assert differences(golden, run_golden(orders, golden, reader.block_size)) == []


def test_order_alone() -> None:
    requests = sessions()
    pool = 3 * CONTEXT_BLOCKS  # three of eight contexts
    rates = {
        "in turn": block_frac(
            replay(round_robin_order(requests, SESSIONS), PrefixCache(pool)).hit_blocks_by_row, requests
        ),
        "longest": block_frac(replay_longest(requests, SESSIONS, PrefixCache(pool)).hit_blocks_by_row, requests),
        "file": block_frac(replay(requests, PrefixCache(pool)).hit_blocks_by_row, requests),
    }
    ideal = block_frac(replay(requests, PrefixCache(None)).hit_blocks_by_row, requests)
    assert rates["in turn"] < 0.05
    assert rates["longest"] == rates["file"] == ideal > 0.8


def test_policy_alone() -> None:
    # in one order, leaf-first wins where one prompt exceeds the pool, and elsewhere hardly
    requests = sessions()

    def gain(pool_blocks: int) -> float:
        leaf, flat = (
            block_frac(replay(requests, PrefixCache(pool_blocks, policy)).hit_blocks_by_row, requests)
            for policy in (Eviction.LEAF_LRU, Eviction.FLAT_LRU)
        )
        return leaf - flat

    assert gain(CONTEXT_BLOCKS // 2) > 0.3
    assert gain(4 * CONTEXT_BLOCKS) == 0.0


def test_recorded_times() -> None:
    requests = sessions(think_time=400_000)
    dispatch = recorded_order(requests, lanes=2)
    # a turn: the capped think time, then the service; two lanes share eight trees of twelve turns
    assert dispatch.makespan_ms == SESSIONS / 2 * TURNS * (300_000 + 1000)
    assert dispatch.dispatch_ms[:2] == (300_000, 601_000)
    assert [request.request_id for request in dispatch.order[:3]] == ["s0:0", "s1:0", "s0:1"]


def test_a_turn_waits_for_its_sub_agents() -> None:
    rows = [
        {"session_id": "s", "request_id": "p0", "recorded_api_time": 1000, "new_blocks": 1},
        {"session_id": "s/a", "parent_session_id": "s", "request_id": "a0", "wait_on": "p0", "recorded_api_time": 5000},
        {"session_id": "s", "request_id": "p1", "wait_on": "p0", "joins": ["a0"], "think_time": 10},
    ]
    full = [json.dumps({"input_length": 64, "output_length": 1, "new_blocks": 1} | row) for row in rows]
    dispatch = recorded_order(list(TraceReader(full, block_size=B64)), lanes=1)
    assert dispatch.dispatch_ms == (0, 1000, 6010)
    assert dispatch.makespan_ms == 6010 + 6500


def test_rates_by_definition() -> None:
    # llm-d/llm-d-inference-sim #356, #430: a rate per block was compared with an engine's count of tokens
    rows = [{"input_length": 130, "output_length": 1, "hash_ids": ids} for ids in ([1, 2, 3], [1, 2, 3], [1, 2, 4])]
    reader = TraceReader(map(json.dumps, rows), block_size=BlockSize(64, Tail.CEIL))
    requests = list(reader)
    hits = replay(requests, PrefixCache(None)).hit_blocks_by_row
    assert hits == (0, 3, 2)
    rates = hit_rates(requests, hits, BlockSize(64, Tail.CEIL))
    assert (rates.hit_blocks, rates.total_blocks) == (5, 9)
    assert (rates.hit_tokens, rates.engine_hit_tokens, rates.total_tokens) == (130 + 128, 128 + 128, 390)
    assert rates.mean_request_token_frac == pytest.approx((0 + 1 + 128 / 130) / 3)


def test_the_last_token_is_always_computed() -> None:
    # vllm-project/vllm #17999, #11186: a fully cached prompt recomputes its last block and keeps its chain
    assert engine_hit_tokens(8, 512, 64) == 448
    assert engine_hit_tokens(8, 513, 64) == 512
    (request,) = TraceReader([json.dumps({"input_length": 512, "output_length": 1, "new_blocks": 8})], block_size=B64)
    cache = PrefixCache(8)
    for expected in (0, 8, 8):
        assert cache.use(engine_blocks(request, 64)).hit_blocks == expected


def test_partial_blocks_take_no_room() -> None:
    # vllm-project/vllm #42656: partial blocks in the LRU list push out reusable ones
    rows = [{"input_length": 65 + n, "output_length": 1, "hash_ids": [10 * n, 10 * n + 1]} for n in range(4)]
    requests = list(TraceReader(map(json.dumps, rows), block_size=BlockSize(64, Tail.CEIL)))
    cache = PrefixCache(4)
    for request in requests:
        cache.use(engine_blocks(request, 64))
    assert [cache.resident_prefix(prompt_of(request)) for request in requests] == [1, 1, 1, 1]


def test_a_trace_without_ids_is_not_a_trace_without_hits() -> None:
    # inference-sim/inference-sim #829: a format dropped the prefix groups and the replay silently showed no hits
    requests = list(TraceReader([json.dumps({"input_length": 5, "output_length": 1})]))
    with pytest.raises(BadInput, match="no block ids"):
        replay(requests, PrefixCache(None))
