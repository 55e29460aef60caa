"""Kernel fusions an engine build could add, priced from the step already charged (paper §4, App. J, Table 21).

A fusion saves at best the launches it removes and the intermediate it no longer writes and reads back::

    ideal = kernels removed · launch + bytes no longer moved / (HBM peak · efficiency)        saving = 75–100% of ideal

Six patterns, per decode step: ``norm_quant`` RMSNorm and the activation quantisation after it, ``add_rmsnorm`` residual
add and RMSNorm, twice a layer; ``moe_expert`` gate/up, activation, quantisation and down in one kernel; ``moe_routing``
router top-k and permute; ``act_quant`` SiLU·mul and quantisation before the down projection; ``rope_kvstore`` rotary
embedding into the KV store. Quantising patterns need low-precision activations, MoE patterns a MoE model. Expert
activations count as quantised where the experts are not BF16.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from predictor.cards import Attention, LayerGroup, ModelCard, Platform
from predictor.types import Dtype, Layout, Precision

MIN_SHARE_FRAC = 0.02  # of a decode step: smaller opportunities are not reported
_REALISED_LOW, _REALISED_HIGH = 0.75, 1.0
_WIDE_BYTES = 2  # bf16
_STORED_BYTES = {Dtype.BF16: 2.0, Dtype.FP8: 1.0, Dtype.FP4: 0.5}
_ROUTE_BYTES = 8  # expert id and weight of one routing


@dataclass(frozen=True, slots=True)
class Fusion:
    """One named pattern."""

    name: str
    replaces: str
    moe_only: bool = False
    low_precision: bool = False


FUSIONS: tuple[Fusion, ...] = (
    Fusion("norm_quant", "RMSNorm and the quantisation feeding attention and MLP GEMMs", low_precision=True),
    Fusion("add_rmsnorm", "residual add and the following RMSNorm, twice a layer"),
    Fusion("moe_expert", "expert gate/up, activation, quantisation and down", moe_only=True),
    Fusion("moe_routing", "router top-k and permute", moe_only=True),
    Fusion("act_quant", "SiLU·mul and the quantisation feeding the down projection", low_precision=True),
    Fusion("rope_kvstore", "rotary embedding and the KV-cache store"),
)
FUSION_NAMES = tuple(fusion.name for fusion in FUSIONS)


@dataclass(frozen=True, slots=True)
class FusionOpportunity:
    """Saving of one fusion a decode step, as a range, and its share of the step at the low end."""

    name: str
    replaces: str
    low_ms: float
    high_ms: float
    share_frac: float
    kernels_removed: int
    bytes_saved: float


@dataclass(frozen=True, slots=True)
class _Removed:
    """Work that a fusion takes out of a step: kernels, and bytes on one GPU."""

    kernels: int = 0
    moved_bytes: float = 0.0

    def __add__(self, other: "_Removed") -> "_Removed":
        return _Removed(self.kernels + other.kernels, self.moved_bytes + other.moved_bytes)


@dataclass(frozen=True, slots=True)
class _Step:
    """What the patterns count on: one rank's tokens, and the layout and formats of the step."""

    card: ModelCard
    layout: Layout
    precision: Precision
    batch: float
    fused: frozenset[str]

    @property
    def rank_tokens(self) -> float:
        return self.batch / self.layout.attn_dp

    @property
    def linear_low(self) -> bool:
        return self.precision.linear is not Dtype.BF16

    @property
    def expert_low(self) -> bool:
        return self.precision.expert is not Dtype.BF16


def opportunities(
    card: ModelCard,
    platform: Platform,
    layout: Layout,
    precision: Precision,
    batch: float,
    decode_step_ms: float,
    fused: Iterable[str] = (),
) -> tuple[FusionOpportunity, ...]:
    """Legal fusions not yet in ``fused`` that save 2% of the decode step or more, largest first.

    ``batch``: tokens of the decode step over the whole replica.
    """
    done = frozenset(fused)
    found = []
    for fusion in FUSIONS:
        if fusion.name in done or illegal_fusions(card, precision, (fusion.name,)):
            continue
        kernels, moved, ideal_ms = ideal_saving(card, platform, layout, precision, batch, fusion.name, done)
        low_ms, high_ms = _REALISED_LOW * ideal_ms, _REALISED_HIGH * ideal_ms
        share = low_ms / decode_step_ms
        if share >= MIN_SHARE_FRAC:
            found.append(FusionOpportunity(fusion.name, fusion.replaces, low_ms, high_ms, share, kernels, moved))
    return tuple(sorted(found, key=lambda opportunity: (-opportunity.low_ms, opportunity.name)))


def fusion_saving_ms(
    card: ModelCard,
    platform: Platform,
    layout: Layout,
    precision: Precision,
    batch: float,
    fusions: Iterable[str],
    fused: Iterable[str] = (),
) -> float:
    """Saving a decode step of a build with ``fusions`` over one with ``fused``, at the low end of the range."""
    done = set(fused)
    total_ms = 0.0
    for name in sorted(set(fusions) - done, key=_APPLY_ORDER.index):
        total_ms += _REALISED_LOW * ideal_saving(card, platform, layout, precision, batch, name, done)[2]
        done.add(name)
    return total_ms


