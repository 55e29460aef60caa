"""Kernel choices: attention, MoE and all-to-all backends, sparse width, graphs, collectives, fusions."""

from collections.abc import Iterator

from levers.catalog.backends import MOE, AttentionBackend, MoeBackend
from levers.catalog.common import ATOM, SGLANG, TRTLLM, VLLM, attention_class
from levers.catalog.kernels import (
    a2a_listed,
    allreduce_listed,
    attention_listed,
    graph_listed,
    moe_listed,
    topk_as_trained,
)
from levers.catalog.precision import attention_backends
from levers.context import SearchContext
from levers.fusions import fusion_reasons
from levers.legality.rule import Rule, pools
from levers.reasons import Reason
from predictor.types import Deployment, Dtype, Workload

AITER_MLA_HEADS = (16, 128)  # local heads of AITER's MLA kernels before they padded
# first release that repeats heads up to 16: vllm-project/vllm#35850 (2026-03), sgl-project/sglang#21213 (2026-03),
# ROCm/ATOM#283 (2026-03)
AITER_MLA_PADS = {VLLM: "0.17", SGLANG: "0.5.10", ATOM: "2026-03-09"}
CUSTOM_WORLDS = (2, 4, 6, 8)  # GPUs a custom all-reduce runs on
QUICK_WORLDS = (2, 4, 8)
QUICK_GPUS = ("MI300X", "MI325X", "MI350X", "MI355X")  # gfx94x and gfx95x
MORI_DISPATCH_TOKENS = 4096  # SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK


def chosen_attention(deployment: Deployment, context: SearchContext) -> AttentionBackend | None:
    """The named backend, or None for the engine's choice."""
    return next((x for x in attention_backends(context) if x.name == deployment.kernels.attention), None)


def chosen_moe(deployment: Deployment, context: SearchContext) -> MoeBackend | None:
    """The named MoE backend, or None for the engine's choice."""
    backends = MOE.get((context.engine.name, context.platform.vendor), ())
    return next((backend for backend in backends if backend.name == deployment.kernels.moe), None)


