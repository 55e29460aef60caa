"""The one entry of the core: a deployment and a workload in, a prediction out.

``predict`` checks the request, sizes memory, chooses the step model (anchored where an anchor applies, simulated
otherwise), runs the closed form and says how all of that was done. It is pure: cards and anchors are handed in.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from predictor import analytic
from predictor.anchors.pool import pool_memory
from predictor.anchors.residual import residual_at
from predictor.anchors.schema import Anchor
from predictor.anchors.select import Selection, assess, half_width_sibling, select_anchor
from predictor.cards import EngineProfile, ModelCard, Platform
from predictor.cost import usd_per_mtok
from predictor.des.metrics import SimulationResult
from predictor.engines import Settings, effective_settings
from predictor.errors import AnchorRefused, BadInput, DoesNotFit
from predictor.intervals import Metric, Transfer, calibrated_widths, intervals, transfer_of
from predictor.load import Served, closed_form, covers, simulated
from predictor.memory import max_concurrency
from predictor.step.build import PricedStep, anchored_step
from predictor.structure import check_deployment, check_workload
from predictor.transfer.width import WidthLaw
from predictor.types import (
    Arrival,
    Coverage,
    Deployment,
    Distribution,
    Flag,
    MemoryBreakdown,
    Mode,
    Prediction,
    Workload,
)

METHODS = ("auto", "analytic", "des")


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The records one prediction reads: the model's card, the GPU's platform, the engine's profile, anchors on hand."""

    card: ModelCard
    platform: Platform
    profile: EngineProfile
    anchors: tuple[Anchor, ...] = ()


def predict(
    deployment: Deployment,
    workload: Workload,
    catalogue: Catalogue,
    *,
    mode: Mode | None = None,
    anchor: Anchor | None = None,
    method: str = "auto",
    law: WidthLaw = "combined",
) -> Prediction:
    """Predict ``deployment`` under ``workload``.

    ``mode`` None takes an anchor when one applies and kernel models otherwise; ``Mode.ANCHORED`` refuses to fall back;
    ``anchor`` forces that one. ``method`` is ``des`` (the simulator: distributions), ``analytic`` (the closed form:
    means) or ``auto``: the closed form for closed loops on pipelines and split pools, the simulator otherwise.
    ``law`` carries an anchor's decode steps to another width; the others are there to be compared. Raises BadInput,
    AnchorRefused or DoesNotFit.
    """
    kept = predict_and_keep(deployment, workload, catalogue, mode=mode, anchor=anchor, method=method, law=law)
    return kept[0]


def predict_and_keep(
    deployment: Deployment,
    workload: Workload,
    catalogue: Catalogue,
    *,
    mode: Mode | None = None,
    anchor: Anchor | None = None,
    method: str = "auto",
    law: WidthLaw = "combined",
) -> tuple[Prediction, SimulationResult | None]:
    """As :func:`predict`, with the simulation request by request; None where the closed form answered."""
    check_workload(workload, catalogue.card)
    if method not in METHODS:
        raise BadInput(f"method {method!r}: must be one of {', '.join(METHODS)}")
    check_deployment(deployment, catalogue.card, catalogue.profile)
    settings = effective_settings(
        catalogue.profile, deployment.engine_version, catalogue.platform, catalogue.card, deployment
    )
    nothing_kept = workload.prefix_hit_frac > 0.0 and not settings.prefix_cache
    if nothing_kept:
        workload = replace(workload, prefix_hit_frac=0.0)
    selection, refused = chosen_anchor(deployment, workload, catalogue, mode, anchor)
    breakdown = pool_memory(
        deployment,
        catalogue.card,
        catalogue.platform,
        catalogue.profile,
        settings,
        selection.anchor if selection is not None else None,
    )
    tokens_per_request = workload.isl_tokens + workload.osl_tokens
    capacity = max_concurrency(breakdown, tokens_per_request, deployment.layout)
    if capacity < 1:
        raise DoesNotFit(
            f"{deployment.model} at {deployment.layout.label()} on {deployment.gpu}: the KV pool holds "
            f"{breakdown.kv_pool_tokens} tokens and one request needs {tokens_per_request}"
        )
    step, flags = priced_step(deployment, workload, catalogue, settings, mode, selection, refused, law)
    if nothing_kept:
        flags = (*flags, Flag("prefix_cache_off", "the prefix cache is off: every prompt is computed whole"))
    running_cap = settings.max_running * deployment.layout.attn_dp  # an engine caps each attention-DP rank
    cap = min(running_cap, capacity)
    load = workload.concurrency / deployment.replicas
    if load > cap and workload.arrival is Arrival.CLOSED:
        limit = "the KV pool" if capacity < running_cap else "the running cap"
        flags = (*flags, Flag("queued", f"{load:.0f} clients a replica, {cap} run at once ({limit})"))
    profile = catalogue.profile
    simulate = method == "des" or (method == "auto" and workload.arrival is not Arrival.CLOSED)
    if deployment.prefill is not None:
        from predictor.load_split import split_served  # only splits need their pools

        served = split_served(
            deployment, workload, catalogue.card, catalogue.platform, profile, settings, breakdown, cap, step, simulate
        )
    elif method != "analytic" and covers(deployment):
        served = simulated(deployment, workload, profile, settings, breakdown, cap, step)
    elif simulate:
        from predictor.load_pipeline import simulated_pipeline  # only pipelines need fleets

        served = simulated_pipeline(deployment, workload, profile, settings, breakdown, cap, step)
    else:
        served = closed_form(deployment, workload, settings, cap, step, None)
    if selection is not None:
        served = with_residual(served, selection.anchor, deployment, workload)
    prediction = _assemble(deployment, workload, breakdown, capacity, step, served, selection, flags)
    price = catalogue.platform.price_usd_per_gpu_h
    if price is not None:
        prediction.extras["usd_per_mtok"] = usd_per_mtok(price, prediction.output_tok_s_per_gpu)
    transfer = transfer_of(selection, deployment, workload, catalogue.platform)
    return with_intervals(prediction, transfer), served.result


