"""Steps that need kernel models: no anchor at all, or an anchor of other formats, kernels or speculation.

Kept apart from :mod:`predictor.step.build` because the kernel models take most of the import time, and an anchored
prediction of its own kernel set never needs them.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from predictor.anchors.schema import Anchor
from predictor.cards import EngineProfile, ModelCard, Platform
from predictor.engines import Settings, effective_settings
from predictor.step.build import PricedStep, pipeline_terms, rank_batch
from predictor.step.curve import DecodeCurve
from predictor.step.decode_work import decode_work, kernel_view
from predictor.step.model import PrefillCurve
from predictor.step.simulate import SimulateStepModel, host_issue, simulate_step_model, with_sparse_width
from predictor.types import Deployment, Flag, Speculation, Workload

if TYPE_CHECKING:
    from predictor.speculation import Method

METHODS: dict[str, "Method"] = {"mtp": "mtp", "eagle3": "eagle3", "dspark": "dspark", "ngram": "ngram"}


def accepted_tokens(card: ModelCard, speculation: Speculation) -> tuple[float, tuple[Flag, ...]]:
    """L(k) of a drafter on this model, and where it was taken from; 1 without speculation."""
    if not speculation.active:
        return 1.0, ()
    from predictor.speculation import acceptance  # only where tokens are drafted

    curve = acceptance(card.name, METHODS[speculation.method])
    said = f"{curve.length(speculation.depth):.2f} tokens a verify step at depth {speculation.depth}: {curve.origin}"
    extrapolated = ", extrapolated" if curve.extrapolated(speculation.depth) else ""
    return curve.length(speculation.depth), (Flag("acceptance", said + extrapolated),)


def eager_issue_ms(card: ModelCard, platform: Platform, deployment: Deployment) -> float:
    """Time the host needs to issue every kernel of a decode step on one stage, ms."""
    here = replace(deployment, layout=replace(deployment.layout, pp=1, nodes=1), prefill=None)
    queries = 1.0 + (here.speculation.depth if here.speculation.active else 0)
    kernels = kernel_view(here)
    work = decode_work(with_sparse_width(card, here.kernels.sparse_topk), platform, kernels, here.layout, queries)
    return host_issue(card, platform, kernels, work).eager_ms


def move_kernels(
    curve: DecodeCurve,
    prefill: PrefillCurve,
    anchor: Anchor,
    deployment: Deployment,
    card: ModelCard,
    platform: Platform,
    profile: EngineProfile,
    settings: Settings,
) -> tuple[DecodeCurve, PrefillCurve]:
    """Other formats, kernels or drafting: the ratio of simulated work, target to anchor, above the fixed cost.

    ``s' = f' + (s - f)·W'/W`` with f and W the simulated fixed part and work of the anchor's step, primed of the
    target's; where f exceeds the whole step, both fixed parts are scaled by s/f. The curve stays at the anchor's
    context.
    """
    signature = anchor.signature
    layout = replace(deployment.layout, pp=1, nodes=1)
    wanted = replace(deployment, layout=layout, prefill=None)
    measured = replace(
        wanted,
        precision=signature.precision,
        speculation=Speculation(signature.spec_method, signature.spec_depth),
        kernels=replace(
            wanted.kernels,
            attention=signature.attention_backend,
            sparse_topk=signature.sparse_topk,
            moe=signature.moe_backend,
            a2a=signature.a2a_backend,
            graph_mode=signature.graph_mode,
            fusions=signature.fusions,
        ),
    )
    captured = effective_settings(profile, deployment.engine_version, platform, card, measured)
    here = simulate_step_model(card, platform, measured, captured)
    there = simulate_step_model(card, platform, wanted, settings)
    ranks = layout.attn_dp
    steps = []
    for batch, step in zip(curve.batches, curve.step_ms, strict=True):
        on_rank = max(1, round(batch / ranks))
        context = on_rank * curve.context_tokens
        here_ms, there_ms = here.fixed_ms(on_rank), there.fixed_ms(on_rank)
        taken = min(1.0, step / here_ms)  # a fixed part above the whole measured step is too large on both sides
        fixed_here, fixed_there = taken * here_ms, taken * there_ms
        work_here = here.decode_line(on_rank, context).at(context) - here_ms
        work_there = there.decode_line(on_rank, context).at(context) - there_ms
        steps.append(fixed_there + (step - fixed_here) * work_there / work_here)
    before, after = here.prefill, there.prefill
    ratio2 = after.per_token2_ms / before.per_token2_ms if before.per_token2_ms else 1.0
    return (
        replace(curve, step_ms=tuple(steps)),
        replace(
            prefill,
            per_token_ms=prefill.per_token_ms * after.per_token_ms / before.per_token_ms,
            per_token2_ms=prefill.per_token2_ms * ratio2,
        ),
    )


def simulated_step(
    deployment: Deployment,
    workload: Workload,
    card: ModelCard,
    platform: Platform,
    profile: EngineProfile,
    settings: Settings,
) -> PricedStep:
    """A step from kernel models alone."""
    stage = replace(deployment, layout=replace(deployment.layout, pp=1, nodes=1))
    batch = rank_batch(workload, deployment)
    running = workload.concurrency / deployment.replicas
    terms = pipeline_terms(profile, platform, card, deployment.layout, batch, running)
    length, flags = accepted_tokens(card, deployment.speculation)
    pool = deployment.prefill
    model: SimulateStepModel = simulate_step_model(
        card,
        platform,
        stage,
        settings,
        prefill_settings=effective_settings(profile, deployment.engine_version, platform, card, deployment, "prefill")
        if pool
        else None,
        tokens_per_step=length,
        cycle_ms=terms.cycle_ms if terms else None,
    )
    context = batch * (workload.isl_tokens + workload.osl_tokens / 2.0)
    return PricedStep(
        model=model,
        hop_ms=terms.hops_ms if terms else 0.0,
        host_ms=profile.host_ms_per_request + profile.host_us_per_prompt_token * workload.isl_tokens / 1000.0,
        breakdown_ms=model.breakdown_ms(batch, context),
        prefill_breakdown_ms={"fixed": model.prefill.fixed_ms, "prompt": model.prefill.chunk_ms(workload.isl_tokens)},
        flags=(*flags, *model.flags, *(terms.costs.flags if terms else ())),
        pipeline=terms,
        host_us_per_prompt_token=profile.host_us_per_prompt_token,
    )
