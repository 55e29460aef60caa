"""Widths of a replica, and whether all replicas find room in the cluster."""

from collections.abc import Iterator

from levers.catalog.common import ATOM, SGLANG, TRTLLM, VLLM, divisors, is_sparse
from levers.context import SearchContext
from levers.legality.rule import Pool, Rule, pools
from levers.reasons import Reason
from predictor.cards import Attention
from predictor.types import Deployment, Layout, Workload

WORLD_EP = (VLLM, ATOM)  # a switch: experts go over the whole width or nowhere
WORLD_ATTN_DP = (ATOM, TRTLLM)  # all ranks or none
GFX950 = ("MI350X", "MI355X")


def heads_divide(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Each attention rank owns whole query heads."""
    for pool in pools(deployment):
        width = pool.attn_tp
        for attention in attentions(context):
            for what, heads in (("query heads", attention.heads), ("value heads", attention.value_heads)):
                if heads and heads % width:
                    legal = ", ".join(str(value) for value in divisors(heads) if value <= context.cluster.gpus_per_node)
                    yield Reason(
                        "tp_heads",
                        f"{pool.label}attention over {width} GPUs does not divide the {heads} {what} of "
                        f"{context.card.name}: use {legal}",
                    )


def kv_heads_divide(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """KV heads are split evenly or replicated evenly."""
    for pool in pools(deployment):
        width = pool.attn_tp
        for attention in attentions(context):
            heads = attention.kv_heads
            if attention.kind == "gqa" and heads and heads % width and width % heads:
                yield Reason(
                    "tp_kv_heads",
                    f"{pool.label}attention over {width} GPUs neither divides nor is a multiple of the {heads} KV "
                    f"heads of {context.card.name}",
                )


def attentions(context: SearchContext) -> tuple[Attention, ...]:
    """The attention kinds of the model, each once."""
    return tuple(dict.fromkeys(group.attention for group in context.card.groups))


def tp_in_node(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Tensor parallelism stays inside a node; pipelines and replicas cross it."""
    limit = context.cluster.gpus_per_node
    for pool in pools(deployment):
        if pool.layout.tp > limit:
            yield Reason(
                "tp_exceeds_node", f"{pool.label}tp={pool.layout.tp}: a node has {limit} GPUs; use pp across nodes"
            )


def attn_dp_divides(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Attention ranks share the width evenly."""
    for pool in pools(deployment):
        if pool.layout.tp % pool.layout.attn_dp:
            legal = ", ".join(map(str, divisors(pool.layout.tp)))
            yield Reason(
                "attn_dp_divides",
                f"{pool.label}attn_dp={pool.layout.attn_dp} does not divide tp={pool.layout.tp}: use {legal}",
            )


def attn_dp_all_or_nothing(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """ATOM and TensorRT-LLM put every rank into attention DP, or none."""
    for pool in pools(deployment):
        layout = pool.layout
        if layout.attn_dp not in (1, layout.tp):
            yield Reason(
                "attn_dp_world",
                f"{pool.label}attn_dp={layout.attn_dp}: {context.engine.name} uses all ranks or none; use 1 or "
                f"{layout.tp}",
            )


def attn_dp_dense(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """vLLM's DP ranks of a dense model are independent engines, that is replicas."""
    for pool in pools(deployment):
        ranks = pool.layout.attn_dp
        if ranks > 1 and not context.card.is_moe:
            yield Reason(
                "attn_dp_dense",
                f"{pool.label}attn_dp={ranks}: DP ranks of a dense model are independent engines; set "
                f"replicas={ranks} and tp={pool.attn_tp}",
            )


def attn_dp_no_pp(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """ATOM's pipelines exclude data parallelism."""
    for pool in pools(deployment):
        if pool.layout.pp > 1 and pool.layout.attn_dp > 1:
            yield Reason(
                "attn_dp_pp", f"{pool.label}ATOM pipelines run without data parallelism: use attn_dp=1 or pp=1"
            )


def ep_moe(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Only experts can be spread."""
    if context.card.is_moe:
        return
    for pool in pools(deployment):
        if pool.layout.ep > 1:
            yield Reason("not_moe", f"{pool.label}ep={pool.layout.ep}: {context.card.name} is not a MoE model")


def ep_width(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Expert parallelism divides the width; on vLLM and ATOM it is the whole width."""
    for pool in pools(deployment):
        ep, tp = pool.layout.ep, pool.layout.tp
        if tp % ep:
            legal = ", ".join(map(str, divisors(tp)))
            yield Reason("ep_divides", f"{pool.label}ep={ep} does not divide tp={tp}: use {legal}")
        elif context.engine.name in WORLD_EP and ep not in (1, tp):
            yield Reason(
                "ep_world",
                f"{pool.label}ep={ep}: on {context.engine.name} EP is a switch over all {tp} ranks; use 1 or {tp}",
            )


def ep_divides_experts(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Every rank holds as many experts, redundant copies included."""
    moe = context.card.moe
    if moe is None:
        return
    slots = moe.experts + deployment.eplb_redundant
    for pool in pools(deployment):
        ep = pool.layout.ep
        if ep > 1 and slots % ep:
            more = -slots % ep
            yield Reason(
                "ep_experts",
                f"{pool.label}ep={ep} does not divide {moe.experts} experts and {deployment.eplb_redundant} redundant "
                f"ones: add {more} redundant experts or choose another ep",
            )


def eplb_needs_ep(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Redundant experts live on the ranks of expert parallelism."""
    if deployment.eplb_redundant and all(pool.layout.ep == 1 for pool in pools(deployment)):
        yield Reason("eplb_ep", f"eplb_redundant={deployment.eplb_redundant} needs ep>1")


def pp_layers(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """A stage holds at least one layer."""
    for pool in pools(deployment):
        if pool.layout.pp > context.card.layers:
            yield Reason(
                "pp_layers",
                f"{pool.label}pp={pool.layout.pp} exceeds the {context.card.layers} layers of {context.card.name}",
            )


def dcp_width(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """The decode context is sharded over GPUs that otherwise hold copies of the same KV."""
    attention = context.card.attention
    for pool in pools(deployment):
        dcp, width = pool.layout.dcp, pool.attn_tp
        if dcp == 1:
            continue
        if width % dcp:
            yield Reason("dcp_divides", f"{pool.label}dcp={dcp} does not divide the {width} GPUs that share attention")
        elif attention.kind == "gqa" and dcp > max(1, width // attention.kv_heads):
            copies = max(1, width // attention.kv_heads)
            yield Reason(
                "dcp_copies",
                f"{pool.label}dcp={dcp}: {attention.kv_heads} KV heads over {width} GPUs leave {copies} "
                f"{'copy' if copies == 1 else 'copies'} of each; dcp may be at most {copies}",
            )


def dcp_sparse_rocm(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """ROCm's sparse MLA kernels return no log-sum-exp, so shards cannot be merged."""
    if deployment.layout.dcp > 1 and context.platform.vendor == "amd" and is_sparse(context.card.attention):
        yield Reason(
            "dcp_sparse_rocm", f"dcp={deployment.layout.dcp}: sparse MLA on ROCm cannot merge context shards; use dcp=1"
        )


def dcp_speculation(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """ATOM combines decode context parallelism with drafting on gfx950 only."""
    if deployment.layout.dcp > 1 and deployment.speculation.active and deployment.gpu not in GFX950:
        yield Reason(
            "dcp_speculation",
            f"dcp with speculation needs gfx950 (MI350X, MI355X) on ATOM; {deployment.gpu} is not one",
        )


def dcp_pp(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """SGLang's pipelines exclude context parallelism."""
    for pool in pools(deployment):
        if pool.layout.pp > 1 and pool.layout.dcp > 1:
            yield Reason("dcp_pp", f"{pool.label}SGLang pipelines run without context parallelism: use dcp=1 or pp=1")


def atom_tp(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """ATOM runs TP 1 to 8."""
    for pool in pools(deployment):
        if pool.layout.tp > 8:
            yield Reason("tp_atom", f"{pool.label}tp={pool.layout.tp}: ATOM supports tp 1 to 8; add replicas or pp")


def cluster_room(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Every replica of both pools finds GPUs, tensor-parallel groups inside one node."""
    cluster = context.cluster
    if deployment.gpus > cluster.gpus:
        needs = " and ".join(f"{pool.replicas}×{pool.layout.gpus}" for pool in pools(deployment))
        yield Reason(
            "cluster_size",
            f"{needs} GPUs are {deployment.gpus}, and the cluster has {cluster.gpus}: use fewer replicas or stages",
        )
    elif not placeable(pools(deployment), cluster.gpus_per_node, cluster.nodes):
        yield Reason(
            "cluster_room",
            f"the replicas use {deployment.gpus} of {cluster.gpus} GPUs, but their tensor-parallel groups do not pack "
            f"into {cluster.nodes} nodes of {cluster.gpus_per_node}",
        )


def placeable(wanted: tuple[Pool, ...], gpus_per_node: int, nodes: int) -> bool:
    """First fit, widest first, of tensor-parallel groups into nodes: exact when widths divide one another."""
    free = [gpus_per_node] * nodes
    groups = [pool.layout.tp for pool in wanted for _ in range(pool.replicas * pool.layout.pp)]
    for width in sorted(groups, reverse=True):
        node = next((index for index, room in enumerate(free) if room >= width), None)
        if node is None:
            return False
        free[node] -= width
    return True


def positive_widths(layout: Layout) -> bool:
    """Whether every width is at least one."""
    return min(layout.tp, layout.ep, layout.pp, layout.attn_dp, layout.dcp) >= 1


RULES = (
    Rule(
        name="tp_heads",
        summary="query and value heads divide by the attention width",
        source="engine argument checks",
        check=heads_divide,
    ),
    Rule(
        name="tp_kv_heads",
        summary="KV heads divide by the attention width or are replicated evenly",
        source="engine argument checks",
        check=kv_heads_divide,
    ),
    Rule(
        name="tp_exceeds_node",
        summary="tensor parallelism stays inside a node",
        source="custom all-reduce and engine launchers",
        check=tp_in_node,
    ),
    Rule(
        name="tp_atom",
        summary="ATOM runs TP 1 to 8",
        source="ROCm/ATOM ffdf3bb5 arguments",
        check=atom_tp,
        engines=(ATOM,),
    ),
    Rule(
        name="attn_dp_divides",
        summary="attention DP divides TP",
        source="engine argument checks",
        check=attn_dp_divides,
    ),
    Rule(
        name="attn_dp_world",
        summary="attention DP is all ranks or none",
        source="ATOM and TensorRT-LLM arguments",
        check=attn_dp_all_or_nothing,
        engines=WORLD_ATTN_DP,
    ),
    Rule(
        name="attn_dp_dense",
        summary="attention DP of a dense model is replicas",
        source="vLLM engine core",
        check=attn_dp_dense,
        engines=(VLLM,),
    ),
    Rule(
        name="attn_dp_pp",
        summary="no pipelines under attention DP",
        source="ROCm/ATOM ffdf3bb5 arguments",
        check=attn_dp_no_pp,
        engines=(ATOM,),
    ),
    Rule(
        name="not_moe",
        summary="expert parallelism needs experts",
        source="engine argument checks",
        check=ep_moe,
    ),
    Rule(
        name="ep_width",
        summary="EP divides TP; on vLLM and ATOM it is all of it",
        source="engine argument checks",
        check=ep_width,
    ),
    Rule(
        name="ep_experts",
        summary="experts and redundant ones divide by EP",
        source="engine expert maps",
        check=ep_divides_experts,
    ),
    Rule(
        name="eplb_ep",
        summary="redundant experts need EP",
        source="vLLM, SGLang, ATOM, TensorRT-LLM arguments",
        check=eplb_needs_ep,
    ),
    Rule(
        name="pp_layers",
        summary="at least one layer a stage",
        source="engine argument checks",
        check=pp_layers,
    ),
    Rule(
        name="dcp_width",
        summary="DCP divides the attention width and the copies of a KV head",
        source="vLLM parallel config",
        check=dcp_width,
    ),
    Rule(
        name="dcp_sparse_rocm",
        summary="no DCP on ROCm sparse MLA",
        source="vllm-project/vllm#54761",
        check=dcp_sparse_rocm,
        engines=(VLLM,),
    ),
    Rule(
        name="dcp_speculation",
        summary="DCP with drafting on gfx950 only",
        source="ROCm/ATOM ffdf3bb5",
        check=dcp_speculation,
        engines=(ATOM,),
    ),
    Rule(
        name="dcp_pp",
        summary="no DCP in pipelines",
        source="SGLang server arguments",
        check=dcp_pp,
        engines=(SGLANG,),
    ),
    Rule(
        name="cluster_room",
        summary="all replicas of both pools fit the cluster",
        source="arithmetic",
        check=cluster_room,
    ),
)
