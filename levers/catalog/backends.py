"""Which kernel backends each engine has on each vendor, as data.

Read from the engines' sources: vLLM 0.30 and 0.33, SGLang 0.5.19 and 0.5.23, ATOM of 2026-08-22, TensorRT-LLM main of
2026-08. ``engine_name`` is what the engine's own flag takes.
"""

from dataclasses import dataclass

from levers.catalog.common import ATOM, SGLANG, TRTLLM, VLLM
from predictor.types import Dtype

BF16_FP8 = (Dtype.BF16, Dtype.FP8)
ANY_KV = (Dtype.BF16, Dtype.FP8, Dtype.FP4)


@dataclass(frozen=True, slots=True)
class AttentionBackend:
    """One attention backend and what it accepts."""

    name: str
    engine_name: str
    kv_dtypes: tuple[Dtype, ...] = BF16_FP8
    block_sizes: tuple[int, ...] = ()  # empty: any the engine accepts
    connectors: bool = True  # works with KV connectors: hand-off between pools, host offload
    returns_lse: bool = True  # decode context parallelism needs it on latent attention


def _plain(*pairs: tuple[str, str]) -> tuple[AttentionBackend, ...]:
    return tuple(AttentionBackend(name, engine_name) for name, engine_name in pairs)


# (engine, vendor, attention class) -> backends, the engine's first choice first
ATTENTION: dict[tuple[str, str, str], tuple[AttentionBackend, ...]] = {
    (VLLM, "amd", "mha"): (
        AttentionBackend("rocm", "ROCM_ATTN", connectors=False),
        AttentionBackend("aiter", "ROCM_AITER_FA", block_sizes=(16, 32)),
        AttentionBackend("aiter_unified", "ROCM_AITER_UNIFIED_ATTN"),
        AttentionBackend("triton", "TRITON_ATTN"),
    ),
    (VLLM, "amd", "mla"): (
        AttentionBackend("aiter", "ROCM_AITER_MLA"),
        # TritonMLA raises NotImplementedError for an fp8 cache on ROCm (vllm-project/vllm#35850)
        AttentionBackend("triton", "TRITON_MLA", kv_dtypes=(Dtype.BF16,)),
        AttentionBackend("aiter_triton", "ROCM_AITER_TRITON_MLA"),
    ),
    (VLLM, "amd", "sparse_mla"): (
        AttentionBackend("aiter", "ROCM_AITER_MLA_SPARSE", kv_dtypes=(Dtype.FP8,), returns_lse=False),
    ),
    (VLLM, "nvidia", "mha"): (
        AttentionBackend("flash", "FLASH_ATTN"),
        AttentionBackend("flashinfer", "FLASHINFER", kv_dtypes=ANY_KV),
        AttentionBackend("triton", "TRITON_ATTN"),
    ),
    (VLLM, "nvidia", "mla"): (
        AttentionBackend("flashinfer", "FLASHINFER_MLA"),
        AttentionBackend("cutlass", "CUTLASS_MLA"),
        AttentionBackend("flash", "FLASHMLA"),
        AttentionBackend("triton", "TRITON_MLA", kv_dtypes=(Dtype.BF16,)),
    ),
    (VLLM, "nvidia", "sparse_mla"): (AttentionBackend("flash", "FLASHMLA_SPARSE", kv_dtypes=ANY_KV),),
    (SGLANG, "amd", "mha"): _plain(("aiter", "aiter"), ("triton", "triton")),
    (SGLANG, "amd", "mla"): _plain(("aiter", "aiter"), ("triton", "triton")),
    (SGLANG, "amd", "sparse_mla"): _plain(("aiter", "aiter"), ("tilelang", "tilelang")),
    (SGLANG, "nvidia", "mha"): (
        AttentionBackend("flash", "fa3"),
        AttentionBackend("flashinfer", "flashinfer", kv_dtypes=ANY_KV),
        AttentionBackend("trtllm", "trtllm_mha", kv_dtypes=ANY_KV),
        AttentionBackend("triton", "triton"),
    ),
    (SGLANG, "nvidia", "mla"): (
        AttentionBackend("flash", "fa3"),
        AttentionBackend("flashinfer", "flashinfer"),
        AttentionBackend("trtllm", "trtllm_mla"),
        AttentionBackend("cutlass", "cutlass_mla"),
        AttentionBackend("triton", "triton"),
    ),
    (SGLANG, "nvidia", "sparse_mla"): _plain(("flash", "flashmla_sparse")),
    (ATOM, "amd", "mha"): _plain(("aiter", "aiter"), ("triton", "triton")),
    (ATOM, "amd", "mla"): _plain(("aiter", "aiter"), ("triton", "triton")),
    (ATOM, "amd", "sparse_mla"): _plain(("aiter", "aiter")),
    (TRTLLM, "nvidia", "mha"): (
        AttentionBackend("trtllm", "TRTLLM", kv_dtypes=ANY_KV),
        AttentionBackend("flashinfer", "FLASHINFER"),
    ),
    (TRTLLM, "nvidia", "mla"): (AttentionBackend("trtllm", "TRTLLM", kv_dtypes=ANY_KV),),
    (TRTLLM, "nvidia", "sparse_mla"): _plain(("trtllm", "TRTLLM")),
}
# compressed pools (DeepSeek-V4) choose their kernels themselves: only the engine's default is offered
ATTENTION_NAMES = (
    "auto",
    "aiter",
    "aiter_unified",
    "aiter_triton",
    "rocm",
    "triton",
    "tilelang",
    "ck",
    "flash",
    "flashinfer",
    "trtllm",
    "cutlass",
)


