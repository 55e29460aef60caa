"""Attention of a step: decode pieces, exactly linear in total context, and prefill coefficients.

Every kind reduces to a cost at the batch and reads of the form ``us_per_token · min(context, cap·batch)``: a sliding
window or a sparse top-k caps what a request reads, so each cap adds one kink to the line and nothing else does.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from predictor.cards import Attention
from predictor.kernels.attention import DecodeForm, PrefillForm, gqa_decode, mla_decode, prefill
from predictor.kernels.engine_facts import EngineFacts
from predictor.kernels.gpu import Gpu
from predictor.kernels.linear_attention import decode_us_per_request, prefill_us_per_token
from predictor.step.op_types import AttentionOp
from predictor.types import Dtype

UNCAPPED = float("inf")
# An index key is fp8 with a 4-byte scale: 132 bytes at DeepSeek's 128 dims.
INDEX_SCALE_BYTES = 4.0
SCORE_BYTES = 4.0


@dataclass(frozen=True, slots=True)
class ContextRead:
    """``us_per_token`` for each context token, up to ``cap_tokens`` a request."""

    us_per_token: float
    cap_tokens: float = UNCAPPED


@dataclass(frozen=True, slots=True)
class DecodeAttention:
    """Decode attention of ``count`` like layers: floors, work at a batch, and context reads (all layers)."""

    launch_us: float
    count: float
    form: DecodeForm
    reads: tuple[ContextRead, ...]

    def work_us(self, batch: float) -> float:
        """Work that does not depend on context."""
        return self.form.work_us(batch) * self.count


@dataclass(frozen=True, slots=True)
class PrefillAttention:
    """Prefill attention of a whole step, us: floor, a token, and a pair of (query, earlier-or-same key) tokens."""

    launch_us: float
    us_per_token: float
    us_per_pair: float


def decode_attention(gpu: Gpu, facts: EngineFacts, op: AttentionOp, queries: float) -> DecodeAttention:
    """Decode attention of one kind, all its layers; each request verifies ``queries`` tokens."""
    builders: dict[str, Callable[[Gpu, EngineFacts, AttentionOp, float], DecodeAttention]] = {
        "gqa": _gqa_decode,
        "mla": _mla_decode,
        "linear": _linear_decode,
        "compressed": _compressed_decode,
    }
    return builders[op.card.kind](gpu, facts, op, queries)


def prefill_attention(gpu: Gpu, facts: EngineFacts, op: AttentionOp) -> PrefillAttention:
    """Prefill attention of one kind, all its layers.

    A window or a top-k of ``w`` keys turns pairs into ``w`` keys a token: exact for prompts much longer than ``w``.
    """
    builders: dict[str, Callable[[Gpu, EngineFacts, AttentionOp], PrefillAttention]] = {
        "gqa": _gqa_prefill,
        "mla": _mla_prefill,
        "linear": _linear_prefill,
        "compressed": _compressed_prefill,
    }
    return builders[op.card.kind](gpu, facts, op)


# ---- decode --------------------------------------------------------------------------------------------------------


def _gqa_decode(gpu: Gpu, facts: EngineFacts, op: AttentionOp, queries: float) -> DecodeAttention:
    a = op.card
    form = gqa_decode(gpu, facts.decode, op.heads, op.kv_heads, a.head_dim, a.value_head_dim, op.kv, queries)
    return _decode(gpu, facts, op, form, a.index_topk or a.window, queries)


def _mla_decode(gpu: Gpu, facts: EngineFacts, op: AttentionOp, queries: float) -> DecodeAttention:
    a = op.card
    form = mla_decode(gpu, facts.mla_decode, op.heads, a.kv_lora_rank, a.rope_dim, op.kv, queries)
    return _decode(gpu, facts, op, form, a.index_topk, queries)


def _compressed_decode(gpu: Gpu, facts: EngineFacts, op: AttentionOp, queries: float) -> DecodeAttention:
    """One shared vector an entry: the window's own tokens, and one entry for every ``compress_ratio`` tokens."""
    a = op.card
    form = mla_decode(gpu, facts.mla_decode, op.heads, a.head_dim, 0, op.kv, queries)
    step = _decode(gpu, facts, op, form, a.window, queries)
    if not a.compress_ratio:
        return step
    cap = a.index_topk * a.compress_ratio if a.index_topk else UNCAPPED
    pooled = ContextRead(form.us_per_token * op.count * op.context_share / a.compress_ratio, cap)
    return DecodeAttention(step.launch_us, step.count, form, (*step.reads, pooled))


def _decode(
    gpu: Gpu, facts: EngineFacts, op: AttentionOp, form: DecodeForm, cap_tokens: int, queries: float
) -> DecodeAttention:
    """Floors, the cache read up to its cap, and the indexer where there is one."""
    read = ContextRead(form.us_per_token * op.count * op.context_share, float(cap_tokens) if cap_tokens else UNCAPPED)
    index = _index_us_per_token(gpu, facts, op.card, queries) * op.count
    reads = (read, ContextRead(index)) if index else (read,)
    return DecodeAttention(form.floor_us * op.count + _index_floor_us(facts, op), op.count, form, reads)


