"""Parameter counts against published figures, and weight bytes against what engines printed when they loaded them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.params import WeightPadding, bytes_per_weight, count, native_precision, weight_bytes
from predictor.profiles.loader import model_card, model_names
from predictor.types import Dtype, Layout, Precision

GIB = 2**30
NVFP4 = Precision(Dtype.FP4, Dtype.FP4, Dtype.FP4, Dtype.FP8)


@pytest.mark.parametrize("name", model_names())
def test_total_parameters_are_within_two_per_cent_of_the_published_figure(name: str) -> None:
    card = model_card(name)
    assert card.published.total_params is not None
    assert count(card).total == pytest.approx(card.published.total_params, rel=0.02)


@pytest.mark.parametrize("name", [name for name in model_names() if model_card(name).is_moe])
def test_active_parameters_are_near_the_published_figure(name: str) -> None:
    """Makers round to whole billions and differ in counting embedding (a lookup), head and vision tower: 8%."""
    card = model_card(name)
    published = card.published.active_params
    if published is None:
        pytest.skip("no active count was published")
    counted = count(card).active - count(card).embedding - card.extra_params
    assert counted == pytest.approx(published, rel=0.08)


def test_deepseek_v3_components() -> None:
    """DeepSeek-V3 report: 671B main model; MTP module of 11.5B own weights (14B with shared embedding and head)."""
    params = count(model_card("DeepSeek-V3"))
    assert params.routed_experts == 58 * 256 * 3 * 7168 * 2048
    assert params.drafter == pytest.approx(11.5e9, rel=0.02)
    assert params.drafter + params.embedding + params.lm_head == pytest.approx(14e9, rel=0.05)


@pytest.mark.parametrize(
    ("name", "layout", "precision", "fp4", "padding", "printed_gib"),
    [
        ("MiniMax-M2.5", Layout(tp=1), NVFP4, "nvfp4", WeightPadding(), 125.29),
        ("MiniMax-M2.5", Layout(tp=4, ep=4), NVFP4, "nvfp4", WeightPadding(), 31.49),
        ("MiniMax-M2.5", Layout(tp=4), NVFP4, "nvfp4", WeightPadding(), 31.49),
        ("Kimi-K2.5", Layout(tp=4), NVFP4, "nvfp4", WeightPadding(), 139.53),
        ("DeepSeek-V4-Pro", Layout(tp=4), Precision(Dtype.FP8, Dtype.FP8, Dtype.FP4), "mxfp4", WeightPadding(), 201.46),
        ("gpt-oss-120b", Layout(tp=1), Precision(expert=Dtype.FP4), "mxfp4", WeightPadding(256, 128), 66.14),
        ("Kimi-K3", Layout(tp=8), Precision(expert=Dtype.FP4), "mxfp4", WeightPadding(256, 128), 195.1),
        ("Llama-3.1-8B", Layout(tp=1), Precision(), "mxfp4", WeightPadding(), 15.3),
    ],
)
def test_weights_of_recorded_starts(
    name: str, layout: Layout, precision: Precision, fp4: str, padding: WeightPadding, printed_gib: float
) -> None:
    """vLLM start logs; within 2.5%."""
    loaded = weight_bytes(model_card(name), layout, precision, fp4=fp4, padding=padding)  # type: ignore[arg-type]
    assert loaded.total / GIB == pytest.approx(printed_gib, rel=0.025)


def test_bytes_per_weight_with_scales() -> None:
    assert bytes_per_weight(Dtype.FP8) == 1 + 4 / 128**2
    assert bytes_per_weight(Dtype.FP4, "mxfp4") == 0.5 + 1 / 32
    assert bytes_per_weight(Dtype.FP4, "nvfp4") == 0.5 + 1 / 16


def test_kv_projections_are_replicated_beyond_the_kv_heads() -> None:
    """Qwen3-235B has 4 KV heads: from TP4 to TP8 their projections stop shrinking."""
    card, precision = model_card("Qwen3-235B-A22B"), Precision()
    kv = 94 * 4096 * 4 * 256 * 2.0
    at4 = weight_bytes(card, Layout(tp=4), precision).attention
    at8 = weight_bytes(card, Layout(tp=8), precision).attention
    assert at4 - kv / 4 == pytest.approx(2 * (at8 - kv / 4))


def test_attention_dp_copies_attention_and_ep_shards_whole_experts() -> None:
    card, precision = model_card("DeepSeek-R1"), native_precision(model_card("DeepSeek-R1"))
    alone = weight_bytes(card, Layout(tp=1), precision)
    wide = weight_bytes(card, Layout(tp=8, ep=8, attn_dp=8), precision)
    assert wide.attention == alone.attention
    assert wide.experts == pytest.approx(alone.experts / 8)
    assert weight_bytes(card, Layout(tp=8), precision).experts == pytest.approx(alone.experts / 8)
    assert weight_bytes(card, Layout(tp=8, ep=8, attn_dp=8), precision, dense_tp=8).dense == alone.dense / 8


def test_redundant_experts_add_whole_experts() -> None:
    card, precision = model_card("DeepSeek-R1"), native_precision(model_card("DeepSeek-R1"))
    plain = weight_bytes(card, Layout(tp=8, ep=8), precision).experts
    assert weight_bytes(card, Layout(tp=8, ep=8), precision, redundant_experts=32).experts == pytest.approx(
        plain * 36 / 32
    )


def test_fp8_blocks_pad_a_rank_s_columns() -> None:
    """Qwen3-235B at TP8: 1536/8 = 192 columns take two blocks of 128."""
    card, precision = model_card("Qwen3-235B-A22B"), Precision(Dtype.FP8, Dtype.FP8, Dtype.FP8)
    at4 = weight_bytes(card, Layout(tp=4), precision).experts
    assert weight_bytes(card, Layout(tp=8), precision).experts == pytest.approx(at4 * 256 / 384)


def test_atom_pads_mxfp4_experts_to_256() -> None:
    card, precision = model_card("gpt-oss-120b"), Precision(expert=Dtype.FP4)
    bare = weight_bytes(card, Layout(tp=1), precision).experts
    padded = weight_bytes(card, Layout(tp=1), precision, padding=WeightPadding(256, 256)).experts
    assert padded / bare == pytest.approx((3072 / 2880) ** 2, rel=1e-3)


def test_a_pipeline_stage_holds_the_larger_share_and_one_end() -> None:
    card = model_card("Qwen3-32B")
    whole, stage = weight_bytes(card, Layout(), Precision()), weight_bytes(card, Layout(pp=3), Precision())
    assert stage.dense == pytest.approx(whole.dense * 22 / 64)
    assert stage.embed == whole.embed
    assert stage.head == 0


@given(st.sampled_from(model_names()), st.sampled_from([1, 2, 4]), st.sampled_from([Dtype.BF16, Dtype.FP8, Dtype.FP4]))
def test_weights_of_a_gpu_never_rise_with_tp(name: str, tp: int, dtype: Dtype) -> None:
    card, precision = model_card(name), Precision(dtype, dtype, dtype)
    assert weight_bytes(card, Layout(tp=2 * tp), precision).total <= weight_bytes(card, Layout(tp=tp), precision).total


@given(st.sampled_from(model_names()), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]))
def test_all_gpus_together_hold_at_least_the_model(name: str, tp: int, pp: int) -> None:
    """Replication and padding add; nothing is lost."""
    card = model_card(name)
    layout = Layout(tp=tp, pp=pp)
    params = count(card)
    held = weight_bytes(card, layout, Precision()).total * layout.gpus
    assert held >= 0.97 * 2 * (params.total - params.norms - params.embedding - params.lm_head)


@given(st.sampled_from([name for name in model_names() if model_card(name).is_moe]), st.sampled_from([2, 4, 8]))
def test_narrower_formats_never_weigh_more(name: str, tp: int) -> None:
    card, layout = model_card(name), Layout(tp=tp, ep=tp)
    sizes = [weight_bytes(card, layout, Precision(d, d, d)).total for d in (Dtype.FP4, Dtype.FP8, Dtype.BF16)]
    assert sizes == sorted(sizes)