def ideal_saving(
    card: ModelCard,
    platform: Platform,
    layout: Layout,
    precision: Precision,
    batch: float,
    name: str,
    fused: Iterable[str] = (),
) -> tuple[int, float, float]:
    """Kernels removed a step, bytes no longer moved by one GPU, and the ideal saving in ms."""
    step = _Step(card, layout, precision, batch, frozenset(fused))
    removed = _Removed()
    for group in card.groups:
        layer = _PATTERNS[name](step, group)
        removed += _Removed(layer.kernels * group.count, layer.moved_bytes * group.count)
    moved_ms = removed.moved_bytes / (platform.hbm_bytes_per_s * platform.hbm_efficiency) * 1e3
    return removed.kernels, removed.moved_bytes, removed.kernels * platform.kernel_launch_us / 1e3 + moved_ms


def illegal_fusions(card: ModelCard, precision: Precision, names: Iterable[str]) -> tuple[str, ...]:
    """Why each of these fusions cannot run on this model and precision; empty when all can."""
    by_name = {fusion.name: fusion for fusion in FUSIONS}
    low = precision.linear is not Dtype.BF16 or (card.is_moe and precision.expert is not Dtype.BF16)
    reasons = []
    for name in names:
        fusion = by_name.get(name)
        if fusion is None:
            reasons.append(f"fusion {name!r} is not known; legal is {', '.join(by_name)}")
        elif fusion.moe_only and not card.is_moe:
            reasons.append(f"fusion {name} needs experts, and {card.name} is dense")
        elif fusion.low_precision and not low:
            reasons.append(
                f"fusion {name} needs low-precision activations: set the linear or expert format to fp8 or fp4"
            )
    return tuple(reasons)


# ---- patterns, per layer -------------------------------------------------------------------------------------------


def _norm_quant(step: _Step, group: LayerGroup) -> _Removed:
    row = step.card.hidden * _WIDE_BYTES * step.rank_tokens
    attention = _Removed(1, 2 * row) if step.linear_low else _Removed()
    if group.ffn.experts:
        # The router still reads the wide row, so only its second read goes.
        return attention + (_Removed(1, row) if step.expert_low else _Removed())
    return attention + (_Removed(1, 2 * row) if step.linear_low else _Removed())


def _add_rmsnorm(step: _Step, group: LayerGroup) -> _Removed:
    return _Removed(2, 2 * step.card.hidden * _WIDE_BYTES * step.rank_tokens)


def _moe_expert(step: _Step, group: LayerGroup) -> _Removed:
    if not group.ffn.experts:
        return _Removed()
    elements = _expert_elements(step, group)
    wide = (2 if group.ffn.gated else 1) * _WIDE_BYTES + _WIDE_BYTES  # gate/up, then the activation
    if not step.expert_low:
        return _Removed(2, 2 * wide * elements)
    if "act_quant" in step.fused:
        wide -= _WIDE_BYTES
    kernels = 2 if "act_quant" in step.fused else 3
    return _Removed(kernels, 2 * (wide + _STORED_BYTES[step.precision.expert]) * elements)


def _moe_routing(step: _Step, group: LayerGroup) -> _Removed:
    if not group.ffn.experts:
        return _Removed()
    return _Removed(1, 2 * _ROUTE_BYTES * group.ffn.topk * step.rank_tokens)


def _act_quant(step: _Step, group: LayerGroup) -> _Removed:
    ffn = group.ffn
    removed = _Removed()
    if ffn.experts and step.expert_low and "moe_expert" not in step.fused:
        removed += _Removed(1, 2 * _WIDE_BYTES * _expert_elements(step, group))
    width = ffn.intermediate if not ffn.experts else ffn.shared_experts * ffn.shared_intermediate
    if width and step.linear_low:
        removed += _Removed(1, 2 * _WIDE_BYTES * step.rank_tokens * width / step.layout.tp)
    return removed


def _rope_kvstore(step: _Step, group: LayerGroup) -> _Removed:
    elements = _stored_elements(group.attention, step.layout)
    return _Removed(1, 2 * _WIDE_BYTES * elements * step.rank_tokens) if elements else _Removed()


def _expert_elements(step: _Step, group: LayerGroup) -> float:
    """Intermediate elements of one GPU's experts in one layer: its routed rows times its columns."""
    ways = step.layout.tp // step.layout.ep
    return step.batch * group.ffn.topk / step.layout.ep * group.ffn.moe_intermediate / ways


def _stored_elements(attention: Attention, layout: Layout) -> float:
    """Elements one token stores on one GPU in one layer; none where attention keeps no rotary cache."""
    if attention.kind == "gqa":
        heads = max(1.0, attention.kv_heads / layout.attn_tp)
        return heads * (attention.head_dim + (attention.v_head_dim or attention.head_dim))
    if attention.kind == "mla":
        return attention.kv_lora_rank + attention.rope_dim
    return attention.head_dim if attention.kind == "compressed" else 0.0


_PATTERNS: dict[str, Callable[[_Step, LayerGroup], _Removed]] = {
    "norm_quant": _norm_quant,
    "add_rmsnorm": _add_rmsnorm,
    "moe_expert": _moe_expert,
    "moe_routing": _moe_routing,
    "act_quant": _act_quant,
    "rope_kvstore": _rope_kvstore,
}
_APPLY_ORDER = tuple(_PATTERNS)
