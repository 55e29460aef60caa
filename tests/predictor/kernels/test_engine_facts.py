"""Which kernels an engine is taken to run."""

import itertools

import pytest

from predictor.kernels.engine_facts import engine_facts
from predictor.kernels.facts_nvidia import DECODE, MLA_DECODE, MOE
from predictor.kernels.gpu import CONSTANTS, Generation
from predictor.types import Dtype, Kernels, Precision

PRECISIONS = tuple(Precision(w, w, e, kv) for w, e, kv in itertools.product(Dtype, Dtype, Dtype))


@pytest.mark.parametrize("generation", tuple(Generation))
@pytest.mark.parametrize("engine", ["vllm", "SGLang", "TensorRT-LLM", "ATOM", "something new"])
def test_every_engine_has_facts_on_every_generation_at_every_precision(engine, generation):
    for precision, mxfp4 in itertools.product(PRECISIONS, (False, True)):
        facts = engine_facts(engine, generation, precision, Kernels(), mxfp4)
        assert facts.decode.floor_us > 0.0
        assert 0.0 < facts.moe.hbm <= 1.0


def test_learned_facts_are_not_called_assumed_and_borrowed_ones_are():
    bf16 = Precision()
    assert not engine_facts("vllm", Generation.HOPPER, bf16, Kernels()).assumed
    assert engine_facts("vllm", Generation.AMPERE, bf16, Kernels()).assumed
    assert engine_facts("atom", Generation.CDNA4, bf16, Kernels()).assumed
    assert engine_facts("something new", Generation.HOPPER, bf16, Kernels()).assumed


def test_operator_can_choose_the_attention_backend():
    default = engine_facts("sglang", Generation.HOPPER, Precision(), Kernels())
    triton = engine_facts("sglang", Generation.HOPPER, Precision(), Kernels(attention="triton"))
    assert default.decode == DECODE["hopper", "sglang", "fa3", "bf16"]
    assert triton.decode == DECODE["hopper", "sglang", "triton", "bf16"]


@pytest.mark.parametrize(
    ("generation", "engine", "expert", "backend", "family", "form"),
    [
        ("hopper", "vllm", Dtype.FP8, "cutlass", "cutlass", "fp8_block"),
        ("hopper", "vllm", Dtype.FP4, "marlin", "marlin", "mxfp4_a16"),
        ("blackwell", "sglang", Dtype.FP8, "triton", "triton", "fp8_block"),
        ("blackwell", "sglang", Dtype.FP4, "flashinfer_trtllm", "trtllm", "nvfp4"),
        ("blackwell", "vllm", Dtype.FP8, "cutlass", "cutlass", "fp8"),
        ("blackwell", "trtllm", Dtype.FP8, "deep_gemm", "deepgemm", "fp8_block"),
    ],
)
def test_operator_can_choose_the_expert_backend(generation, engine, expert, backend, family, form):
    facts = engine_facts(engine, Generation(generation), Precision(expert=expert), Kernels(moe=backend))
    assert facts.moe == MOE[generation, engine, family, form]
    assert facts.untold == ()


def test_backends_in_no_table_are_named():
    chosen = Kernels(attention="tilelang", moe="mega")
    for generation in (Generation.HOPPER, Generation.CDNA4):
        facts = engine_facts("sglang", generation, Precision(), chosen)
        assert facts.untold == ("attention backend tilelang", "expert backend mega")
    assert engine_facts("sglang", Generation.HOPPER, Precision(), Kernels(attention="flash")).untold == ()


def test_sglang_latent_attention_on_an_fp8_cache_is_slow_on_hopper():
    """The kernel reaches 7% of the roofline, against 56% on a bf16 cache: an engine fact, not a GPU's."""
    wide, narrow = (MLA_DECODE["hopper", "sglang", "fa3", kv] for kv in ("bf16", "fp8"))
    assert narrow.compute < wide.compute / 5


def test_mxfp4_experts_multiply_in_the_activations_format():
    bf16, fp8 = (
        engine_facts("vllm", Generation.BLACKWELL, Precision(linear, linear, Dtype.FP4), Kernels(), mxfp4=True)
        for linear in (Dtype.BF16, Dtype.FP8)
    )
    assert (bf16.expert_arithmetic, fp8.expert_arithmetic) == (Dtype.BF16, Dtype.FP8)
    assert bf16.moe == MOE["blackwell", "vllm", "trtllm", "mxfp4_a16"]


def test_engines_fuse_by_default_what_their_flags_say():
    names = {engine: engine_facts(engine, Generation.CDNA4, Precision(), Kernels()).fusions for engine in
             ("vllm", "sglang", "atom")}  # fmt: skip
    assert "norm_quant" in names["vllm"]
    assert "norm_quant" not in names["sglang"]
    assert "moe_routing" in names["atom"]


@pytest.mark.parametrize("constants", CONSTANTS.values(), ids=lambda constants: f"floor{constants.launch_us}")
def test_constants_are_shares_and_floors(constants):
    for dtype in Dtype:
        assert 0.0 < constants.compute(dtype) <= 1.0
        assert 0.0 < constants.hbm(dtype) <= 1.0
    assert 1.0 <= constants.launch_us <= 5.0
