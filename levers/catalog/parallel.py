"""Levers 1–11: widths of one replica, replicas, and the prefill pool of a disaggregated deployment."""

from levers.catalog.common import (
    ATOM,
    SGLANG,
    TRTLLM,
    VLLM,
    always,
    constant,
    divisors,
    flags,
    only_when,
    powers_of_two,
    title,
)
from levers.context import LeverValue, SearchContext
from levers.lever import Candidates, EngineFlag, Exclusion, Group, Kind, Lever, Range
from levers.reasons import Reason

ATOM_MAX_TP = 8  # ATOM: "TP 1-8 only"
MIN_SCALE_UP = 8  # widths above this are offered only where one node, or NVLink domain, holds more GPUs


def tp_candidates(context: SearchContext) -> tuple[LeverValue, ...]:
    """Powers of two to eight, and on to the size of the node."""
    return powers_of_two(1, max(MIN_SCALE_UP, context.cluster.gpus_per_node))


def ep_candidates(context: SearchContext) -> tuple[LeverValue, ...]:
    """Powers of two that a replica may spread its experts over; 1 keeps every expert on every rank."""
    return tp_candidates(context)


def pp_candidates(context: SearchContext) -> tuple[LeverValue, ...]:
    """Stage counts that the cluster can hold."""
    return powers_of_two(1, max(MIN_SCALE_UP, context.cluster.gpus))


def replica_candidates(context: SearchContext) -> tuple[LeverValue, ...]:
    """Divisors of the cluster size: as many as narrow replicas fit."""
    return divisors(context.cluster.gpus)


def divides_heads(context: SearchContext, value: LeverValue) -> Reason | None:
    """Some attention width must be able to split the heads: with attention DP it may be narrower than tp."""
    assert isinstance(value, int)
    limit = context.cluster.gpus_per_node
    if value > limit:
        return Reason(
            "tp_exceeds_node", f"tp={value}: a node of this cluster has {limit} GPUs; use tp ≤ {limit} with pp"
        )
    heads = context.card.attention.heads
    if heads and heads % value and not _could_use_attention_dp(context, value, heads):
        legal = ", ".join(str(width) for width in divisors(heads) if width <= limit)
        return Reason(
            "tp_heads", f"tp={value} does not divide the {heads} query heads of {context.card.name}: use {legal}"
        )
    return None


