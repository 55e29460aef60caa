"""Whether a deployment fits its GPUs, and what its memory breakdown tells a person.

The cap is 90% of HBM (paper §4): what is resident and the KV of one request must stay below it. Engines size the rest
of their pool to fill what their memory fraction leaves, so the pool itself is no criterion.
"""

from levers.context import SearchContext
from levers.reasons import Reason
from predictor.engines import Pool, effective_settings
from predictor.errors import DoesNotFit
from predictor.kv_cache import KvCost
from predictor.memory import fits, max_concurrency, memory
from predictor.types import Deployment, MemoryBreakdown, Workload

HBM_CAP = 0.90  # of a GPU's memory, paper §4
GIB = 2.0**30
BYTES_FACTOR = 2.0  # a start log further from the formula than this is a different cache layout, ROCm/ATOM#1959


def memory_reasons(breakdown: MemoryBreakdown, tokens_per_request: int = 0, label: str = "") -> tuple[Reason, ...]:
    """Why a breakdown is not acceptable: over 90% of HBM, or no room for one request of this length."""
    reasons = []
    one = request_bytes(breakdown, tokens_per_request)
    if not fits(breakdown, HBM_CAP, one):
        resident = breakdown.total_bytes - breakdown.kv_pool_bytes
        reasons.append(
            Reason(
                "hbm_cap",
                f"{label}{(resident + one) / GIB:.1f} GiB a GPU ({breakdown.weights_bytes / GIB:.1f} of weights, "
                f"{one / GIB:.1f} of KV for one request) exceed {HBM_CAP:.0%} of {breakdown.hbm_bytes / GIB:.1f} GiB: "
                "use more GPUs a replica or a narrower format",
            )
        )
    if one > breakdown.kv_pool_bytes:
        reasons.append(
            Reason(
                "kv_pool",
                f"{label}the KV pool of {breakdown.kv_pool_bytes / GIB:.1f} GiB does not hold one request of "
                f"{tokens_per_request} tokens ({one / GIB:.1f} GiB): raise kv_mem_fraction or use more GPUs a replica",
            )
        )
    return tuple(reasons)


def request_bytes(breakdown: MemoryBreakdown, tokens: int) -> float:
    """KV and state of one request of this length on one GPU; 0 for no tokens."""
    cost = KvCost(
        breakdown.kv_bytes_per_token,
        breakdown.window_bytes_per_token,
        breakdown.window_tokens,
        breakdown.sequence_bytes,
        breakdown.block_tokens,
    )
    return cost.request_bytes(tokens) if tokens else 0.0


def breakdowns(deployment: Deployment, context: SearchContext) -> dict[Pool, MemoryBreakdown]:
    """Memory of the busiest GPU of each pool; :class:`predictor.errors.DoesNotFit` where no KV block is left."""
    names: tuple[Pool, ...] = ("main",) if deployment.prefill is None else ("main", "prefill")
    release = context.release.version
    found = {}
    for name in names:
        settings = effective_settings(context.engine, release, context.platform, context.card, deployment, name)
        found[name] = memory(context.card, context.platform, deployment, settings, pool=name)
    return found


def memory_fits(deployment: Deployment, workload: Workload, context: SearchContext) -> tuple[Reason, ...]:
    """Every memory reason of a structurally legal deployment; empty when it fits."""
    try:
        pools = breakdowns(deployment, context)
    except DoesNotFit as full:
        return (Reason("hbm_cap", str(full)),)
    tokens = workload.isl_tokens + workload.osl_tokens
    lengths: dict[Pool, int] = {"main": tokens, "prefill": workload.isl_tokens}
    return tuple(
        reason
        for name, breakdown in pools.items()
        for reason in memory_reasons(breakdown, lengths[name], "prefill pool: " if name == "prefill" else "")
    )


def memory_notices(
    breakdown: MemoryBreakdown, deployment: Deployment, workload: Workload, max_running: int, hybrid: bool
) -> tuple[Reason, ...]:
    """What a legal breakdown means in practice: the running cap it really allows, graphs, state, and its source."""
    notes = []
    tokens = workload.isl_tokens + workload.osl_tokens
    held = max_concurrency(breakdown, tokens, deployment.layout)
    if held < max_running * deployment.layout.attn_dp:
        notes.append(
            Reason(
                "running_clamped",
                f"the KV pool holds {held} requests of {tokens} tokens, below the running cap of "
                f"{max_running * deployment.layout.attn_dp}: the engine will run fewer; read its start line",
            )
        )
    if breakdown.state_bytes:
        slots = breakdown.sequence_slots or max_running
        notes.append(
            Reason(
                "state_pool",
                f"recurrent state of {slots} sequences takes {breakdown.state_bytes / GIB:.2f} GiB beside the KV "
                "pool; a lower max_running frees it",
            )
        )
    if breakdown.pool_source == "model":
        notes.append(
            Reason(
                "graph_estimate",
                f"graphs are estimated at {breakdown.graph_bytes / GIB:.1f} GiB; engines profile them differently "
                "between releases, so compare the start log and give it to the prediction",
            )
        )
        if hybrid:
            notes.append(
                Reason(
                    "hybrid_pool",
                    "the pool of hybrid models moved by 18-24% between vLLM releases: prefer the start log of yours",
                )
            )
    return tuple(notes)


def log_notices(logged_bytes_per_token: float, breakdown: MemoryBreakdown) -> tuple[Reason, ...]:
    """A warning where a start log's KV bytes a token are far from the formula's."""
    formula = breakdown.kv_bytes_per_token
    ratio = logged_bytes_per_token / formula
    if 1 / BYTES_FACTOR <= ratio <= BYTES_FACTOR:
        return ()
    return (
        Reason(
            "kv_bytes_log",
            f"the start log says {logged_bytes_per_token / 1e3:,.1f} kB of KV a token, {ratio:.1f} times the "
            f"{formula / 1e3:,.1f} kB of this model's layout: the engine runs another cache layout",
        ),
    )