@dataclass(frozen=True, slots=True)
class MoeBackend:
    """One MoE backend and what it accepts."""

    name: str
    engine_name: str
    experts: tuple[Dtype, ...] = (Dtype.BF16, Dtype.FP8, Dtype.FP4)
    needs_ep: bool = False  # only with experts spread over the ranks
    whole_ep: bool = False  # ep is 1 or the full width
    fp8_without_ep: bool = False  # FP8 experts only at ep 1
    blackwell: bool = False


MOE: dict[tuple[str, str], tuple[MoeBackend, ...]] = {
    (VLLM, "amd"): (
        MoeBackend("triton", "triton"),
        MoeBackend("aiter", "aiter"),
        MoeBackend("flydsl", "flydsl"),
        MoeBackend("mega", "aiter_mega_moe", needs_ep=True),
    ),
    (VLLM, "nvidia"): (
        MoeBackend("triton", "triton"),
        MoeBackend("deep_gemm", "deep_gemm", experts=(Dtype.FP8,)),
        MoeBackend("cutlass", "cutlass", experts=(Dtype.FP8, Dtype.FP4)),
        MoeBackend("flashinfer_trtllm", "flashinfer_trtllm", experts=(Dtype.FP8, Dtype.FP4), blackwell=True),
        MoeBackend("marlin", "marlin", experts=(Dtype.FP8, Dtype.FP4)),
    ),
    (SGLANG, "amd"): (MoeBackend("aiter", "aiter"), MoeBackend("triton", "triton")),
    (SGLANG, "nvidia"): (
        MoeBackend("triton", "triton"),
        MoeBackend("deep_gemm", "deep_gemm", experts=(Dtype.FP8,)),
        MoeBackend("cutlass", "cutlass", experts=(Dtype.FP8, Dtype.FP4), fp8_without_ep=True),
        MoeBackend("flashinfer_cutlass", "flashinfer_cutlass", whole_ep=True),
        MoeBackend("flashinfer_trtllm", "flashinfer_trtllm", (Dtype.FP8, Dtype.FP4), whole_ep=True, blackwell=True),
        MoeBackend("marlin", "marlin", experts=(Dtype.FP8, Dtype.FP4)),
        MoeBackend("mega", "megamoe", experts=(Dtype.FP8, Dtype.FP4), needs_ep=True, blackwell=True),
    ),
    (ATOM, "amd"): (
        MoeBackend("aiter", "standard"),
        MoeBackend("triton", "ATOM_USE_TRITON_MOE=1"),
        MoeBackend("mega", "mega", needs_ep=True),
    ),
    (TRTLLM, "nvidia"): (
        MoeBackend("cutlass", "CUTLASS"),
        MoeBackend("trtllm", "TRTLLM", experts=(Dtype.FP8, Dtype.FP4), blackwell=True),
        MoeBackend("cutedsl", "CUTEDSL", experts=(Dtype.FP8, Dtype.FP4), blackwell=True),
        MoeBackend("wideep", "WIDEEP", needs_ep=True),
        MoeBackend("deep_gemm", "DEEPGEMM", experts=(Dtype.FP8,)),
        MoeBackend("triton", "TRITON"),
    ),
}
MOE_NAMES = (
    "auto",
    "aiter",
    "triton",
    "ck",
    "flydsl",
    "mega",
    "cutlass",
    "deep_gemm",
    "flashinfer_cutlass",
    "flashinfer_trtllm",
    "trtllm",
    "cutedsl",
    "wideep",
    "marlin",
)

# (engine, vendor) -> lever value -> what the engine's flag takes
A2A: dict[tuple[str, str], dict[str, str]] = {
    (VLLM, "amd"): {"mori_ht": "mori_high_throughput", "mori_ll": "mori_low_latency"},
    (VLLM, "nvidia"): {
        "deepep_ht": "deepep_high_throughput",
        "deepep_ll": "deepep_low_latency",
        "nixl_ep": "nixl_ep",
        "flashinfer_nvlink": "flashinfer_nvlink_two_sided",
    },
    (SGLANG, "amd"): {"mori_ht": "mori"},
    (SGLANG, "nvidia"): {
        "deepep_ht": "deepep",
        "deepep_ll": "deepep",
        "mooncake": "mooncake",
        "nixl_ep": "nixl",
        "pplx": "pplx",
        "flashinfer_nvlink": "flashinfer",
    },
    (ATOM, "amd"): {"mori_ht": "high-throughput", "mori_ll": "low-latency"},
    (TRTLLM, "nvidia"): {},  # built into the MoE backend
}
A2A_NAMES = ("none", "mori_ht", "mori_ll", "deepep_ht", "deepep_ll", "nixl_ep", "mooncake", "pplx", "flashinfer_nvlink")

GRAPH_MODES: dict[str, tuple[str, ...]] = {
    VLLM: ("none", "piecewise", "full"),
    SGLANG: ("none", "piecewise", "full"),  # disabled, breakable, full
    ATOM: ("none", "piecewise", "full"),  # piecewise needs --level 3, its default
    TRTLLM: ("none", "piecewise", "full"),  # piecewise through torch.compile
}

ALLREDUCE: dict[str, tuple[str, ...]] = {
    "amd": ("custom", "quick", "fused_rms", "rccl"),
    "nvidia": ("custom", "fused_rms", "rccl"),
}
ALLREDUCE_NAMES = ("custom", "quick", "fused_rms", "rccl")  # rccl: the library, NCCL on NVIDIA
