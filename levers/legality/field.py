"""Twenty configurations that failed in the field, and what answers each. Issue threads are paraphrased."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FieldFailure:
    """One reported failure and the names of the rules, notices or memory checks that refuse or explain it."""

    number: int
    issue: str
    happened: str
    answered_by: tuple[str, ...]


FIELD_FAILURES = (
    FieldFailure(1, "vllm-project/vllm#17569", "Qwen3-235B FP8 at TP8 leaves 192 columns a rank", ("moe_block",)),
    FieldFailure(2, "vllm-project/vllm#25292", "Qwen3-30B-A3B FP8 at TP4 fails the same way", ("moe_block",)),
    FieldFailure(
        3,
        "vllm-project/vllm#35641, ROCm/aiter#1468",
        "AITER MLA took 16 or 128 local heads only",
        ("aiter_mla_heads", "padded_heads"),
    ),
    FieldFailure(
        4,
        "vllm-project/vllm#54761",
        "DCP and other KV formats than fp8 do not exist on ROCm sparse MLA",
        ("dcp_sparse_rocm", "kv_backend"),
    ),
    FieldFailure(5, "vllm-project/vllm#45178", "graph profiling shrank the KV pool threefold", ("graph_estimate",)),
    FieldFailure(6, "vllm-project/vllm#57475", "out of memory in capture at a fraction of 0.98", ("kv_fraction",)),
    FieldFailure(7, "vllm-project/vllm#50780", "a hybrid model lost 18-24% of its pool", ("hybrid_pool",)),
    FieldFailure(
        8, "vllm-project/vllm#42587", "accepted KV formats crash on the backend", ("attn_backend", "kv_backend")
    ),
    FieldFailure(9, "vllm-project/vllm#42895", "NIXL pools with different block sizes", ("handoff_blocks",)),
    FieldFailure(
        10,
        "sgl-project/sglang#31295",
        "pools of different attention TP break",
        ("handoff_widths", "unequal_pools"),
    ),
    FieldFailure(11, "sgl-project/sglang#20018", "the chunk is divided by DP", ("per_rank", "chunk_pages")),
    FieldFailure(12, "sgl-project/sglang#33199", "speculation sets the running cap to 48", ("spec_max_running",)),
    FieldFailure(13, "sgl-project/sglang#30160", "the pool lowers the running cap", ("running_clamped",)),
    FieldFailure(14, "sgl-project/sglang#4759", "throughput falls with speculation at high batch", ("spec_gain",)),
    FieldFailure(
        15,
        "sgl-project/sglang#5372, #7059",
        "a host tier runs out of memory, or gains nothing",
        ("host_dram", "host_reuse"),
    ),
    FieldFailure(16, "ROCm/ATOM#1959", "309 kB of KV a token instead of 26", ("kv_bytes_log",)),
    FieldFailure(17, "ROCm/ATOM#1164", "state of 1024 sequences cost 17.85 GiB", ("state_pool", "hbm_cap")),
    FieldFailure(
        18, "NVIDIA/TensorRT-LLM#9277, #6539, #4947", "prompts over the budget are rejected", ("prompt_over_budget",)
    ),
    FieldFailure(19, "NVIDIA/TensorRT-LLM#5267", "attention DP with chunked prefill hung", ("attn_dp_chunk",)),
    FieldFailure(20, "SemiAnalysisAI/InferenceX#2777", "a host pool exceeded the node's memory", ("host_dram",)),
)
# checks of a memory breakdown or a start log, which are no rules of a deployment
MEMORY_CHECKS = (
    "hbm_cap",
    "kv_pool",
    "running_clamped",
    "state_pool",
    "graph_estimate",
    "hybrid_pool",
    "kv_bytes_log",
)
