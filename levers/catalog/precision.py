"""Levers 12–15: number formats. Each one changes the kernels; the KV format also sizes the pool."""

from levers.catalog.backends import ATTENTION, AttentionBackend
from levers.catalog.common import ATOM, VLLM, attention_class, constant, flags, title
from levers.context import LeverValue, SearchContext
from levers.lever import Exclusion, Group, Kind, Lever
from levers.reasons import Reason
from predictor.types import Dtype

ORDER = (Dtype.BF16, Dtype.FP8, Dtype.FP4)  # wide to narrow


def narrowness(dtype: Dtype) -> int:
    """Rank of a format: 0 for BF16, 2 for FP4."""
    return ORDER.index(dtype)


def computes(context: SearchContext, dtype: Dtype) -> bool:
    """Whether the GPU multiplies in the format."""
    peaks = {Dtype.FP8: context.platform.peak_fp8_flops, Dtype.FP4: context.platform.peak_fp4_flops}
    return dtype is Dtype.BF16 or peaks[dtype] is not None


def native_weight(context: SearchContext) -> Dtype:
    """The maker's own checkpoint, or the first validated one."""
    on_hand = context.card.weight_dtypes
    return next((dtype for dtype in on_hand if not context.validated or dtype in context.validated), on_hand[0])


def linear_for(context: SearchContext, weight: Dtype) -> Dtype:
    """Activations that go with a weight format: the same where the GPU multiplies in it, else BF16 (weight-only)."""
    return weight if computes(context, weight) else Dtype.BF16


def expert_for(context: SearchContext, weight: Dtype) -> Dtype:
    """Expert format of the checkpoint with this weight format."""
    maker = context.card.expert_dtype
    return maker if maker is not None and weight is context.card.weight_dtypes[0] else weight


def attention_backends(context: SearchContext) -> tuple[AttentionBackend, ...]:
    """Backends of the engine for this model's attention on this vendor; none where the engine chooses itself."""
    key = (context.engine.name, context.platform.vendor, attention_class(context.card.attention))
    return ATTENTION.get(key, ())


def default_kv(context: SearchContext) -> Dtype:
    """BF16 where some backend keeps it, else the widest format that one does; FP8 for compressed pools.

    DeepSeek-V4's pools are stored in FP8 by every engine that serves it (vLLM's layout is 584 bytes a token).
    """
    if attention_class(context.card.attention) == "compressed":
        return Dtype.FP8
    backends = attention_backends(context)
    kept = {dtype for backend in backends for dtype in backend.kv_dtypes} or set(ORDER)
    return next(dtype for dtype in ORDER if dtype in kept)


def weight_on_hand(context: SearchContext, value: LeverValue) -> Reason | None:
    """A checkpoint in the format must exist."""
    if value in context.card.weight_dtypes:
        return None
    have = ", ".join(context.card.weight_dtypes)
    return Reason("no_checkpoint", f"weight_dtype={value}: no such checkpoint of {context.card.name}; there is {have}")


def validated(context: SearchContext, value: LeverValue) -> Reason | None:
    """Only what the operator has validated, where they said so."""
    if not context.validated or value in context.validated:
        return None
    listed = ", ".join(context.validated)
    return Reason("not_validated", f"weight_dtype={value} is not among the validated precisions: {listed}")


def expert_on_hand(context: SearchContext, value: LeverValue) -> Reason | None:
    """Experts come in the formats of the checkpoints."""
    formats = {context.card.expert_dtype, *context.card.weight_dtypes} - {None}
    if not context.card.is_moe and value == expert_for(context, native_weight(context)):
        return None
    if not context.card.is_moe:
        return Reason("not_moe", f"expert_dtype={value}: {context.card.name} is not a MoE model")
    if value not in formats:
        have = ", ".join(sorted(str(dtype) for dtype in formats))
        return Reason("no_checkpoint", f"expert_dtype={value}: no checkpoint of {context.card.name}; there is {have}")
    return None


def gpu_computes(context: SearchContext, value: LeverValue) -> Reason | None:
    """GEMM inputs need a unit that multiplies in the format."""
    if computes(context, Dtype(str(value))):
        return None
    return Reason("gpu_format", f"linear_dtype={value}: {context.platform.name} does not multiply in {value}; use bf16")


def kv_supported(context: SearchContext, value: LeverValue) -> Reason | None:
    """FP4 caches exist on NVIDIA Blackwell only; otherwise some backend must keep the format."""
    dtype = Dtype(str(value))
    if dtype is Dtype.FP4 and (context.platform.vendor != "nvidia" or not computes(context, Dtype.FP4)):
        where = title(context) if context.engine.name == ATOM else context.platform.name
        return Reason("kv_fp4", f"kv_dtype=fp4 needs an NVIDIA GPU with FP4 units, and {where} has none: use fp8")
    backends = attention_backends(context)
    if not backends or any(dtype in backend.kv_dtypes for backend in backends):
        return None
    kind = attention_class(context.card.attention).replace("_", " ")
    kept = ", ".join(sorted({str(kept) for backend in backends for kept in backend.kv_dtypes}))
    return Reason(
        "kv_backend",
        f"kv_dtype={value}: every {kind} backend of {title(context)} on {context.platform.vendor.upper()} keeps its "
        f"cache in {kept} only",
    )


FORMATS = constant(*ORDER)
RULES: tuple[Exclusion, ...] = (weight_on_hand, validated)

LEVERS = (
    Lever(
        number=12,
        name="weight_dtype",
        group=Group.PRECISION,
        kind=Kind.ANCHOR,
        what="format of the stored weights",
        owner="precision",
        field="weight",
        candidates=FORMATS,
        default=native_weight,
        flags=flags("checkpoint", "checkpoint", "checkpoint", "checkpoint", {VLLM: "or --quantization"}),
        exclusions=RULES,
    ),
    Lever(
        number=13,
        name="linear_dtype",
        group=Group.PRECISION,
        kind=Kind.ANCHOR,
        what="format of the activations that enter the dense GEMMs",
        owner="precision",
        field="linear",
        candidates=FORMATS,
        default=lambda context: linear_for(context, native_weight(context)),
        flags=flags("checkpoint", "checkpoint", "--online_quant_config", "quant_config"),
        exclusions=(gpu_computes,),
    ),
    Lever(
        number=14,
        name="expert_dtype",
        group=Group.PRECISION,
        kind=Kind.ANCHOR,
        what="format of the expert weights",
        owner="precision",
        field="expert",
        candidates=FORMATS,
        default=lambda context: expert_for(context, native_weight(context)),
        flags=flags("checkpoint", "checkpoint", "--online_quant_config", "quant_config"),
        exclusions=(expert_on_hand,),
    ),
    Lever(
        number=15,
        name="kv_dtype",
        group=Group.PRECISION,
        kind=Kind.ANCHOR,
        what="format of the KV cache",
        owner="precision",
        field="kv",
        candidates=FORMATS,
        default=default_kv,
        flags=flags(
            "--kv-cache-dtype (auto)",
            "--kv-cache-dtype (auto)",
            "--kv_cache_dtype (bf16)",
            "kv_cache_config.dtype (auto)",
        ),
        exclusions=(kv_supported,),
    ),
)