def _could_use_attention_dp(context: SearchContext, tp: int, heads: int) -> bool:
    """Whether whole-head ranks would make the width legal: then the joint check decides."""
    return any(heads % (tp // ranks) == 0 for ranks in divisors(tp)[1:])


def atom_width(context: SearchContext, value: LeverValue) -> Reason | None:
    """ATOM runs TP 1–8 only."""
    assert isinstance(value, int)
    if context.engine.name == ATOM and value > ATOM_MAX_TP:
        return Reason("tp_atom", f"tp={value}: {title(context)} supports tp 1 to {ATOM_MAX_TP}; add replicas or pp")
    return None


def ep_divides_experts(context: SearchContext, value: LeverValue) -> Reason | None:
    """Experts, with the redundant ones, are spread evenly; redundancy can repair a remainder."""
    assert isinstance(value, int)
    moe = context.card.moe
    if value == 1 or moe is None:
        return None
    if value > context.cluster.gpus:
        return Reason("ep_cluster", f"ep={value} needs more GPUs than the {context.cluster.gpus} of this cluster")
    if value > moe.experts:
        return Reason("ep_experts", f"ep={value} exceeds the {moe.experts} experts of {context.card.name}")
    return None


def pp_fits(context: SearchContext, value: LeverValue) -> Reason | None:
    """A stage holds at least one layer and one GPU."""
    assert isinstance(value, int)
    if value > context.card.layers:
        return Reason("pp_layers", f"pp={value} exceeds the {context.card.layers} layers of {context.card.name}")
    if value > context.cluster.gpus:
        return Reason("pp_cluster", f"pp={value} needs more GPUs than the {context.cluster.gpus} of this cluster")
    return None


def attn_dp_fits(context: SearchContext, value: LeverValue) -> Reason | None:
    """On vLLM, attention DP of a dense model is plain replicas."""
    if value != 1 and context.engine.name == VLLM and not context.card.is_moe:
        return Reason(
            "attn_dp_dense",
            f"attn_dp={value}: on {title(context)} the DP ranks of a dense model are independent engines; set "
            f"replicas={value} instead",
        )
    return None


def replicas_fit(context: SearchContext, value: LeverValue) -> Reason | None:
    """One GPU a replica at least."""
    assert isinstance(value, int)
    if value > context.cluster.gpus:
        return Reason(
            "cluster_size", f"{value} replicas need more GPUs than the {context.cluster.gpus} of this cluster"
        )
    return None


def handoff_available(context: SearchContext, value: LeverValue) -> Reason | None:
    """Each engine has its own hand-off backends; MoRI is AMD's."""
    if value == "off":
        return None
    if value not in context.engine.handoffs:
        have = ", ".join(context.engine.handoffs) or "none"
        return Reason("handoff_engine", f"disagg={value}: {title(context)} has no such connector; it has {have}")
    if value == "mori" and context.platform.vendor != "amd":
        return Reason("handoff_vendor", f"disagg=mori needs AMD GPUs; use nixl or mooncake on {context.platform.name}")
    if context.cluster.gpus < 2:
        return Reason("cluster_size", f"disagg={value} needs a GPU for each pool; the cluster has one")
    return None


needs_moe: Exclusion = only_when(
    "not_moe", lambda context: context.card.is_moe, 1, "ep={value}: {model} is not a MoE model"
)

SGLANG_ATTN_DP = EngineFlag(
    SGLANG, "--attn-dp-size", "1", "chunk and running cap are divided by it: multiply them", since="0.5.23"
)
TP_FLAGS = flags("-tp (1)", "--tp-size (1)", "-tp (1)", "tensor_parallel_size (1)")
EP_FLAGS = flags(
    "--enable-expert-parallel (off)",
    "--ep-size (1)",
    "--enable-expert-parallel (off)",
    "moe_expert_parallel_size (1)",
    {VLLM: "a switch: ep is then the whole width", ATOM: "a switch: ep is then every rank"},
)
ATTN_DP_FLAGS = (
    *flags(
        "-dp (1)",
        "--dp-size N --enable-dp-attention (1)",
        "--enable-dp-attention (off)",
        "enable_attention_dp (false)",
        {VLLM: "with -tp divided by it", SGLANG: "chunk and running cap are divided by it: multiply them"},
    ),
    SGLANG_ATTN_DP,
)


def _pool(number: int, name: str, what: str, field: str, candidates: Candidates, source: Lever) -> Lever:
    """A prefill-pool lever: the same values and rules as its decode-pool twin."""
    owner = "prefill" if field == "replicas" else "prefill_layout"
    return Lever(
        number=number,
        name=name,
        group=Group.DISAGGREGATION,
        kind=Kind.TRANSFERABLE,
        what=what,
        owner=owner,
        field=field,
        candidates=candidates,
        default=always(1),
        flags=source.flags,
        exclusions=source.exclusions,
        accepts=source.accepts,
        governor=("disagg", "off"),
    )


TP = Lever(
    number=1,
    name="tp",
    group=Group.PARALLEL,
    kind=Kind.TRANSFERABLE,
    what="GPUs that share each layer",
    owner="layout",
    field="tp",
    candidates=tp_candidates,
    default=always(1),
    flags=TP_FLAGS,
    exclusions=(divides_heads, atom_width),
)
EP = Lever(
    number=2,
    name="ep",
    group=Group.PARALLEL,
    kind=Kind.TRANSFERABLE,
    what="GPUs over which whole experts are spread",
    owner="layout",
    field="ep",
    candidates=ep_candidates,
    default=always(1),
    flags=EP_FLAGS,
    exclusions=(needs_moe, ep_divides_experts),
)
ATTN_DP = Lever(
    number=3,
    name="attn_dp",
    group=Group.PARALLEL,
    kind=Kind.TRANSFERABLE,
    what="ranks that each own whole requests in attention",
    owner="layout",
    field="attn_dp",
    candidates=tp_candidates,
    default=always(1),
    flags=ATTN_DP_FLAGS,
    exclusions=(attn_dp_fits,),
)
PP = Lever(
    number=4,
    name="pp",
    group=Group.PARALLEL,
    kind=Kind.TRANSFERABLE,
    what="pipeline stages, each with its own layers",
    owner="layout",
    field="pp",
    candidates=pp_candidates,
    default=always(1),
    flags=flags("-pp (1)", "--pp-size (1)", "--pipeline-parallel-size (1)", "pipeline_parallel_size (1)"),
    exclusions=(pp_fits,),
)
DCP = Lever(
    number=5,
    name="dcp",
    group=Group.PARALLEL,
    kind=Kind.TRANSFERABLE,
    what="ranks that shard the decode context (ranked only under a covering anchor)",
    owner="layout",
    field="dcp",
    candidates=constant(1, 2, 4, 8),
    default=always(1),
    flags=flags(
        "--decode-context-parallel-size (1)",
        "--dcp-size (1)",
        "--decode-context-parallel-size (1)",
        "context_parallel_size (1)",
        {TRTLLM: "with cp_config of type HELIX"},
    ),
)
REPLICAS = Lever(
    number=6,
    name="replicas",
    group=Group.PARALLEL,
    kind=Kind.TRANSFERABLE,
    what="copies behind a router",
    owner="",
    field="replicas",
    candidates=replica_candidates,
    default=always(1),
    flags=flags(
        "router (1)",
        "router (1)",
        "router (1)",
        "router (1)",
        {engine: "one server a replica behind a router" for engine in (VLLM, SGLANG, ATOM, TRTLLM)},
    ),
    exclusions=(replicas_fit,),
    accepts=Range(1, 4096),
)
DISAGG = Lever(
    number=7,
    name="disagg",
    group=Group.DISAGGREGATION,
    kind=Kind.TRANSFERABLE,
    what="prefill and decode in separate pools, and the KV hand-off between them",
    owner="prefill",
    field="handoff",
    candidates=constant("off", "nixl", "mooncake", "mori"),
    default=always("off"),
    flags=flags(
        "--kv-transfer-config (off)",
        "--disaggregation-mode --disaggregation-transfer-backend (off)",
        "--kv-transfer-config (off)",
        "cache_transceiver_config.backend (off)",
    ),
    exclusions=(handoff_available,),
)

LEVERS = (
    TP,
    EP,
    ATTN_DP,
    PP,
    DCP,
    REPLICAS,
    DISAGG,
    _pool(8, "prefill_tp", "GPUs that share each layer in the prefill pool", "tp", tp_candidates, TP),
    _pool(9, "prefill_ep", "GPUs over which the prefill pool spreads its experts", "ep", ep_candidates, EP),
    _pool(10, "prefill_attn_dp", "attention ranks of a prefill replica", "attn_dp", tp_candidates, ATTN_DP),
    _pool(11, "prefill_replicas", "copies in the prefill pool", "replicas", replica_candidates, REPLICAS),
)
