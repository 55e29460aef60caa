"""What an operator should know about a deployment that is legal: effective values and known surprises.

A notice refuses nothing. Each answers one thing that engines do silently.
"""

from collections.abc import Iterator

from levers.catalog.common import ATOM, SGLANG, TRTLLM, VLLM, attention_class
from levers.context import SearchContext
from levers.legality.kernels import AITER_MLA_HEADS, AITER_MLA_PADS
from levers.legality.rule import Rule, pools
from levers.reasons import Reason
from predictor.types import Deployment, Workload

AITER_TILE_HEADS = 16  # local heads are repeated or padded up to a multiple of this


def divided_by_attention_dp(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """SGLang divides the chunk and the running cap by the attention ranks."""
    for pool in pools(deployment):
        ranks = pool.layout.attn_dp
        for name, value in (("chunk_size", pool.scheduler.chunk_size), ("max_running", pool.scheduler.max_running)):
            if ranks > 1 and value is not None and value > 0:
                yield Reason(
                    "per_rank",
                    f"{pool.label}{name}={value} is the flag's value over {ranks} attention ranks: {value // ranks} "
                    "on each",
                )


def speculation_cap(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """SGLang lowers its running cap when drafting and none is given."""
    cap = context.engine.spec_max_running
    if cap and deployment.speculation.active and deployment.scheduler.max_running is None:
        yield Reason(
            "spec_max_running",
            f"speculation sets max_running to {cap} where it is unset, and {workload.concurrency} clients are asked "
            "for: set max_running",
        )


def speculation_gain(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Drafting is priced at the batch and may cost throughput."""
    if deployment.speculation.active:
        yield Reason(
            "spec_gain",
            f"drafting {deployment.speculation.depth} tokens multiplies the verified tokens of a step by "
            f"{1 + deployment.speculation.depth}: at {workload.concurrency} clients the gain is priced, not assumed",
        )


def padded_heads(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """AITER MLA repeats fewer than 16 local heads up to 16, at the price of 16."""
    uses_aiter = deployment.kernels.attention in ("auto", "aiter") and context.platform.vendor == "amd"
    if not uses_aiter or attention_class(context.card.attention) not in ("mla", "sparse_mla"):
        return
    if not context.at_least(AITER_MLA_PADS[context.engine.name]):
        return
    for pool in pools(deployment):
        heads = context.card.attention.heads // pool.attn_tp
        if heads % AITER_TILE_HEADS and heads not in AITER_MLA_HEADS:
            padded = -(-heads // AITER_TILE_HEADS) * AITER_TILE_HEADS
            yield Reason(
                "padded_heads",
                f"{pool.label}{heads} local heads run as {padded} in AITER MLA, and cost as much: fewer GPUs for "
                "attention or attention DP wastes less",
            )


def unequal_pools(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Pools with different attention widths re-slice KV heads on the way."""
    if deployment.prefill is None or context.card.attention.kind != "gqa":
        return
    ours, theirs = (pool.attn_tp for pool in pools(deployment))
    if ours != theirs:
        yield Reason(
            "unequal_pools",
            f"attention over {theirs} GPUs in prefill and {ours} in decode moves KV by head slices, which was slow or "
            "unstable under load in several releases: try equal widths first",
        )


def trtllm_chunked_dp(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Chunking under attention DP hung in an early release."""
    for pool in pools(deployment):
        if pool.layout.attn_dp > 1 and pool.scheduler.chunk_size:
            yield Reason(
                "attn_dp_chunk", f"{pool.label}attention DP with chunked prefill hung in 0.21: test it under load"
            )


def host_without_reuse(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """A host tier serves prefixes that come again."""
    if deployment.host_kv_gb:
        share = workload.prefix_hit_frac
        told = (
            f"{share:.0%} of the prompt is expected to hit" if share else "its prompts share no prefix, so nothing hits"
        )
        yield Reason("host_reuse", f"host_kv_gb={deployment.host_kv_gb:g} helps only prompts that come again; {told}")


def trtllm_padding(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Without padding an unlisted batch size runs eager."""
    if deployment.kernels.graph_mode != "none" and deployment.scheduler.graph_max_bs is None:
        yield Reason(
            "graph_padding", "graph_max_bs at its default leaves graph padding off: batches of unlisted sizes run eager"
        )


RULES = (
    Rule(
        name="per_rank",
        summary="the chunk and running cap each attention rank gets",
        source="sgl-project/sglang#20018",
        check=divided_by_attention_dp,
        engines=(SGLANG,),
    ),
    Rule(
        name="spec_max_running",
        summary="speculation lowers an unset running cap",
        source="sgl-project/sglang#33199",
        check=speculation_cap,
        engines=(SGLANG,),
    ),
    Rule(
        name="spec_gain",
        summary="drafting is priced by batch",
        source="sgl-project/sglang#4759",
        check=speculation_gain,
    ),
    Rule(
        name="padded_heads",
        summary="few local heads are padded to 16",
        source="vllm-project/vllm#35850, sgl-project/sglang#21213, ROCm/ATOM#283",
        check=padded_heads,
        engines=(VLLM, SGLANG, ATOM),
    ),
    Rule(
        name="unequal_pools",
        summary="pools of different attention widths re-slice KV",
        source="sgl-project/sglang#31295, #15674",
        check=unequal_pools,
    ),
    Rule(
        name="attn_dp_chunk",
        summary="chunking under attention DP",
        source="NVIDIA/TensorRT-LLM#5267",
        check=trtllm_chunked_dp,
        engines=(TRTLLM,),
    ),
    Rule(
        name="host_reuse",
        summary="a host tier needs prompts that come again",
        source="sgl-project/sglang#7059, #33984",
        check=host_without_reuse,
    ),
    Rule(
        name="graph_padding",
        summary="unlisted batch sizes run eager",
        source="TensorRT-LLM llm_args",
        check=trtllm_padding,
        engines=(TRTLLM,),
    ),
)
