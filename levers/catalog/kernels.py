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
from levers.fusions import GENERIC, NAMES, every_subset
from levers.lever import Group, Kind, Lever, Range
from levers.reasons import Reason
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
        f"{lever}={value}: {title(context)} has no such {what} on {context.platform.vendor.upper()} GPUs; it has {listed}",
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
"""Switch of each pattern where the engine has one; elsewhere the engine fuses internally or the pattern is work to do."""

ATTENTION = Lever(
    16, "attn_backend", Group.KERNELS, Kind.ANCHOR, "attention kernels", "kernels", "attention",
    constant(*ATTENTION_NAMES), always("auto"),
    flags("--attention-backend (auto)", "--attention-backend (auto)", "ATOM_USE_TRITON_MLA / ATOM_USE_UNIFIED_ATTN (0)",
          "attn_backend (TRTLLM)"),
    (attention_listed,),
)  # fmt: skip
SPARSE = Lever(
    17, "sparse_topk", Group.KERNELS, Kind.ANCHOR, "tokens that sparse attention reads (0: as trained)", "kernels",
    "sparse_topk", topk_candidates, always(0),
    flags("--hf-overrides", "--json-model-override-args", "--hf-overrides", "sparse_attention_config"),
    (topk_as_trained,),
)  # fmt: skip
MOE_BACKEND = Lever(
    18, "moe_backend", Group.KERNELS, Kind.ANCHOR, "expert kernels", "kernels", "moe", constant(*MOE_NAMES),
    always("auto"),
    flags("--moe-backend (auto)", "--moe-runner-backend (auto)", "--moe-backend (standard)", "moe_config.backend (AUTO)"),
    (needs_moe, moe_listed),
)  # fmt: skip
A2A_BACKEND = Lever(
    19, "a2a_backend", Group.KERNELS, Kind.ANCHOR, "how tokens reach experts on other ranks", "kernels", "a2a",
    constant(*A2A_NAMES), always("none"),
    flags("--all2all-backend (allgather_reducescatter)", "--moe-a2a-backend (none)", "--all2all-backend (off)",
          "in moe_config.backend"),
    (a2a_needs_moe, a2a_listed),
)  # fmt: skip
EPLB = Lever(
    20, "eplb_redundant", Group.KERNELS, Kind.TRANSFERABLE, "copies of busy experts", "", "eplb_redundant",
    redundant_candidates, always(0),
    flags("--enable-eplb --eplb-config (0)", "--enable-eplb --ep-num-redundant-experts (0)",
          "--enable-eplb --eplb-config (off)", "moe_config.load_balancer.num_slots (experts)"),
    (eplb_needs_moe,), Range(0, 1024),
)  # fmt: skip
FUSIONS = Lever(
    21, "fusions", Group.KERNELS, Kind.ANCHOR, "adjacent kernels fused into one", "kernels", "fusions",
    constant(*every_subset(NAMES), (GENERIC,)), always(()),
    flags("pass_config switches (by -O2)", "internal, --enable-aiter-allreduce-fusion", "environment switches (1)",
          "built in"),
)  # fmt: skip
GRAPH_MODE = Lever(
    22, "graph_mode", Group.GRAPH, Kind.ANCHOR, "which steps replay a captured graph", "kernels", "graph_mode",
    constant("none", "piecewise", "full"), always("full"),
    flags("-cc.cudagraph_mode (FULL_AND_PIECEWISE)", "--cuda-graph-backend-decode (full)", "--cudagraph-mode (FULL)",
          "cuda_graph_config (on)", {TRTLLM: "set enable_padding true, or unlisted batch sizes run eager"}),
    (graph_listed,),
)  # fmt: skip
GRAPH_MAX = Lever(
    23, "graph_max_bs", Group.GRAPH, Kind.SCHEDULER, "largest decode batch with a graph", "scheduler", "graph_max_bs",
    graph_batches, always(None),
    flags("--max-cudagraph-capture-size", "--cuda-graph-max-bs-decode", "--cudagraph-capture-sizes",
          "cuda_graph_config.max_batch_size (128)", {VLLM: "counts tokens: multiply by 1 + draft depth"}),
    (), Range(1, 4096, default_allowed=True), governor=("graph_mode", "none"),
)  # fmt: skip
ALLREDUCE_LEVER = Lever(
    24, "allreduce", Group.COLLECTIVES, Kind.TRANSFERABLE, "algorithm that sums partial results over a replica",
    "kernels", "allreduce", constant(*ALLREDUCE_NAMES), always("custom"),
    flags("--disable-custom-all-reduce, VLLM_ROCM_QUICK_REDUCE_QUANTIZATION (NONE)",
          "--disable-custom-all-reduce, ROCM_QUICK_REDUCE_QUANTIZATION (NONE)", "AITER_QUICK_REDUCE_QUANTIZATION (auto)",
          "allreduce_strategy (AUTO)"),
    (allreduce_listed,), governor=("tp", 1),
)  # fmt: skip

LEVERS = (ATTENTION, SPARSE, MOE_BACKEND, A2A_BACKEND, EPLB, FUSIONS, GRAPH_MODE, GRAPH_MAX, ALLREDUCE_LEVER)
