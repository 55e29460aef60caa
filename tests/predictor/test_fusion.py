"""Fusion prices and the rules for which are offered."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.fusion import FUSION_NAMES, fusion_saving_ms, ideal_saving, illegal_fusions, opportunities
from predictor.profiles.loader import model_card, platform
from predictor.types import Dtype, Layout, Precision

MI355X = platform("MI355X")
LLAMA, GLM = model_card("Llama-3.1-8B"), model_card("GLM-5.2")
BF16 = Precision()
FP8 = Precision(Dtype.FP8, Dtype.FP8, Dtype.FP8, Dtype.FP8)


def test_six_patterns() -> None:
    assert FUSION_NAMES == ("norm_quant", "add_rmsnorm", "moe_expert", "moe_routing", "act_quant", "rope_kvstore")


def test_add_rmsnorm_of_llama_8b_by_hand() -> None:
    """Two launches a layer, and each norm's second read of a 4096-wide bf16 row."""
    kernels, moved, ms = ideal_saving(LLAMA, MI355X, Layout(), BF16, 16, "add_rmsnorm")
    assert kernels == 64
    assert moved == 64 * 4096 * 2 * 16
    assert ms == pytest.approx(64 * 4.98e-3 + moved / (8e12 * 0.8) * 1e3)


def test_largest_first_and_two_percent() -> None:
    found = opportunities(GLM, MI355X, Layout(tp=8), FP8, 16, 12.0)
    assert [o.low_ms for o in found] == sorted((o.low_ms for o in found), reverse=True)
    assert all(o.share_frac >= 0.02 and o.high_ms == pytest.approx(o.low_ms / 0.75) for o in found)
    assert found[0].name == "moe_expert"
    assert opportunities(GLM, MI355X, Layout(tp=8), FP8, 16, 1e6) == ()


def test_rules() -> None:
    assert [o.name for o in opportunities(LLAMA, MI355X, Layout(), BF16, 1, 1.0)] == ["add_rmsnorm", "rope_kvstore"]
    assert "moe_expert" not in {o.name for o in opportunities(LLAMA, MI355X, Layout(), FP8, 1, 1.0)}
    assert illegal_fusions(GLM, FP8, FUSION_NAMES) == ()
    assert "needs experts" in illegal_fusions(LLAMA, FP8, ["moe_routing"])[0]
    assert "low-precision activations" in illegal_fusions(GLM, BF16, ["norm_quant"])[0]
    assert "not known" in illegal_fusions(GLM, BF16, ["everything"])[0]


def test_one_kernel_is_removed_once() -> None:
    """Quantisation between expert GEMMs goes with either pattern, not with both."""
    layout = Layout(tp=8)
    both = fusion_saving_ms(GLM, MI355X, layout, FP8, 16, ["moe_expert", "act_quant"])
    either = [fusion_saving_ms(GLM, MI355X, layout, FP8, 16, [name]) for name in ("moe_expert", "act_quant")]
    assert max(either) < both < sum(either)
    done = opportunities(GLM, MI355X, layout, FP8, 16, 12.0, fused=["moe_expert"])
    assert "moe_expert" not in {o.name for o in done}


CARDS = st.sampled_from(
    [model_card(n) for n in ("Llama-3.1-8B", "GLM-5.2", "gpt-oss-120b", "Qwen3.5-397B-A17B", "Kimi-K3")]
)
LAYOUTS = st.sampled_from(
    [Layout(), Layout(tp=8), Layout(tp=8, ep=8), Layout(tp=8, ep=8, attn_dp=8), Layout(tp=4, ep=2)]
)
FORMATS = st.builds(Precision, *(st.sampled_from(list(Dtype)) for _ in range(4)))


@given(CARDS, LAYOUTS, FORMATS, st.integers(1, 512), st.sets(st.sampled_from(FUSION_NAMES)))
def test_a_fusion_never_costs(card, layout, precision, batch, names) -> None:  # type: ignore[no-untyped-def]
    legal = [name for name in names if not illegal_fusions(card, precision, [name])]
    total = fusion_saving_ms(card, MI355X, layout, precision, batch, legal)
    assert total >= 0.0
    assert fusion_saving_ms(card, MI355X, layout, precision, batch, legal, fused=legal) == 0.0
    for name in legal:
        assert ideal_saving(card, MI355X, layout, precision, batch, name, names - {name})[2] >= 0.0
    assert fusion_saving_ms(card, MI355X, layout, precision, batch + 8, legal) >= total


def test_the_order_of_applying_does_not_matter() -> None:
    totals = {
        round(fusion_saving_ms(GLM, MI355X, Layout(tp=8), FP8, 16, order), 9)
        for order in itertools.permutations(("moe_expert", "act_quant", "norm_quant"))
    }
    assert len(totals) == 1
