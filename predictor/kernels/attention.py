"""Attention kernels: decode lines, exactly linear in context, and prefill costs, quadratic in the prompt.

Decode (one layer, one rank, ``B`` requests, ``S`` total context tokens)::

    t = t_a + bytes_per_token·S / (ea·BW) + (max(1, B·Hkv/SM) − 1)·c + (q + o bytes) / (ea·BW)

so a batch needs one intercept and one slope. MLA reads one shared latent vector a token for all heads; its compute
``2·S·ceil64(H)·(2·r + rope)`` is proportional to ``S`` too, and the larger of the two slopes holds at every context. A
cubic norm of the terms would be one or two points closer to the tables and would break the closed form.

Prefill (causal)::

    t = t_a + flops / (ef·P),  flops = 2·H·(d_qk + d_v)·Σ over new tokens of the keys each one sees
"""

import math
from dataclasses import dataclass

from predictor.kernels.gpu import Gpu
from predictor.types import Dtype


@dataclass(frozen=True, slots=True)
class AttentionConstants:
    """Facts of one attention kernel family on one GPU generation."""

    decode_us: float  # t_a: floor of a decode call, its metadata and reduction kernels included
    decode_hbm: float  # ea: share of HBM peak the cache is read at
    decode_item_us: float  # c: cost of a further round of (request, KV head) work items
    prefill_us: float
    prefill_compute: float  # ef: share of the bf16 peak
    decode_compute: float = 0.5  # share of the bf16 peak of the MLA decode kernel
    source: str = ""


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """Cost of one decode attention call: ``us = fixed_us + us_per_token · context`` (total over the batch)."""

    fixed_us: float
    us_per_token: float


_KV_BYTES = {Dtype.BF16: 2.0, Dtype.FP8: 1.0, Dtype.FP4: 0.5625}


def kv_bytes_per_value(dtype: Dtype) -> float:
    """Bytes a cached value, block scales included."""
    return _KV_BYTES[dtype]


def gqa_decode(
    gpu: Gpu,
    constants: AttentionConstants,
    batch: float,
    queries: float,
    heads: int,
    kv_heads: int,
    qk_dim: int,
    v_dim: int,
    kv: Dtype,
) -> DecodeCost:
    """Decode attention with ``kv_heads`` cached heads on this rank; a request's ``queries`` tokens share one read."""
    rate = constants.decode_hbm * gpu.hbm_bytes_per_s
    per_token = kv_heads * (qk_dim + v_dim) * kv_bytes_per_value(kv)
    in_out = batch * queries * heads * (qk_dim + v_dim) * 2.0
    rounds = max(1.0, batch * kv_heads / gpu.compute_units) - 1.0
    fixed = constants.decode_us + in_out / rate * 1e6 + rounds * constants.decode_item_us
    return DecodeCost(fixed, per_token / rate * 1e6)


def mla_decode(
    gpu: Gpu,
    constants: AttentionConstants,
    batch: float,
    queries: float,
    heads: int,
    latent_dim: int,
    rope_dim: int,
    kv: Dtype,
) -> DecodeCost:
    """Absorbed MLA decode: one latent vector a token, read once for all heads of the rank.

    Heads are padded to 64 rows of the tensor core tile, so narrow ranks pay for heads they do not have.
    """
    rate = constants.decode_hbm * gpu.hbm_bytes_per_s
    width = latent_dim + rope_dim
    memory = width * kv_bytes_per_value(kv) / rate
    rows = math.ceil(heads * queries / 64.0) * 64.0
    compute = 2.0 * rows * (width + latent_dim) / (constants.decode_compute * gpu.peak_bf16_flops)
    in_out = batch * queries * heads * (width + latent_dim) * 2.0
    rounds = max(1.0, batch / gpu.compute_units) - 1.0
    fixed = constants.decode_us + in_out / rate * 1e6 + rounds * constants.decode_item_us
    return DecodeCost(fixed, max(memory, compute) * 1e6)


def prefill_us_per_pair(gpu: Gpu, constants: AttentionConstants, heads: int, qk_dim: int, v_dim: int) -> float:
    """Time of one (query token, key token) pair over all heads of the rank, us."""
    return 2.0 * heads * (qk_dim + v_dim) / (constants.prefill_compute * gpu.peak_bf16_flops) * 1e6
