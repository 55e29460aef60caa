"""Parameter counts by component, and the weight bytes that one GPU of a layout holds.

Counting follows the linear layers of each architecture as engines build them; norms and biases are counted where they
are of a size to matter. Sharding follows vLLM and SGLang: query heads, outputs and feed-forward columns are split over
the tensor-parallel ranks, KV heads as far as there are any; low-rank down-projections, indexers, compressors and latent
projections are on every rank.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, lcm
from typing import Literal

from predictor.cards import Attention, Ffn, LayerGroup, ModelCard
from predictor.types import Dtype, Layout, Precision

Fp4Format = Literal["mxfp4", "nvfp4", "int4"]

FP8_BLOCK = 128  # DeepSeek block-scaled FP8: one fp32 scale for 128 x 128 weights
FP4_BYTES: dict[Fp4Format, float] = {
    "mxfp4": 0.5 + 1 / 32,  # one 8-bit scale for 32 weights (OCP microscaling)
    "nvfp4": 0.5 + 1 / 16,  # one FP8 scale for 16 weights
    "int4": 0.5 + 2 / 32,  # one bf16 scale for 32 weights (compressed-tensors, group 32)
}
VOCAB_PADDING = 64  # vLLM and SGLang pad the vocabulary to a multiple of 64 before sharding


def bytes_per_weight(dtype: Dtype, fp4: Fp4Format = "mxfp4") -> float:
    """Stored bytes of one weight, quantisation scales included.

    >>> bytes_per_weight(Dtype.FP4), bytes_per_weight(Dtype.FP4, "nvfp4"), bytes_per_weight(Dtype.BF16)
    (0.53125, 0.5625, 2.0)
    """
    if dtype is Dtype.FP4:
        return FP4_BYTES[fp4]
    return 2.0 if dtype is Dtype.BF16 else 1.0 + 4 / FP8_BLOCK**2


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """Weights of one attention layer by how they are sharded."""

    sharded: float  # over the attention's tensor-parallel ranks
    kv: float  # over as many ranks as there are KV heads
    replicated: float  # in the attention's weight format, on every rank
    plain: float = 0.0  # in bf16 whatever the checkpoint, on every rank

    @property
    def total(self) -> float:
        """All of them."""
        return self.sharded + self.kv + self.replicated + self.plain


@lru_cache(maxsize=1024)
def attention_params(attention: Attention, hidden: int) -> AttentionParams:
    """Weights of one attention layer."""
    if attention.kind == "linear":
        return _linear(attention, hidden)
    if attention.kind == "compressed":
        return _compressed(attention, hidden)
    if attention.kind == "mla":
        return _mla(attention, hidden)
    a = attention
    out = a.heads * a.value_head_dim
    query = hidden * a.heads * a.head_dim * (2 if a.gated_output else 1)
    kv = hidden * a.kv_heads * (a.head_dim + a.value_head_dim)
    index = hidden * a.index_head_dim * (a.index_heads + 1) if a.index_heads else 0
    bias = a.heads * a.head_dim + a.kv_heads * (a.head_dim + a.value_head_dim) if a.bias else 0
    return AttentionParams(sharded=query + out * hidden + bias, kv=kv, replicated=index)


def _mla(a: Attention, hidden: int) -> AttentionParams:
    query_dim = a.nope_dim + a.rope_dim
    query = (a.q_lora_rank or hidden) * a.heads * query_dim
    down = hidden * (a.q_lora_rank + a.kv_lora_rank + a.rope_dim)
    up = a.kv_lora_rank * a.heads * (a.nope_dim + a.v_head_dim)
    out = hidden * a.heads * a.v_head_dim * (2 if a.gated_output else 1)
    index = index_plain = 0
    if a.index_heads and a.index_stored:
        index = (a.q_lora_rank or hidden) * a.index_heads * a.index_head_dim + hidden * a.index_head_dim
        index_plain = hidden * a.index_heads
    return AttentionParams(sharded=query + up + out, kv=0, replicated=down + index, plain=index_plain)


def _linear(a: Attention, hidden: int) -> AttentionParams:
    key, value = a.key_heads * a.key_dim, a.value_heads * a.value_dim
    project = hidden * (2 * key + value) + value * hidden + (hidden * value if a.gated_output else 0)
    convolution = (2 * key + value) * a.conv_kernel
    if a.channel_decay:  # low-rank decay (hidden -> one head -> all channels) and one write gate a head
        return AttentionParams(
            sharded=project + convolution + a.key_dim * key + hidden * a.value_heads,
            kv=0,
            replicated=hidden * a.key_dim,
        )
    return AttentionParams(sharded=project + convolution + 2 * hidden * a.value_heads, kv=0, replicated=0)


def _compressed(a: Attention, hidden: int) -> AttentionParams:
    """DeepSeek-V4: one shared KV head, grouped low-rank output; a compressor (overlapping where the ratio is 4)."""
    query = a.q_lora_rank * a.heads * a.head_dim
    down = hidden * (a.q_lora_rank + a.head_dim)
    out = a.heads * a.head_dim * a.o_lora_rank + a.o_groups * a.o_lora_rank * hidden
    overlap = 2 if a.compress_ratio == 4 else 1
    plain = 2 * hidden * overlap * a.head_dim if a.compress_ratio else 0
    index = 0
    if a.index_heads:
        index = a.q_lora_rank * a.index_heads * a.index_head_dim
        plain += 2 * hidden * overlap * a.index_head_dim + hidden * a.index_heads
    return AttentionParams(sharded=query + out, kv=0, replicated=down + index, plain=plain)


def expert_params(ffn: Ffn, hidden: int) -> int:
    """Weights of one routed expert."""
    width = ffn.latent_dim or hidden
    bias = (ffn.matrices - 1) * ffn.moe_intermediate + width if ffn.bias else 0
    return ffn.matrices * width * ffn.moe_intermediate + bias


def _dense_params(ffn: Ffn, hidden: int) -> int:
    return ffn.matrices * hidden * ffn.intermediate


def _shared_params(ffn: Ffn, hidden: int) -> int:
    return ffn.shared_experts * ffn.matrices * hidden * ffn.shared_intermediate


def _latent_params(ffn: Ffn, hidden: int) -> int:
    """Projections into and out of the routed experts' latent space, on every rank."""
    return 2 * hidden * ffn.latent_dim if ffn.experts else 0


