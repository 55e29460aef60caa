"""What is remembered is right, bounded by bytes, and forgotten oldest first."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.des.rules import SchedulerRules
from predictor.des.schedule import cached_schedule
from predictor.remembered import remembered
from predictor.types import Workload


@given(st.lists(st.integers(0, 12), max_size=60), st.integers(1, 30))
def test_answers_are_the_functions_and_the_bound_holds(asked: list[int], most_bytes: int) -> None:
    function = remembered(len, most_bytes)(lambda size: b"x" * size)
    for size in asked:
        assert function(size) == b"x" * size
        assert function.held_bytes <= most_bytes or len(function) == 1


def test_the_least_recently_used_is_asked_again() -> None:
    calls: Counter[str] = Counter()

    def work(name: str) -> bytes:
        calls[name] += 1
        return b"12345"

    function = remembered(len, 10)(work)
    for name in ("a", "b", "a", "c", "a", "b"):
        function(name)
    assert calls == {"a": 1, "b": 2, "c": 1}
    function.cache_clear()
    assert (len(function), function.held_bytes) == (0, 0)


def test_a_failure_is_not_remembered() -> None:
    def fails(_name: str) -> bytes:
        raise ValueError("no")

    function = remembered(len, 10)(fails)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            function("a")
    assert len(function) == 0


def test_schedules_of_many_clients_do_not_pile_up() -> None:
    """A worker of a service meets schedule after schedule; what it holds of them is bounded."""
    rules = SchedulerRules("vllm", max_running=2048, token_budget=8192, block_tokens=16)
    made_bytes = 0
    cached_schedule.cache_clear()
    for osl in range(40, 72):
        workload = Workload(64, osl, concurrency=2048, requests_per_client=4)
        made_bytes += cached_schedule(workload, rules, 10**6, 1.0, 0, 0).size_bytes()
        assert cached_schedule.held_bytes <= cached_schedule.most_bytes
    assert made_bytes > cached_schedule.most_bytes, "there was something to forget"
    cached_schedule.cache_clear()
