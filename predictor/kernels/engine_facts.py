"""Which kernels an engine runs, and their facts: by engine, GPU generation, number format and the operator's choice.

NVIDIA facts are learned (:mod:`predictor.kernels.facts_nvidia`). AMD has no public kernel table; its facts start from
the launch floor of CDNA (4.98 us a kernel, paper Table 5), the HBM share measured on MI300X (81%) and the sustained
compute of MI300X (about 45% of peak, arXiv 2510.27583), and are marked assumed.
"""

from dataclasses import dataclass
from functools import lru_cache

from predictor.kernels.facts import DecodeFacts, LinearFacts, MoeFacts, PrefillFacts, QuantFacts, SparseFacts
from predictor.kernels.facts_nvidia import DECODE, LINEAR, MLA_DECODE, MLA_PREFILL, MOE, PREFILL, QUANT, SPARSE
from predictor.kernels.gpu import Generation
from predictor.types import Dtype, Kernels, Precision


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Facts of the kernels one deployment runs."""

    engine: str
    decode: DecodeFacts
    prefill: PrefillFacts
    prefill_arithmetic: Dtype  # format of prefill products; fp8 only where the kernel multiplies in it
    mla_decode: DecodeFacts
    mla_prefill: PrefillFacts
    sparse: SparseFacts
    linear: LinearFacts
    moe: MoeFacts
    expert_arithmetic: Dtype
    quant_fp8: QuantFacts
    quant_fp4: QuantFacts
    fusions: frozenset[str]  # applied without being asked for; names of paper Table 21
    permutes_local_rows: bool  # with EP: only the rows of its own experts, not all routed rows
    assumed: bool  # whether any number is an assumption rather than learned
    untold: tuple[str, ...] = ()  # backends the operator chose that no table tells from the engine's usual kernel

    def quant(self, dtype: Dtype) -> QuantFacts:
        """Facts of quantising activations to a format."""
        return self.quant_fp4 if dtype is Dtype.FP4 else self.quant_fp8


# Engines' documented defaults (flags of the lever catalogue): what is already one kernel without being asked for.
_FUSIONS = {
    "vllm": frozenset({"add_rmsnorm", "norm_quant", "act_quant"}),
    "sglang": frozenset({"add_rmsnorm"}),
    "atom": frozenset({"add_rmsnorm", "norm_quant", "act_quant", "moe_routing"}),
    "trtllm": frozenset({"add_rmsnorm", "norm_quant", "act_quant", "moe_routing"}),
}

# Kernel family each engine picks: attention, then experts by format of the checkpoint.
_ATTENTION_FAMILY = {
    ("hopper", "vllm"): "fa3",
    ("hopper", "sglang"): "fa3",
    ("hopper", "trtllm"): "trtllm",
    ("blackwell", "vllm"): "trtllm",
    ("blackwell", "sglang"): "trtllm",
    ("blackwell", "trtllm"): "trtllm",
}
_MOE_FAMILY: dict[tuple[str, str], dict[Dtype, tuple[str, str]]] = {
    ("hopper", "vllm"): {
        Dtype.BF16: ("triton", "bf16"),
        Dtype.FP8: ("triton", "fp8_block"),
        Dtype.FP4: ("triton", "mxfp4_a16"),
    },
    ("hopper", "sglang"): {
        Dtype.BF16: ("triton", "bf16"),
        Dtype.FP8: ("triton", "fp8_block"),
        Dtype.FP4: ("triton", "mxfp4_a16"),
    },
    ("hopper", "trtllm"): {Dtype.BF16: ("cutlass", "bf16"), Dtype.FP8: ("cutlass", "fp8_block")},
    ("blackwell", "vllm"): {
        Dtype.BF16: ("trtllm", "bf16"),
        Dtype.FP8: ("trtllm", "fp8_block"),
        Dtype.FP4: ("trtllm", "nvfp4"),
    },
    ("blackwell", "sglang"): {
        Dtype.BF16: ("trtllm", "bf16"),
        Dtype.FP8: ("trtllm", "fp8_block"),
        Dtype.FP4: ("trtllm", "nvfp4"),
    },
    ("blackwell", "trtllm"): {Dtype.BF16: ("cutlass", "bf16"), Dtype.FP8: ("deepgemm", "fp8_block")},
}

# Families of the tables by what the lever catalogue calls a backend, where the names differ.
_ATTENTION_BACKENDS = {"flash": "fa3"}
_MOE_BACKENDS = {"deep_gemm": "deepgemm", "flashinfer_trtllm": "trtllm", "flashinfer_cutlass": "cutlass"}
# Formats in which a family may hold experts of one dtype, the engine's usual one apart.
_MOE_FORMATS = {Dtype.BF16: ("bf16",), Dtype.FP8: ("fp8_block", "fp8"), Dtype.FP4: ("nvfp4", "mxfp4_a16")}

# TensorRT-LLM serves 4-bit experts with its TRTLLM backend on Blackwell, which FlashInfer ships as trtllm_moe, and with
# Triton on Hopper; its own table has neither kernel, SGLang's and vLLM's do.
_FP4_EXPERTS_OF = {("blackwell", "trtllm"): "sglang", ("hopper", "trtllm"): "vllm"}

# Weight-only and mixed formats multiply in another format than the experts are stored in.
_ARITHMETIC = {"mxfp4_a16": Dtype.BF16, "mxfp4_a8": Dtype.FP8}

_LAUNCH_AMD_US = 4.98  # paper Table 5
_AMD_DECODE = DecodeFacts(3.0 * _LAUNCH_AMD_US, 0.75, 4.0, 0.45)  # metadata, attention, reduction; .75 under the .81
_AMD_PREFILL = PrefillFacts(2.0 * _LAUNCH_AMD_US, 0.40, 2.0, 0.45)  # item start and operand share as on NVIDIA
_AMD_MOE = {  # sort, two grouped GEMMs, activation with quantisation, finalize
    Dtype.BF16: MoeFacts(5.0 * _LAUNCH_AMD_US, 0.75, 0.40, 8.0),
    Dtype.FP8: MoeFacts(5.0 * _LAUNCH_AMD_US, 0.75, 0.35, 8.0),
    Dtype.FP4: MoeFacts(5.0 * _LAUNCH_AMD_US, 0.75, 0.30, 8.0),
}
_AMD_SPARSE = SparseFacts(4.0 * _LAUNCH_AMD_US, 0.0, 0.35, 0.2, 4.0 * _LAUNCH_AMD_US, 0.25)  # shares as on Blackwell
_AMD_LINEAR = LinearFacts(_LAUNCH_AMD_US, 0.75, 8.0 * _LAUNCH_AMD_US, 0.03)  # Triton kernels: share as SGLang's
_AMD_QUANT = QuantFacts(_LAUNCH_AMD_US, 0.5)

# Older NVIDIA generations and GPUs without a table borrow Hopper's kernels.
_BORROWED = {Generation.AMPERE: "hopper", Generation.ADA: "hopper"}


def engine_key(name: str) -> str:
    """Short name of an engine, however it was written.

    >>> engine_key("TensorRT-LLM"), engine_key("vLLM"), engine_key("trtllm")
    ('trtllm', 'vllm', 'trtllm')
    """
    key = "".join(letter for letter in name.lower() if letter.isalnum())
    return {"tensorrtllm": "trtllm", "trt": "trtllm", "tensorrt": "trtllm"}.get(key, key)


@lru_cache(maxsize=512)
def engine_facts(
    engine: str, generation: Generation, precision: Precision, kernels: Kernels, mxfp4: bool = False
) -> EngineFacts:
    """Facts of an engine's kernels; an engine without a table on this GPU uses vLLM's and says so.

    ``mxfp4`` tells that 4-bit experts are MXFP4: they multiply in fp8 where activations are fp8, else in bf16.
    """
    key = engine_key(engine)
    fusions = _FUSIONS.get(key, frozenset({"add_rmsnorm"}))
    if generation.is_amd:
        return _amd(key, precision, fusions, _untold(kernels, "", ""))
    name = _BORROWED.get(generation, generation.value)
    known = (name, key) in _ATTENTION_FAMILY
    source = key if known else "vllm"
    family = _attention_family(name, source, kernels.attention)
    low_cache = "bf16" if precision.kv is Dtype.BF16 else "fp8"
    # Only SGLang and TensorRT-LLM multiply prefill attention in fp8; vLLM's kernel restores bf16.
    low_prefill = low_cache == "fp8" and (name, source, family, "fp8") in PREFILL
    # vLLM's MLA kernels are in no kernel table: bf16 as SGLang's (FA3, trtllm-gen), fp8 as TensorRT-LLM's.
    mla_engine = {"vllm": "sglang" if low_cache == "bf16" else "trtllm"}.get(source, source)
    mla_family = _ATTENTION_FAMILY[name, mla_engine]
    moe_engine = _FP4_EXPERTS_OF.get((name, source), source) if precision.expert is Dtype.FP4 else source
    usual_family, moe_format = _MOE_FAMILY[name, moe_engine][precision.expert]
    if mxfp4 and moe_format == "nvfp4":
        moe_format = "mxfp4_a8" if precision.linear is Dtype.FP8 else "mxfp4_a16"
    moe_family, moe_format = _moe_family(name, moe_engine, usual_family, moe_format, precision.expert, kernels.moe)
    return EngineFacts(
        engine=key,
        decode=DECODE[name, source, family, low_cache],
        prefill=PREFILL[name, source, family, "fp8" if low_prefill else "bf16"],
        prefill_arithmetic=Dtype.FP8 if low_prefill else Dtype.BF16,
        mla_decode=MLA_DECODE[name, mla_engine, mla_family, low_cache],
        mla_prefill=MLA_PREFILL[name, mla_engine, mla_family, low_cache],
        sparse=SPARSE[name, source],
        linear=LINEAR[name, source],
        moe=MOE[name, moe_engine, moe_family, moe_format],
        expert_arithmetic=_ARITHMETIC.get(moe_format, precision.expert),
        quant_fp8=QUANT[name, source, "fp8"],
        quant_fp4=QUANT.get((name, source, "nvfp4"), QUANT["blackwell", "vllm", "nvfp4"]),
        fusions=fusions,
        permutes_local_rows=moe_engine == "trtllm",
        assumed=not known or generation in _BORROWED,
        untold=_untold(kernels, family, moe_family),
    )


def _moe_family(
    generation: str, engine: str, usual: str, usual_format: str, expert: Dtype, wanted: str
) -> tuple[str, str]:
    """Kernel family and format of the operator's expert backend, where a table holds them; else the engine's usual."""
    family = _MOE_BACKENDS.get(wanted, wanted)
    for form in (usual_format, *_MOE_FORMATS[expert]):
        if (generation, engine, family, form) in MOE:
            return family, form
    return usual, usual_format


def _untold(kernels: Kernels, attention: str, moe: str) -> tuple[str, ...]:
    """Chosen backends whose kernels are not of the families the facts were taken from ("": of no family)."""
    chosen = (
        ("attention", kernels.attention, _ATTENTION_BACKENDS.get(kernels.attention, kernels.attention), attention),
        ("expert", kernels.moe, _MOE_BACKENDS.get(kernels.moe, kernels.moe), moe),
    )
    return tuple(f"{what} backend {name}" for what, name, family, known in chosen if name != "auto" and family != known)


def _attention_family(generation: str, engine: str, wanted: str) -> str:
    """Kernel family of the operator's attention backend, where its facts are known for both phases."""
    for family in ("triton", "flashinfer"):
        known = (generation, engine, family, "bf16") in DECODE and (generation, engine, family, "bf16") in PREFILL
        if family in wanted.lower() and known:
            return family
    return _ATTENTION_FAMILY[generation, engine]


def _amd(engine: str, precision: Precision, fusions: frozenset[str], untold: tuple[str, ...]) -> EngineFacts:
    return EngineFacts(
        engine=engine,
        decode=_AMD_DECODE,
        prefill=_AMD_PREFILL,
        prefill_arithmetic=Dtype.BF16,
        mla_decode=_AMD_DECODE,
        mla_prefill=_AMD_PREFILL,
        sparse=_AMD_SPARSE,
        linear=_AMD_LINEAR,
        moe=_AMD_MOE[precision.expert],
        expert_arithmetic=precision.expert,
        quant_fp8=_AMD_QUANT,
        quant_fp4=_AMD_QUANT,
        fusions=fusions,
        permutes_local_rows=False,
        assumed=True,
        untold=untold,
    )
