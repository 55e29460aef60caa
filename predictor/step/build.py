"""Which step model prices a deployment: the anchor's steps moved by the transfer laws, or kernel models alone.

This is where a deployment's choices meet their laws; each law lives in its own module:

====================================  ====================================================
TP, EP, attention DP width            :mod:`predictor.transfer`
the same with a half-width sibling    :mod:`predictor.transfer.sibling`
decode context parallelism            :mod:`predictor.context_parallel`
context length                        two sweeps of the anchor, else bytes (:func:`context_slope_ms`)
graph capture                         :mod:`predictor.step.capture`
pipeline stages                       :class:`~predictor.step.anchored.PipelineTerms`
formats and kernels that differ       ratio of simulated work (:mod:`predictor.step.build_simulated`)
====================================  ====================================================
"""

from dataclasses import dataclass, replace

from predictor.anchors.schema import Anchor, DecodeSweep
from predictor.anchors.select import kernel_differences
from predictor.cards import EngineProfile, ModelCard, Platform
from predictor.comm import variant_named
from predictor.engines import Settings
from predictor.pipeline import mean_transfer_ms, microbatch, pipeline_costs
from predictor.step.anchored import AnchoredStepModel, PipelineTerms
from predictor.step.curve import DecodeCurve, filled_by
from predictor.step.model import PrefillCurve, StepModel
from predictor.transfer.constants import default_constants
from predictor.transfer.context import KernelContext
from predictor.transfer.prefill import move_prefill
from predictor.transfer.sibling import move_decode_measured, serial_parallel_prefill
from predictor.transfer.terms import step_terms
from predictor.transfer.width import WidthLaw, expert_slowness, move_decode, refine_decode
from predictor.types import Deployment, Flag, Layout, Speculation, Workload


@dataclass(frozen=True, slots=True)
class PricedStep:
    """A step model of one replica with what a prediction reports about it.

    Under attention DP ``model`` prices a batch and a context of one rank. ``prompts_over_replica``: a prompt token is
    priced as the whole replica's, as a measured one is, and holds up every rank.
    """

    model: StepModel
    hop_ms: float  # what a pipeline's stage boundary adds to a prompt's way through it
    host_ms: float  # CPU time of a request that overlaps the GPU
    breakdown_ms: dict[str, float]
    prefill_breakdown_ms: dict[str, float]
    flags: tuple[Flag, ...]
    prompts_over_replica: bool = False
    pipeline: PipelineTerms | None = None
    host_us_per_prompt_token: float = 0.0  # of ``host_ms``, what grows with the prompt


def rank_batch(workload: Workload, deployment: Deployment) -> int:
    """Requests one attention-DP rank decodes when every client is running."""
    return max(1, round(workload.concurrency / deployment.replicas / deployment.layout.attn_dp / deployment.layout.pp))


def pipeline_terms(
    profile: EngineProfile, platform: Platform, card: ModelCard, layout: Layout, batch: int, running: float
) -> PipelineTerms | None:
    """Eq. 4's constants for this engine and placement; None for one stage."""
    if layout.pp == 1:
        return None
    p2p_ms = mean_transfer_ms(card, platform, layout, batch)
    return PipelineTerms(layout.pp, pipeline_costs(profile), p2p_ms, microbatch(running, layout.pp)[1])


def context_slope_ms(anchor: Anchor, sweep: DecodeSweep, batch: int) -> float | None:
    """Cost of one more token of total context from two sweeps at the nearest shared batch, or None with one sweep."""
    others = [other for other in anchor.decode if other.prompt_tokens != sweep.prompt_tokens]
    if not others:
        return None
    other = others[0]
    shared = {point.batch: point.step_ms for point in sweep.points}
    pairs = [(point.batch, point.step_ms) for point in other.points if point.batch in shared]
    if not pairs:
        return None
    size, step = max(pairs, key=lambda pair: (-abs(pair[0] - batch), pair[0]))
    slope = (step - shared[size]) / (size * (other.context_tokens - sweep.context_tokens))
    return max(0.0, slope)


