"""Reduce, measure, restore (paper §3.2): which one-node run holds a target's kernels, and what brings the rest back.

A target is reduced to one replica with prefill and decode together on at most one node. Pipeline stages go first, then
EP and TP are narrowed. The run stays within one doubling of the target's width, because more is extrapolation (App. E),
and uses two GPUs rather than one where the target has more: one GPU has no all-reduce, and transfers from it are the
worst. Attention DP is kept where the layout fits a node, since its transfer is the least accurate of all laws.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from predictor.anchors.schema import Anchor
from predictor.anchors.select import Selection, select_anchor
from predictor.cards import EngineProfile, ModelCard, Platform
from predictor.engines import effective_settings
from predictor.errors import BadInput, DoesNotFit
from predictor.memory import fits, memory
from predictor.structure import check_deployment, check_layout, check_workload
from predictor.types import Coverage, Deployment, Layout, Workload

# Paper §3.1.1: five prompt lengths; from an eighth of the target's to twice it, so that the fit is inside its range.
PREFILL_FRACTIONS = (0.125, 0.25, 0.5, 1.0, 2.0)
MIN_PROMPT_TOKENS = 128
SECOND_PROMPT_FRACTION = 0.25  # a second decode sweep tells the cost of context


@dataclass(frozen=True, slots=True)
class Removed:
    """One thing the run leaves out, and the law that restores it."""

    what: str
    target: str
    run: str
    restored_by: str
    source: str


@dataclass(frozen=True, slots=True)
class Reduction:
    """What to measure for a target. ``serving`` is the anchor that already covers it, if any."""

    run: Deployment
    batches: tuple[int, ...]
    prompt_tokens: tuple[int, int]  # of the two decode sweeps
    prefill_tokens: tuple[int, ...]
    removed: tuple[Removed, ...]
    serving: Selection | None
    nearest: Selection | None
    refused: tuple[str, ...]


def reduce_target(
    deployment: Deployment,
    workload: Workload,
    card: ModelCard,
    platform: Platform,
    profile: EngineProfile,
    anchors: Sequence[Anchor] = (),
) -> Reduction:
    """The run to measure for a target, what it leaves out, and the anchors on hand.

    Raises DoesNotFit where no layout of one node holds one stage of the model.
    """
    check_workload(workload, card)
    check_deployment(deployment, card, profile)
    layout = run_layout(deployment, workload, card, platform, profile)
    # A length sweep reuses its own prefixes by design: the cache must be off (App. E).
    scheduler = replace(deployment.scheduler, prefix_cache=False)
    run = replace(deployment, layout=layout, replicas=1, prefill=None, host_kv_gb=0.0, scheduler=scheduler)
    nearest, refused = select_anchor(anchors, deployment, workload)
    longest = card.max_context_tokens - workload.osl_tokens
    prompt = min(workload.isl_tokens, longest)
    lengths = {max(MIN_PROMPT_TOKENS, min(longest, round(prompt * share))) for share in PREFILL_FRACTIONS}
    settings = effective_settings(profile, deployment.engine_version, platform, card, run)
    load = max(1, round(workload.concurrency / deployment.replicas / layout.attn_dp))
    return Reduction(
        run=run,
        batches=sweep_batches(settings.capture_sizes, min(load, settings.max_running)),
        prompt_tokens=(prompt, max(MIN_PROMPT_TOKENS, round(prompt * SECOND_PROMPT_FRACTION))),
        prefill_tokens=tuple(sorted(lengths)),
        removed=removed_parts(deployment, run),
        serving=nearest if nearest is not None and nearest.coverage is Coverage.COVERED else None,
        nearest=nearest,
        refused=refused,
    )


def sweep_batches(capture_sizes: tuple[int, ...], load: int) -> tuple[int, ...]:
    """Batches of the decode sweep: captured sizes at or next above 1, 2, 4, … up to the target's load.

    >>> sweep_batches((1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64), 40)
    (1, 2, 4, 8, 16, 32, 40)
    """
    wanted = [2**power for power in range(load.bit_length()) if 2**power <= load]
    sizes = {next((size for size in capture_sizes if size >= batch), batch) for batch in (*wanted, load)}
    return tuple(sorted(sizes))


def run_layout(
    deployment: Deployment, workload: Workload, card: ModelCard, platform: Platform, profile: EngineProfile
) -> Layout:
    """The layout of the run: one stage, on one node, as narrow as memory and one doubling allow."""
    target = deployment.layout
    node = platform.gpus_per_node
    if target.attn_dp > 1 and target.tp <= node:
        kept = replace(target, pp=1, nodes=1)
        if holds(kept, deployment, workload, card, platform, profile):
            return kept
    within_a_doubling = max(1, target.tp // 2)
    narrowest = max(within_a_doubling, 2 if target.tp > 1 else 1)
    widths = [tp for tp in (1, 2, 4, 8, 16, 32, 64) if narrowest <= tp <= node]
    for tp in widths:
        for ep in dict.fromkeys((1, tp)) if card.is_moe else (1,):
            layout = Layout(tp=tp, ep=ep, dcp=min(target.dcp, tp))
            if holds(layout, deployment, workload, card, platform, profile):
                return layout
    raise DoesNotFit(
        f"{card.name} in {deployment.precision.weight} does not fit one node of {node} {platform.name}: "
        "no one-node run holds its kernels; use a narrower weight format"
    )


def holds(
    layout: Layout,
    deployment: Deployment,
    workload: Workload,
    card: ModelCard,
    platform: Platform,
    profile: EngineProfile,
) -> bool:
    """Whether a layout is well-formed for the model and holds its weights and one request."""
    run = replace(deployment, layout=layout, replicas=1, prefill=None, host_kv_gb=0.0)
    try:
        check_layout(layout, card)
        settings = effective_settings(profile, deployment.engine_version, platform, card, run)
        held = memory(card, platform, run, settings)
    except (BadInput, DoesNotFit):
        return False
    needed = held.kv_bytes_per_token * (workload.isl_tokens + workload.osl_tokens)
    return fits(held, kv_needed_bytes=needed) and needed <= held.kv_pool_bytes


def removed_parts(target: Deployment, run: Deployment) -> tuple[Removed, ...]:
    """Everything the run leaves out, in the order of the paper's Table 1."""
    there, here = target.layout, run.layout
    parts: list[Removed] = []

    def add(what: str, before: object, after: object, law: str, source: str) -> None:
        if before != after:
            parts.append(Removed(what, str(before), str(after), law, source))

    add(
        "TP width",
        there.tp,
        here.tp,
        "fixed cost kept, weights, cache and experts divided, all-reduce of the wider group (predictor.transfer)",
        "paper Eq. 1, §3.1.2, App. B.1",
    )
    add(
        "EP width",
        there.ep,
        here.ep,
        "busiest rank at both EPs and the engine's dispatch (predictor.expert_load, predictor.expert_dispatch)",
        "paper App. B.3",
    )
    add(
        "attention DP",
        there.attn_dp,
        here.attn_dp,
        "each rank's own requests and cache, ranks in lockstep (predictor.transfer, predictor.des)",
        "paper Table 4, App. A.1",
    )
    add("decode context parallelism", there.dcp, here.dcp, "for ranking only: DCP changes kernels", "paper §5.6")
    add(
        "pipeline stages",
        there.pp,
        here.pp,
        "p hops and the host time stages expose (predictor.pipeline)",
        "paper Eq. 4, App. B.4",
    )
    add(
        "nodes of a replica",
        there.nodes,
        here.nodes,
        "hops and collectives on the network tier (predictor.comm)",
        "paper App. B.2, C.2",
    )
    add(
        "replicas",
        target.replicas,
        run.replicas,
        "a router in front of like replicas (predictor.load)",
        "paper App. A.1",
    )
    if target.prefill is not None:
        add(
            "prefill pool",
            f"{target.prefill.replicas} x {target.prefill.layout.label()} by {target.prefill.handoff}",
            "none",
            "one pool a phase and the KV hand-off (predictor.analytic_split, predictor.disagg)",
            "paper §5.10, App. D.4",
        )
    add(
        "host KV tier, GB",
        target.host_kv_gb,
        run.host_kv_gb,
        "a second level of the simulated cache, loads on the host link (predictor.offload, predictor.des.tiers)",
        "paper §3.5, App. B.6",
    )
    return tuple(parts)
