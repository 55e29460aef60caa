"""Twenty configurations that failed in the field: each is refused or explained, and its legal neighbour passes.

The number and the issue are those of the documentation's table of legality (docs/legality.md).
"""

from dataclasses import replace

import pytest

from levers.build import search_context
from levers.context import GB, SearchContext
from levers.legality import (
    deployment_notices,
    illegal_reasons,
    log_notices,
    memory_fits,
    memory_notices,
    memory_reasons,
)
from levers.reasons import Reason
from levers.space import defaults, merge, to_deployment
from predictor.engines import effective_settings
from predictor.memory import memory
from predictor.types import Deployment, MemoryBreakdown, Workload

GIB = 2**30
LOAD = Workload(isl_tokens=1024, osl_tokens=1024, concurrency=64)


def of(
    model: str, gpu: str, engine: str, version: str = "", load: Workload = LOAD, moe_columns: int = 0
) -> SearchContext:
    here = search_context(
        model=model, gpu=gpu, engine=engine, engine_version=version, workload=load, nodes=2, free=("precision", "load")
    )
    if not moe_columns:
        return here
    groups = tuple(replace(group, ffn=replace(group.ffn, moe_intermediate=moe_columns)) for group in here.card.groups)
    return replace(here, card=replace(here.card, name="Qwen3-30B-A3B", groups=groups))


def launch(here: SearchContext, **levers: object) -> tuple[Deployment, Workload]:
    """The deployment of some levers on the defaults; levers of the file's configurations are all in their sets."""
    merged = merge(levers, defaults(here), here)
    assert merged.setting is not None, merged.reasons
    return to_deployment(merged.setting, here)


def refused(here: SearchContext, **levers: object) -> dict[str, str]:
    return {reason.code: reason.message for reason in illegal_reasons(*launch(here, **levers), here)}


def explained(here: SearchContext, **levers: object) -> dict[str, str]:
    deployment, workload = launch(here, **levers)
    assert not illegal_reasons(deployment, workload, here)
    return {reason.code: reason.message for reason in deployment_notices(deployment, workload, here)}


def breakdown(here: SearchContext, **levers: object) -> tuple[MemoryBreakdown, Deployment, int]:
    deployment, _ = launch(here, **levers)
    settings = effective_settings(here.engine, here.release.version, here.platform, here.card, deployment)
    return memory(here.card, here.platform, deployment, settings), deployment, settings.max_running


def codes(reasons: tuple[Reason, ...]) -> set[str]:
    return {reason.code for reason in reasons}


def test_01_qwen3_235b_fp8_at_tp8_needs_ep_or_tp4() -> None:
    here = of("Qwen3-235B-A22B", "H200", "vLLM")
    message = refused(here, weight_dtype="fp8", tp=8)["moe_block"]
    assert message == (
        "TP8 leaves 192 of 1536 MoE columns of Qwen3-235B-A22B a rank, not a multiple of 128: use TP4 or EP"
    )
    assert not refused(here, weight_dtype="fp8", tp=4)
    assert not refused(here, weight_dtype="fp8", tp=8, ep=8)


def test_02_qwen3_30b_a3b_fp8_at_tp4_fails_the_same_way() -> None:
    here = of("Qwen3-235B-A22B", "H200", "vLLM", moe_columns=768)
    assert "use TP2 or EP" in refused(here, weight_dtype="fp8", tp=4)["moe_block"]
    assert not refused(here, weight_dtype="fp8", tp=2)


@pytest.mark.parametrize(("model", "tp", "good"), [("Kimi-K2.5", 8, 4), ("DeepSeek-R1", 4, 8)])
def test_03_old_aiter_mla_takes_16_or_128_local_heads(model: str, tp: int, good: int) -> None:
    old, new = of(model, "MI355X", "vLLM", "0.16.0"), of(model, "MI355X", "vLLM", "0.30.0")
    assert "attn_backend=triton" in refused(old, tp=tp, attn_backend="aiter")["aiter_mla_heads"]
    assert not refused(old, tp=good, attn_backend="aiter")
    assert not refused(old, tp=tp, attn_backend="triton")
    assert not refused(new, tp=tp, attn_backend="aiter")


def test_03_padded_heads_are_explained() -> None:
    here = of("Kimi-K2.5", "MI355X", "vLLM", "0.30.0")
    assert "8 local heads run as 16" in explained(here, tp=8)["padded_heads"]
    assert "padded_heads" not in explained(here, tp=4)


def test_04_rocm_sparse_mla_is_fp8_and_without_dcp() -> None:
    here = of("DeepSeek-V3.2", "MI355X", "vLLM")
    assert merge({"kv_dtype": "bf16"}, defaults(here), here).reasons[0].code == "kv_backend"
    assert "dcp=1" in refused(here, tp=8, dcp=2)["dcp_sparse_rocm"]
    assert not refused(here, tp=8, kv_dtype="fp8")


