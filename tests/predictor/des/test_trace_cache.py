"""Traces on caches: what a turn finds, what host tiers keep, where requests go, what a split deployment passes on."""

from dataclasses import replace
from typing import Any

import pytest

from predictor.des.fleet import HandoffTimes
from predictor.des.play import PlayRules
from predictor.des.prefix_cache import PrefixCache
from predictor.des.replay import engine_blocks, engine_hit_tokens
from predictor.des.replica_cache import Visible, reuse_rules
from predictor.des.routing import RoundRobin, StickySession
from predictor.des.rules import QueuePolicy
from predictor.des.tiers import offload_rule
from predictor.des.trace_sim import DecodePool, Reuse, simulate_trace
from predictor.offload import HostTier
from tests.predictor.des.trace_play import (
    BLOCK,
    POOL_TOKENS,
    REUSE,
    RULES,
    STEP,
    check_dependencies,
    play,
    read,
    session,
    table,
)


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
