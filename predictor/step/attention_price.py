"""Attention of a step: decode pieces, exactly linear in total context, and prefill coefficients.

Every kind reduces to a fixed cost a call and reads of the form ``us_per_token · min(context, cap·batch)``: a sliding
window or a sparse top-k caps what a request reads, so each cap adds one kink to the line and nothing else does.
"""

from dataclasses import dataclass

from predictor.cards import Attention
from predictor.kernels.attention import (
    AttentionConstants,
    gqa_decode,
    kv_bytes_per_value,
    mla_decode,
    prefill_us_per_pair,
)
from predictor.kernels.engine_facts import EngineFacts
from predictor.kernels.gpu import Gpu
from predictor.kernels.linear_attention import decode_us_per_request, prefill_us_per_token
from predictor.step.op_types import AttentionOp

UNCAPPED = float("inf")
# Indexer scores are an fp8 product against 132 bytes a token (128 fp8 values and a 4-byte scale).
INDEX_SCALE_BYTES = 4.0
TOPK_LAUNCHES = 2.0


@dataclass(frozen=True, slots=True)
class ContextRead:
    """``us_per_token`` for each context token, up to ``cap_tokens`` a request."""

    us_per_token: float
    cap_tokens: float = UNCAPPED


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """Decode attention of a step at one batch: floors, work that does not depend on context, and context reads."""

    launch_us: float
    work_us: float
    reads: tuple[ContextRead, ...]


@dataclass(frozen=True, slots=True)
class PrefillAttention:
    """Prefill attention of a whole step, us: floor, a token, and a pair of (query, earlier-or-same key) tokens."""

    launch_us: float
    us_per_token: float
    us_per_pair: float


def decode_attention(gpu: Gpu, facts: EngineFacts, op: AttentionOp, batch: float, queries: float) -> AttentionStep:
    """Decode attention of one kind, all its layers, at ``batch`` requests of ``queries`` tokens each."""
    builders = {"gqa": _gqa_decode, "mla": _mla_decode, "linear": _linear_decode, "compressed": _compressed_decode}
    return builders[op.card.kind](gpu, facts, op, batch, queries)


def prefill_attention(gpu: Gpu, facts: EngineFacts, op: AttentionOp) -> PrefillAttention:
    """Prefill attention of one kind, all its layers.

    A window or a top-k of ``w`` keys turns pairs into ``w`` keys a token (exact for prompts much longer than ``w``).
    """
    a, constants = op.card, facts.mla if op.card.kind == "mla" else facts.attention
    floor = constants.prefill_us * op.count
    if a.kind == "linear":
        per_token = prefill_us_per_token(gpu, op.heads, a.key_dim, a.value_dim) * op.count
        return PrefillAttention(3.0 * gpu.constants.launch_us * op.count, per_token, 0.0)
    if a.kind == "gqa":
        pair = prefill_us_per_pair(gpu, constants, op.heads, a.head_dim, a.value_head_dim) * op.count
        seen = a.index_topk or a.window
        index = _index_us_per_pair(gpu, constants, a) * op.count
        floor += _index_floor(gpu, op)
        return PrefillAttention(floor, pair * seen, index) if seen else PrefillAttention(floor, 0.0, pair)
    index_pair = _index_us_per_pair(gpu, constants, a) * op.count
    if a.kind == "mla" and not a.index_topk:
        v_dim = a.v_head_dim or a.nope_dim
        pair = prefill_us_per_pair(gpu, constants, op.heads, a.nope_dim + a.rope_dim, v_dim) * op.count
        return PrefillAttention(floor, 0.0, pair)
    launches = floor + _index_floor(gpu, op)
    if a.kind == "mla":
        width = a.kv_lora_rank + a.rope_dim
        pair = prefill_us_per_pair(gpu, constants, op.heads, width, a.kv_lora_rank) * op.count
        return PrefillAttention(launches, pair * a.index_topk, index_pair)
    pair = prefill_us_per_pair(gpu, constants, op.heads, a.head_dim, a.head_dim) * op.count
    compressed = pair / a.compress_ratio if a.compress_ratio else 0.0
    if a.index_topk:  # compressed entries are chosen too
        return PrefillAttention(launches, pair * (a.window + a.index_topk), index_pair / max(1.0, a.compress_ratio))
    return PrefillAttention(launches, pair * a.window, compressed)


