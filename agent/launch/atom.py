"""ATOM's command line: underscores in the KV, prefix and quantisation flags, kernels chosen by the environment."""

import json

from agent.launch.names import a2a_name, attention_name, moe_name, redundant_experts
from agent.launch.types import Command, ServerCase
from levers.catalog.common import attention_class
from predictor.errors import BadInput
from predictor.types import Dtype

GRAPH_MODES = {"none": "NONE", "piecewise": "PIECEWISE"}
CONNECTORS = {"mori": "moriio", "mooncake": "mooncake"}
FUSION_ENV = {
    "norm_quant": (
        "ATOM_ENABLE_DS_INPUT_RMSNORM_QUANT_FUSION",
        "ATOM_ENABLE_DS_QKNORM_QUANT_FUSION",
        "ATOM_LLAMA_ENABLE_AITER_TRITON_FUSED_RMSNORM_QUANT",
    ),
    "add_rmsnorm": ("ATOM_ENABLE_ALLREDUCE_RMSNORM_FUSION",),
    "act_quant": ("ATOM_LLAMA_ENABLE_AITER_TRITON_FUSED_SILU_MUL_QUANT",),
    "rope_kvstore": ("ATOM_ENABLE_QK_NORM_ROPE_CACHE_QUANT_FUSION",),
    "moe_routing": ("ATOM_FUSE_SHARED_EXPERT",),
}
SWITCHES = frozenset(FUSION_ENV)
OFF_BY_DEFAULT = frozenset({"ATOM_ENABLE_QK_NORM_ROPE_CACHE_QUANT_FUSION"})  # atom/utils/envs.py; the others are on
TRITON_ENV = {"mha": "ATOM_USE_UNIFIED_ATTN", "mla": "ATOM_USE_TRITON_MLA"}  # AITER is the default


def command(case: ServerCase) -> Command:
    """``atom.entrypoints.openai_server`` for one process."""
    if case.nodes > 1:
        raise BadInput(f"layout {case.layout.label()} needs {case.nodes} nodes; ATOM serves a replica on one node")
    argv = ["python3", "-m", "atom.entrypoints.openai_server", "--model", case.checkpoint]
    argv += ["--host", "0.0.0.0", "--server-port", str(case.ports.http)]
    argv += _parallel(case) + _numbers(case) + _kernels(case) + _scheduler(case) + _speculation(case) + _cache(case)
    argv += ["--max-model-len", str(case.max_len)] if case.max_len else []
    return Command(tuple(argv), tuple(_env(case).items()))


def _parallel(case: ServerCase) -> list[str]:
    layout = case.layout
    argv = ["--tensor-parallel-size", str(layout.tp)] if layout.tp > 1 else []
    argv += ["--pipeline-parallel-size", str(layout.pp)] if layout.pp > 1 else []
    argv += ["--decode-context-parallel-size", str(layout.dcp)] if layout.dcp > 1 else []
    argv += ["--enable-dp-attention"] if layout.attn_dp > 1 else []
    return argv + (["--enable-expert-parallel"] if layout.ep > 1 else [])


def _numbers(case: ServerCase) -> list[str]:
    argv = ["--online_quant_config", _json({"global_quant_config": case.quantize})] if case.quantize else []
    return argv + (["--kv_cache_dtype", "fp8"] if case.deployment.precision.kv is Dtype.FP8 else [])


def _kernels(case: ServerCase) -> list[str]:
    argv: list[str] = []
    if moe_name(case) == "mega":
        argv += ["--moe-backend", "mega"]
    if a2a := a2a_name(case):
        argv += ["--all2all-backend", a2a]
    if redundant := redundant_experts(case):
        argv += ["--enable-eplb", "--eplb-config", _json({"num_redundant_experts": redundant})]
    if mode := GRAPH_MODES.get(case.deployment.kernels.graph_mode):
        argv += ["--cudagraph-mode", mode]
    return argv


def _scheduler(case: ServerCase) -> list[str]:
    wanted = case.wanted
    argv: list[str] = []
    for flag, value in (
        ("--max-num-seqs", wanted.max_running),
        ("--max-num-batched-tokens", wanted.token_budget),
        ("--long-prefill-token-threshold", wanted.chunk_size),
        ("--gpu-memory-utilization", wanted.kv_mem_fraction),
        ("--block-size", wanted.block_size),
    ):
        argv += [flag, str(value)] if value is not None else []
    if wanted.graph_max_bs is not None and case.settings.capture_sizes:
        argv += ["--cudagraph-capture-sizes", _json(list(case.settings.capture_sizes))]
    argv += ["--no-enable_chunked_prefill"] if not case.settings.chunked_prefill else []
    return argv + (["--no-enable_prefix_caching"] if not wanted.prefix_cache else [])


def _speculation(case: ServerCase) -> list[str]:
    speculation = case.deployment.speculation
    if not speculation.active:
        return []
    argv = ["--method", speculation.method, "--num-speculative-tokens", str(speculation.depth)]
    return argv + (["--draft-model", case.draft] if case.draft else [])


def _cache(case: ServerCase) -> list[str]:
    """Hand-off and host offload: one connector, or the engine's ``multi`` that holds both."""
    connectors: list[dict[str, object]] = []
    if case.handoff:
        role = "kv_producer" if case.role == "prefill" else "kv_consumer"
        connectors.append(
            {
                "kv_connector": CONNECTORS[case.handoff],
                "kv_role": role,
                "http_port": case.ports.http,
                "handshake_port": case.ports.side,
            }
        )
    if case.deployment.host_kv_gb:
        connectors.append({"kv_connector": "lmcache_offload", "kv_role": "offload"})
    if not connectors:
        return []
    config = connectors[0] if len(connectors) == 1 else {"kv_connector": "multi", "connectors": connectors}
    return ["--kv-transfer-config", _json(config)]


def _env(case: ServerCase) -> dict[str, str]:
    kernels, env = case.deployment.kernels, dict[str, str]()
    if attention_name(case) == "triton":
        env[TRITON_ENV[attention_class(case.card.attention)]] = "1"
    moe = moe_name(case) or ""
    env |= dict([moe.split("=")]) if "=" in moe else {}  # the Triton experts are an environment variable
    if kernels.allreduce == "quick":
        env["AITER_QUICK_REDUCE_QUANTIZATION"] = "FP"
    for fusion in kernels.fusions:
        env |= {variable: "1" for variable in FUSION_ENV.get(fusion, ()) if variable in OFF_BY_DEFAULT}
    if case.deployment.host_kv_gb:  # LMCache counts decimal gigabytes of each process
        env |= {"LMCACHE_LOCAL_CPU": "True", "LMCACHE_MAX_LOCAL_CPU_SIZE": f"{case.deployment.host_kv_gb:g}"}
    if case.handoff and case.layout.attn_dp > 1 and case.layout.ep > 1:
        env["MORI_SHMEM_MODE"] = "ISOLATION"  # dispatch and KV hand-off would share one heap and run out of it
    return env


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