def backends_exist(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Every named kernel exists in the engine, for this model, on this vendor."""
    kernels = deployment.kernels
    checks = [
        attention_listed(context, kernels.attention),
        topk_as_trained(context, kernels.sparse_topk),
        graph_listed(context, kernels.graph_mode),
        allreduce_listed(context, kernels.allreduce),
    ]
    if context.card.is_moe:
        checks += [moe_listed(context, kernels.moe), a2a_listed(context, kernels.a2a)]
    else:
        checks += [
            Reason("not_moe", f"{name}={value}: {context.card.name} is not a MoE model")
            for name, value, off in (("moe_backend", kernels.moe, "auto"), ("a2a_backend", kernels.a2a, "none"))
            if value != off
        ]
    yield from (reason for reason in checks if reason)


def attention_kv(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """The named backend must keep its cache in the KV format and accept the block size."""
    backend = chosen_attention(deployment, context)
    if backend is None:
        return
    kv, block = deployment.precision.kv, deployment.scheduler.block_size
    if kv not in backend.kv_dtypes:
        kept = " or ".join(backend.kv_dtypes)
        others = ", ".join(other.name for other in attention_backends(context) if kv in other.kv_dtypes)
        yield Reason(
            "kv_attn_backend",
            f"kv_dtype={kv}: attn_backend={backend.name} ({backend.engine_name}) keeps its cache in {kept}; use "
            f"{others or kept}",
        )
    if block is not None and backend.block_sizes and block not in backend.block_sizes:
        sizes = " or ".join(map(str, backend.block_sizes))
        yield Reason("block_size_backend", f"block_size={block}: {backend.engine_name} takes {sizes}")
    if not backend.connectors and (deployment.prefill or deployment.host_kv_gb):
        yield Reason(
            "attn_connector",
            f"attn_backend={backend.name} ({backend.engine_name}) does not work with KV connectors, which "
            f"{'disaggregation' if deployment.prefill else 'host_kv_gb'} needs: use another backend or auto",
        )
    if deployment.layout.dcp > 1 and not backend.returns_lse:
        yield Reason("dcp_lse", f"dcp={deployment.layout.dcp}: {backend.engine_name} returns no log-sum-exp; use dcp=1")


def aiter_mla_heads(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Old AITER MLA kernels take 16 or 128 local heads only; newer engines repeat heads up to 16."""
    pads = AITER_MLA_PADS.get(context.engine.name)
    if context.platform.vendor != "amd" or pads is None or context.at_least(pads):
        return
    uses_aiter = deployment.kernels.attention == "aiter" or (
        deployment.kernels.attention == "auto" and context.engine.name != SGLANG  # SGLang then chooses Triton itself
    )
    if attention_class(context.card.attention) not in ("mla", "sparse_mla") or not uses_aiter:
        return
    for pool in pools(deployment):
        heads = context.card.attention.heads // pool.attn_tp
        if heads not in AITER_MLA_HEADS:
            yield Reason(
                "aiter_mla_heads",
                f"{pool.label}{heads} local heads: AITER MLA of {context.engine.name} {context.engine_version} takes "
                f"16 or 128; use {context.card.attention.heads // 16 or 1} GPUs for attention, attn_backend=triton, "
                f"or {context.engine.name} {pads} or later",
            )


def moe_backend_fits(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """What the named MoE backend asks of the experts' format and of EP."""
    backend = chosen_moe(deployment, context)
    if backend is None:
        return
    expert = deployment.precision.expert
    if expert not in backend.experts:
        yield Reason(
            "moe_backend_dtype",
            f"moe_backend={backend.name} runs {' or '.join(backend.experts)} experts, and these are {expert}: use "
            "auto or triton",
        )
    for pool in pools(deployment):
        ep, tp = pool.layout.ep, pool.layout.tp
        if backend.needs_ep and ep == 1:
            yield Reason(
                "moe_backend_ep", f"{pool.label}moe_backend={backend.name} needs expert parallelism: set ep={tp}"
            )
        if backend.whole_ep and ep not in (1, tp):
            yield Reason("moe_backend_ep", f"{pool.label}moe_backend={backend.name} runs with ep 1 or {tp}, not {ep}")
        if backend.fp8_without_ep and ep > 1 and expert is Dtype.FP8:
            yield Reason("moe_backend_ep", f"{pool.label}moe_backend={backend.name} runs FP8 experts with ep=1 only")


def a2a_needs_ep(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """An all-to-all has work only between ranks that hold different experts (and, on vLLM, different requests)."""
    a2a = deployment.kernels.a2a
    if a2a == "none":
        return
    for pool in pools(deployment):
        ep, tp = pool.layout.ep, pool.layout.tp
        if ep == 1:
            yield Reason("a2a_ep", f"{pool.label}a2a_backend={a2a} needs expert parallelism: set ep={tp} with tp>1")
        elif context.engine.name in (VLLM, ATOM) and pool.layout.attn_dp == 1:
            yield Reason(
                "a2a_attn_dp",
                f"{pool.label}a2a_backend={a2a}: {context.engine.name} uses it only with attention DP; expert outputs "
                "are otherwise all-reduced. Set attn_dp>1 or a2a_backend=none",
            )
        elif context.engine.name == SGLANG and ep != tp:
            yield Reason("a2a_whole_ep", f"{pool.label}a2a_backend={a2a}: SGLang then forces ep=tp={tp}, not {ep}")


def mori_dispatch(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """MoRI's dispatch buffer must hold the chunk of one rank."""
    if not deployment.kernels.a2a.startswith("mori"):
        return
    for pool in pools(deployment):
        chunk = pool.scheduler.chunk_size
        per_rank = (chunk or 0) // pool.layout.attn_dp
        if per_rank > MORI_DISPATCH_TOKENS:
            yield Reason(
                "mori_dispatch",
                f"{pool.label}chunk_size={chunk} is {per_rank} tokens a rank, over MoRI's dispatch cap of "
                f"{MORI_DISPATCH_TOKENS}: use chunk_size ≤ {MORI_DISPATCH_TOKENS * pool.layout.attn_dp}",
            )


def allreduce_world(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Custom and quick all-reduces run on certain widths of one node."""
    kind = deployment.kernels.allreduce
    for pool in pools(deployment):
        width = pool.layout.tp
        if width == 1:
            continue
        if kind == "custom" and width not in CUSTOM_WORLDS and width <= context.platform.gpus_per_node:
            yield Reason("allreduce_custom", f"{pool.label}allreduce=custom runs on 2, 4, 6 or 8 GPUs, not {width}")
        if kind == "quick" and (width not in QUICK_WORLDS or deployment.gpu not in QUICK_GPUS):
            yield Reason(
                "allreduce_quick",
                f"{pool.label}allreduce=quick runs on 2, 4 or 8 GPUs of gfx94x or gfx95x, not on {width} "
                f"{deployment.gpu}",
            )


def fusions_legal(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """The three rules of the named fusions."""
    yield from fusion_reasons(deployment.kernels.fusions, context.card, deployment.precision)


def eager_graph_cap(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Without graphs there is no largest graph."""
    for pool in pools(deployment):
        if deployment.kernels.graph_mode == "none" and pool.scheduler.graph_max_bs is not None:
            yield Reason(
                "graph_cap",
                f"{pool.label}graph_max_bs={pool.scheduler.graph_max_bs} needs graph_mode piecewise or full",
            )


RULES = (
    Rule(
        name="backends",
        summary="named kernels exist in the engine for this model and vendor",
        source="engine registries",
        check=backends_exist,
    ),
    Rule(
        name="attn_backend",
        summary="the backend keeps the KV format, block size and connectors; DCP needs its log-sum-exp",
        source="vllm-project/vllm#42587, #54761",
        check=attention_kv,
    ),
    Rule(
        name="aiter_mla_heads",
        summary="AITER MLA takes 16 or 128 local heads before it padded",
        source="vllm-project/vllm#35641, ROCm/aiter#1468",
        check=aiter_mla_heads,
        engines=(VLLM, SGLANG, ATOM),
    ),
    Rule(
        name="moe_backend",
        summary="the MoE backend's expert formats and EP",
        source="engine MoE runners",
        check=moe_backend_fits,
    ),
    Rule(
        name="a2a",
        summary="an all-to-all needs EP; on vLLM also attention DP, on SGLang ep = tp",
        source="engine arguments",
        check=a2a_needs_ep,
        engines=(VLLM, SGLANG, ATOM, TRTLLM),
    ),
    Rule(
        name="mori_dispatch",
        summary="the chunk of a rank fits MoRI's dispatch buffer",
        source="SGLang environment variables",
        check=mori_dispatch,
        engines=(SGLANG,),
    ),
    Rule(
        name="allreduce",
        summary="custom and quick all-reduces run on certain widths",
        source="vLLM custom all-reduce, quick reduce",
        check=allreduce_world,
    ),
    Rule(
        name="fusions",
        summary="quant-fed fusions need low precision, MoE fusions experts, no repetition or generic mix",
        source="paper App. J",
        check=fusions_legal,
    ),
    Rule(
        name="graph_cap",
        summary="a largest graph needs graphs",
        source="arithmetic",
        check=eager_graph_cap,
    ),
)
