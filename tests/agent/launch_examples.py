"""Deployments whose launch artefacts are kept as golden text, one of each kind for each engine."""

from agent.launch import LaunchPlan, Options, Process, launch_plan
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.types import (
    Deployment,
    Dtype,
    Kernels,
    Layout,
    Precision,
    PrefillPool,
    SchedulerSettings,
    Speculation,
    Workload,
)

WORKLOAD = Workload(isl_tokens=1024, osl_tokens=1024, concurrency=64, length_range_frac=0.8)
FP8 = Precision(Dtype.FP8, Dtype.FP8, Dtype.FP8, Dtype.FP8)
FP4 = Precision(Dtype.FP4, Dtype.FP4, Dtype.FP4, Dtype.FP8)
WIDE = Layout(tp=8, ep=8, attn_dp=8)
LIMITS = SchedulerSettings(max_running=256, token_budget=16384, kv_mem_fraction=0.9, graph_max_bs=256)

LLAMA = Deployment("Llama-3.1-8B", "MI355X", "SGLang")
R1 = Deployment("DeepSeek-R1", "MI355X", "SGLang", precision=FP8)

EXAMPLES = {
    "vllm-mi355x-colocated": Deployment(
        "DeepSeek-R1",
        "MI355X",
        "vLLM",
        layout=WIDE,
        precision=FP8,
        kernels=Kernels(a2a="mori_ll", moe="aiter", fusions=("norm_quant", "act_quant"), allreduce="quick"),
        scheduler=LIMITS,
        speculation=Speculation("mtp", 2),
        eplb_redundant=32,
    ),
    "vllm-h200-disaggregated": Deployment(
        "DeepSeek-R1",
        "H200",
        "vLLM",
        layout=Layout(tp=16, ep=16, attn_dp=16),
        precision=FP8,
        kernels=Kernels(a2a="deepep_ll"),
        prefill=PrefillPool(Layout(tp=8, ep=8), 2, "nixl", SchedulerSettings(token_budget=16384)),
        host_kv_gb=100.0,
    ),
    "vllm-h100-replicas": Deployment(
        "Llama-3.1-8B", "H100", "vLLM", layout=Layout(tp=2), replicas=4, speculation=Speculation("eagle3", 3)
    ),
    "sglang-mi355x-colocated": Deployment(
        "DeepSeek-R1",
        "MI355X",
        "SGLang",
        layout=WIDE,
        precision=FP8,
        kernels=Kernels(a2a="mori_ht", allreduce="fused_rms"),
        scheduler=SchedulerSettings(max_running=512, chunk_size=65536, prefix_cache=False),
        speculation=Speculation("mtp", 3),
    ),
    "sglang-0.5.19-attention-dp": Deployment("DeepSeek-R1", "H200", "SGLang", "0.5.19", layout=WIDE, precision=FP8),
    "sglang-mi300x-disaggregated": Deployment(
        "Llama-3.1-70B",
        "MI300X",
        "SGLang",
        layout=Layout(tp=4),
        replicas=2,
        prefill=PrefillPool(Layout(tp=4), 2, "mori", SchedulerSettings(chunk_size=16384)),
        host_kv_gb=64.0,
    ),
    "atom-mi355x-replicas": Deployment(
        "Llama-3.1-70B",
        "MI355X",
        "ATOM",
        layout=Layout(tp=4),
        precision=Precision(Dtype.FP8, Dtype.FP8, Dtype.FP8, Dtype.FP8),
        scheduler=SchedulerSettings(prefix_cache=False, graph_max_bs=64),
        replicas=2,
    ),
    "atom-mi355x-disaggregated": Deployment(
        "DeepSeek-R1",
        "MI355X",
        "ATOM",
        layout=WIDE,
        precision=FP8,
        speculation=Speculation("mtp", 3),
        prefill=PrefillPool(Layout(tp=8, ep=8, attn_dp=8), 1, "mori"),
        host_kv_gb=50.0,
    ),
    "trtllm-b200-colocated": Deployment(
        "Llama-3.1-70B",
        "B200",
        "TensorRT-LLM",
        layout=Layout(tp=4),
        precision=FP8,
        scheduler=SchedulerSettings(max_running=256, token_budget=8192, chunk_size=8192, graph_max_bs=256),
    ),
    "trtllm-b200-disaggregated": Deployment(
        "DeepSeek-R1",
        "B200",
        "TensorRT-LLM",
        layout=WIDE,
        precision=FP4,
        scheduler=SchedulerSettings(graph_max_bs=128),
        speculation=Speculation("mtp", 1),
        prefill=PrefillPool(Layout(tp=4, ep=4), 2, "nixl"),
        eplb_redundant=32,
    ),
}


def plan_of(deployment: Deployment, *, own_network: bool = False, workload: Workload = WORKLOAD) -> LaunchPlan:
    """The launch plan of a deployment of bundled records."""
    return launch_plan(
        deployment,
        model_card(deployment.model),
        platform(deployment.gpu),
        engine_profile(deployment.engine),
        Options(workload, own_network=own_network),
    )


def flags(process: Process) -> dict[str, str]:
    """Flags of a process with their last value, switches with an empty one."""
    argv, found, flag = process.command.argv, dict[str, str](), ""
    for part in argv:
        if part.startswith("-"):
            flag = part
            found[flag] = ""
        elif flag:
            found[flag] = part
    return found


def server(deployment: Deployment, role: str = "server") -> Process:
    return next(process for process in plan_of(deployment).processes if process.role == role)


def env(deployment: Deployment) -> dict[str, str]:
    return dict(server(deployment).command.env)