def _linear_decode(gpu: Gpu, facts: EngineFacts, op: AttentionOp, queries: float) -> DecodeAttention:
    a = op.card
    state = float(op.heads) * a.value_dim * a.key_dim
    per_request = decode_us_per_request(gpu, facts.linear, state, float(a.state_dtype_bytes)) * queries
    form = DecodeForm(facts.linear.decode_floor_us, per_request, 0.0, 0.0, 1.0, 0.0)
    return DecodeAttention(form.floor_us * op.count, op.count, form, ())


def _has_index(a: Attention) -> bool:
    return bool(a.index_topk and a.index_heads and a.index_stored)


def _index_floor_us(facts: EngineFacts, op: AttentionOp) -> float:
    """Score and top-k kernels of an indexer, all its layers, and what the engine launches around them."""
    if not _has_index(op.card):
        return 0.0
    around = 0.0 if op.card.kind == "compressed" else facts.sparse.engine_us
    return (facts.sparse.index_floor_us + around) * op.count


def _index_us_per_token(gpu: Gpu, facts: EngineFacts, a: Attention, queries: float) -> float:
    """Indexer cost a context token and layer: key bytes or score compute, whichever is longer, and reading scores.

    Index keys are replicated on every rank; a compressed pool keeps one for every entry.
    """
    if not _has_index(a):
        return 0.0
    memory_us = (a.index_head_dim + INDEX_SCALE_BYTES) / (facts.mla_decode.hbm * gpu.hbm_bytes_per_s) * 1e6
    product_us, read_us = _score_us(gpu, facts, a)
    return (max(memory_us, queries * product_us) + queries * read_us) / max(1.0, a.compress_ratio)


def _score_us(gpu: Gpu, facts: EngineFacts, a: Attention) -> tuple[float, float]:
    """One (query, key) score: its product over the index heads, and the top-k's read of it."""
    flops = 2.0 * a.index_heads * a.index_head_dim
    product_us = flops / (facts.sparse.index_compute * gpu.peak_flops(Dtype.FP8)) * 1e6
    return product_us, SCORE_BYTES / (facts.sparse.score_hbm * gpu.hbm_bytes_per_s) * 1e6


# ---- prefill -------------------------------------------------------------------------------------------------------


def _gqa_prefill(gpu: Gpu, facts: EngineFacts, op: AttentionOp) -> PrefillAttention:
    a = op.card
    form = prefill(gpu, facts.prefill, op.heads, op.kv_heads, a.head_dim, a.value_head_dim, facts.prefill_arithmetic)
    seen = a.index_topk or a.window
    floor = form.floor_us * op.count + _index_floor_us(facts, op)
    pair = 0.0 if seen else form.pair_us() * op.count
    return PrefillAttention(floor, form.token_us(float(seen)) * op.count, pair + _index_us_per_pair(gpu, facts, op))


def _mla_prefill(gpu: Gpu, facts: EngineFacts, op: AttentionOp) -> PrefillAttention:
    """Dense: keys and values restored for every head. Sparse: the absorbed product over the chosen latents."""
    a = op.card
    if not a.index_topk:
        v_dim = a.v_head_dim or a.nope_dim
        form = prefill(gpu, facts.mla_prefill, op.heads, op.heads, a.nope_dim + a.rope_dim, v_dim, Dtype.BF16)
        return PrefillAttention(form.floor_us * op.count, form.token_us() * op.count, form.pair_us() * op.count)
    form = _sparse_form(gpu, facts, op, a.kv_lora_rank + a.rope_dim, a.kv_lora_rank)
    floor = form.floor_us * op.count + _index_floor_us(facts, op)
    return PrefillAttention(floor, form.token_us(float(a.index_topk)) * op.count, _index_us_per_pair(gpu, facts, op))


def _compressed_prefill(gpu: Gpu, facts: EngineFacts, op: AttentionOp) -> PrefillAttention:
    a = op.card
    form = _sparse_form(gpu, facts, op, a.head_dim, a.head_dim)
    floor = form.floor_us * op.count + _index_floor_us(facts, op)
    pair = form.pair_us() * op.count / a.compress_ratio if a.compress_ratio and not a.index_topk else 0.0
    token = form.token_us(float(a.window + a.index_topk)) * op.count
    return PrefillAttention(floor, token, pair + _index_us_per_pair(gpu, facts, op))


def _linear_prefill(gpu: Gpu, facts: EngineFacts, op: AttentionOp) -> PrefillAttention:
    a = op.card
    per_token = prefill_us_per_token(gpu, facts.linear, op.heads, a.key_dim, a.value_dim)
    return PrefillAttention(facts.linear.prefill_floor_us * op.count, per_token * op.count, 0.0)


def _sparse_form(gpu: Gpu, facts: EngineFacts, op: AttentionOp, qk_dim: int, v_dim: int) -> PrefillForm:
    """The sparse prefill kernel over one shared vector a key."""
    kernel = replace(
        facts.mla_prefill, floor_us=facts.sparse.prefill_floor_us, compute=facts.sparse.prefill_compute, item_us=0.0
    )
    return prefill(gpu, kernel, op.heads, 1, qk_dim, v_dim, Dtype.BF16)


def _index_us_per_pair(gpu: Gpu, facts: EngineFacts, op: AttentionOp) -> float:
    a = op.card
    if not _has_index(a):
        return 0.0
    return sum(_score_us(gpu, facts, a)) * op.count / max(1.0, a.compress_ratio)
