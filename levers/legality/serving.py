"""Scheduler limits, speculation, host memory and the two pools of a disaggregated deployment."""

from collections.abc import Iterator

from levers.catalog.common import ATOM, SGLANG, TRTLLM, VLLM, is_hybrid
from levers.catalog.parallel import handoff_available
from levers.catalog.runtime import (
    HOST_DRAM_SHARE,
    block_listed,
    depth_allowed,
    host_fits,
    host_node_gb,
    spec_listed,
)
from levers.context import GB, SearchContext
from levers.legality.rule import Rule, pools
from levers.reasons import Reason
from predictor.types import Deployment, Workload

TRT_DP_CHUNK_FIXED = "1.0"  # NVIDIA/TensorRT-LLM#5267 was reported on 0.21
MAX_FRACTION = 0.97  # above it graph capture runs out of memory, vllm-project/vllm#57475


def prompt_fits_context(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Prompt and answer fit the model's context."""
    tokens, limit = workload.isl_tokens + workload.osl_tokens, context.card.max_context_tokens
    if tokens > limit:
        yield Reason("context_length", f"{tokens} tokens a request exceed the {limit} of {context.card.name}'s context")


def budget_covers_prompt(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """With chunking off, as TensorRT-LLM starts, a prompt must fit one step's token budget."""
    for pool in pools(deployment):
        budget = pool.scheduler.token_budget or context.release.token_budget
        if not pool.scheduler.chunk_size and workload.isl_tokens > budget:
            yield Reason(
                "prompt_over_budget",
                f"{pool.label}prompts of {workload.isl_tokens} tokens exceed token_budget={budget} with chunked "
                f"prefill off, and are rejected: set chunk_size, or token_budget ≥ {workload.isl_tokens}",
            )


def budget_covers_batch(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """vLLM refuses a token budget below the cap on sequences when both are given."""
    for pool in pools(deployment):
        budget, running = pool.scheduler.token_budget, pool.scheduler.max_running
        if budget is not None and running is not None and budget < running:
            yield Reason(
                "budget_under_batch", f"{pool.label}token_budget={budget} is below max_running={running}: raise it"
            )


def chunk_pages(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """A chunk is a whole number of blocks on every rank."""
    for pool in pools(deployment):
        chunk, block = pool.scheduler.chunk_size, pool.scheduler.block_size
        ranks = pool.layout.attn_dp if context.engine.name == SGLANG else 1
        if chunk and block and (chunk % (ranks * block) or chunk < ranks * block):
            yield Reason(
                "chunk_pages",
                f"{pool.label}chunk_size={chunk} over {ranks} attention rank{'s' * (ranks > 1)} is not a multiple of "
                f"block_size={block}: use a multiple of {ranks * block}",
            )


def attention_dp_caps(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """SGLang divides its running cap by attention DP: each rank needs one slot."""
    for pool in pools(deployment):
        running, ranks = pool.scheduler.max_running, pool.layout.attn_dp
        if running is not None and running < ranks:
            yield Reason(
                "running_per_rank", f"{pool.label}max_running={running} over {ranks} attention ranks leaves none a rank"
            )


def fraction_cap(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Graph capture needs memory outside the fraction."""
    for pool in pools(deployment):
        fraction = pool.scheduler.kv_mem_fraction
        if fraction is not None and fraction > MAX_FRACTION:
            yield Reason(
                "kv_fraction",
                f"{pool.label}kv_mem_fraction={fraction:g} leaves no room to capture graphs: use at most "
                f"{MAX_FRACTION:g}",
            )


def block_accepted(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """The engine's flag accepts the block size."""
    for pool in pools(deployment):
        reason = block_listed(context, pool.scheduler.block_size)
        if reason:
            yield Reason(reason.code, pool.label + reason.message)


def attention_dp_chunking(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """TensorRT-LLM 0.x hangs with chunked prefill under attention DP once a prompt exceeds the budget."""
    for pool in pools(deployment):
        if pool.layout.attn_dp > 1 and pool.scheduler.chunk_size:
            yield Reason(
                "attn_dp_chunk",
                f"{pool.label}attention DP with chunked prefill hangs on TensorRT-LLM {context.engine_version}: raise "
                f"token_budget to the longest prompt, or use {TRT_DP_CHUNK_FIXED} or later",
            )


def speculation_available(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Method and depth that the engine, the model and its drafter have."""
    speculation = deployment.speculation
    if not speculation.active:
        return
    reason = spec_listed(context, speculation.method)
    if reason:
        yield reason
        return
    reason = depth_allowed(context, speculation.depth)
    if reason:
        yield reason
    predicted = context.card.mtp_layers
    multiple = speculation.method == "mtp" and context.engine.name == VLLM and predicted > 1
    if multiple and speculation.depth % predicted:
        yield Reason(
            "spec_depth_multiple",
            f"spec_depth={speculation.depth}: vLLM drafts a multiple of the {predicted} MTP layers of "
            f"{context.card.name}",
        )


def host_memory(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """The host pools of the replicas that share a node fit its memory."""
    reason = host_fits(context, deployment.host_kv_gb)
    if reason or not deployment.host_kv_gb:
        yield from (reason,) if reason else ()
        return
    limit = host_node_gb(context)
    asked = deployment.host_kv_gb * deployment.gpus / context.cluster.nodes
    one = max(deployment.host_kv_gb * pool.layout.gpus / pool.layout.nodes for pool in pools(deployment))
    if max(asked, one) > limit:
        yield Reason(
            "host_dram",
            f"host_kv_gb={deployment.host_kv_gb:g} a GPU asks a node for {max(asked, one):,.0f} GB, over "
            f"{HOST_DRAM_SHARE:.0%} of its {context.platform.host_dram_bytes / GB:,.0f} GB: use at most "
            f"{deployment.host_kv_gb * limit / max(asked, one):,.0f}",
        )


def host_needs_cache(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """A host tier holds evicted prefix blocks, so it needs the prefix cache."""
    if deployment.host_kv_gb and not deployment.scheduler.prefix_cache:
        yield Reason("host_prefix_cache", f"host_kv_gb={deployment.host_kv_gb:g} needs prefix_cache on")


def handoff_exists(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """The engine has the hand-off backend on this vendor."""
    if deployment.prefill is not None:
        reason = handoff_available(context, deployment.prefill.handoff)
        if reason:
            yield reason


def same_blocks(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Both pools cut the KV cache into the same blocks."""
    prefill = deployment.prefill
    if prefill is None:
        return
    if prefill.scheduler.block_size != deployment.scheduler.block_size:
        yield Reason(
            "handoff_blocks",
            f"prefill block_size={prefill.scheduler.block_size} and decode "
            f"block_size={deployment.scheduler.block_size}: a hand-off needs equal blocks",
        )
    ours, theirs = (pool.attn_tp for pool in pools(deployment))
    if context.engine.name == VLLM and is_hybrid(context) and ours != theirs:
        yield Reason(
            "handoff_hybrid",
            f"attention over {theirs} GPUs in prefill and {ours} in decode: on vLLM the block of a hybrid model grows "
            "with its state a rank, so the pools' blocks differ; use equal attention widths",
        )


def attention_widths(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Head-sharded KV moves between pools only where the widths divide; SGLang also needs full attention."""
    if deployment.prefill is None or context.card.attention.kind != "gqa":
        return
    ours, theirs = (pool.attn_tp for pool in pools(deployment))
    if max(ours, theirs) % min(ours, theirs):
        yield Reason(
            "handoff_widths",
            f"attention over {theirs} GPUs in prefill and {ours} in decode: KV heads do not map evenly; use widths "
            "that divide",
        )
    windowed = any(group.attention.window for group in context.card.groups)
    if context.engine.name == SGLANG and ours != theirs and (windowed or is_hybrid(context)):
        yield Reason(
            "handoff_swa",
            f"attention over {theirs} GPUs in prefill and {ours} in decode: SGLang cannot move the window or state "
            f"cache of {context.card.name} between different widths; use equal ones",
        )


RULES = (
    Rule(
        name="context_length",
        summary="prompt and answer fit the context",
        source="model cards",
        check=prompt_fits_context,
    ),
    Rule(
        name="prompt_over_budget",
        summary="without chunking a prompt fits the token budget",
        source="NVIDIA/TensorRT-LLM#9277, #6539, #4947",
        check=budget_covers_prompt,
        engines=(TRTLLM,),
    ),
    Rule(
        name="budget_under_batch",
        summary="the token budget covers the running cap",
        source="vLLM scheduler config",
        check=budget_covers_batch,
        engines=(VLLM,),
    ),
    Rule(
        name="chunk_pages",
        summary="a chunk is whole blocks on every rank",
        source="sgl-project/sglang#20018",
        check=chunk_pages,
    ),
    Rule(
        name="running_per_rank",
        summary="the running cap leaves a slot a rank",
        source="SGLang server arguments",
        check=attention_dp_caps,
        engines=(SGLANG,),
    ),
    Rule(
        name="kv_fraction",
        summary="the memory fraction leaves room for graph capture",
        source="vllm-project/vllm#57475",
        check=fraction_cap,
    ),
    Rule(
        name="block_size",
        summary="the engine accepts the block size",
        source="engine arguments",
        check=block_accepted,
    ),
    Rule(
        name="attn_dp_chunk",
        summary="no chunked prefill under attention DP",
        source="NVIDIA/TensorRT-LLM#5267",
        check=attention_dp_chunking,
        engines=(TRTLLM,),
        before=TRT_DP_CHUNK_FIXED,
    ),
    Rule(
        name="speculation",
        summary="method, drafter and depth exist",
        source="engine arguments, model cards",
        check=speculation_available,
    ),
    Rule(
        name="host_dram",
        summary="host KV of all GPUs of a node fits its memory",
        source="sgl-project/sglang#5372, SemiAnalysisAI/InferenceX#2777",
        check=host_memory,
    ),
    Rule(
        name="host_prefix_cache",
        summary="a host tier needs the prefix cache",
        source="engine arguments",
        check=host_needs_cache,
        engines=(VLLM, SGLANG, ATOM, TRTLLM),
    ),
    Rule(
        name="handoff",
        summary="the engine has the hand-off on this vendor",
        source="engine connectors",
        check=handoff_exists,
    ),
    Rule(
        name="handoff_blocks",
        summary="both pools have the same KV blocks",
        source="vllm-project/vllm#42895",
        check=same_blocks,
    ),
    Rule(
        name="handoff_widths",
        summary="attention widths of the pools are compatible",
        source="sgl-project/sglang#31295, llm-d/llm-d#2433, vllm-project/vllm#43523",
        check=attention_widths,
    ),
)
