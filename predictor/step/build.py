"""Which step model prices a deployment: the anchor's steps moved by the transfer laws, or kernel models alone.

This is where a deployment's choices meet their laws; each law lives in its own module:

====================================  ====================================================
TP, EP, attention DP width            :mod:`predictor.transfer`
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
from predictor.engines import Settings
from predictor.pipeline import mean_transfer_ms, microbatch, pipeline_costs
from predictor.step.anchored import AnchoredStepModel, PipelineTerms
from predictor.step.curve import DecodeCurve
from predictor.step.model import PrefillCurve, StepModel
from predictor.transfer.constants import default_constants
from predictor.transfer.context import KernelContext
from predictor.transfer.prefill import move_prefill
from predictor.transfer.terms import step_terms
from predictor.transfer.width import move_decode
from predictor.types import Deployment, Flag, Layout, Speculation, Workload


@dataclass(frozen=True, slots=True)
class PricedStep:
    """A step model of one replica with what a prediction reports about it.

    Under attention DP ``model`` prices a batch and a context of one rank.
    """

    model: StepModel
    hop_ms: float  # what a pipeline's stage boundary adds to a prompt's way through it
    host_ms: float  # CPU time of a request that overlaps the GPU
    breakdown_ms: dict[str, float]
    prefill_breakdown_ms: dict[str, float]
    flags: tuple[Flag, ...]


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
) -> PricedStep:
    """Move an anchor to a deployment's layout, context, kernels and stages."""
    layout = replace(deployment.layout, pp=1, nodes=1)
    sweep = anchor.sweep_for(workload.isl_tokens)
    signature = anchor.signature
    depth = signature.spec_depth if signature.spec_method != "none" else 0
    source = KernelContext(
        card,
        platform,
        signature.layout,
        signature.precision,
        profile.name,
        sweep.context_tokens,
        depth,
        anchor.tokens_per_step,
    )
    target = replace(source, layout=layout)
    measured = DecodeCurve(
        tuple(point.batch for point in sweep.points),
        tuple(point.step_ms for point in sweep.points),
        sweep.context_tokens,
        # Above the ladder one more request costs what one more prompt token does, on top of its cache and experts.
        anchor.prefill.per_token_ms,
    )
    curve = move_decode(measured, source, target)
    prefill = move_prefill(prefill_curve(anchor), source, target)
    flags: list[Flag] = []
    tokens_per_step = anchor.tokens_per_step
    drafted = Speculation(signature.spec_method, signature.spec_depth)
    if kernel_differences(anchor, deployment) or drafted != deployment.speculation:
        # kernel models load only where they are needed
        from predictor.step.build_simulated import move_kernels
        from predictor.step.build_simulated import tokens_per_step as accepted

        curve, prefill = move_kernels(curve, prefill, anchor, deployment, card, platform, settings)
        if drafted != deployment.speculation:
            # The anchor's own acceptance stays; only the change of depth or method is taken from published curves.
            (target_length, acceptance_flags), (own_length, _) = (
                accepted(card, one) for one in (deployment.speculation, drafted)
            )
            tokens_per_step *= target_length / own_length
            flags += acceptance_flags
    batch = rank_batch(workload, deployment)
    slope = context_slope_ms(anchor, sweep, batch)
    constants = default_constants(platform)
    wider = step_terms(replace(target, context_tokens=sweep.context_tokens * 2.0), float(batch), constants)
    here = step_terms(target, float(batch), constants)
    by_bytes = (wider.kv_ms - here.kv_ms) / (batch * sweep.context_tokens)
    if slope is None:
        slope = by_bytes
    elif layout != signature.layout:
        anchor_side = step_terms(source, float(batch), constants)
        slope *= here.kv_ms / anchor_side.kv_ms if anchor_side.kv_ms > 0.0 else 1.0
    running = workload.concurrency / deployment.replicas
    terms = pipeline_terms(profile, platform, card, deployment.layout, batch, running)
    flags += terms.costs.flags if terms else ()
    model = AnchoredStepModel(
        curve=curve,
        context_slope_ms=slope,
        prefill=prefill,
        capture_sizes=signature.capture_sizes or settings.capture_sizes,
        tokens_per_step=tokens_per_step,
        pipeline=terms,
        ranks=layout.attn_dp,
    )
    line = model.decode_line(batch)
    context = batch * (workload.isl_tokens + workload.osl_tokens / 2.0)
    breakdown = {
        "dense_weights": here.dense_ms,
        "kv_cache": line.slope_ms_per_token * context,
        "experts": here.expert_ms,
        "comm": here.allreduce_ms,
        "pipeline": terms.cycle_ms(0.0, batch) if terms else 0.0,
    }
    breakdown["fixed_and_other"] = line.at(context) - sum(breakdown.values())
    return PricedStep(
        model=model,
        hop_ms=terms.hops_ms if terms else 0.0,
        host_ms=anchor.host.per_request_ms + anchor.host.per_prompt_token_us * workload.isl_tokens / 1000.0,
        breakdown_ms=breakdown,
        prefill_breakdown_ms={"fixed": prefill.fixed_ms, "prompt": prefill.chunk_ms(workload.isl_tokens)},
        flags=tuple(flags),
    )


def prefill_curve(anchor: Anchor) -> PrefillCurve:
    """The anchor's prefill fit; in a mixed step the decode part pays the launches, so no fixed part is added."""
    fit = anchor.prefill
    return PrefillCurve(fit.fixed_ms, fit.per_token_ms, fit.per_token2_ms, mixed_fixed_ms=0.0)
