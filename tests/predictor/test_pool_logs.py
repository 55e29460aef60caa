"""Start lines of the four engines."""

import pytest

from predictor.errors import BadFile
from predictor.pool_logs import PoolLog, read_pool_log

VLLM = """\
INFO Chunked prefill is enabled with max_num_batched_tokens=8192.
(Worker_TP0 pid=1) INFO Model loading took 31.49 GiB memory and 84.1 seconds
(Worker_TP0 pid=1) INFO Available KV cache memory: 210.77 GiB
(Worker_TP1 pid=2) INFO Available KV cache memory: 210.12 GiB
(EngineCore) INFO GPU KV cache size: 7,107,200 tokens, Maximum concurrency for 40,960 tokens per request: 173.52x
(Worker_TP0 pid=1) INFO Graph capturing finished in 21 secs, took 1.06 GiB
"""
VLLM_OLD = """\
INFO 06-01 gpu_executor.py:122] # GPU blocks: 7351, # CPU blocks: 512
"""
SGLANG = """\
[TP0] Load weight end. elapsed=37.10 s, type=KimiK25, avail mem=133.99 GB, mem usage=139.96 GB.
[TP0] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 2655616, KV size: 86.90 GB
[TP0] max_total_num_tokens=2655616, chunked_prefill_size=16384, max_prefill_tokens=16384, max_running_requests=128, \
context_len=262144, available_gpu_mem=44.21 GB
"""
SGLANG_HYBRID = """\
Mamba Cache is allocated. max_mamba_cache_size: 300, conv_state size: 0.50GB, ssm_state size: 21.25GB
KV Cache is allocated. dtype: torch.bfloat16, #tokens: 911040, K size: 53.87 GB, V size: 53.87 GB
"""
ATOM = """\
Memory budget: total_gpu=287.98GB, free=250.00GB, utilization=0.9, budget=259.18GB, peak_torch=60.1GB, \
non_torch=3.2GB, cudagraph_est=1.5GB, safety=5.76GB, available_for_kv=188.62GB, block_bytes=1124864, \
num_kvcache_blocks=180000
Concurrent capacity vs context length (max_model_len=131072, block_size=16, max_slots=512, pool_blocks=180000)
"""
TRT = """\
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 2.00 GiB for max tokens in paged KV cache (16384).
[TensorRT-LLM][INFO] Max KV cache blocks per sequence: 64 [window size=2048], tokens per block=32, primary blocks=512
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 61.44 GiB for max tokens in paged KV cache (503296).
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            VLLM,
            PoolLog(
                "vLLM",
                tokens=7107200,
                tokens_at_context=40960,
                kv_gib=210.12,
                weights_gib=31.49,
                graph_gib=1.06,
                budget_tokens=8192,
            ),
        ),
        (VLLM_OLD, PoolLog("vLLM", tokens=7351 * 16)),
        (
            SGLANG,
            PoolLog(
                "SGLang",
                tokens=2655616,
                kv_gib=86.9,
                weights_gib=139.96,
                max_running=128,
                chunk_tokens=16384,
                budget_tokens=16384,
            ),
        ),
        (SGLANG_HYBRID, PoolLog("SGLang", tokens=911040, kv_gib=107.74, state_gib=21.75)),
        (
            ATOM,
            PoolLog("ATOM", tokens=180000 * 16, kv_gib=1124864 * 180000 / 2**30, graph_gib=1.5, block_tokens=16),
        ),
        (TRT, PoolLog("TensorRT-LLM", tokens=503296, kv_gib=61.44, block_tokens=32)),
    ],
)
def test_start_lines(text: str, expected: PoolLog) -> None:
    assert read_pool_log(text) == expected


def test_older_vllm_prints_two_lines() -> None:
    text = "GPU KV cache size: 886,768 tokens\nMaximum concurrency for 9,472 tokens per request: 93.62x\n"
    assert read_pool_log(text) == PoolLog("vLLM", tokens=886768, tokens_at_context=9472)


def test_vllm_with_host_memory() -> None:
    text = "GPU + host KV cache size: 12,345 tokens, Maximum concurrency for 1,024 tokens per request: 12.06x"
    assert read_pool_log(text).tokens == 12345


def test_a_text_without_a_pool_says_what_was_looked_for() -> None:
    with pytest.raises(BadFile, match="max_total_num_tokens"):
        read_pool_log("INFO: Uvicorn running on http://0.0.0.0:8000")
