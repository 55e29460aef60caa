"""The simulate-mode step model: exact pieces, and every lever moves the price as its mechanism says."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.engines import Settings
from predictor.errors import BadInput
from predictor.profiles.loader import model_card, platform
from predictor.step.model import DecodeLine
from predictor.step.simulate import (
    FIXED_TERMS,
    HOST_ISSUE_US,
    at_least,
    decode_work_ms,
    simulate_step_model,
    work_ratio,
)
from predictor.types import Deployment, Dtype, Kernels, Layout, Precision, PrefillPool, Speculation

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
SETTINGS = Settings(
    max_running=1024,
    token_budget=8192,
    chunk_size=8192,
    kv_mem_fraction=0.9,
    block_size=16,
    capture_sizes=SIZES,
    graph_padding=True,
    mixed_steps=True,
    chunked_prefill=True,
    prefix_cache=True,
    micro_batch_running=1024,
)
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
    assert wide / 2 < narrow < wide  # half the bytes, read by a kernel that reaches a smaller share of HBM


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


def test_eager_small_steps_wait_for_the_host_and_large_ones_do_not():
    """The host runs ahead of the GPU: an eager step takes the longer of issuing and running, never their sum."""
    eager = replace(SETTINGS, capture_sizes=())
    target = deployment(layout=Layout(tp=8))
    captured, issued = model(LLAMA_70B, target), model(LLAMA_70B, target, step=eager)
    assert issued.decode_line(8).at(0.0) > captured.decode_line(8).at(0.0)
    assert issued.breakdown_ms(8)["host"] > captured.breakdown_ms(8)["host"]
    far = issued.decode_line(512, 5e6).at(5e6)
    assert far == pytest.approx(captured.decode_line(512, 5e6).at(5e6), rel=1e-12)


def test_piecewise_graphs_cost_host_time_only_where_the_gpu_is_faster():
    target = deployment(layout=Layout(tp=8))
    piecewise = replace(target, kernels=Kernels(graph_mode="piecewise"))
    floor_ms = 2 * LLAMA_70B.layers * HOST_ISSUE_US / 1000.0
    assert step_ms(LLAMA_70B, piecewise, 1, 0.0) >= max(floor_ms, step_ms(LLAMA_70B, target, 1, 0.0))


@given(st.floats(0.1, 5), st.floats(0, 2), st.floats(0, 20), st.floats(0, 50))
def test_at_least_is_the_pointwise_maximum(intercept, slope, floor, context):
    pieces = at_least((DecodeLine(intercept, slope, 3.0), DecodeLine(intercept + 3 * slope / 2, slope / 2)), floor)
    line = next((piece for piece in pieces if context < piece.end_context_tokens), pieces[-1])
    original = intercept + slope * context if context < 3.0 else intercept + 3 * slope / 2 + slope / 2 * context
    assert line.at(context) == pytest.approx(max(original, floor), rel=1e-9)


def test_speculation_verifies_more_tokens_a_step_and_pays_its_drafter():
    plain = deployment(layout=Layout(tp=8))
    shallow, deep = (replace(plain, speculation=Speculation("mtp", depth)) for depth in (1, 3))
    times = [step_ms(DEEPSEEK_R1, target, 64, 64e3, B200) for target in (plain, shallow, deep)]
    assert times[0] < times[1] < times[2]
    one, three = (model(DEEPSEEK_R1, target, B200).breakdown_ms(64, 64e3)["draft"] for target in (shallow, deep))
    assert three == pytest.approx(3 * one)


def test_an_unknown_drafting_method_is_refused():
    with pytest.raises(BadInput, match="speculation method 'oracle'"):
        model(DEEPSEEK_R1, replace(deployment(), speculation=Speculation("oracle", 2)), B200)


def test_pipeline_cycles_wrap_the_whole_step():
    built = simulate_step_model(
        LLAMA_70B, H100, deployment(layout=Layout(tp=4, pp=2)), SETTINGS, cycle_ms=lambda step, batch: step + 2.0
    )
    plain = model(LLAMA_70B, deployment(layout=Layout(tp=4, pp=2)))
    assert built.decode_line(8).at(8e3) == pytest.approx(plain.decode_line(8).at(8e3) + 2.0)
    assert built.breakdown_ms(8)["pipeline"] == pytest.approx(2.0)


# ---- experts -------------------------------------------------------------------------------------------------------


def test_expert_parallel_decode_reads_whole_experts_of_the_busiest_rank():
    """At one token a layer reads 8 of 256 experts: with EP8 a few whole ones, without it slices of all eight."""
    sliced, whole = (
        model(DEEPSEEK_R1, deployment("sglang", Layout(tp=8, ep=ep)), B200).breakdown_ms(1)["experts"] for ep in (1, 8)
    )
    assert whole > sliced


def test_more_tokens_read_more_experts_until_all_are_read():
    built = model(DEEPSEEK_R1, deployment("sglang", Layout(tp=8)), B200)
    experts = [built.breakdown_ms(batch)["experts"] for batch in (1, 8, 64, 256)]
    assert experts == sorted(experts)
    assert experts[2] / experts[0] > 5.0


def test_attention_dp_gathers_tokens_instead_of_reducing_attention():
    target = deployment("sglang", Layout(tp=8, ep=8, attn_dp=8))
    plain = deployment("sglang", Layout(tp=8, ep=8))
    assert step_ms(DEEPSEEK_R1, target, 32, 32 * 4e3, B200) < step_ms(DEEPSEEK_R1, plain, 256, 256 * 4e3, B200)


def test_replicas_of_hot_experts_lighten_the_busiest_rank():
    plain = deployment("sglang", Layout(tp=8, ep=8))
    spread = replace(plain, eplb_redundant=32)
    before, after = (model(DEEPSEEK_R1, target, B200).breakdown_ms(16)["experts"] for target in (plain, spread))
    assert after < before


# ---- prefill -------------------------------------------------------------------------------------------------------


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


def test_a_split_deployment_takes_its_prefill_from_the_prefill_pool():
    split = replace(
        deployment(layout=Layout(tp=8)), prefill=PrefillPool(layout=Layout(tp=2), replicas=2, handoff="nixl")
    )
    narrow = model(LLAMA_70B, deployment(layout=Layout(tp=2))).prefill
    assert model(LLAMA_70B, split).prefill == narrow


# ---- ratio of work -------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(cards, engines, layouts, st.integers(1, 512), st.floats(0, 1e6))
def test_identity_transfer_is_exactly_one(card, engine, layout, batch, context):
    target = deployment(engine, layout)
    assert work_ratio(card, B200, target, target, batch, context) == 1.0


@settings(max_examples=30, deadline=None)
@given(cards, st.integers(1, 256), st.floats(1e3, 1e6))
def test_ratios_compose_and_invert(card, batch, context):
    widths = [deployment("vllm", Layout(tp=tp)) for tp in (2, 4, 8)]
    first, second, both = (
        work_ratio(card, B200, widths[a], widths[b], batch, context) for a, b in ((0, 1), (1, 2), (0, 2))
    )
    assert first * second == pytest.approx(both, rel=1e-9)
    assert first < 1.0


def test_work_is_the_breakdown_above_its_fixed_terms():
    target = deployment(layout=Layout(tp=8))
    terms = model(LLAMA_70B, target).breakdown_ms(16, 16e3)
    above = sum(value for name, value in terms.items() if name not in FIXED_TERMS)
    assert decode_work_ms(LLAMA_70B, H100, target, 16, 16e3) == pytest.approx(above, rel=1e-12)


def test_low_precision_cache_ratio_grows_away_from_one_with_context():
    wide, narrow = (deployment(precision=replace(FP8, kv=kv)) for kv in (Dtype.BF16, Dtype.FP8))
    short, long = (work_ratio(LLAMA_70B, H100, wide, narrow, 32, context) for context in (32e3, 32e5))
    assert long < short < 1.0


def test_assumed_kernel_facts_are_flagged():
    assert model(LLAMA_70B, deployment()).flags == ()
    (flag,) = model(LLAMA_70B, deployment("atom"), MI355X).flags
    assert (flag.code, "MI355X" in flag.message) == ("kernel_facts_assumed", True)
