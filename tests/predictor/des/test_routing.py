"""Routing policies."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.des.routing import (
    ROUTERS,
    KvAware,
    LeastLoaded,
    PrefixHash,
    Random,
    RoundRobin,
    StickySession,
    router_by_name,
)
from predictor.errors import UnknownName
from predictor.workload.blocks import BlockForest, Prompt
from predictor.workload.trace import TraceRequest


@dataclass
class Replica:
    load: int = 0
    kv_tokens: int = 0
    prefill_tokens: int = 0
    cached: dict[str, int] = field(default_factory=dict)

    def cached_tokens(self, request: TraceRequest) -> int:
        return self.cached.get(request.session_id, 0)


def request(session: str = "s", prompt: Prompt | None = None, tokens: int = 1000) -> TraceRequest:
    return TraceRequest(0, "r", session, session, None, tokens, 10, prompt)


@given(st.sampled_from(sorted(ROUTERS)), st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 99))
def test_every_policy_names_a_replica_and_repeats_itself(name: str, loads: list[int], seed: int) -> None:
    replicas = [Replica(load=load) for load in loads]

    def chosen() -> list[int]:
        router = router_by_name(name, np.random.default_rng(seed))
        return [router.choose(request(f"s{turn % 5}"), replicas) for turn in range(12)]

    assert chosen() == chosen()
    assert set(chosen()) <= set(range(len(loads)))


def test_least_loaded_takes_the_first_of_equals() -> None:
    assert LeastLoaded().choose(request(), [Replica(3), Replica(1), Replica(1)]) == 1


def test_round_robin() -> None:
    router = RoundRobin()
    assert [router.choose(request(), [Replica()] * 3) for _ in range(5)] == [0, 1, 2, 0, 1]


def test_random_follows_its_generator() -> None:
    expected = np.random.default_rng(7).integers(4, size=1)[0]
    assert Random(np.random.default_rng(7)).choose(request(), [Replica()] * 4) == expected


@pytest.mark.parametrize(
    ("waiting_there", "chosen"),
    [(0, 0), (799, 0), (801, 1)],  # 800 cached tokens are worth 800 tokens of queue
)
def test_kv_aware_trades_overlap_against_load(waiting_there: int, chosen: int) -> None:
    replicas = [Replica(cached={"s": 800}, prefill_tokens=waiting_there), Replica()]
    assert KvAware().choose(request(), replicas) == chosen


def test_kv_aware_weight() -> None:
    replicas = [Replica(cached={"s": 800}, kv_tokens=1000), Replica()]
    assert KvAware(1.0).choose(request(), replicas) == 1
    assert KvAware(2.0).choose(request(), replicas) == 0


def test_prefix_hash_colocates_equal_heads_and_spreads_others() -> None:
    forest, router, replicas = BlockForest(), PrefixHash(), [Replica() for _ in range(4)]
    heads = [forest.named([f"h{head}"]) for head in range(64)]
    homes = [router.choose(request(prompt=head), replicas) for head in heads]
    for number, home in enumerate(homes):
        longer = forest.named([f"h{number}", f"t{number}"])
        assert router.choose(request("other", longer), replicas) == home
    assert set(homes) == {0, 1, 2, 3}
    moved = [router.choose(request(prompt=head), [*replicas, Replica()]) for head in heads]
    assert all(new in (old, 4) for old, new in zip(homes, moved, strict=True))


def test_prefix_hash_without_ids_keeps_sessions_together() -> None:
    router, replicas = PrefixHash(), [Replica() for _ in range(4)]
    assert router.choose(request("a"), replicas) == router.choose(request("a"), replicas)


def test_sticky_sessions_stay_until_forgotten() -> None:
    router = StickySession(RoundRobin(), most_sessions=2)
    replicas = [Replica() for _ in range(3)]
    assert [router.choose(request(session), replicas) for session in ("a", "b", "a", "c", "b", "a")] == [
        0,
        1,
        0,
        2,
        0,
        1,
    ]


def test_unknown_policy() -> None:
    with pytest.raises(UnknownName, match="nearest: kv-aware"):
        router_by_name("kv-awar", np.random.default_rng(0))
