"""Levers 16–24: kernel backends, expert balancing, fusions, graph capture and the all-reduce."""

from collections.abc import Mapping
from typing import Protocol

from levers.catalog.backends import (
    A2A,
    A2A_NAMES,
    ALLREDUCE,
    ALLREDUCE_NAMES,
    ATTENTION_NAMES,
    GRAPH_MODES,
    MOE,
    MOE_NAMES,
)
from levers.catalog.common import ATOM, SGLANG, TRTLLM, VLLM, always, attention_class, constant, flags, only_when, title
from levers.catalog.precision import attention_backends, computes
from levers.context import LeverValue, SearchContext
from levers.fusions import GENERIC, every_subset
from levers.lever import Group, Kind, Lever, Range
from levers.reasons import Reason
from predictor.fusion import FUSION_NAMES
from predictor.types import Dtype


class Named(Protocol):
    """A backend record."""

    @property
    def name(self) -> str:
        """What the lever calls it."""
        ...


def _one_of(context: SearchContext, lever: str, value: LeverValue, have: tuple[str, ...], what: str) -> Reason | None:
    if value in have:
        return None
    listed = ", ".join(have)
    return Reason(
        f"{lever}_engine",
        f"{lever}={value}: {title(context)} has no such {what} on {context.platform.vendor.upper()} GPUs; it has "
        f"{listed}",
    )


def attention_listed(context: SearchContext, value: LeverValue) -> Reason | None:
    """The engine must have the backend for this attention on this vendor."""
    kind = attention_class(context.card.attention).replace("_", " ")
    have = ("auto", *(backend.name for backend in attention_backends(context)))
    return _one_of(context, "attn_backend", value, have, f"{kind} backend")


def moe_listed(context: SearchContext, value: LeverValue) -> Reason | None:
    """The engine must have the MoE backend on this vendor and GPU."""
    backends = MOE.get((context.engine.name, context.platform.vendor), ())
    fp4 = computes(context, Dtype.FP4)  # among NVIDIA GPUs, those of Blackwell
    have = ("auto", *(backend.name for backend in backends if fp4 or not backend.blackwell))
    return _one_of(context, "moe_backend", value, have, "MoE backend")


def a2a_listed(context: SearchContext, value: LeverValue) -> Reason | None:
    """The engine must have the all-to-all on this vendor."""
    have = ("none", *A2A.get((context.engine.name, context.platform.vendor), {}))
    return _one_of(context, "a2a_backend", value, have, "all-to-all")


def allreduce_listed(context: SearchContext, value: LeverValue) -> Reason | None:
    """Quick-reduce and RCCL are ROCm's, NCCL is NVIDIA's."""
    return _one_of(context, "allreduce", value, ALLREDUCE[context.platform.vendor], "all-reduce")


def graph_listed(context: SearchContext, value: LeverValue) -> Reason | None:
    """The engine must capture graphs in this way."""
    have = GRAPH_MODES.get(context.engine.name, ("none", "full"))
    return _one_of(context, "graph_mode", value, have, "graph mode")


def trained_width(context: SearchContext) -> int:
    """Tokens the checkpoint's sparse attention was trained to read; 0 for dense attention."""
    return context.card.attention.index_topk