def with_intervals(prediction: Prediction, transfer: Transfer) -> Prediction:
    """A prediction with its 80% intervals; in a closed loop E2E is clients over rate, so it has the rate's width."""
    means: dict[str, tuple[Metric, float]] = {
        "ttft_ms": ("ttft", prediction.ttft_ms.mean),
        "tpot_ms": ("tpot", prediction.tpot_ms.mean),
        "interactivity_tok_s_user": ("tpot", prediction.interactivity_tok_s_user),
        "e2e_ms": ("throughput", prediction.e2e_ms.mean),
        "output_tok_s": ("throughput", prediction.output_tok_s),
        "total_tok_s": ("throughput", prediction.total_tok_s),
        "output_tok_s_per_gpu": ("throughput", prediction.output_tok_s_per_gpu),
        "total_tok_s_per_gpu": ("throughput", prediction.total_tok_s_per_gpu),
    }
    return replace(prediction, interval_80=intervals(transfer, means, calibrated_widths()))


def chosen_anchor(
    deployment: Deployment, workload: Workload, catalogue: Catalogue, mode: Mode | None, anchor: Anchor | None
) -> tuple[Selection | None, Sequence[str]]:
    """The anchor to price from, if any, and why others were refused."""
    if anchor is not None:
        return assess(anchor, deployment, workload), ()
    if mode is Mode.SIMULATE:
        return None, ()
    return select_anchor(catalogue.anchors, deployment, workload)


def step_for(
    deployment: Deployment,
    workload: Workload,
    catalogue: Catalogue,
    settings: Settings,
    mode: Mode | None,
    anchor: Anchor | None,
) -> tuple[PricedStep, Selection | None, tuple[Flag, ...]]:
    """The step model with how it came about."""
    selection, refused = chosen_anchor(deployment, workload, catalogue, mode, anchor)
    step, flags = priced_step(deployment, workload, catalogue, settings, mode, selection, refused)
    return step, selection, flags


def priced_step(
    deployment: Deployment,
    workload: Workload,
    catalogue: Catalogue,
    settings: Settings,
    mode: Mode | None,
    selection: Selection | None,
    refused: Sequence[str],
    law: WidthLaw = "combined",
) -> tuple[PricedStep, tuple[Flag, ...]]:
    """The step model from the chosen anchor, or from kernel models, and what to know of it."""
    if selection is not None:
        step = anchored_step(
            selection.anchor,
            deployment,
            workload,
            catalogue.card,
            catalogue.platform,
            catalogue.profile,
            settings,
            half_width_sibling(catalogue.anchors, selection.anchor),
            law,
        )
        flags = (*selection.flags, *step.flags)
        if selection.coverage is Coverage.PROJECTED:
            flags = (Flag("projected", "no anchor covers this target: for ranking only"), *flags)
        return step, flags
    if mode is Mode.ANCHORED:
        why = "; ".join(refused[:3]) if refused else "there is none"
        raise AnchorRefused(f"no anchor for {deployment.model} on {deployment.gpu} with {deployment.engine}: {why}")
    from predictor.step.build_simulated import simulated_step  # kernel models load only where they are needed

    step = simulated_step(deployment, workload, catalogue.card, catalogue.platform, catalogue.profile, settings)
    return step, (Flag("simulated", "no anchor was used: for ranking within one engine only"), *step.flags)


