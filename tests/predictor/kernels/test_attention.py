"""Attention forms: linear decode, quadratic prefill, and the traps they must not fall into."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.kernels.attention import gqa_decode, kv_bytes_per_value, mla_decode, prefill
from predictor.kernels.facts import DecodeFacts, PrefillFacts
from predictor.kernels.gpu import gpu_of
from predictor.profiles.loader import platform
from predictor.types import Dtype

H100 = gpu_of(platform("H100"))
DECODE = DecodeFacts(12.0, 0.9, 3.0, 0.6)
PREFILL = PrefillFacts(12.0, 0.6, 1.0, 0.4)


@given(st.integers(1, 2048), st.floats(0, 1e7), st.floats(0, 1e7))
def test_decode_is_exactly_linear_in_total_context(batch, first, second):
    form = gqa_decode(H100, DECODE, 8, 1, 128, 128, Dtype.BF16)
    b = np.array([float(batch)])
    low, middle, high = (
        form.times_us(b, np.array([context]))[0] for context in (first, (first + second) / 2.0, second)
    )
    assert (low + high) / 2.0 == pytest.approx(middle, rel=1e-12)


def test_scalar_and_array_decode_agree():
    form = gqa_decode(H100, DECODE, 16, 8, 128, 128, Dtype.FP8)
    for batch in (1.0, 16.0, 300.0):
        scalar = form.floor_us + form.work_us(batch) + form.us_per_token * 5e4
        assert form.times_us(np.array([batch]), np.array([5e4]))[0] == pytest.approx(scalar, rel=1e-12)


@pytest.mark.parametrize("kv", tuple(Dtype))
def test_cache_bytes_set_the_slope(kv):
    form = gqa_decode(H100, DECODE, 8, 2, 128, 128, kv)
    bytes_per_token = 2 * 256 * kv_bytes_per_value(kv)
    assert form.us_per_token == pytest.approx(bytes_per_token / (0.9 * H100.hbm_bytes_per_s) * 1e6)


def test_query_heads_share_one_cache_read():
    few, many = (gqa_decode(H100, DECODE, heads, 1, 128, 128, Dtype.BF16).us_per_token for heads in (1, 16))
    assert few == many


def test_latent_is_read_once_for_all_heads_until_compute_binds():
    narrow, wide = (mla_decode(H100, DECODE, heads, 512, 64, Dtype.BF16).us_per_token for heads in (16, 128))
    latent_us = 576 * 2 / (0.9 * H100.hbm_bytes_per_s) * 1e6
    assert narrow == pytest.approx(latent_us)
    compute_us = 2 * 128 * 1088 / (0.6 * H100.peak_bf16_flops) * 1e6
    assert wide == pytest.approx(max(latent_us, compute_us))


def test_narrow_ranks_pay_for_padded_heads():
    """1 and 64 heads fill the same 64-row tile, so their compute is the same."""
    slow = DecodeFacts(12.0, 0.9, 3.0, 0.05)
    one, full = (mla_decode(H100, slow, heads, 512, 64, Dtype.BF16).us_per_token for heads in (1, 64))
    assert one == full


def test_drafted_tokens_share_the_cache_read():
    one, four = (gqa_decode(H100, DECODE, 8, 1, 128, 128, Dtype.BF16, queries) for queries in (1.0, 4.0))
    assert four.us_per_token == one.us_per_token
    assert four.us_per_request == pytest.approx(4.0 * one.us_per_request)


def test_prefill_coefficients_are_the_long_prompt_limit_of_the_call():
    """Pairs and tokens of the closed form against the tiled sum, for a prompt that fills the GPU."""
    form = prefill(H100, PREFILL, 32, 8, 128, 128, Dtype.BF16)
    tokens = 16384.0
    exact = form.times_us(np.array([1.0]), np.array([tokens]), np.array([0.0]))[0]
    closed = form.floor_us + form.pair_us() * tokens**2 / 2.0 + form.token_us() * tokens
    assert closed == pytest.approx(exact, rel=1e-9)


def test_windowed_prefill_is_linear_in_the_prompt():
    form = prefill(H100, PREFILL, 64, 8, 64, 64, Dtype.BF16)
    tokens = np.array([8192.0, 16384.0])
    times = form.times_us(np.ones(2), tokens, np.full(2, 128.0)) - form.floor_us
    assert times[1] / times[0] == pytest.approx(2.0, rel=1e-6)
    assert times[0] == pytest.approx(form.token_us(128.0) * tokens[0], rel=1e-6)


@given(st.integers(1, 256), st.integers(1, 16384), st.integers(0, 4096))
def test_longer_prompts_never_cost_less(batch, tokens, more):
    form = prefill(H100, PREFILL, 8, 2, 128, 128, Dtype.BF16)
    times = form.times_us(np.full(2, float(batch)), np.array([float(tokens), float(tokens + more)]), np.zeros(2))
    assert times[1] >= times[0]


def test_a_lone_short_prompt_waits_for_its_longest_item():
    """One head of one long prompt cannot use the whole GPU: the last tile's work item sets the time."""
    form = prefill(H100, PREFILL, 1, 1, 128, 128, Dtype.BF16)
    time = form.times_us(np.array([1.0]), np.array([8192.0]), np.array([0.0]))[0]
    assert time >= form.floor_us + 64 * form.block_us
