"""The simulate-mode step model: exact pieces, and every lever moves the price as its mechanism says."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.profiles.loader import model_card, platform
from predictor.step.simulate import StepSettings, simulate_step_model
from predictor.types import Deployment, Dtype, Kernels, Layout, Precision, Speculation

H100, B200, MI355X = (platform(name) for name in ("H100", "B200", "MI355X"))
LLAMA_70B, GPT_OSS, DEEPSEEK_R1, DEEPSEEK_V32, HYBRID, MINIMAX, DEEPSEEK_V4 = CARDS = tuple(
    model_card(name)
    for name in (
        "Llama-3.1-70B",
        "gpt-oss-120b",
        "DeepSeek-R1",
        "DeepSeek-V3.2",
        "Qwen3.5-397B-A17B",
        "MiniMax-M3",
        "DeepSeek-V4-Pro",
    )
)
SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
SETTINGS = StepSettings(capture_sizes=SIZES)
BF16 = Precision()
FP8 = Precision(Dtype.FP8, Dtype.FP8, Dtype.FP8, Dtype.FP8)
FP4 = Precision(Dtype.FP4, Dtype.FP4, Dtype.FP4, Dtype.FP8)

cards = st.sampled_from(CARDS)
batches = st.integers(1, 700)
layouts = st.sampled_from([Layout(tp=1), Layout(tp=4), Layout(tp=8), Layout(tp=8, attn_dp=8), Layout(tp=8, dcp=2)])
engines = st.sampled_from(["vllm", "sglang", "atom", "TensorRT-LLM"])


def deployment(engine="vllm", layout=Layout(), precision=FP8, **more):
    return Deployment("model", "gpu", engine, layout=layout, precision=precision, **more)


def model(card, target, platform=H100, step=SETTINGS):
    return simulate_step_model(card, platform, target, step)


def step_ms(card, target, batch, context, platform=H100, step=SETTINGS):
    built = model(card, target, platform, step)
    return built.decode_line(batch, context).at(context)


@settings(max_examples=60, deadline=None)
@given(cards, engines, layouts, batches, st.floats(0, 2e6), st.floats(0, 1))
def test_price_is_exactly_linear_inside_a_piece(card, engine, layout, batch, context, share):
    """The sum of the terms equals the line at every context of the piece."""
    built = model(card, deployment(engine, layout))
    line = built.decode_line(batch, context)
    inside = context + share * (min(line.end_context_tokens, 4e6) - context)
    for at in (context, inside):
        assert sum(built.breakdown_ms(batch, at).values()) == pytest.approx(line.at(at), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(cards, layouts, batches)
def test_pieces_meet_and_never_fall(card, layout, batch):
    built = model(card, deployment("sglang", layout))
    line, before = built.decode_line(batch, 0.0), -1.0
    while True:
        assert line.slope_ms_per_token >= 0.0
        end = line.end_context_tokens
        assert end > before
        if end == float("inf"):
            break
        after = built.decode_line(batch, end)
        assert after.at(end) == pytest.approx(line.at(end), rel=1e-12)
        line, before = after, end


@settings(max_examples=60, deadline=None)
@given(cards, engines, layouts, batches, st.integers(0, 200), st.floats(0, 1e6), st.floats(0, 1e5))
def test_more_requests_or_more_context_never_cost_less(card, engine, layout, batch, more, context, longer):
    target = deployment(engine, layout)
    base = step_ms(card, target, batch, context)
    assert step_ms(card, target, batch, context + longer) >= base * (1 - 1e-9)
    assert step_ms(card, target, batch + more, context) >= base * (1 - 1e-9)


def test_batches_are_padded_to_captured_sizes():
    built = model(LLAMA_70B, deployment(layout=Layout(tp=8)))
    assert built.decode_line(33).intercept_ms == built.decode_line(40).intercept_ms
    assert built.decode_line(41).intercept_ms > built.decode_line(40).intercept_ms


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_wider_tp_shrinks_weight_time_and_keeps_floors(card):
    narrow, wide = (model(card, deployment(layout=Layout(tp=tp))).breakdown_ms(8, 8000) for tp in (2, 4))
    assert wide["gemm"] < narrow["gemm"]
    assert wide["launch"] == pytest.approx(narrow["launch"], rel=0.02)
    assert wide["collectives"] > 0.0


def test_wider_tp_than_kv_heads_stops_shrinking_the_cache_read():
    slopes = [model(LLAMA_70B, deployment(layout=Layout(tp=tp))).decode_line(8).slope_ms_per_token for tp in (4, 8, 16)]
    assert slopes[1] == pytest.approx(slopes[0] / 2)
    assert slopes[2] == pytest.approx(slopes[1])


def test_latent_cache_is_read_whole_on_every_tp_rank_and_once_under_attention_dp():
    plain, split = (
        model(DEEPSEEK_R1, deployment(layout=layout), B200).decode_line(8).slope_ms_per_token
        for layout in (Layout(tp=8), Layout(tp=4))
    )
    assert plain == pytest.approx(split)


@pytest.mark.parametrize("card", [LLAMA_70B, DEEPSEEK_R1], ids=lambda card: card.name)
def test_narrower_weights_are_read_faster(card):
    times = [step_ms(card, deployment(layout=Layout(tp=8), precision=p), 4, 4000, B200) for p in (BF16, FP8, FP4)]
    assert times[0] > times[1] > times[2]


def test_narrower_cache_makes_context_cheaper():
    wide, narrow = (
        model(LLAMA_70B, deployment(precision=replace(FP8, kv=kv))).decode_line(8).slope_ms_per_token
        for kv in (Dtype.BF16, Dtype.FP8)
    )
    assert narrow == pytest.approx(wide / 2)


def test_sliding_windows_stop_reading_beyond_the_window():
    built = model(GPT_OSS, deployment())
    inside, beyond = built.decode_line(4, 0.0), built.decode_line(4, 4 * 128.0)
    assert inside.end_context_tokens == 4 * 128.0
    assert beyond.slope_ms_per_token == pytest.approx(inside.slope_ms_per_token / 2)


def test_sparse_attention_is_cheaper_than_dense_at_long_context_and_dearer_at_short():
    dense, sparse = (model(card, deployment(layout=Layout(tp=8)), B200) for card in (DEEPSEEK_R1, DEEPSEEK_V32))
    assert sparse.decode_line(1, 500.0).at(500.0) > dense.decode_line(1, 500.0).at(500.0)
    assert sparse.decode_line(64, 64e5).at(64e5) < dense.decode_line(64, 64e5).at(64e5)


def test_linear_layers_do_not_grow_with_context():
    softmax_layers = sum(group.count for group in HYBRID.groups if group.attention.kind == "gqa")
    slope = model(HYBRID, deployment(precision=BF16)).decode_line(1).slope_ms_per_token
    bytes_per_token = softmax_layers * 2 * 2 * 256 * 2
    assert slope < bytes_per_token / (0.5 * H100.hbm_bytes_per_s) * 1000


def test_decode_context_parallelism_reads_its_share_of_the_cache():
    whole, half = (
        model(LLAMA_70B, deployment(layout=Layout(tp=8, dcp=dcp))).decode_line(8).slope_ms_per_token for dcp in (1, 2)
    )
    assert half == pytest.approx(whole / 2)


def test_fusions_remove_launches():
    plain = deployment("sglang", Layout(tp=8))
    fused = replace(plain, kernels=Kernels(fusions=("norm_quant", "act_quant", "rope_kvstore")))
    assert model(LLAMA_70B, fused).breakdown_ms(8)["launch"] < model(LLAMA_70B, plain).breakdown_ms(8)["launch"]


def test_eager_steps_pay_more_for_launches():
    eager = replace(SETTINGS, capture_sizes=())
    target = deployment(layout=Layout(tp=8))
    assert step_ms(LLAMA_70B, target, 8, 0.0, step=eager) > step_ms(LLAMA_70B, target, 8, 0.0)


def test_speculation_verifies_more_tokens_a_step():
    plain = deployment(layout=Layout(tp=8))
    drafting = replace(plain, speculation=Speculation("mtp", 3))
    assert step_ms(DEEPSEEK_R1, drafting, 64, 64e3, B200) > step_ms(DEEPSEEK_R1, plain, 64, 64e3, B200)


@settings(max_examples=40, deadline=None)
@given(cards, layouts)
def test_prefill_costs_rise_with_the_prompt(card, layout):
    curve = model(card, deployment("vllm", layout)).prefill
    assert curve.fixed_ms > 0.0
    assert curve.per_token_ms > 0.0
    assert curve.per_token2_ms >= 0.0
    assert 0.0 < curve.mixed_fixed_ms < curve.fixed_ms


def test_prefill_of_a_dense_model_is_near_its_arithmetic():
    """An 8k prompt of a 70B model at TP4 and 66% of the FP8 peak, plus all-reduces: between one and two times it."""
    arithmetic_ms = 2 * 70e9 * 8192 / 4 / (0.66 * H100.peak_fp8_flops) * 1000
    whole = model(LLAMA_70B, deployment(layout=Layout(tp=4))).prefill.prompt_ms(8192)
    assert 1.0 < whole / arithmetic_ms < 2.0
