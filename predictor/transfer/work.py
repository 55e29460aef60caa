"""Bytes and messages of one decode step on the busiest rank, from the model card and the layout.

Weights are counted where they are read: attention over the attention width, dense and shared feed-forward blocks over
the tensor width, routed experts by how many distinct ones the step touches, the output head once. Everything is per
step and per GPU; nothing here is a time.
"""

from dataclasses import dataclass
from functools import lru_cache

from predictor.cards import Attention, Ffn, ModelCard
from predictor.context_parallel import Exchange, layer_exchange
from predictor.expert_load import busiest_rank, distinct_experts, router_family
from predictor.transfer.context import KernelContext
from predictor.types import Dtype, Layout, Precision

# Bytes an element with its block scales: FP8 carries one fp32 a 128 x 128 block, MXFP4 one byte a 32-block.
ELEMENT_BYTES = {Dtype.BF16: 2.0, Dtype.FP8: 1.0, Dtype.FP4: 0.53125}
_HEAD_BYTES = 2.0  # output head and embeddings stay in bf16 in every public checkpoint of the catalogue
_ACTIVATION_BYTES = 2.0  # all-reduced activations are bf16


@dataclass(frozen=True, slots=True)
class WeightCounts:
    """Parameters of a checkpoint by how they are sharded; ``per_expert`` is one routed expert of one layer."""

    attention: float
    feed_forward: float  # dense blocks and shared experts
    head: float
    per_expert: float
    experts: int
    topk: int
    moe_layers: int


@dataclass(frozen=True, slots=True)
class StepWork:
    """Bytes the busiest rank reads in one decode step, and what it all-reduces."""

    dense_bytes: float
    kv_bytes: float
    expert_bytes: float
    experts_read: float  # distinct experts of the busiest rank in one layer
    collectives: int  # all-reduces a step
    message_bytes: float  # of one all-reduce
    tokens: float
    context_exchange: tuple[tuple[int, Exchange], ...] = ()  # layers of a kind, and bytes of one a step


def attention_params(hidden: int, a: Attention) -> float:
    """Projection weights of one attention layer."""
    if a.kind == "linear":
        inner = a.value_heads * a.value_dim
        gates = inner if a.gated_output else 0
        return hidden * (2 * a.key_heads * a.key_dim + inner + gates + 2 * a.value_heads) + inner * hidden
    index = (a.q_lora_rank or hidden) * a.index_heads * a.index_head_dim + (
        hidden * (a.index_head_dim + a.index_heads) if a.index_heads else 0
    )
    if a.kind == "mla":
        queries = hidden * a.q_lora_rank + (a.q_lora_rank or hidden) * a.heads * (a.nope_dim + a.rope_dim)
        latent = hidden * (a.kv_lora_rank + a.rope_dim) + a.kv_lora_rank * a.heads * (a.nope_dim + a.v_head_dim)
        return queries + latent + a.heads * a.v_head_dim * hidden + index
    if a.kind == "compressed":
        queries = hidden * a.q_lora_rank + a.q_lora_rank * a.heads * a.head_dim
        output = a.heads * a.head_dim * a.o_lora_rank + a.o_groups * a.o_lora_rank * hidden
        return queries + 2 * hidden * a.head_dim + output + index
    gate = a.heads * a.value_head_dim if a.gated_output else 0
    heads = a.heads * a.head_dim + a.kv_heads * (a.head_dim + a.value_head_dim) + gate
    return hidden * heads + a.heads * a.value_head_dim * hidden + index


def _shared_params(hidden: int, f: Ffn) -> float:
    return f.matrices * hidden * (f.intermediate + f.shared_experts * f.shared_intermediate)


@lru_cache(maxsize=128)
def weight_counts(card: ModelCard) -> WeightCounts:
    """Parameters of a checkpoint, drafter apart."""
    moe = card.moe
    return WeightCounts(
        attention=sum(g.count * attention_params(card.hidden, g.attention) for g in card.groups),
        feed_forward=sum(g.count * _shared_params(card.hidden, g.ffn) for g in card.groups),
        head=float(card.hidden * card.vocab),
        per_expert=float(moe.matrices * (moe.latent_dim or card.hidden) * moe.moe_intermediate) if moe else 0.0,
        experts=moe.experts if moe else 0,
        topk=moe.topk if moe else 0,
        moe_layers=sum(g.count for g in card.groups if g.ffn.experts),
    )