def topk_candidates(context: SearchContext) -> tuple[LeverValue, ...]:
    """As trained, half of it and twice: the last two are shown with the reason that leaves them out."""
    width = trained_width(context)
    return (0, width, width // 2, 2 * width) if width else (0, 2048)


def topk_as_trained(context: SearchContext, value: LeverValue) -> Reason | None:
    """Sparse attention runs only at the width the checkpoint was trained with."""
    width = trained_width(context)
    if value in (0, width):
        return None
    if not width:
        return Reason("sparse_dense", f"sparse_topk={value}: {context.card.name} has no sparse attention; leave it 0")
    return Reason(
        "sparse_width", f"sparse_topk={value}: {context.card.name} was trained to read {width} tokens; use {width}"
    )


def graph_batches(context: SearchContext) -> tuple[LeverValue, ...]:
    """The engine's default and the larger steps of the common capture grids."""
    return (None, 8, 16, 32, 64, 128, 256, 512, 1024)


def redundant_candidates(context: SearchContext) -> tuple[LeverValue, ...]:
    """Redundant experts: none, or enough for one or a few a rank on usual widths."""
    return (0, 8, 16, 32, 64)


needs_moe = only_when("not_moe", lambda c: c.card.is_moe, "auto", "moe_backend={value}: {model} is not a MoE model")
a2a_needs_moe = only_when("not_moe", lambda c: c.card.is_moe, "none", "a2a_backend={value}: {model} is not a MoE model")
eplb_needs_moe = only_when("not_moe", lambda c: c.card.is_moe, 0, "eplb_redundant={value}: {model} is not a MoE model")

FUSION_FLAGS: Mapping[str, Mapping[str, str]] = {
    "norm_quant": {
        VLLM: "-cc.pass_config.fuse_norm_quant=true",
        ATOM: "ATOM_ENABLE_DS_INPUT_RMSNORM_QUANT_FUSION=1 ATOM_ENABLE_DS_QKNORM_QUANT_FUSION=1 "
        "ATOM_LLAMA_ENABLE_AITER_TRITON_FUSED_RMSNORM_QUANT=1",
    },
    "add_rmsnorm": {
        VLLM: "-cc.pass_config.fuse_allreduce_rms=true",
        SGLANG: "--enable-aiter-allreduce-fusion",
        ATOM: "ATOM_ENABLE_ALLREDUCE_RMSNORM_FUSION=1",
    },
    "moe_expert": {VLLM: "--moe-backend aiter_mega_moe", ATOM: "--moe-backend mega"},
    "moe_routing": {VLLM: "VLLM_ROCM_USE_AITER_FUSION_SHARED_EXPERTS=1", ATOM: "ATOM_FUSE_SHARED_EXPERT=1"},
    "act_quant": {
        VLLM: "-cc.pass_config.fuse_act_quant=true",
        ATOM: "ATOM_LLAMA_ENABLE_AITER_TRITON_FUSED_SILU_MUL_QUANT=1",
    },
    "rope_kvstore": {
        VLLM: "-cc.pass_config.fuse_rope_kvcache=true",
        SGLANG: "--enable-fused-qk-norm-rope",
        ATOM: "ATOM_ENABLE_QK_NORM_ROPE_CACHE_QUANT_FUSION=1",
    },
}
"""Switch of each pattern where the engine has one; elsewhere the engine fuses internally or the pattern is work to "
"do."""

ATTENTION = Lever(
    number=16,
    name="attn_backend",
    group=Group.KERNELS,
    kind=Kind.ANCHOR,
    what="attention kernels",
    owner="kernels",
    field="attention",
    candidates=constant(*ATTENTION_NAMES),
    default=always("auto"),
    flags=flags(
        "--attention-backend (auto)",
        "--attention-backend (auto)",
        "ATOM_USE_TRITON_MLA / ATOM_USE_UNIFIED_ATTN (0)",
        "attn_backend (TRTLLM)",
    ),
    exclusions=(attention_listed,),
)
SPARSE = Lever(
    number=17,
    name="sparse_topk",
    group=Group.KERNELS,
    kind=Kind.ANCHOR,
    what="tokens that sparse attention reads (0: as trained)",
    owner="kernels",
    field="sparse_topk",
    candidates=topk_candidates,
    default=always(0),
    flags=flags("--hf-overrides", "--json-model-override-args", "--hf-overrides", "sparse_attention_config"),
    exclusions=(topk_as_trained,),
)
MOE_BACKEND = Lever(
    number=18,
    name="moe_backend",
    group=Group.KERNELS,
    kind=Kind.ANCHOR,
    what="expert kernels",
    owner="kernels",
    field="moe",
    candidates=constant(*MOE_NAMES),
    default=always("auto"),
    flags=flags(
        "--moe-backend (auto)", "--moe-runner-backend (auto)", "--moe-backend (standard)", "moe_config.backend (AUTO)"
    ),
    exclusions=(needs_moe, moe_listed),
)
A2A_BACKEND = Lever(
    number=19,
    name="a2a_backend",
    group=Group.KERNELS,
    kind=Kind.ANCHOR,
    what="how tokens reach experts on other ranks",
    owner="kernels",
    field="a2a",
    candidates=constant(*A2A_NAMES),
    default=always("none"),
    flags=flags(
        "--all2all-backend (allgather_reducescatter)",
        "--moe-a2a-backend (none)",
        "--all2all-backend (off)",
        "in moe_config.backend",
    ),
    exclusions=(a2a_needs_moe, a2a_listed),
)
EPLB = Lever(
    number=20,
    name="eplb_redundant",
    group=Group.KERNELS,
    kind=Kind.TRANSFERABLE,
    what="copies of busy experts",
    owner="",
    field="eplb_redundant",
    candidates=redundant_candidates,
    default=always(0),
    flags=flags(
        "--enable-eplb --eplb-config (0)",
        "--enable-eplb --ep-num-redundant-experts (0)",
        "--enable-eplb --eplb-config (off)",
        "moe_config.load_balancer.num_slots (experts)",
    ),
    exclusions=(eplb_needs_moe,),
    accepts=Range(0, 1024),
)
FUSIONS = Lever(
    number=21,
    name="fusions",
    group=Group.KERNELS,
    kind=Kind.ANCHOR,
    what="adjacent kernels fused into one",
    owner="kernels",
    field="fusions",
    candidates=constant(*every_subset(FUSION_NAMES), (GENERIC,)),
    default=always(()),
    flags=flags(
        "pass_config switches (by -O2)",
        "internal, --enable-aiter-allreduce-fusion",
        "environment switches (1)",
        "built in",
    ),
)
GRAPH_MODE = Lever(
    number=22,
    name="graph_mode",
    group=Group.GRAPH,
    kind=Kind.ANCHOR,
    what="which steps replay a captured graph",
    owner="kernels",
    field="graph_mode",
    candidates=constant("none", "piecewise", "full"),
    default=always("full"),
    flags=flags(
        "-cc.cudagraph_mode (FULL_AND_PIECEWISE)",
        "--cuda-graph-backend-decode (full)",
        "--cudagraph-mode (FULL)",
        "cuda_graph_config (on)",
        {TRTLLM: "set enable_padding true, or unlisted batch sizes run eager"},
    ),
    exclusions=(graph_listed,),
)
GRAPH_MAX = Lever(
    number=23,
    name="graph_max_bs",
    group=Group.GRAPH,
    kind=Kind.SCHEDULER,
    what="largest decode batch with a graph",
    owner="scheduler",
    field="graph_max_bs",
    candidates=graph_batches,
    default=always(None),
    flags=flags(
        "--max-cudagraph-capture-size",
        "--cuda-graph-max-bs-decode",
        "--cudagraph-capture-sizes",
        "cuda_graph_config.max_batch_size (128)",
        {VLLM: "counts tokens: multiply by 1 + draft depth"},
    ),
    exclusions=(),
    accepts=Range(1, 4096, default_allowed=True),
    governor=("graph_mode", "none"),
)
ALLREDUCE_LEVER = Lever(
    number=24,
    name="allreduce",
    group=Group.COLLECTIVES,
    kind=Kind.TRANSFERABLE,
    what="algorithm that sums partial results over a replica",
    owner="kernels",
    field="allreduce",
    candidates=constant(*ALLREDUCE_NAMES),
    default=always("custom"),
    flags=flags(
        "--disable-custom-all-reduce, VLLM_ROCM_QUICK_REDUCE_QUANTIZATION (NONE)",
        "--disable-custom-all-reduce, ROCM_QUICK_REDUCE_QUANTIZATION (NONE)",
        "AITER_QUICK_REDUCE_QUANTIZATION (auto)",
        "allreduce_strategy (AUTO)",
    ),
    exclusions=(allreduce_listed,),
    governor=("tp", 1),
)

LEVERS = (ATTENTION, SPARSE, MOE_BACKEND, A2A_BACKEND, EPLB, FUSIONS, GRAPH_MODE, GRAPH_MAX, ALLREDUCE_LEVER)
