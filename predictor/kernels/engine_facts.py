"""Facts of the kernels each engine ships, by GPU generation: named factors, never per shape.

The same GPU runs different attention and grouped-GEMM kernels under different engines, and their floors and
efficiencies differ more than the GPUs do. Source of every NVIDIA figure: the measured tables of
``aiconfigurator-core`` 0.12.0, one set per engine family and generation. AMD has no public table; its figures start from the NVIDIA ones with the launch
floor of CDNA (4.98 us a kernel, paper Table 5) and the HBM share measured on MI300X (81%).
"""

from dataclasses import dataclass

from predictor.kernels.attention import AttentionConstants
from predictor.kernels.gpu import Generation
from predictor.kernels.moe import MoeConstants
from predictor.types import Dtype


@dataclass(frozen=True, slots=True)
class QuantFacts:
    """Cost of one dynamic activation quantisation besides its bytes."""

    fixed_us: float
    row_ns: float


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Everything of an engine that the kernel models need."""

    name: str
    attention: AttentionConstants
    mla: AttentionConstants
    quant: QuantFacts
    quant_fp4: QuantFacts
    fusions: frozenset[str]  # fused by default; names of paper Table 21
    permutes_local_rows: bool  # with EP: only the rows of its own experts, not all routed rows


_TABLES = "aiconfigurator-core 0.12.0"
_HOPPER = {
    "vllm": AttentionConstants(11.0, 0.85, 2.5, 9.0, 0.55, source=f"{_TABLES}, FA3"),
    "sglang": AttentionConstants(11.0, 0.80, 2.5, 9.0, 0.50, source=f"{_TABLES}, FA3"),
    "trtllm": AttentionConstants(13.0, 0.80, 2.5, 9.0, 0.50, source=f"{_TABLES}, XQA"),
}
_BLACKWELL = {
    "vllm": AttentionConstants(10.0, 0.85, 2.0, 9.0, 0.45, source=f"{_TABLES}, trtllm-gen"),
    "sglang": AttentionConstants(12.0, 0.80, 2.0, 9.0, 0.45, source=f"{_TABLES}, trtllm-gen"),
    "trtllm": AttentionConstants(10.0, 0.85, 2.0, 9.0, 0.45, source=f"{_TABLES}, trtllm-gen"),
}
_AMD = AttentionConstants(15.0, 0.75, 4.0, 12.0, 0.35, source="three launches of 4.98 us; HBM share of MI300X")
_ATTENTION: dict[Generation, dict[str, AttentionConstants]] = {
    Generation.HOPPER: _HOPPER,
    Generation.BLACKWELL: _BLACKWELL,
    Generation.AMPERE: {},
    Generation.ADA: {},
    Generation.CDNA3: {},
    Generation.CDNA4: {},
}
_ATTENTION_DEFAULT = {
    Generation.HOPPER: _HOPPER["vllm"],
    Generation.BLACKWELL: _BLACKWELL["vllm"],
    Generation.AMPERE: _HOPPER["vllm"],
    Generation.ADA: _HOPPER["vllm"],
    Generation.CDNA3: _AMD,
    Generation.CDNA4: _AMD,
}

# Low-precision GEMM rows minus the GEMM: vLLM's dynamic per-token quantisation, SGLang's, TensorRT-LLM's.
_QUANT = {"vllm": QuantFacts(2.6, 6.3), "sglang": QuantFacts(2.6, 0.5), "trtllm": QuantFacts(10.0, 0.3)}
_QUANT_FP4 = QuantFacts(4.0, 0.3)

# Engines' documented defaults (flags of the lever catalogue): what is already one kernel without being asked for.
_FUSIONS = {
    "vllm": frozenset({"add_rmsnorm", "norm_quant", "act_quant"}),
    "sglang": frozenset({"add_rmsnorm"}),
    "atom": frozenset({"add_rmsnorm", "norm_quant", "act_quant", "moe_routing"}),
    "trtllm": frozenset({"add_rmsnorm", "norm_quant", "act_quant", "moe_routing"}),
}


def engine_key(name: str) -> str:
    """Short name of an engine, however it was written.

    >>> engine_key("TensorRT-LLM"), engine_key("vLLM"), engine_key("trtllm")
    ('trtllm', 'vllm', 'trtllm')
    """
    key = "".join(letter for letter in name.lower() if letter.isalnum())
    return {"tensorrtllm": "trtllm", "trt": "trtllm"}.get(key, key)


def engine_facts(engine: str, generation: Generation) -> EngineFacts:
    """Facts of one engine on one generation; engines without a table of their own use vLLM's."""
    engine = engine_key(engine)
    attention = _ATTENTION[generation].get(engine, _ATTENTION_DEFAULT[generation])
    quant = _QUANT.get(engine, _QUANT["sglang"])
    if generation in (Generation.CDNA3, Generation.CDNA4):
        quant = QuantFacts(5.0, 0.5)  # one launch of 4.98 us
    fusions = _FUSIONS.get(engine, frozenset({"add_rmsnorm"}))
    return EngineFacts(engine, attention, attention, quant, _QUANT_FP4, fusions, engine == "trtllm")


def moe_constants(engine: str, generation: Generation, dtype: Dtype) -> MoeConstants:
    """Facts of the grouped-GEMM kernels an engine uses for experts of a precision."""
    engine = engine_key(engine)
    if generation in (Generation.CDNA3, Generation.CDNA4):
        return MoeConstants(25.0, 0.70, 0.40, 6.0, source="five launches of 4.98 us")
    compute = {Dtype.BF16: 0.60, Dtype.FP8: 0.45, Dtype.FP4: 0.35}[dtype]
    permute = 18.0 if engine == "trtllm" else 8.0
    return MoeConstants(20.0, 0.80, compute, permute, source=_TABLES)
