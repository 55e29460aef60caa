"""Attention kernels as closed forms: decode exactly linear in context, prefill quadratic in the prompt.

Decode (one layer, one rank, ``B`` requests, ``S`` total context tokens)::

    t = t_a + bytes_per_token·S / (ea·BW) + (max(1, B·Hkv/SM) − 1)·c + (q + o bytes) / (ea·BW)

so a batch needs one intercept and one slope. MLA reads one shared latent vector a token for all heads; its compute
``2·S·ceil64(H)·(2·r + rope)`` is proportional to ``S`` too, and the larger of the two slopes holds at every context. A
cubic norm of the terms would be one or two points closer to the tables and would break the closed form.

Prefill in causal 128-row tiles, one work item a tile and head::

    t = t_a + max(Σ items / SM, longest item) + (q, k, v, o bytes) / (e_io·BW)
    item of the i-th tile = t_tile + i·(2·(d_qk + d_v)·128²) / (ef·P/SM)
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.kernels.facts import DecodeFacts, PrefillFacts
from predictor.kernels.gpu import Gpu
from predictor.types import Dtype

FloatArray = NDArray[np.float64]

TILE_ROWS = 128.0  # query rows and key columns a work item handles at a time (FlashAttention-3, trtllm-gen)
MLA_ROWS = 64.0  # heads are padded to the tensor core tile

_KV_BYTES = {Dtype.BF16: 2.0, Dtype.FP8: 1.0, Dtype.FP4: 0.5625}


def kv_bytes_per_value(dtype: Dtype) -> float:
    """Bytes a cached value, block scales included."""
    return _KV_BYTES[dtype]


@dataclass(frozen=True, slots=True)
class DecodeForm:
    """Decode attention of one layer: every coefficient in us."""

    floor_us: float
    us_per_request: float  # queries and outputs
    items_per_request: float  # work items a request
    item_us: float  # of each further round of items over the compute units
    units: float
    us_per_token: float  # of total context

    def work_us(self, batch: float) -> float:
        """What the call costs beyond its floor before any context is read."""
        rounds = max(1.0, batch * self.items_per_request / self.units) - 1.0
        return self.us_per_request * batch + rounds * self.item_us

    def times_us(self, batch: FloatArray, context_tokens: FloatArray) -> FloatArray:
        """The whole call over arrays of batches and total contexts."""
        rounds = np.maximum(1.0, batch * self.items_per_request / self.units) - 1.0
        work = self.us_per_request * batch + rounds * self.item_us
        result: FloatArray = self.floor_us + work + self.us_per_token * context_tokens
        return result


def gqa_decode(
    gpu: Gpu, facts: DecodeFacts, heads: int, kv_heads: int, qk_dim: int, v_dim: int, kv: Dtype, queries: float = 1.0
) -> DecodeForm:
    """Decode with ``kv_heads`` cached heads on this rank; a request's ``queries`` tokens share one cache read."""
    rate = facts.hbm * gpu.hbm_bytes_per_s
    return DecodeForm(
        floor_us=facts.floor_us,
        us_per_request=queries * heads * (qk_dim + v_dim) * 2.0 / rate * 1e6,
        items_per_request=float(kv_heads),
        item_us=facts.item_us,
        units=float(gpu.compute_units),
        us_per_token=kv_heads * (qk_dim + v_dim) * kv_bytes_per_value(kv) / rate * 1e6,
    )


def mla_decode(
    gpu: Gpu, facts: DecodeFacts, heads: int, latent_dim: int, rope_dim: int, kv: Dtype, queries: float = 1.0
) -> DecodeForm:
    """Absorbed MLA decode: one latent vector a token, read once for all heads of the rank.

    Heads are padded to 64 rows, so narrow ranks pay for heads they do not have.
    """
    rate = facts.hbm * gpu.hbm_bytes_per_s
    width = latent_dim + rope_dim
    memory_s = width * kv_bytes_per_value(kv) / rate
    rows = math.ceil(heads * queries / MLA_ROWS) * MLA_ROWS
    compute_s = 2.0 * rows * (width + latent_dim) / (facts.compute * gpu.peak_bf16_flops)
    return DecodeForm(
        floor_us=facts.floor_us,
        us_per_request=queries * heads * (width + latent_dim) * 2.0 / rate * 1e6,
        items_per_request=1.0,
        item_us=facts.item_us,
        units=float(gpu.compute_units),
        us_per_token=max(memory_s, compute_s) * 1e6,
    )


@dataclass(frozen=True, slots=True)
class PrefillForm:
    """Prefill attention of one layer: every coefficient in us."""

    floor_us: float
    heads: float  # on this rank
    units: float
    item_us: float  # start of one work item on its compute unit
    block_us: float  # one 128 × 128 block of one item on its compute unit
    us_per_token: float  # operands and outputs through HBM

    def pair_us(self) -> float:
        """One (query, key) pair of every head, all compute units at work."""
        return self.heads * self.block_us / (TILE_ROWS * TILE_ROWS * self.units)

    def token_us(self, window_tokens: float = 0.0) -> float:
        """One prompt token besides its causal pairs: half a diagonal block, the item's start, the bytes.

        With a window the keys seen are those of the window and one more block, a token.
        """
        seen = window_tokens / TILE_ROWS + 1.0 if window_tokens else 0.5
        return self.heads * (seen * self.block_us + self.item_us) / (TILE_ROWS * self.units) + self.us_per_token

    def times_us(self, batch: FloatArray, tokens: FloatArray, window_tokens: FloatArray) -> FloatArray:
        """Whole prompts of ``tokens`` tokens each, ``batch`` of them in one call; window 0 means full attention."""
        tiles = np.ceil(tokens / TILE_ROWS)
        widest = np.where(window_tokens > 0.0, np.minimum(tiles, np.ceil(window_tokens / TILE_ROWS) + 1.0), tiles)
        blocks = np.minimum(tiles * (tiles + 1.0) / 2.0, tiles * widest)
        total = batch * self.heads * (blocks * self.block_us + tiles * self.item_us) / self.units
        longest = widest * self.block_us + self.item_us
        result: FloatArray = self.floor_us + np.maximum(total, longest) + batch * tokens * self.us_per_token
        return result


def prefill(
    gpu: Gpu, facts: PrefillFacts, heads: int, kv_heads: int, qk_dim: int, v_dim: int, arithmetic: Dtype
) -> PrefillForm:
    """Prefill attention of one rank; ``arithmetic`` is the format of the products (fp8 where keys and queries are)."""
    unit_flops = facts.compute * gpu.peak_flops(arithmetic) / gpu.compute_units
    moved = 2.0 * (heads + kv_heads) * (qk_dim + v_dim)
    return PrefillForm(
        floor_us=facts.floor_us,
        heads=float(heads),
        units=float(gpu.compute_units),
        item_us=facts.item_us,
        block_us=2.0 * (qk_dim + v_dim) * TILE_ROWS * TILE_ROWS / unit_flops * 1e6,
        us_per_token=moved / (facts.hbm * gpu.hbm_bytes_per_s) * 1e6,
    )
