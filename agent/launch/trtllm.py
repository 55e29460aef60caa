"""TensorRT-LLM's command line and the YAML it reads (PyTorch backend).

Without ``enable_padding`` a batch size that has no graph runs eager. Chunked prefill is off unless asked for, and a
prompt longer than ``max_num_tokens`` is then refused. A prefill server of a split deployment runs without the overlap
scheduler.
"""

import yaml

from agent.launch.names import attention_name, moe_name, redundant_experts
from agent.launch.types import Command, LaunchFile, ServerCase, host_of
from predictor.types import Dtype

KV_DTYPES = {Dtype.FP8: "fp8", Dtype.FP4: "nvfp4"}
HANDOFFS = {"nixl": "NIXL", "ucx": "UCX", "mooncake": "MOONCAKE", "mpi": "MPI"}
DECODERS = {"mtp": "MTP", "eagle3": "Eagle3", "ngram": "NGram", "dspark": "DSpark"}
SWITCHES: frozenset[str] = frozenset()  # its fusions are built in
ALLREDUCE = {"rccl": "NCCL", "nccl": "NCCL"}


def command(case: ServerCase) -> Command:
    """``trtllm-serve`` for one replica; over several nodes MPI starts it from the first."""
    if case.rank:
        return Command(())  # its GPUs belong to the ranks that the first node starts
    name = f"{case.role}.yaml"  # replicas of a role read the same file
    argv = ["trtllm-serve", case.checkpoint, "--host", "0.0.0.0", "--port", str(case.ports.http), "--config", name]
    if case.nodes > 1:
        others = [f"{case.leader}-node{rank}" for rank in range(1, case.nodes)]
        slots = ",".join(f"{host_of(process)}:{case.gpus_here}" for process in (case.leader, *others))
        argv = ["mpirun", "-n", str(case.layout.gpus), "--host", slots, "trtllm-llmapi-launch", *argv]
    text = yaml.safe_dump(config(case), sort_keys=False)
    return Command(tuple(argv), (), (LaunchFile(name, text),))


def config(case: ServerCase) -> dict[str, object]:
    """The YAML as plain data; defaults are left out."""
    tree: dict[str, object] = {}
    _parallel(case, tree)
    _limits(case, tree)
    _cache(case, tree)
    _kernels(case, tree)
    _speculation(case, tree)
    if case.handoff:
        if case.role == "prefill":
            tree["disable_overlap_scheduler"] = True
        tree["cache_transceiver_config"] = {"backend": HANDOFFS[case.handoff]}
    return tree


def _parallel(case: ServerCase, tree: dict[str, object]) -> None:
    layout = case.layout
    for key, width in (
        ("tensor_parallel_size", layout.tp // layout.dcp),  # context-parallel ranks multiply it to the replica's width
        ("pipeline_parallel_size", layout.pp),
        ("moe_expert_parallel_size", layout.ep),
    ):
        if width > 1:
            tree[key] = width
    if layout.attn_dp > 1:
        tree["enable_attention_dp"] = True
    if layout.dcp > 1:
        tree["context_parallel_size"] = layout.dcp
        tree["cp_config"] = {"cp_type": "HELIX", "tokens_per_block": case.settings.block_size}


def _limits(case: ServerCase, tree: dict[str, object]) -> None:
    wanted = case.wanted
    for key, value in (
        ("max_batch_size", wanted.max_running),
        ("max_num_tokens", wanted.token_budget),
        ("max_seq_len", case.max_len),
    ):
        if value is not None:
            tree[key] = value
    if case.settings.chunked_prefill:
        tree["enable_chunked_prefill"] = True


def _cache(case: ServerCase, tree: dict[str, object]) -> None:
    wanted, cache = case.wanted, dict[str, object]()
    if wanted.kv_mem_fraction is not None:
        cache["free_gpu_memory_fraction"] = wanted.kv_mem_fraction
    if dtype := KV_DTYPES.get(case.deployment.precision.kv):
        cache["dtype"] = dtype
    if not wanted.prefix_cache:
        cache["enable_block_reuse"] = False
    if wanted.block_size is not None:
        cache["tokens_per_block"] = wanted.block_size
    if case.deployment.host_kv_gb:  # bytes of each rank
        cache["host_cache_size"] = int(case.deployment.host_kv_gb * 1e9)
    if cache:
        tree["kv_cache_config"] = cache


def _kernels(case: ServerCase, tree: dict[str, object]) -> None:
    kernels = case.deployment.kernels
    if attention := attention_name(case):
        tree["attn_backend"] = attention
    moe: dict[str, object] = {"backend": name} if (name := moe_name(case)) else {}
    if (redundant := redundant_experts(case)) and case.card.moe:
        moe["load_balancer"] = {"num_slots": case.card.moe.experts + redundant}
    if moe:
        tree["moe_config"] = moe
    if strategy := ALLREDUCE.get(kernels.allreduce):
        tree["allreduce_strategy"] = strategy
    if kernels.graph_mode == "none":
        tree["cuda_graph_config"] = None
    elif case.settings.graph_padding:
        tree["cuda_graph_config"] = {"max_batch_size": max(case.settings.capture_sizes), "enable_padding": True}
    if kernels.graph_mode == "piecewise":
        tree["torch_compile_config"] = {"enable_piecewise_cuda_graph": True}


def _speculation(case: ServerCase, tree: dict[str, object]) -> None:
    speculation = case.deployment.speculation
    if speculation.active:
        drafter: dict[str, object] = {
            "decoding_type": DECODERS[speculation.method],
            "max_draft_len": speculation.depth,
        }
        tree["speculative_config"] = drafter | ({"speculative_model": case.draft} if case.draft else {})


def disaggregated(prefill: list[tuple[str, int]], decode: list[tuple[str, int]], port: int) -> LaunchFile:
    """Configuration of ``trtllm-serve disaggregated``: (process, port) of each server."""
    tree = {
        "hostname": "0.0.0.0",
        "port": port,
        "backend": "pytorch",
        "context_servers": {"num_instances": len(prefill), "urls": [f"{host_of(n)}:{p}" for n, p in prefill]},
        "generation_servers": {"num_instances": len(decode), "urls": [f"{host_of(n)}:{p}" for n, p in decode]},
    }
    return LaunchFile("router.yaml", yaml.safe_dump(tree, sort_keys=False))