def test_05_graph_memory_is_charged_and_flagged_as_an_estimate() -> None:
    here = of("Llama-3.1-70B", "H100", "vLLM")
    with_graphs, deployment, running = breakdown(here, tp=4)
    eager, _, _ = breakdown(here, tp=4, graph_mode="none")
    assert with_graphs.kv_pool_bytes == pytest.approx(eager.kv_pool_bytes - with_graphs.graph_bytes)
    notes = memory_notices(with_graphs, deployment, LOAD, running, hybrid=False)
    assert "compare the start log" in {x.code: x.message for x in notes}["graph_estimate"]
    logged = replace(with_graphs, pool_source="engine log")
    assert "graph_estimate" not in codes(memory_notices(logged, deployment, LOAD, running, hybrid=False))


def test_06_a_fraction_of_0_98_leaves_no_room_to_capture() -> None:
    here = of("Llama-3.1-70B", "H100", "vLLM")
    reason = merge({"kv_mem_fraction": 0.98}, defaults(here), here).reasons[0]
    assert reason.message == "kv_mem_fraction=0.98 is outside 0.5 to 0.97"
    deployment, workload = launch(here, tp=4, kv_mem_fraction=0.97)
    tight = replace(deployment, scheduler=replace(deployment.scheduler, kv_mem_fraction=0.98))
    assert "kv_fraction" in codes(illegal_reasons(tight, workload, here))
    assert not illegal_reasons(deployment, workload, here)


def test_07_hybrid_pools_prefer_the_start_log() -> None:
    here = of("Qwen3.6-35B-A3B", "H200", "vLLM")
    modelled, deployment, running = breakdown(here, tp=2)
    assert "hybrid_pool" in codes(memory_notices(modelled, deployment, LOAD, running, hybrid=True))
    logged = replace(modelled, pool_source="engine log")
    assert "hybrid_pool" not in codes(memory_notices(logged, deployment, LOAD, running, hybrid=True))


def test_08_kv_formats_that_crash_on_the_backend() -> None:
    here = of("Kimi-K2.5", "MI355X", "vLLM")
    message = refused(here, tp=4, attn_backend="triton", kv_dtype="fp8")["kv_attn_backend"]
    assert "TRITON_MLA" in message
    assert "use aiter, aiter_triton" in message
    assert not refused(here, tp=4, attn_backend="aiter", kv_dtype="fp8")
    assert merge({"kv_dtype": "fp4"}, defaults(here), here).reasons[0].code == "kv_fp4"


def test_09_nixl_pools_need_the_same_blocks() -> None:
    here = of("Qwen3.5-397B-A17B", "B200", "vLLM")
    uneven = refused(here, disagg="nixl", prefill_tp=4, tp=8, ep=8, attn_dp=8, weight_dtype="fp8")
    assert "use equal attention widths" in uneven["handoff_hybrid"]
    assert not refused(here, disagg="nixl", prefill_tp=4, tp=4, weight_dtype="fp8")
    deployment, workload = launch(here, disagg="nixl", prefill_tp=4, tp=4, weight_dtype="fp8")
    assert deployment.prefill is not None
    other = replace(deployment.prefill, scheduler=replace(deployment.scheduler, block_size=32))
    assert "handoff_blocks" in codes(illegal_reasons(replace(deployment, prefill=other), workload, here))


def test_10_sglang_pools_of_different_attention_width() -> None:
    windowed, plain = of("gpt-oss-120b", "H200", "SGLang"), of("Qwen3-32B", "H200", "SGLang")
    assert "use equal ones" in refused(windowed, disagg="nixl", prefill_tp=1, tp=4)["handoff_swa"]
    assert not refused(windowed, disagg="nixl", prefill_tp=4, tp=4)
    assert "equal widths first" in explained(plain, disagg="nixl", prefill_tp=1, tp=4)["unequal_pools"]
    assert "unequal_pools" not in explained(plain, disagg="nixl", prefill_tp=4, tp=4)


def test_11_sglang_divides_the_chunk_by_attention_dp() -> None:
    here = of("DeepSeek-R1", "MI355X", "SGLang")
    assert (
        "16384 is the flag's value over 8 attention ranks: 2048 on each"
        in (explained(here, tp=8, attn_dp=8, chunk_size=16384)["per_rank"])
    )
    assert "multiple of 512" in refused(here, tp=8, attn_dp=8, chunk_size=1000, block_size=64)["chunk_pages"]
    assert "per_rank" not in explained(here, tp=8, chunk_size=16384)


def test_12_sglang_speculation_lowers_an_unset_running_cap() -> None:
    here = of("DeepSeek-R1", "MI355X", "SGLang")
    assert "sets max_running to 48" in explained(here, tp=8, spec_method="mtp", spec_depth=3)["spec_max_running"]
    assert "spec_max_running" not in explained(here, tp=8, spec_method="mtp", spec_depth=3, max_running=128)