@dataclass(frozen=True, slots=True)
class ParamCounts:
    """Parameters of a whole model by component; ``drafter`` (multi-token prediction layers) is outside the total."""

    attention: float
    dense_ffn: float
    shared_experts: float
    routed_experts: float
    active_experts: float  # routed experts that one token uses
    router: float
    norms: float
    embedding: float
    lm_head: float
    drafter: float
    extra: float

    @property
    def total(self) -> float:
        """Parameters of the main model."""
        resident = self.attention + self.dense_ffn + self.shared_experts + self.routed_experts
        return resident + self.router + self.norms + self.embedding + self.lm_head + self.extra

    @property
    def active(self) -> float:
        """Parameters that one token uses: the total with the chosen experts alone."""
        return self.total - self.routed_experts + self.active_experts


@lru_cache(maxsize=256)
def count(card: ModelCard) -> ParamCounts:
    """Parameters of the model by component."""
    groups, hidden = card.groups, card.hidden

    def over(per_layer: list[float]) -> float:
        return float(sum(group.count * value for group, value in zip(groups, per_layer, strict=True)))

    table = card.vocab * hidden
    return ParamCounts(
        attention=over([attention_params(group.attention, hidden).total for group in groups]),
        dense_ffn=over([_dense_params(group.ffn, hidden) for group in groups]),
        shared_experts=over(
            [_shared_params(group.ffn, hidden) + _latent_params(group.ffn, hidden) for group in groups]
        ),
        routed_experts=over([group.ffn.experts * expert_params(group.ffn, hidden) for group in groups]),
        active_experts=over([group.ffn.topk * expert_params(group.ffn, hidden) for group in groups]),
        router=over([group.ffn.experts * hidden for group in groups]),
        norms=2.0 * hidden * card.layers + hidden,
        embedding=float(table),
        lm_head=0.0 if card.tied_embeddings else float(table),
        drafter=drafter_params(card, "mtp") if card.mtp_layers else 0.0,
        extra=card.extra_params,
    )


def drafter_params(card: ModelCard, method: str) -> float:
    """Weights a drafter adds: own layers and input projection; embedding and head are the target's.

    Multi-token prediction has ``mtp_layers`` layers like the model's last, and joins two hidden vectors. EAGLE-3 has
    one dense layer that reads two hidden vectors, joins three, and drafts from a vocabulary of 32,000 (assumed). DSpark
    is taken as five dense layers (assumed, as its DFlash relatives).
    """
    hidden, last = card.hidden, card.groups[-1]
    if method == "mtp":
        return card.mtp_layers * (_layer_params(last, hidden) + 2.0 * hidden * hidden)
    if method == "eagle3":
        return 15.0 * hidden * hidden + 3.0 * hidden * hidden + 32_000.0 * hidden
    return 5 * 12.0 * hidden * hidden if method == "dspark" else 0.0


def _layer_params(group: LayerGroup, hidden: int) -> float:
    ffn = group.ffn
    moe = ffn.experts * (expert_params(ffn, hidden) + hidden) + _latent_params(ffn, hidden)
    return (
        attention_params(group.attention, hidden).total + _dense_params(ffn, hidden) + _shared_params(ffn, hidden) + moe
    )


