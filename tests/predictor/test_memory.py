"""KV per token for every attention kind, the pool of every engine, and the properties a memory model must keep."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.cards import ModelCard, Platform
from predictor.engines import GIB, Settings, effective_settings
from predictor.errors import BadInput, DoesNotFit
from predictor.kv_cache import kv_bytes_per_token, kv_cost, state_bytes_per_sequence, state_layer_bytes
from predictor.memory import at_least, engine_family, fits, max_concurrency, memory
from predictor.params import native_precision
from predictor.pool_logs import PoolLog
from predictor.profiles.loader import engine_profile, model_card, model_names, platform
from predictor.types import Deployment, Dtype, Layout, MemoryBreakdown, PrefillPool, SchedulerSettings, Speculation

BF16, FP8 = Dtype.BF16, Dtype.FP8


def case(model: str, gpu: str = "MI355X", engine: str = "vllm", **changes: object) -> Deployment:
    card = model_card(model)
    bare = Deployment(model=model, gpu=gpu, engine=engine, precision=native_precision(card))
    return replace(bare, **changes)  # type: ignore[arg-type]


def settings_of(deployment: Deployment, card: ModelCard | None = None, gpu: Platform | None = None) -> Settings:
    return effective_settings(
        engine_profile(deployment.engine),
        "",
        gpu or platform(deployment.gpu),
        card or model_card(deployment.model),
        deployment,
    )


def size(deployment: Deployment, log: PoolLog | None = None, gpu: Platform | None = None) -> MemoryBreakdown:
    gpu = gpu or platform(deployment.gpu)
    return memory(model_card(deployment.model), gpu, deployment, settings_of(deployment, gpu=gpu), log)


# --- KV per token ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in model_names() if model_card(n).published.kv_bytes_per_token_bf16])
def test_kv_bytes_per_token_are_the_published_figure(name: str) -> None:
    """Exact for GQA, MLA, indexed MLA and hybrids; the published sum counts window layers with the full ones."""
    card = model_card(name)
    cost = kv_cost(card, Layout(), BF16, "vLLM", vendor="amd", block_tokens=1, in_flight_tokens=0)
    assert cost.per_token + cost.window_per_token == card.published.kv_bytes_per_token_bf16


@pytest.mark.parametrize(
    ("gib", "tokens", "model", "layout", "kv"),
    [
        (118.88, 1005264, "MiniMax-M2.5", Layout(tp=1), FP8),
        (210.12, 7107200, "MiniMax-M2.5", Layout(tp=4), FP8),
        (101.4, 3098848, "Kimi-K2.5", Layout(tp=4), FP8),
        (46.8, 715072, "Kimi-K2.5", Layout(tp=8), BF16),
        (46.8, 5721088, "Kimi-K2.5", Layout(tp=8, dcp=8), BF16),
        (8.11, 178880, "Qwen3-235B-A22B", Layout(tp=4), BF16),
        (122.99, 1007536, "Llama-3.1-8B", Layout(tp=1), BF16),
    ],
)
def test_kv_bytes_per_token_of_start_logs(gib: float, tokens: int, model: str, layout: Layout, kv: Dtype) -> None:
    """Printed pool over printed tokens; the two are rounded to two decimals and to blocks."""
    assert kv_bytes_per_token(model_card(model), layout, kv) == pytest.approx(gib * GIB / tokens, rel=0.012)


def test_gqa_stops_shrinking_at_the_kv_heads_unless_dcp_shards_tokens() -> None:
    card = model_card("Llama-3.1-8B")  # 8 KV heads
    at = {tp: kv_bytes_per_token(card, Layout(tp=tp), BF16) for tp in (1, 8, 16)}
    assert at[1] == 8 * at[8]
    assert at[16] == at[8]
    assert kv_bytes_per_token(card, Layout(tp=16, dcp=2), BF16) == at[8] / 2


def test_mla_is_replicated_and_its_indexer_is_not_sharded() -> None:
    r1, v32 = model_card("DeepSeek-R1"), model_card("DeepSeek-V3.2")
    assert kv_bytes_per_token(r1, Layout(tp=8), BF16) == kv_bytes_per_token(r1, Layout(), BF16) == 61 * 1152
    assert kv_bytes_per_token(r1, Layout(tp=8, dcp=8), BF16) == 61 * 144
    assert kv_bytes_per_token(v32, Layout(tp=8, dcp=8), BF16) == 61 * (144 + 132)


def test_layouts_of_sparse_mla_differ_by_engine_and_vendor() -> None:
    card = model_card("DeepSeek-V3.2")
    assert kv_bytes_per_token(card, Layout(), FP8, "vLLM", vendor="nvidia") == 61 * (656 + 132)
    assert kv_bytes_per_token(card, Layout(), FP8, "vLLM", vendor="amd") == 61 * (576 + 132)
    assert kv_bytes_per_token(card, Layout(), FP8, "SGLang", vendor="nvidia") == 61 * (576 + 132)
    assert kv_bytes_per_token(card, Layout(), FP8, "ATOM") == 61 * (576 + 144)


def test_compressed_pools_of_deepseek_v4() -> None:
    """30 layers of ratio 4 with an index and 31 of ratio 128; SGLang adds a tenth of a window row and its state."""
    card = model_card("DeepSeek-V4-Pro")
    bare = 30 * (584 + 132) / 4 + 31 * 584 / 128
    window = 0.1 * (61 * 584 + 30 * 8 / 256 * 4 * (512 + 128) * 4)
    assert kv_bytes_per_token(card, Layout(tp=8), FP8, "SGLang") == pytest.approx(bare + window)
    assert kv_bytes_per_token(card, Layout(tp=8), FP8, "vLLM") == pytest.approx(39.26 * GIB / 4_103_577, rel=0.01)


def test_shared_indexers_are_stored_once() -> None:
    assert kv_bytes_per_token(model_card("GLM-5.2"), Layout(), BF16) == 78 * 1152 + 21 * 132


def test_draft_layers_add_to_the_tokens() -> None:
    card = model_card("DeepSeek-R1")
    assert kv_bytes_per_token(card, Layout(), BF16, drafter="mtp") == 62 * 1152


def test_windows_keep_a_bounded_number_of_tokens() -> None:
    """gpt-oss on H200, vLLM 0.22, 57.24 GiB: 825,607 tokens of 2,068 and 886,768 of 9,472 at a budget of 8,192."""
    cost = kv_cost(
        model_card("gpt-oss-120b"), Layout(), BF16, "vLLM", vendor="nvidia", block_tokens=16, in_flight_tokens=8192
    )
    assert cost.window_tokens == 127 + 8192
    for length, printed in ((2068, 825_607), (9472, 886_768)):
        assert 57.24 * GIB / cost.request_bytes(length) * length == pytest.approx(printed, rel=0.001)
    atom = kv_cost(
        model_card("gpt-oss-120b"), Layout(), BF16, "ATOM", vendor="amd", block_tokens=16, in_flight_tokens=0
    )
    assert atom.window_tokens == 0
    assert atom.per_token == 36 * 2048


def test_recurrent_state_of_qwen35() -> None:
    """64 value heads of 128 x 128 in fp32 and a convolution tail of 3 over 12,288 channels in bf16, a layer."""
    card = model_card("Qwen3.5-397B-A17B")
    linear = next(g.attention for g in card.groups if g.attention.kind == "linear")
    one = 64 * 128 * 128 * 4 + 12288 * 3 * 2
    assert state_layer_bytes(linear, 1) == one
    assert state_layer_bytes(linear, 8) == one / 8
    assert state_bytes_per_sequence(card, Layout(tp=8), "vLLM", 0, False) == 45 * one / 8
    assert state_bytes_per_sequence(card, Layout(tp=8), "vLLM", 0, True) == 45 * one / 8 * 2
    assert state_bytes_per_sequence(model_card("Qwen3-32B"), Layout(), "vLLM") == 0


# --- pools ----------------------------------------------------------------------------------------------------------


def test_memory_fractions_mean_what_each_engine_says() -> None:
    """The same share gives four pools."""
    asked = SchedulerSettings(kv_mem_fraction=0.9, max_running=256, token_budget=8192)
    total = platform("H200").hbm_bytes
    pools = {}
    for engine in ("vllm", "sglang", "trtllm"):
        got = size(case("Llama-3.1-8B", "H200", engine, scheduler=asked))
        pools[engine] = got.kv_pool_bytes
        spent = got.weights_bytes + got.activation_bytes + got.graph_bytes + got.other_bytes
        rule = {
            "vllm": 0.9 * total - spent,
            "sglang": 0.9 * (total - GIB) - got.weights_bytes - GIB,
            "trtllm": 0.9 * (total - spent),
        }
        assert got.kv_pool_bytes == pytest.approx(rule[engine], rel=1e-9)
    assert pools["vllm"] < min(pools["sglang"], pools["trtllm"])


def test_older_vllm_does_not_subtract_graphs() -> None:
    deployment = case("Llama-3.1-8B", "H200", scheduler=SchedulerSettings(max_running=256))
    old, new = size(replace(deployment, engine_version="0.20.0")), size(replace(deployment, engine_version="0.21.0"))
    assert old.kv_pool_bytes - new.kv_pool_bytes == pytest.approx(new.graph_bytes)


def test_sglang_state_pool_caps_the_sequences() -> None:
    got = size(case("Qwen3.5-397B-A17B", "MI355X", "sglang", layout=Layout(tp=8)))
    assert got.sequence_slots is not None
    assert got.state_bytes / (got.kv_pool_bytes + got.state_bytes) == pytest.approx(0.9 / 1.9)
    assert max_concurrency(got, 10, Layout(tp=8)) == got.sequence_slots


def test_atom_reserves_states_for_every_slot() -> None:
    """Raising max_running takes KV away."""
    few, many = (
        size(case("Qwen3.6-35B-A3B", "MI355X", "atom", scheduler=SchedulerSettings(max_running=n))) for n in (64, 512)
    )
    assert many.state_bytes == 8 * few.state_bytes
    assert many.kv_pool_bytes < few.kv_pool_bytes
    with pytest.raises(DoesNotFit, match="state"):
        size(case("Qwen3.6-35B-A3B", "MI355X", "atom", scheduler=SchedulerSettings(max_running=8192)))


def test_vllm_grows_the_block_to_hold_a_state() -> None:
    got = size(case("Qwen3.6-35B-A3B", "MI355X", "vllm"))
    layer_bytes = got.kv_bytes_per_token / 10
    assert got.block_tokens * layer_bytes >= 32 * 128 * 128 * 4
    assert got.sequence_bytes == pytest.approx(30 * 2 * got.block_tokens * layer_bytes)


def test_a_model_too_big_is_refused_with_the_numbers() -> None:
    with pytest.raises(DoesNotFit, match=r"DeepSeek-R1 at tp4 does not fit H100: weights 15\d\.\d GiB.*79\.1 GiB"):
        size(case("DeepSeek-R1", "H100", layout=Layout(tp=4)))


def test_prefill_pool_is_sized_by_its_own_layout() -> None:
    deployment = case(
        "Qwen3-32B", "H200", layout=Layout(tp=2), prefill=PrefillPool(Layout(tp=4), 1, "nixl", SchedulerSettings())
    )
    card, gpu = model_card("Qwen3-32B"), platform("H200")
    own = effective_settings(engine_profile("vllm"), "", gpu, card, deployment, "prefill")
    prefill = memory(card, gpu, deployment, own, pool="prefill")
    assert prefill.weights_bytes < size(deployment).weights_bytes
    with pytest.raises(BadInput, match="without a prefill pool"):
        memory(card, gpu, replace(deployment, prefill=None), own, pool="prefill")


def test_a_log_replaces_the_pool() -> None:
    deployment = case("Llama-3.1-8B", "MI355X")
    logged = size(deployment, PoolLog("vLLM", tokens=500_000, kv_gib=100.0, weights_gib=15.0))
    assert logged.pool_source == "engine log"
    assert (logged.kv_pool_tokens, logged.kv_pool_bytes, logged.weights_bytes) == (500_000, 100 * GIB, 15 * GIB)
    by_tokens = size(deployment, PoolLog("vLLM", tokens=500_000))
    assert by_tokens.kv_pool_bytes == 500_000 * 131072
    assert size(deployment).pool_source == "model"


def test_fits_counts_what_must_be_resident_and_the_load() -> None:
    got = size(case("Llama-3.1-8B", "H200"))
    assert fits(got)
    assert fits(got, kv_needed_bytes=0.9 * got.hbm_bytes) is False
    assert not fits(got, cap_frac=0.05)


def test_names_and_versions() -> None:
    assert engine_family("TRTLLM") == "TensorRT-LLM"
    assert at_least("0.26.1rc1.dev668", (0, 21))
    with pytest.raises(BadInput, match="engine 'triton' has no memory rule"):
        engine_family("triton")


def test_zero_tokens_are_refused() -> None:
    with pytest.raises(BadInput, match="tokens_per_request is 0"):
        max_concurrency(size(case("Llama-3.1-8B")), 0, Layout())


# --- properties -----------------------------------------------------------------------------------------------------

ENGINES = st.sampled_from(["vllm", "sglang", "atom"])
SMALL = st.sampled_from(["Llama-3.1-8B", "Qwen3-32B", "gpt-oss-120b", "Qwen3.6-35B-A3B", "MiniMax-M2.5"])


@given(SMALL, ENGINES, st.integers(1, 100_000), st.floats(1.0, 2.0))
def test_more_hbm_never_lowers_concurrency(name: str, engine: str, tokens: int, more: float) -> None:
    """At the same settings; an engine may choose others on a larger GPU."""
    deployment = case(name, "MI355X", engine, layout=Layout(tp=2), scheduler=SchedulerSettings(kv_mem_fraction=0.9))
    card, gpu = model_card(name), platform("MI355X")
    wide = replace(gpu, name="wide", hbm_bytes=gpu.hbm_bytes * more)
    settings = settings_of(deployment)
    small, large = (memory(card, each, deployment, settings) for each in (gpu, wide))
    assert max_concurrency(large, tokens, deployment.layout) >= max_concurrency(small, tokens, deployment.layout)


@given(SMALL, st.integers(1, 50_000), st.integers(1, 50_000))
def test_longer_requests_never_raise_concurrency(name: str, tokens: int, more: int) -> None:
    got = size(case(name, layout=Layout(tp=2)))
    assert max_concurrency(got, tokens + more, Layout(tp=2)) <= max_concurrency(got, tokens, Layout(tp=2))


@given(st.sampled_from(model_names()), st.integers(1, 64))
def test_kv_grows_with_layers(name: str, extra: int) -> None:
    card = model_card(name)
    last = card.groups[-1]
    deeper = replace(card, name="deeper", groups=(*card.groups[:-1], replace(last, count=last.count + extra)))
    assert kv_bytes_per_token(deeper, Layout(), BF16) >= kv_bytes_per_token(card, Layout(), BF16)
    if last.attention.kind != "linear" and not last.attention.window:
        assert kv_bytes_per_token(deeper, Layout(), BF16) > kv_bytes_per_token(card, Layout(), BF16)


@given(st.sampled_from([2, 4, 8]), st.integers(100, 50_000))
def test_attention_dp_multiplies_capacity_and_tp_beyond_the_kv_heads_does_not(dp: int, tokens: int) -> None:
    """Equal pools: only the number of ranks that hold other requests counts."""
    pool = PoolLog("vLLM", kv_gib=50.0)
    plain, ranks = Layout(tp=8, ep=8), Layout(tp=8, ep=8, attn_dp=dp)
    one = max_concurrency(size(case("DeepSeek-R1", layout=plain), pool), tokens, plain)
    many = max_concurrency(size(case("DeepSeek-R1", layout=ranks), pool), tokens, ranks)
    assert many == dp * one
    narrow, wide = Layout(tp=4), Layout(tp=8)  # Qwen3-235B: 4 KV heads
    at = [max_concurrency(size(case("Qwen3-235B-A22B", layout=each), pool), tokens, each) for each in (narrow, wide)]
    assert at[0] == at[1]


@given(SMALL, st.sampled_from([BF16, FP8]), st.sampled_from([1, 2, 4, 8]))
def test_a_narrower_kv_format_never_holds_fewer_requests(name: str, kv: Dtype, tp: int) -> None:
    layout = Layout(tp=tp)
    deployment = case(name, layout=layout)
    narrow = replace(deployment, precision=replace(deployment.precision, kv=kv))
    assert max_concurrency(size(narrow), 4096, layout) >= max_concurrency(size(deployment), 4096, layout)


def test_speculation_costs_memory() -> None:
    deployment = case("DeepSeek-R1", layout=Layout(tp=8), scheduler=SchedulerSettings(max_running=256))
    drafted = size(replace(deployment, speculation=Speculation("mtp", 3)))
    plain = size(deployment)
    assert drafted.weights_bytes > plain.weights_bytes
    assert drafted.kv_bytes_per_token > plain.kv_bytes_per_token
    assert drafted.kv_pool_tokens < plain.kv_pool_tokens