def anchored_step(
    anchor: Anchor,
    deployment: Deployment,
    workload: Workload,
    card: ModelCard,
    platform: Platform,
    profile: EngineProfile,
    settings: Settings,
    sibling: Anchor | None = None,
    law: WidthLaw = "combined",
) -> PricedStep:
    """Move an anchor to a deployment's layout, context, kernels and stages.

    A ``sibling`` harvested at half the anchor's width says how the width law errs over a doubling, for wider targets.
    """
    layout = replace(deployment.layout, pp=1, nodes=1)
    sweep = anchor.sweep_for(workload.isl_tokens, workload.osl_tokens)
    source = kernel_context(anchor, sweep, card, platform, profile)
    target = replace(
        source,
        layout=layout,
        allreduce=variant_named(deployment.kernels.allreduce),
        redundant=deployment.eplb_redundant if layout.ep > 1 else 0,
    )
    if served_by_terms(sweep, deployment.layout.pp):
        target = replace(target, context_tokens=mean_context(workload))
    curve = moved_curve(anchor, sweep, source, target, deployment.layout.pp, law)
    prefill_side = replace(source, layout=deployment.prefill.layout if deployment.prefill else layout)
    prefill = move_prefill(prefill_curve(anchor), source, prefill_side)
    flags: tuple[Flag, ...] = ()
    if sibling is not None and target.gpus > source.gpus and target.layout.attn_dp == 1:
        half_sweep = sibling.sweep_for(workload.isl_tokens, workload.osl_tokens)
        half = kernel_context(sibling, half_sweep, card, platform, profile)
        half_curve = measured_curve(sibling, half_sweep)
        slowness = pooled_slowness(anchor, source), pooled_slowness(sibling, half)
        curve = move_decode_measured(
            measured_curve(anchor, sweep), source, target, half_curve, half, law, slowness=slowness
        )
        if len({point.tokens for point in anchor.prefill.points}) == 1 and deployment.prefill is None:
            prefill = serial_parallel_prefill(prefill_curve(anchor), prefill_curve(sibling), source.gpus, target.gpus)
        measured = f"from {half.layout.label()} to {source.layout.label()} by {sibling.name}"
        flags = (Flag("shrink_measured", f"what the width law errs over a doubling was measured {measured}"),)
    drafted = Speculation(anchor.signature.spec_method, anchor.signature.spec_depth)
    tokens_per_step = anchor.tokens_per_step
    if kernel_differences(anchor, deployment) or drafted != deployment.speculation:
        # kernel models load only where they are needed
        from predictor.step.build_simulated import accepted_tokens, move_kernels

        curve, prefill = move_kernels(curve, prefill, anchor, deployment, card, platform, profile, settings)
        if drafted != deployment.speculation:
            # The anchor's own acceptance stays; only the change of depth or method is taken from published curves.
            target_length, said = accepted_tokens(card, deployment.speculation)
            flags = (*flags, *said)
            tokens_per_step *= target_length / accepted_tokens(card, drafted)[0]
    batch = rank_batch(workload, deployment)
    running = workload.concurrency / deployment.replicas
    terms = pipeline_terms(profile, platform, card, deployment.layout, batch, running)
    sizes, eager_ms = captured(anchor, deployment, card, platform, settings)
    model = AnchoredStepModel(
        curve=curve,
        context_slope_ms=moved_slope_ms(anchor, sweep, source, target, batch, deployment.layout.pp),
        prefill=prefill,
        capture_sizes=sizes,
        eager_ms=eager_ms,
        tokens_per_step=tokens_per_step,
        pipeline=terms,
        ranks=layout.attn_dp,
    )
    context = batch * (workload.isl_tokens + workload.osl_tokens / 2.0)
    host = host_ratio(source, target)
    return PricedStep(
        model=model,
        hop_ms=terms.hops_ms if terms else 0.0,
        host_ms=(anchor.host.per_request_ms + anchor.host.per_prompt_token_us * workload.isl_tokens / 1000.0) * host,
        breakdown_ms=anchored_breakdown(model, target, batch, context),
        prefill_breakdown_ms={"fixed": prefill.fixed_ms, "prompt": prefill.chunk_ms(workload.isl_tokens)},
        flags=(*flags, *(terms.costs.flags if terms else ())),
        prompts_over_replica=True,
        pipeline=terms,
        host_us_per_prompt_token=anchor.host.per_prompt_token_us * host,
    )


def captured(
    anchor: Anchor, deployment: Deployment, card: ModelCard, platform: Platform, settings: Settings
) -> tuple[tuple[int, ...], float]:
    """Batch sizes with a graph, and the least step of a batch above them, ms.

    The anchor's own sizes serve unless the deployment sets a largest one. A step measured in a graph says nothing of
    the same step without: the host then issues every kernel, and the step takes at least as long.
    """
    measured = anchor.signature.capture_sizes
    if deployment.scheduler.graph_max_bs is None or deployment.kernels.graph_mode == "none":
        return measured or settings.capture_sizes, 0.0
    from predictor.step.build_simulated import eager_issue_ms  # kernel models load only where they are needed

    return settings.capture_sizes, eager_issue_ms(card, platform, deployment)


def host_ratio(source: KernelContext, target: KernelContext) -> float:
    """Host time of a request at the target over that of the anchor."""
    exponent: float = default_constants(source.platform).host_exponent
    return float((source.gpus / target.gpus) ** exponent)


def pooled_slowness(anchor: Anchor, side: KernelContext) -> float:
    """How slowly experts are read, told by all sweeps of an anchor together."""
    return expert_slowness(
        [(measured_curve(anchor, s), replace(side, context_tokens=s.context_tokens)) for s in anchor.decode]
    )