def with_residual(served: Served, anchor: Anchor, deployment: Deployment, workload: Workload) -> Served:
    """What the anchor's step model leaves of its own runs, carried to the target (:mod:`predictor.anchors.residual`).

    A split's prompts and decodes do not share steps as the anchor's did, so nothing is carried to one.
    """
    sweep = anchor.sweep_for(workload.isl_tokens, workload.osl_tokens)
    if not sweep.reproduced or deployment.prefill is not None:
        return served
    middle = (1.0 + workload.length_range_frac) / 2.0
    shape = (round(workload.isl_tokens * middle), round(workload.osl_tokens * middle))
    same = deployment.layout == anchor.signature.layout and shape == (sweep.prompt_tokens, sweep.output_tokens)
    clients = workload.concurrency / deployment.replicas
    left = residual_at(sweep, clients, moved=not same)
    ttft, tpot = scaled(served.ttft_ms, left.ttft), scaled(served.tpot_ms, left.tpot)
    stretch = 1.0
    if workload.arrival is Arrival.CLOSED:
        answer = workload.osl_tokens * middle
        cycle_ms = workload.concurrency / served.requests_per_s * 1e3
        added = left.outside_decode_ms
        outside_ms = ttft.mean - served.ttft_ms.mean if added is None else added
        # A carried time takes away no more than the target spends outside decode.
        outside_ms = max(outside_ms, -max(0.0, cycle_ms - answer * served.tpot_ms.mean))
        stretch = (cycle_ms + answer * (tpot.mean - served.tpot_ms.mean) + outside_ms) / cycle_ms
    return replace(
        served,
        ttft_ms=ttft,
        tpot_ms=tpot,
        itl_ms=scaled(served.itl_ms, left.tpot),
        e2e_ms=scaled(served.e2e_ms, stretch),
        requests_per_s=served.requests_per_s / stretch,
        extras={**served.extras, "anchor_tpot_ratio": left.tpot, "anchor_cycle_ratio": stretch},
    )


def scaled(times: Distribution, factor: float) -> Distribution:
    """A distribution stretched by a factor."""
    if factor == 1.0:
        return times
    p50, p90, p99 = (None if value is None else value * factor for value in (times.p50, times.p90, times.p99))
    return Distribution(times.mean * factor, p50, p90, p99)


def _assemble(
    deployment: Deployment,
    workload: Workload,
    breakdown: MemoryBreakdown,
    capacity: int,
    step: PricedStep,
    served: Served,
    selection: Selection | None,
    flags: tuple[Flag, ...],
) -> Prediction:
    """Everything that was found, in one record."""
    osl = analytic.mean_length(workload.osl_tokens, workload.length_range_frac)
    isl = analytic.mean_length(workload.isl_tokens, workload.length_range_frac)
    return Prediction(
        mode=Mode.SIMULATE if selection is None else Mode.ANCHORED,
        anchor=selection.anchor.name if selection else None,
        coverage=selection.coverage if selection else Coverage.NONE,
        flags=flags,
        gpus=deployment.gpus,
        ttft_ms=served.ttft_ms,
        tpot_ms=served.tpot_ms,
        itl_ms=served.itl_ms,
        e2e_ms=served.e2e_ms,
        output_tok_s=served.requests_per_s * osl,
        total_tok_s=served.requests_per_s * (osl + isl),
        max_concurrency=capacity * deployment.replicas,
        running=served.running,
        memory=breakdown,
        step_ms=step.breakdown_ms,
        prefill_step_ms=step.prefill_breakdown_ms,
        extras={
            **served.extras,
            "tpot_pollution": served.tpot_ms.mean * step.model.tokens_per_step / served.extras["decode_step_ms"],
            "host_ms": step.host_ms,
            "tokens_per_step": step.model.tokens_per_step,
        },
        method=served.method,
    )