def _index_floor(gpu: Gpu, op: AttentionOp) -> float:
    """Score and top-k kernels of an indexer, all its layers."""
    if not op.card.index_topk or not op.card.index_stored:
        return 0.0
    return (TOPK_LAUNCHES + 1.0) * gpu.constants.launch_us * op.count


def _index_us_per_pair(gpu: Gpu, constants: AttentionConstants, a: Attention) -> float:
    if not a.index_topk or not a.index_stored:
        return 0.0
    return 2.0 * a.index_heads * a.index_head_dim / (constants.prefill_compute * gpu.peak_fp8_flops) * 1e6


def _gqa_decode(gpu: Gpu, facts: EngineFacts, op: AttentionOp, batch: float, queries: float) -> AttentionStep:
    a, constants = op.card, facts.attention
    cost = gqa_decode(gpu, constants, batch, queries, op.heads, op.kv_heads, a.head_dim, a.value_head_dim, op.kv)
    per_token = cost.us_per_token * op.count * op.context_share
    seen = a.index_topk or a.window
    reads = [ContextRead(per_token, float(seen) if seen else UNCAPPED), *_index_reads(gpu, constants, op, queries)]
    floor = constants.decode_us * op.count + _index_floor(gpu, op)
    return AttentionStep(floor, (cost.fixed_us - constants.decode_us) * op.count, tuple(reads))


def _mla_decode(gpu: Gpu, facts: EngineFacts, op: AttentionOp, batch: float, queries: float) -> AttentionStep:
    a, constants = op.card, facts.mla
    cost = mla_decode(gpu, constants, batch, queries, op.heads, a.kv_lora_rank, a.rope_dim, op.kv)
    floor = constants.decode_us * op.count + _index_floor(gpu, op)
    per_token = cost.us_per_token * op.count * op.context_share
    reads = [ContextRead(per_token, float(a.index_topk) if a.index_topk else UNCAPPED)]
    reads += _index_reads(gpu, constants, op, queries)
    return AttentionStep(floor, (cost.fixed_us - constants.decode_us) * op.count, tuple(reads))


def _index_reads(gpu: Gpu, constants: AttentionConstants, op: AttentionOp, queries: float) -> list[ContextRead]:
    """Indexer over all keys (compressed ones where the pool is): key bytes or score compute, whichever is longer."""
    a = op.card
    if not a.index_topk or not a.index_stored:
        return []
    memory = (a.index_head_dim + INDEX_SCALE_BYTES) / (constants.decode_hbm * gpu.hbm_bytes_per_s)
    compute = 2.0 * queries * a.index_heads * a.index_head_dim / (constants.decode_compute * gpu.peak_fp8_flops)
    return [ContextRead(max(memory, compute) * 1e6 * op.count / max(1.0, a.compress_ratio))]


def _linear_decode(gpu: Gpu, facts: EngineFacts, op: AttentionOp, batch: float, queries: float) -> AttentionStep:
    a = op.card
    state = float(op.heads) * a.value_dim * a.key_dim
    per_request = decode_us_per_request(gpu, state, float(a.state_dtype_bytes))
    floor = 2.0 * gpu.constants.launch_us * op.count  # convolution update and recurrent step
    return AttentionStep(floor, per_request * batch * queries * op.count, ())


def _compressed_decode(gpu: Gpu, facts: EngineFacts, op: AttentionOp, batch: float, queries: float) -> AttentionStep:
    a, constants = op.card, facts.mla
    rate = constants.decode_hbm * gpu.hbm_bytes_per_s
    per_entry = a.head_dim * kv_bytes_per_value(op.kv) / rate * 1e6 * op.count
    reads = [ContextRead(per_entry, float(a.window) if a.window else UNCAPPED)]
    if a.compress_ratio:
        cap = a.index_topk * a.compress_ratio if a.index_topk else UNCAPPED
        reads.append(ContextRead(per_entry / a.compress_ratio, cap))
    reads += _index_reads(gpu, constants, op, queries)
    floor = constants.decode_us * op.count + _index_floor(gpu, op)
    in_out = batch * queries * op.heads * a.head_dim * 4.0 / rate * 1e6
    return AttentionStep(floor, in_out * op.count, tuple(reads))