# --- bytes of one GPU -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WeightPadding:
    """Multiples that kernels pad a rank's share of the routed experts to."""

    hidden: int = 1
    intermediate: int = 1


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Weight bytes of one GPU, the busiest of its pipeline, by component."""

    attention: float
    dense: float
    shared: float
    experts: float
    router: float
    embed: float
    head: float
    drafter: float
    extra: float

    @property
    def total(self) -> float:
        """All components."""
        layers = self.attention + self.dense + self.shared + self.experts + self.router
        return layers + self.embed + self.head + self.drafter + self.extra


def native_precision(card: ModelCard) -> Precision:
    """Formats of the maker's own checkpoint, with a bf16 KV cache."""
    weight = card.weight_dtypes[0]
    expert = card.expert_dtype or weight
    return Precision(weight=weight, linear=weight, expert=expert, kv=Dtype.BF16)


def dense_dtypes(card: ModelCard, precision: Precision) -> tuple[Dtype, Dtype]:
    """Formats of attention and of dense and shared feed-forward layers.

    4-bit checkpoints of MoE models keep attention, and often shared experts, in a wider format (``fp4_attention`` and
    ``fp4_shared`` of the card, from the exclusion lists of published checkpoints).
    """
    if precision.weight is Dtype.FP4 and card.is_moe:
        return card.fp4_attention, card.fp4_shared
    return precision.weight, precision.weight


@lru_cache(maxsize=8192)
def weight_bytes(
    card: ModelCard,
    layout: Layout,
    precision: Precision,
    *,
    fp4: Fp4Format = "mxfp4",
    padding: WeightPadding = WeightPadding(),
    dense_tp: int | None = None,
    redundant_experts: int = 0,
    drafter: str = "none",
) -> WeightBytes:
    """Weight bytes of one GPU of the busiest pipeline stage.

    Attention is split over ``layout.attn_tp`` ranks and copied to every attention-DP rank; dense and shared
    feed-forward layers, embedding and head over ``dense_tp`` ranks (None: as attention); routed experts go whole to
    ``ep`` ranks and each is split over ``tp/ep``. A pipeline stage holds ``ceil(layers/pp)`` layers, a share of every
    kind.
    """
    hidden, tp = card.hidden, dense_tp or layout.attn_tp
    attention_dtype, dense_dtype = dense_dtypes(card, precision)
    attention_b, dense_b = bytes_per_weight(attention_dtype, fp4), bytes_per_weight(dense_dtype, fp4)
    expert_b = bytes_per_weight(precision.expert, fp4)
    attention = dense = shared = experts = router = 0.0
    for group in card.groups:
        ffn, n = group.ffn, group.count
        attention += n * _attention_rank_bytes(group.attention, hidden, layout.attn_tp, attention_b)
        dense += n * _dense_params(ffn, hidden) / tp * dense_b
        shared += n * (_shared_params(ffn, hidden) / tp + _latent_params(ffn, hidden)) * dense_b
        router += n * ffn.experts * hidden * 2.0
        if ffn.experts:
            held = ceil((ffn.experts + redundant_experts) / layout.ep)
            experts += n * held * _expert_rank_params(ffn, hidden, layout, precision.expert, padding) * expert_b
    stage = ceil(card.layers / layout.pp) / card.layers
    table = ceil(card.vocab / lcm(VOCAB_PADDING, tp)) * lcm(VOCAB_PADDING, tp) / tp * hidden * 2.0
    embed, head = _ends(table, card.tied_embeddings, layout.pp)
    drafter_b = 2.0 if precision.expert is Dtype.FP4 and not card.expert_dtype else expert_b
    return WeightBytes(
        attention=attention * stage,
        dense=dense * stage,
        shared=shared * stage,
        experts=experts * stage,
        router=router * stage,
        embed=embed,
        head=head,
        drafter=drafter_params(card, drafter) / (layout.tp if drafter == "mtp" else tp) * drafter_b,
        extra=card.extra_params * 2.0 / tp,
    )


def _attention_rank_bytes(attention: Attention, hidden: int, attn_tp: int, weight_b: float) -> float:
    params = attention_params(attention, hidden)
    kv_ranks = min(attn_tp, max(attention.kv_heads, 1))
    split = params.sharded / attn_tp + params.kv / kv_ranks + params.replicated
    return split * weight_b + params.plain * 2.0


def _expert_rank_params(ffn: Ffn, hidden: int, layout: Layout, dtype: Dtype, padding: WeightPadding) -> float:
    """Weights of one expert on one of the ``tp/ep`` ranks that share it, padded."""
    block = FP8_BLOCK if dtype is Dtype.FP8 else 1
    columns = ceil(ffn.moe_intermediate / max(1, layout.tp // layout.ep))
    columns = ceil(columns / lcm(block, padding.intermediate)) * lcm(block, padding.intermediate)
    width = ceil((ffn.latent_dim or hidden) / padding.hidden) * padding.hidden
    bias = (ffn.matrices - 1) * columns + width if ffn.bias else 0
    return ffn.matrices * width * columns + bias


def _ends(table: float, tied: bool, pp: int) -> tuple[float, float]:
    """Embedding and head of the busiest stage: both on one stage without a pipeline, else the larger end's."""
    if pp == 1:
        return table, 0.0 if tied else table
    return table, 0.0