def served_by_terms(sweep: DecodeSweep, stages: int) -> bool:
    """Whether a sweep is read by the terms of its layout between its loads, and to other contexts.

    Served loads lie far apart, and distinct experts and cache bytes bend a step between them. A harvested sweep is read
    as measured, and so is one under Eq. 4, whose constants were found on lines in log batch (paper B.1).
    """
    return sweep.kind == "served" and stages == 1


def mean_context(workload: Workload) -> float:
    """Mean context of a sequence in decode: its prompt and half of its answer, in whole tokens, as sweeps have it."""
    middle = (1.0 + workload.length_range_frac) / 2.0
    return round(workload.isl_tokens * middle) + round(workload.osl_tokens * middle) / 2.0


def moved_curve(
    anchor: Anchor, sweep: DecodeSweep, source: KernelContext, target: KernelContext, stages: int, law: WidthLaw
) -> DecodeCurve:
    """A sweep at the target's layout and context."""
    curve, slowness = measured_curve(anchor, sweep), pooled_slowness(anchor, source)
    if source == target and served_by_terms(sweep, stages):
        return refine_decode(curve, source, slowness=slowness)
    return move_decode(curve, source, target, law, slowness=slowness)


def kernel_context(
    anchor: Anchor, sweep: DecodeSweep, card: ModelCard, platform: Platform, profile: EngineProfile
) -> KernelContext:
    """What the transfer laws need to know of the anchor's side."""
    signature = anchor.signature
    depth = signature.spec_depth if signature.spec_method != "none" else 0
    return KernelContext(
        card,
        platform,
        signature.layout,
        signature.precision,
        profile.name,
        sweep.context_tokens,
        depth,
        anchor.tokens_per_step,
    )


def measured_curve(anchor: Anchor, sweep: DecodeSweep) -> DecodeCurve:
    """The sweep as measured. Above its last batch one more request costs what one more prompt token does, on top of
    its cache and experts, which the laws add. A harvest's second sweep has few batches: those of its first lie between.
    """
    curve = swept(anchor, sweep)
    waves = [other for other in anchor.decode if other.kind == sweep.kind == "single_wave"]
    denser = max(waves, key=lambda other: len(other.points), default=sweep)
    return curve if len(denser.points) <= len(sweep.points) else filled_by(curve, swept(anchor, denser))


def swept(anchor: Anchor, sweep: DecodeSweep) -> DecodeCurve:
    """One sweep's own points."""
    return DecodeCurve(
        tuple(point.batch for point in sweep.points),
        tuple(point.step_ms for point in sweep.points),
        sweep.context_tokens,
        anchor.prefill.per_token_ms * anchor.tokens_per_step,
    )


def moved_slope_ms(
    anchor: Anchor, sweep: DecodeSweep, source: KernelContext, target: KernelContext, batch: int, stages: int
) -> float:
    """Cost of one more token of one rank's context at the target: measured where two sweeps tell, else by bytes.

    A measured slope moves to another layout with the cache bytes a GPU reads. ``batch`` is one rank's.
    """
    constants = default_constants(source.platform)
    ranks = target.layout.attn_dp
    there = step_terms(target, float(batch * ranks), constants).kv_ms
    measured = None if served_by_terms(sweep, stages) else context_slope_ms(anchor, sweep, batch)
    if measured is None:
        longer = replace(target, context_tokens=2.0 * target.context_tokens)
        rise_ms = step_terms(longer, float(batch * ranks), constants).kv_ms - there
        return rise_ms / (batch * target.context_tokens)
    if target.layout == source.layout:
        return measured
    here = step_terms(source, float(batch * source.layout.attn_dp), constants).kv_ms
    return measured * there / here if here > 0.0 else measured


def anchored_breakdown(
    model: AnchoredStepModel, target: KernelContext, batch: int, context_tokens: float
) -> dict[str, float]:
    """A decode step by term: what the laws can tell apart, and the measured rest. ``batch`` is one rank's."""
    terms = step_terms(target, float(batch * model.ranks), default_constants(target.platform))
    line = model.decode_line(batch)
    parts = {
        "dense_weights": terms.dense_ms,
        "kv_cache": line.slope_ms_per_token * context_tokens,
        "experts": terms.expert_ms,
        "comm": terms.allreduce_ms,
        "pipeline": model.pipeline.cycle_ms(0.0, batch) if model.pipeline else 0.0,
    }
    parts["fixed_and_other"] = line.at(context_tokens) - sum(parts.values())
    return parts


def prefill_curve(anchor: Anchor) -> PrefillCurve:
    """The anchor's prefill fit; in a mixed step the decode part pays the launches, so no fixed part is added unless
    served runs told one."""
    fit = anchor.prefill
    return PrefillCurve(
        fit.fixed_ms,
        fit.per_token_ms,
        fit.per_token2_ms,
        mixed_fixed_ms=fit.mixed_fixed_ms,
        per_request_ms=fit.per_request_ms,
    )
