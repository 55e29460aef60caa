"""SGLang's command line.

``max_running`` and ``chunk_size`` are for the whole server: the engine divides both by attention DP, so they are
written multiplied. An unset ``max_running`` becomes 48 without a word once speculation is on, so it is always written
then. AITER kernels are used only with ``SGLANG_USE_AITER=1``.
"""

from agent.launch.flags import engine_table
from agent.launch.names import a2a_name, attention_name, moe_name, redundant_experts
from agent.launch.types import Command, ServerCase, host_of
from levers.catalog.common import is_sparse
from predictor.types import Dtype

KV_DTYPES = {Dtype.FP8: "fp8_e4m3", Dtype.FP4: "nvfp4"}
GRAPH_MODES = {"none": "disabled", "piecewise": "breakable"}
ALGORITHMS = {"mtp": "NEXTN", "eagle3": "EAGLE3", "ngram": "NGRAM", "dspark": "DSPARK"}
SWITCHES = frozenset({"add_rmsnorm", "rope_kvstore"})
MORI_DISPATCH_TOKENS = 4096  # default of SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK, SGLang 0.5.23 environ.py


def command(case: ServerCase) -> Command:
    """``sglang.launch_server`` for one process."""
    argv = ["python3", "-m", "sglang.launch_server", "--model-path", case.checkpoint]
    argv += ["--host", "0.0.0.0", "--port", str(case.ports.http)]
    argv += _parallel(case) + _numbers(case) + _kernels(case) + _scheduler(case) + _speculation(case) + _cache(case)
    return Command(tuple(argv), tuple(_env(case).items()))


def _parallel(case: ServerCase) -> list[str]:
    layout, argv = case.layout, list[str]()
    for flag, width in (
        ("--tp-size", layout.tp),
        ("--ep-size", layout.ep),
        ("--pp-size", layout.pp),
        ("--dcp-size", layout.dcp),
    ):
        argv += [flag, str(width)] if width > 1 else []
    if layout.attn_dp > 1:
        new = engine_table(case.profile.name).has("--attn-dp-size", case.release.version)
        argv += ["--attn-dp-size" if new else "--dp-size", str(layout.attn_dp)]
        argv += [] if new else ["--enable-dp-attention"]
    if case.nodes > 1:
        argv += ["--nnodes", str(case.nodes), "--node-rank", str(case.rank)]
        argv += ["--dist-init-addr", f"{host_of(case.leader)}:{case.ports.dist}"]
    return argv


def _numbers(case: ServerCase) -> list[str]:
    argv = ["--quantization", case.quantize] if case.quantize else []
    kv = KV_DTYPES.get(case.deployment.precision.kv)
    return argv + (["--kv-cache-dtype", kv] if kv else [])


def _kernels(case: ServerCase) -> list[str]:
    kernels, argv = case.deployment.kernels, list[str]()
    if attention := attention_name(case):
        sparse = is_sparse(case.card.attention)
        names = ("--dsa-prefill-backend", "--dsa-decode-backend") if sparse else ("--attention-backend",)
        argv += [part for flag in names for part in (flag, attention)]
    if moe := moe_name(case):
        argv += ["--moe-runner-backend", moe]
    if a2a := a2a_name(case):
        argv += ["--moe-a2a-backend", a2a]
        mode = {"_ht": "normal", "_ll": "low_latency"}.get(kernels.a2a[-3:])
        argv += ["--deepep-mode", mode] if mode else []
    if redundant := redundant_experts(case):
        argv += ["--enable-eplb", "--ep-num-redundant-experts", str(redundant)]
    if kernels.allreduce == "fused_rms" or "add_rmsnorm" in kernels.fusions:
        amd = case.vendor == "amd"
        argv += ["--enable-aiter-allreduce-fusion"] if amd else ["--flashinfer-allreduce-fusion-backend", "auto"]
    argv += ["--enable-fused-qk-norm-rope"] if "rope_kvstore" in kernels.fusions else []
    argv += ["--disable-custom-all-reduce"] if kernels.allreduce in ("rccl", "nccl") else []
    if mode := GRAPH_MODES.get(kernels.graph_mode):
        argv += ["--cuda-graph-backend-decode", mode, "--cuda-graph-backend-prefill", mode]
    return argv


def _scheduler(case: ServerCase) -> list[str]:
    wanted, settings, ranks = case.wanted, case.settings, case.layout.attn_dp
    running = settings.max_running * ranks
    chunk = settings.chunk_size * ranks if settings.chunked_prefill else -1
    write_running = wanted.max_running is not None or case.deployment.speculation.active
    argv: list[str] = []
    for flag, value in (
        ("--max-running-requests", running if write_running else None),
        ("--max-prefill-tokens", wanted.token_budget),
        ("--chunked-prefill-size", chunk if wanted.chunk_size is not None else None),
        ("--mem-fraction-static", wanted.kv_mem_fraction),
        ("--page-size", wanted.block_size),
        ("--cuda-graph-max-bs-decode", wanted.graph_max_bs),
    ):
        argv += [flag, str(value)] if value is not None else []
    argv += ["--schedule-policy", wanted.queue_policy] if wanted.queue_policy != "fcfs" else []
    argv += ["--enable-mixed-chunk"] if wanted.mixed_steps else []
    return argv + (["--disable-radix-cache"] if not wanted.prefix_cache else [])


def _speculation(case: ServerCase) -> list[str]:
    speculation = case.deployment.speculation
    if not speculation.active:
        return []
    depth = speculation.depth
    argv = ["--speculative-algorithm", ALGORITHMS[speculation.method]]
    if speculation.method == "dspark":
        argv += ["--speculative-dspark-block-size", str(depth)]
        argv += ["--enable-dp-lm-head"] if case.layout.attn_dp > 1 else []  # the engine refuses to start without
    elif speculation.method == "ngram":
        argv += ["--speculative-num-draft-tokens", str(depth + 1)]
    else:
        argv += ["--speculative-num-steps", str(depth), "--speculative-eagle-topk", "1"]
        argv += ["--speculative-num-draft-tokens", str(depth + 1)]
    return argv + (["--speculative-draft-model-path", case.draft] if case.draft else [])


def _cache(case: ServerCase) -> list[str]:
    argv: list[str] = []
    if case.deployment.host_kv_gb and case.role != "decode":  # a decode pool keeps no prefix cache to extend
        whole_gb = max(1, int(case.deployment.host_kv_gb))  # of each rank
        argv += ["--enable-hierarchical-cache", "--hicache-size", str(whole_gb)]
    if case.handoff:
        argv += ["--disaggregation-mode", case.role, "--disaggregation-transfer-backend", case.handoff]
        argv += ["--disaggregation-bootstrap-port", str(case.ports.bootstrap)] if case.role == "prefill" else []
    return argv


def _env(case: ServerCase) -> dict[str, str]:
    kernels, env = case.deployment.kernels, dict[str, str]()
    if case.vendor == "amd":
        env["SGLANG_USE_AITER"] = "1"
        if kernels.allreduce == "quick":
            env["ROCM_QUICK_REDUCE_QUANTIZATION"] = "FP"
    if kernels.a2a.startswith("mori") and case.settings.chunk_size > MORI_DISPATCH_TOKENS:
        env["SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK"] = str(case.settings.chunk_size)
    return env
