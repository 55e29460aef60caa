"""Hand-off price and host time of disaggregated pools."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.disagg import handoff_backend, handoff_ms, split_host_time
from predictor.errors import BadInput, UnknownName
from predictor.profiles.loader import platform

MI355X = platform("MI355X")
MORI, NIXL, MOONCAKE = (handoff_backend(MI355X, name) for name in ("mori", "nixl", "mooncake"))


def test_backends_as_published() -> None:
    one_gb = 1e9
    assert handoff_ms(NIXL, one_gb, 61) == pytest.approx(0.005 + 1000 / 400)
    assert handoff_ms(MOONCAKE, one_gb, 61) == pytest.approx(0.010 + 1000 / 200)
    assert handoff_ms(MORI, one_gb, 61) == pytest.approx(0.120 + 1000 / 61 / 47.9)
    with pytest.raises(UnknownName, match="mori"):
        handoff_backend(MI355X, "morii")
    with pytest.raises(BadInput):
        handoff_ms(MORI, -1.0, 61)


def test_a_streamed_rate_hardly_matters() -> None:
    """Paper D.4: 47.9 instead of 300 GB/s moves no projected TTFT by more than 3%."""
    kv_bytes = 8192 * 576 * 61
    slow = handoff_ms(MORI, kv_bytes, 61)
    fast = 0.120 + kv_bytes / 61 / 300e6
    assert slow - fast < 0.03 * 200  # the prefill of 8k tokens takes hundreds of ms


def test_host_time_of_a_split_is_twice_the_anchor_s() -> None:
    split = split_host_time(80.0)
    assert split.serial_ms == 40.0
    assert split.serial_ms + split.latency_ms == pytest.approx(158.0, rel=0.02)


@given(st.sampled_from([MORI, NIXL, MOONCAKE]), st.floats(0, 1e12), st.floats(0, 1e12), st.integers(1, 128))
def test_more_bytes_never_arrive_sooner(handoff, a, b, layers) -> None:  # type: ignore[no-untyped-def]
    small, large = sorted((a, b))
    assert handoff.floor_us / 1e3 <= handoff_ms(handoff, small, layers) <= handoff_ms(handoff, large, layers)
