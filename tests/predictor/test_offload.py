"""Host tier: capacity, loads and their queue."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.errors import BadInput, UnknownName
from predictor.offload import TIER_RULES, exposed_load_ms, flag_gb, host_tier, queue_load, tier_rule
from predictor.profiles.loader import engine_profile, platform

MI355X = platform("MI355X")


def test_a_rank_holds_its_share_and_loads_over_its_own_link() -> None:
    tier = host_tier(MI355X, "SGLang", 800.0, 8, 50_000.0)
    assert tier.capacity_tokens == 2_000_000
    assert tier.load_ms(100_000) == pytest.approx(100_000 * 50_000 / 64e9 * 1e3)
    assert not tier.worth_loading(9)
    assert tier.worth_loading(10)


def test_every_engine_has_a_rule() -> None:
    assert set(TIER_RULES) == {engine_profile(name).name for name in ("vllm", "sglang", "atom", "trtllm")}
    assert flag_gb(tier_rule("vLLM"), 800.0, 8) == 800.0
    assert flag_gb(tier_rule("sglang"), 800.0, 8) == 100.0
    with pytest.raises(UnknownName):
        tier_rule("llama.cpp")


def test_dram_is_finite() -> None:
    with pytest.raises(BadInput, match="have 2000 GB of DRAM"):
        host_tier(MI355X, "vLLM", 2400.0, 8, 50_000.0)
    assert host_tier(MI355X, "vLLM", 2400.0, 16, 50_000.0).capacity_tokens == 3_000_000
    with pytest.raises(BadInput, match="not a host tier"):
        host_tier(MI355X, "vLLM", 1.0, 8, 0.0)


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e3)), min_size=1, max_size=20))
def test_one_link_serves_one_load_at_a_time(loads: list[tuple[float, float]]) -> None:
    free, busy = 0.0, 0.0
    for arrival, load in sorted(loads):
        end, waited = queue_load(free, arrival, load)
        assert waited >= 0.0
        assert end == pytest.approx(arrival + waited + load)
        assert end >= free
        free, busy = end, busy + load
    assert free >= busy - 1e-6


@given(st.floats(0, 1e3), st.floats(0, 1e3), st.integers(1, 100))
def test_overlapped_loads_expose_less(load_ms: float, prefill_ms: float, layers: int) -> None:
    before = exposed_load_ms(tier_rule("vLLM"), load_ms, prefill_ms, layers)
    under = exposed_load_ms(tier_rule("SGLang"), load_ms, prefill_ms, layers)
    assert before == load_ms
    assert 0.0 <= under <= load_ms
