"""vLLM's command line.

Attention DP is data-parallel ranks inside the replica: ``-tp TP/dp -dp dp``, with expert parallelism a switch over all
of them. Limits are per rank. On AMD nothing of AITER is used unless ``VLLM_ROCM_USE_AITER=1``.
"""

import json

from agent.launch.names import a2a_name, attention_name, moe_name, redundant_experts
from agent.launch.types import Command, ServerCase, host_of
from predictor.errors import BadInput
from predictor.types import Dtype

KV_DTYPES = {Dtype.FP8: "fp8", Dtype.FP4: "nvfp4"}
CONNECTORS = {"nixl": "NixlConnector", "mooncake": "MooncakeConnector", "mori": "MoRIIOConnector"}
PING_PORT = 36367  # MoRI-IO workers announce themselves to the router here
GRAPH_MODES = {"none": "NONE", "piecewise": "PIECEWISE"}
PASSES = {
    "norm_quant": "fuse_norm_quant",
    "act_quant": "fuse_act_quant",
    "add_rmsnorm": "fuse_allreduce_rms",
    "rope_kvstore": "fuse_rope_kvcache",
}
SWITCHES = frozenset({*PASSES, "moe_routing"})
GIB_PER_GB = 1e9 / 2**30  # the flag counts GiB


def command(case: ServerCase) -> Command:
    """``vllm serve`` for one process."""
    argv = ["vllm", "serve", case.checkpoint]
    argv += ["--headless"] if case.rank else ["--host", "0.0.0.0", "--port", str(case.ports.http)]
    argv += _parallel(case) + _nodes(case) + _numbers(case) + _kernels(case) + _scheduler(case)
    argv += _speculation(case) + _cache(case)
    argv += ["--max-model-len", str(case.max_len)] if case.max_len else []
    return Command(tuple(argv), tuple(_env(case).items()))


def _parallel(case: ServerCase) -> list[str]:
    layout = case.layout
    argv = ["--tensor-parallel-size", str(layout.attn_tp)] if layout.attn_tp > 1 else []
    argv += ["--pipeline-parallel-size", str(layout.pp)] if layout.pp > 1 else []
    argv += ["--data-parallel-size", str(layout.attn_dp)] if layout.attn_dp > 1 else []
    argv += ["--decode-context-parallel-size", str(layout.dcp)] if layout.dcp > 1 else []
    return argv + (["--enable-expert-parallel"] if layout.ep > 1 else [])


def _nodes(case: ServerCase) -> list[str]:
    """Data-parallel ranks are spread over nodes by rank; other layouts by node rank."""
    if case.nodes == 1:
        return []
    if case.layout.attn_dp == 1:
        argv = ["--nnodes", str(case.nodes), "--node-rank", str(case.rank)]
        return [*argv, "--master-addr", host_of(case.leader), "--master-port", str(case.ports.dist)]
    here, left = divmod(case.layout.attn_dp, case.nodes)
    if left:
        raise BadInput(f"attn_dp {case.layout.attn_dp} does not divide over {case.nodes} nodes")
    argv = ["--data-parallel-size-local", str(here), "--data-parallel-address", host_of(case.leader)]
    argv += ["--data-parallel-rpc-port", str(case.ports.dist)]
    return argv + (["--data-parallel-start-rank", str(here * case.rank)] if case.rank else [])


def _numbers(case: ServerCase) -> list[str]:
    argv = ["--quantization", case.quantize] if case.quantize else []
    kv = KV_DTYPES.get(case.deployment.precision.kv)
    return argv + (["--kv-cache-dtype", kv] if kv else [])


