"""Resolved defaults of the four engines, against their documented tables and one recorded start log."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.engines import Settings, effective_settings, sglang_max_running, sglang_mem_fraction
from predictor.errors import BadInput
from predictor.graph_sizes import sglang_capture_sizes, trtllm_capture_sizes, vllm_capture_sizes
from predictor.profiles.loader import engine_names, engine_profile, model_card, platform
from predictor.types import Deployment, Kernels, Layout, PrefillPool, SchedulerSettings, Speculation


def resolve(engine: str, gpu: str = "MI355X", model: str = "Llama-3.1-8B", **changes: object) -> Settings:
    deployment = replace(Deployment(model=model, gpu=gpu, engine=engine), **changes)  # type: ignore[arg-type]
    return effective_settings(engine_profile(engine), "", platform(gpu), model_card(model), deployment)


@pytest.mark.parametrize(
    ("engine", "gpu", "running", "budget", "chunk", "block", "mixed"),
    [
        ("vllm", "H100", 1024, 8192, 8192, 16, True),
        ("vllm", "MI355X", 1024, 16384, 16384, 16, True),
        ("sglang", "H100", 4096, 16384, 8192, 1, False),
        ("sglang", "MI355X", 4096, 16384, 16384, 1, False),
        ("atom", "MI355X", 512, 16384, 16384, 16, False),
        ("trtllm", "H200", 2048, 8192, 8192, 32, True),
    ],
)
def test_defaults(engine: str, gpu: str, running: int, budget: int, chunk: int, block: int, mixed: bool) -> None:
    got = resolve(engine, gpu)
    assert (got.max_running, got.token_budget, got.chunk_size, got.block_size, got.mixed_steps) == (
        running,
        budget,
        chunk,
        block,
        mixed,
    )


@pytest.mark.parametrize("engine", engine_names())
def test_explicit_settings_win(engine: str) -> None:
    asked = SchedulerSettings(
        max_running=64, token_budget=4096, chunk_size=2048, block_size=64, graph_max_bs=64, prefix_cache=False
    )
    got = resolve(engine, "MI355X" if engine == "ATOM" else "H200", scheduler=asked)
    assert (got.max_running, got.token_budget, got.chunk_size, got.block_size) == (64, 4096, 2048, 64)
    assert max(got.capture_sizes) == 64
    assert not got.prefix_cache
    assert got.chunked_prefill


def test_memory_fractions() -> None:
    assert resolve("vllm").kv_mem_fraction == 0.92
    assert resolve("atom").kv_mem_fraction == 0.9
    assert resolve("trtllm", "H200").kv_mem_fraction == 0.9
    given_fraction = SchedulerSettings(kv_mem_fraction=0.8)
    assert resolve("vllm", scheduler=given_fraction).kv_mem_fraction == 0.8


def test_sglang_fraction_of_a_recorded_start() -> None:
    """Kimi-K2.5 on GB300 TP4, 128 running, chunk 16384: the log says 0.827."""
    fraction = sglang_mem_fraction(
        platform("GB300"),
        model_card("Kimi-K2.5"),
        Layout(tp=4),
        graph_bs=128,
        activation_tokens=16384,
        prefill_graphs=False,
        deepep=False,
    )
    assert fraction == pytest.approx(0.827, abs=0.001)


def test_sglang_on_rocm_scales_even_an_explicit_fraction_under_aiter() -> None:
    """The 0.85 applies to AITER attention and contexts above 8192, given or not."""
    asked = SchedulerSettings(kv_mem_fraction=0.9)
    assert resolve("sglang", scheduler=asked).kv_mem_fraction == pytest.approx(0.9 * 0.85)
    assert resolve("sglang", scheduler=asked, kernels=Kernels(attention="triton")).kv_mem_fraction == 0.9
    assert resolve("sglang", "H200", scheduler=asked).kv_mem_fraction == 0.9
    mla = {"model": "DeepSeek-R1", "scheduler": asked}
    assert resolve("sglang", **mla, layout=Layout(tp=8)).kv_mem_fraction == pytest.approx(0.9 * 0.85)  # type: ignore[arg-type]
    assert resolve("sglang", **mla, layout=Layout(tp=4)).kv_mem_fraction == 0.9  # type: ignore[arg-type]


def test_sglang_divides_by_attention_dp() -> None:
    """Chunk and running limit are global: each rank gets its share."""
    got = resolve(
        "sglang",
        model="DeepSeek-R1",
        layout=Layout(tp=8, ep=8, attn_dp=8),
        scheduler=SchedulerSettings(max_running=1024, chunk_size=16384),
    )
    assert (got.max_running, got.chunk_size) == (128, 2048)
    vllm = resolve(
        "vllm",
        model="DeepSeek-R1",
        layout=Layout(tp=8, ep=8, attn_dp=8),
        scheduler=SchedulerSettings(max_running=1024),
    )
    assert vllm.max_running == 1024


def test_sglang_speculation_lowers_the_running_limit_to_48() -> None:
    speculation = Speculation("mtp", 3)
    assert resolve("sglang", model="DeepSeek-R1", speculation=speculation).max_running == 48
    asked = SchedulerSettings(max_running=256)
    assert resolve("sglang", model="DeepSeek-R1", speculation=speculation, scheduler=asked).max_running == 256
    assert resolve("vllm", model="DeepSeek-R1", speculation=speculation).max_running == 1024


def test_sglang_pipeline_splits_the_running_limit_over_micro_batches() -> None:
    got = resolve("sglang", layout=Layout(tp=1, pp=4), scheduler=SchedulerSettings(max_running=64))
    assert (got.max_running, got.micro_batch_running) == (64, 16)


def test_vllm_refuses_a_budget_below_the_running_limit() -> None:
    with pytest.raises(BadInput, match="token_budget 128 is below max_running 256"):
        resolve("vllm", scheduler=SchedulerSettings(max_running=256, token_budget=128))
    assert resolve("vllm", scheduler=SchedulerSettings(token_budget=128)).max_running == 128


def test_vllm_low_latency_dispatch_lowers_the_running_limit() -> None:
    layout = Layout(tp=8, ep=8, attn_dp=8)
    kernels = Kernels(a2a="deepep_low_latency")
    assert resolve("vllm", "H200", "DeepSeek-R1", layout=layout, kernels=kernels).max_running == 256


def test_capture_lists() -> None:
    vllm = vllm_capture_sizes(1024, 8192, 1, None, False)
    assert vllm[:5] == (1, 2, 4, 8, 16)
    assert 248 in vllm
    assert 272 in vllm
    assert 264 not in vllm
    assert vllm[-1] == 512
    assert vllm_capture_sizes(1024, 8192, 1, None, True)[-1] == 1024
    assert vllm_capture_sizes(16, 8192, 1, None, False) == (1, 2, 4, 8, 16, 24, 32)
    assert vllm_capture_sizes(1024, 8192, 4, None, False)[-1] == 128
    sglang = sglang_capture_sizes(512, False)
    assert sglang[:6] == (1, 2, 4, 8, 12, 16)
    assert sglang[-2:] == (496, 512)
    assert 300 in sglang_capture_sizes(300, False)
    assert resolve("atom").capture_sizes == (1, 2, 4, 8, 16, 32, 48, 64, 128, 256, 512)
    assert trtllm_capture_sizes(128, False) == (*range(1, 32), 32, 64, 128)


def test_padding_of_a_batch() -> None:
    vllm = resolve("vllm", "H200")
    assert (vllm.padded_batch(3), vllm.padded_batch(9), vllm.padded_batch(513)) == (4, 16, None)
    trt = resolve("trtllm", "H200")
    assert (trt.padded_batch(31), trt.padded_batch(33), trt.padded_batch(64)) == (31, None, 64)
    padded = resolve("trtllm", "H200", scheduler=SchedulerSettings(graph_max_bs=128))
    assert padded.padded_batch(33) == 40
    assert resolve("vllm", kernels=Kernels(graph_mode="none")).padded_batch(1) is None


def test_trtllm_chunks_only_when_asked() -> None:
    assert not resolve("trtllm", "H200").chunked_prefill
    assert resolve("trtllm", "H200", scheduler=SchedulerSettings(chunk_size=2048)).chunked_prefill


def test_prefill_pool_has_its_own_settings() -> None:
    prefill = PrefillPool(Layout(tp=4), 1, "nixl", SchedulerSettings(max_running=16))
    deployment = Deployment(model="Llama-3.1-8B", gpu="H200", engine="vllm", prefill=prefill)
    arguments = (engine_profile("vllm"), "", platform("H200"), model_card("Llama-3.1-8B"))
    assert effective_settings(*arguments, deployment, "prefill").max_running == 16
    assert effective_settings(*arguments, deployment).max_running == 1024
    with pytest.raises(BadInput, match="without a prefill pool"):
        effective_settings(*arguments, replace(deployment, prefill=None), "prefill")


def test_model_dependent_block_sizes() -> None:
    assert resolve("vllm", "H200", "DeepSeek-R1").block_size == 64
    assert resolve("vllm", "MI355X", "DeepSeek-R1").block_size == 1
    assert resolve("vllm", "MI355X", "DeepSeek-V4-Pro").block_size == 256
    assert resolve("atom", "MI355X", "DeepSeek-V4-Pro").block_size == 256
    assert resolve("sglang", "H200", "DeepSeek-V3.2").block_size == 64


def test_sglang_running_limit_follows_the_pool() -> None:
    settings = resolve("sglang")
    assert sglang_max_running(settings, 10_000_000, 131_072, explicit=False) == 4096
    asked = resolve("sglang", scheduler=SchedulerSettings(max_running=256))
    assert sglang_max_running(asked, 400, 131_072, explicit=True) == 200


@given(st.integers(1, 4096), st.integers(1, 8), st.booleans())
def test_capture_sizes_are_sorted_distinct_and_within_the_limit(limit: int, decode_tokens: int, wide: bool) -> None:
    for sizes in (
        vllm_capture_sizes(limit, 8192, decode_tokens, None, wide),
        sglang_capture_sizes(limit, decode_tokens > 1),
        trtllm_capture_sizes(limit, wide),
    ):
        assert list(sizes) == sorted(set(sizes))
        assert sizes[0] >= 1
    assert sglang_capture_sizes(limit, False)[-1] == limit
    assert vllm_capture_sizes(limit, 8192, decode_tokens, None, wide)[-1] * decode_tokens <= (1024 if wide else 512)