def kv_read_bytes(card: ModelCard, context_tokens: float, kv: Dtype, layout: Layout) -> float:
    """Cache bytes one GPU reads for one sequence in one step, all layers.

    A window or a sparse selection bounds what is read; an indexer reads every key of its own cache; latent caches and
    heads beyond the number of KV heads are replicated on every rank, unless decode context parallelism shards the
    context of those copies (an indexer's cache stays whole).
    """
    element = ELEMENT_BYTES[kv]
    total = 0.0
    for group in card.groups:
        a = group.attention
        total += group.count * _layer_kv_bytes(a, context_tokens, element, layout.attn_tp, layout.dcp)
    return total


def _layer_kv_bytes(a: Attention, context: float, element: float, width: int, dcp: int) -> float:
    seen = min(context, a.window) if a.window and a.kind != "compressed" else context
    selected = min(seen, a.index_topk) if a.index_topk else seen
    index = context * a.index_head_dim if a.index_heads else 0.0
    if a.kind == "linear":
        # The recurrent state is read and written whole, whatever the context.
        state = a.value_heads * a.key_dim * a.value_dim * a.state_dtype_bytes * 2.0
        return state / min(width, a.value_heads)
    if a.kind == "mla":
        return selected * (a.kv_lora_rank + a.rope_dim) * element / dcp + index
    if a.kind == "compressed":
        pooled = context / a.compress_ratio if a.compress_ratio else 0.0
        attended = min(pooled, a.index_topk) if a.index_topk else pooled
        return (min(context, a.window) + attended) * a.head_dim * element + pooled * a.index_head_dim
    per_head = (a.head_dim + a.value_head_dim) * element
    return selected * per_head * max(1.0, a.kv_heads / width) / dcp + index * (element if a.index_heads else 0.0)


def dense_dtypes(card: ModelCard, precision: Precision) -> tuple[Dtype, Dtype]:
    """Formats of attention and of dense or shared feed-forward weights; 4-bit MoE checkpoints keep attention wider."""
    if precision.weight is Dtype.FP4 and card.is_moe:
        return card.fp4_attention, card.fp4_attention
    return precision.weight, precision.weight


def step_work(side: KernelContext, batch: float) -> StepWork:
    """Work of one decode step over ``batch`` requests of the whole replica."""
    counts = weight_counts(side.card)
    layout = side.layout
    attention_dtype, ffn_dtype = dense_dtypes(side.card, side.precision)
    attention = counts.attention * ELEMENT_BYTES[attention_dtype] / layout.attn_tp
    head = counts.head * _HEAD_BYTES / layout.tp
    feed_forward = counts.feed_forward * ELEMENT_BYTES[ffn_dtype] / layout.tp
    rank_batch = batch / layout.attn_dp
    tokens = side.step_tokens(batch)
    kv = rank_batch * kv_read_bytes(side.card, side.context_tokens, side.precision.kv, layout)
    expert_bytes, experts_read = _expert_bytes(side, counts, tokens)
    per_layer = 1 if layout.attn_dp > 1 else 2
    return StepWork(
        dense_bytes=attention + feed_forward + head,
        kv_bytes=kv,
        expert_bytes=expert_bytes,
        experts_read=experts_read,
        collectives=per_layer * side.card.layers if side.gpus > 1 else 0,
        message_bytes=tokens * side.card.hidden * _ACTIVATION_BYTES,
        tokens=tokens,
        context_exchange=_context_exchange(side.card, layout, side.step_tokens(rank_batch)),
    )


def _context_exchange(card: ModelCard, layout: Layout, tokens: float) -> tuple[tuple[int, Exchange], ...]:
    """What decode context parallelism exchanges in one step, by kind of layer."""
    found = []
    for group in card.groups:
        one = layer_exchange(group.attention, group.attention.heads / layout.attn_tp, layout.dcp)
        if one is not None:
            found.append((group.count, Exchange(one.gather_bytes * tokens, one.scatter_bytes * tokens)))
    return tuple(found)


def _expert_bytes(side: KernelContext, counts: WeightCounts, tokens: float) -> tuple[float, float]:
    """Routed expert bytes of the busiest rank over all layers, and its distinct experts in one layer."""
    if not counts.experts:
        return 0.0, 0.0
    family = router_family(side.card.name)
    layer = counts.per_expert * ELEMENT_BYTES[side.precision.expert] * counts.moe_layers
    ep = side.layout.ep
    if ep == 1:
        read = distinct_experts(counts.experts, counts.topk, tokens, family)
        return read * layer / side.gpus, read
    load = busiest_rank(counts.experts, counts.topk, ep, max(1.0, tokens), "decode", side.redundant, family=family)
    return load.experts_read * layer * ep / side.gpus, load.experts_read