def _kernels(case: ServerCase) -> list[str]:
    kernels, argv = case.deployment.kernels, list[str]()
    for flag, name in (
        ("--attention-backend", attention_name(case)),
        ("--moe-backend", moe_name(case)),
        ("--all2all-backend", a2a_name(case)),
    ):
        argv += [flag, name] if name else []
    if redundant := redundant_experts(case):
        argv += ["--enable-eplb", "--eplb-config", _json({"num_redundant_experts": redundant})]
    compilation: dict[str, object] = {}
    if kernels.graph_mode in GRAPH_MODES:
        compilation["cudagraph_mode"] = GRAPH_MODES[kernels.graph_mode]
    wanted = {*kernels.fusions, *({"add_rmsnorm"} if kernels.allreduce == "fused_rms" else ())}
    if passes := {flag: True for name, flag in PASSES.items() if name in wanted}:
        compilation["pass_config"] = passes
    argv += ["--compilation-config", _json(compilation)] if compilation else []
    return argv + (["--disable-custom-all-reduce"] if kernels.allreduce in ("rccl", "nccl") else [])


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
    if wanted.graph_max_bs is not None:  # the flag counts tokens, and a drafted decode step holds 1 + k a request
        argv += ["--max-cudagraph-capture-size", str(wanted.graph_max_bs * _decode_tokens(case))]
    argv += ["--no-enable-prefix-caching"] if not wanted.prefix_cache else []
    return argv + (["--scheduling-policy", wanted.queue_policy] if wanted.queue_policy != "fcfs" else [])


def _decode_tokens(case: ServerCase) -> int:
    speculation = case.deployment.speculation
    return 1 + speculation.depth if speculation.active else 1


def _speculation(case: ServerCase) -> list[str]:
    speculation = case.deployment.speculation
    if not speculation.active:
        return []
    config: dict[str, object] = {"method": speculation.method}
    config |= {"model": case.draft} if case.draft else {}
    return ["--speculative-config", _json({**config, "num_speculative_tokens": speculation.depth})]


def _cache(case: ServerCase) -> list[str]:
    """Hand-off and host offload. With both, one connector has to hold the two: the offload flag would replace it."""
    host_gb = case.deployment.host_kv_gb * case.layout.attn_tp  # both settings are for all TP ranks together
    handoff = _handoff(case)
    if handoff is None:
        return ["--kv-offloading-size", f"{host_gb * GIB_PER_GB:.3f}"] if host_gb else []
    if host_gb:
        offload = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
        extra = {"kv_connector_extra_config": {"cpu_bytes_to_use": int(host_gb * 1e9)}}
        both = {"connectors": [handoff, {**offload, **extra}]}
        handoff = {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": both}
    return ["--kv-transfer-config", _json(handoff)]


def _handoff(case: ServerCase) -> dict[str, object] | None:
    if case.handoff is None:
        return None
    role = "kv_producer" if case.role == "prefill" else "kv_consumer"
    config: dict[str, object] = {"kv_connector": CONNECTORS[case.handoff], "kv_role": role}
    if case.handoff == "nixl":
        config["kv_role"] = "kv_both"
    if case.handoff == "mori":
        config["kv_connector_extra_config"] = {
            "proxy_ip": host_of(case.router),
            "proxy_ping_port": PING_PORT,
            "http_port": case.ports.http,
            "handshake_port": case.ports.side,
            "notify_port": case.ports.side + 500,
        }
    return config


def _env(case: ServerCase) -> dict[str, str]:
    kernels, env = case.deployment.kernels, dict[str, str]()
    if case.vendor == "amd":
        env["VLLM_ROCM_USE_AITER"] = "1"
        if kernels.allreduce == "quick":
            env["VLLM_ROCM_QUICK_REDUCE_QUANTIZATION"] = "FP"
        if "moe_routing" in kernels.fusions:
            env["VLLM_ROCM_USE_AITER_FUSION_SHARED_EXPERTS"] = "1"
    if case.handoff == "nixl":
        env["VLLM_NIXL_SIDE_CHANNEL_HOST"] = host_of(case.name)
        env["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(case.ports.side)
    if case.handoff == "mooncake" and case.role == "prefill":
        env["VLLM_MOONCAKE_BOOTSTRAP_PORT"] = str(case.ports.bootstrap)
    return env


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