def test_13_a_running_cap_above_the_pool_is_clamped() -> None:
    here = of("Llama-3.1-70B", "H100", "SGLang", load=Workload(8192, 1024, 64))
    found, deployment, running = breakdown(here, tp=4, max_running=512)
    notes = memory_notices(found, deployment, here.workload, running, hybrid=False)
    assert "below the running cap of 512" in {x.code: x.message for x in notes}["running_clamped"]
    found, deployment, running = breakdown(here, tp=4, max_running=8)
    assert "running_clamped" not in codes(memory_notices(found, deployment, here.workload, running, hybrid=False))


def test_14_drafting_is_priced_by_batch() -> None:
    here = of("DeepSeek-R1", "MI355X", "SGLang", load=Workload(1024, 1024, 256))
    assert "at 256 clients the gain is priced" in explained(here, tp=8, spec_method="mtp", spec_depth=3)["spec_gain"]
    assert "spec_gain" not in explained(here, tp=8)


def test_15_a_host_tier_without_reuse_is_explained() -> None:
    here = of("Llama-3.1-70B", "H100", "SGLang")
    assert "nothing hits" in explained(here, tp=4, host_kv_gb=200.0)["host_reuse"]
    reusing = replace(here, workload=replace(LOAD, prefix_hit_frac=0.9))
    assert "90% of the prompt" in explained(reusing, tp=4, host_kv_gb=200.0)["host_reuse"]


def test_16_a_start_log_with_another_cache_layout_warns() -> None:
    found, _, _ = breakdown(of("DeepSeek-R1", "MI355X", "ATOM"), tp=8)
    (note,) = log_notices(309e3, found)
    assert "another cache layout" in note.message
    assert not log_notices(found.kv_bytes_per_token * 1.1, found)


def test_17_state_of_many_sequences_is_charged() -> None:
    here = of("Qwen3.5-397B-A17B", "MI355X", "ATOM")
    many, deployment, running = breakdown(here, tp=8, max_running=1024)
    few, _, _ = breakdown(here, tp=8, max_running=64)
    assert many.state_bytes == pytest.approx(16 * few.state_bytes)
    assert many.kv_pool_bytes < few.kv_pool_bytes
    notes = memory_notices(many, deployment, LOAD, running, hybrid=True)
    assert "state of 1024 sequences" in {x.code: x.message for x in notes}["state_pool"]


def test_18_prompts_over_the_budget_need_chunking() -> None:
    here = of("Llama-3.1-70B", "H100", "TensorRT-LLM", load=Workload(16384, 1024, 16))
    assert "set chunk_size, or token_budget ≥ 16384" in refused(here, tp=4)["prompt_over_budget"]
    assert not refused(here, tp=4, chunk_size=8192)
    assert not refused(here, tp=4, token_budget=16384)


def test_19_attention_dp_with_chunked_prefill_hung_in_an_early_release() -> None:
    old, new = (of("DeepSeek-R1", "H200", "TensorRT-LLM", version) for version in ("0.21.0", ""))
    levers = {"tp": 8, "ep": 8, "attn_dp": 8, "chunk_size": 4096}
    assert "hangs" in refused(old, **levers)["attn_dp_chunk"]
    assert not refused(old, tp=8, ep=8, chunk_size=4096)
    assert "attn_dp_chunk" in explained(new, **levers)


def test_20_host_pools_of_a_node_fit_its_memory() -> None:
    here = of("Llama-3.1-70B", "MI355X", "SGLang")
    node_gb = here.platform.host_dram_bytes / GB
    assert "of the host memory" in merge({"host_kv_gb": 2.5 * node_gb}, defaults(here), here).reasons[0].message
    message = refused(here, tp=2, replicas=8, host_kv_gb=0.15 * node_gb)["host_dram"]  # eight GPUs a node
    assert "use at most" in message
    assert not refused(here, tp=2, replicas=8, host_kv_gb=0.09 * node_gb)
    assert not refused(here, tp=2, replicas=2, host_kv_gb=0.15 * node_gb)  # two GPUs a node, if spread


def test_memory_over_90_percent_names_what_fills_it() -> None:
    here = of("DeepSeek-R1", "H100", "SGLang")
    (reason,) = memory_fits(*launch(here, tp=8), here)
    assert reason.code == "hbm_cap"
    assert "weights" in reason.message


def test_a_request_longer_than_the_pool_is_refused() -> None:
    found, _, _ = breakdown(of("Llama-3.1-8B", "H100", "vLLM"))
    assert not memory_reasons(found, 8192)
    assert codes(memory_reasons(found, 10_000_000)) == {"hbm_cap", "kv_pool"}


def test_all_reasons_are_reported() -> None:
    here = of("DeepSeek-V3.2", "MI355X", "vLLM")
    found = refused(here, tp=8, ep=4, attn_dp=4, dcp=4, a2a_backend="none", replicas=4)
    assert {"ep_world", "dcp_divides", "dcp_sparse_rocm", "cluster_size"} <= set(found)
