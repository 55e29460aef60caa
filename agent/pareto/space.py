"""The points of a sweep: which settings a model has on an engine, enumerated in a fixed order.

Axes are crossed where they act together and not where they do not: every precision with every layout, colocated, piped
and split; on colocated layouts every scheduler setting without a drafter; on colocated and split ones every drafter and
depth at the engine's own scheduler settings, split ones at fewer depths. A host tier does nothing for prompts that
share no prefix, so it is swept on traces only, which are played on colocated and split pools of one stage.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from agent.cluster import parse_cluster
from agent.pareto.request import SweepRequest
from agent.pareto.traced import sample
from agent.request import TuningRequest
from levers.baseline import find_baseline
from levers.catalog import BY_NAME
from levers.context import LeverValue, SearchContext
from levers.legality import illegal_reasons
from levers.legality.memory import memory_fits
from levers.reasons import Reason
from levers.space import Setting, canonical, to_deployment, with_followers
from predictor.anchors.schema import Anchor
from predictor.engines import effective_settings
from predictor.errors import DataUnavailable
from predictor.speculation import acceptance
from predictor.types import Deployment

Changes = Mapping[str, LeverValue]

# Token budgets and chunks around the engines' defaults: a small one shortens the stall a prompt makes, a large one
# packs more prompts into a step.
SCHEDULES: tuple[Changes, ...] = (
    {"token_budget": 2048},
    {"token_budget": 8192},
    {"token_budget": 32768},
    {"chunk_size": 2048},
    {"chunk_size": 8192},
)
# Prefill replicas to decode replicas of a split deployment.
POOL_RATIOS = ((1, 1), (2, 1), (1, 2))


@dataclass(frozen=True, slots=True)
class Place:
    """One model on one engine at one request shape."""

    model: str
    engine: str
    isl_tokens: int
    osl_tokens: int
    trace: str = ""  # path of the trace that is played; its usual lengths are those above


@dataclass(frozen=True, slots=True)
class Space:
    """The variants of one place, and how many candidates were left out for which reason."""

    place: Place
    variants: tuple[tuple[tuple[str, LeverValue], ...], ...]  # each what it changes in the place's base setting
    left_out: Mapping[str, int]


def places(request: SweepRequest) -> tuple[Place, ...]:
    """Every model, engine and shape, shapes outermost, so that neighbours share their schedules."""
    gpu, _ = parse_cluster(request.cluster)
    usual = [(path, sample(path, request.trace_requests)) for path in request.traces]
    traffic = [(isl, osl, "") for isl, osl in request.lengths()]
    traffic += [(found.isl_tokens, found.osl_tokens, path) for path, found in usual]
    return tuple(
        Place(model, engine, isl, osl, trace)
        for isl, osl, trace in traffic
        for engine in request.engine_list(gpu)
        for model in request.models
    )


def place_context(request: SweepRequest, place: Place, anchors: tuple[Anchor, ...]) -> SearchContext:
    """The search context of a place; load and precision are open."""
    asked = TuningRequest(
        model=place.model,
        cluster=request.cluster,
        engine=place.engine,
        engine_version=request.engine_version,
        objective="output_tok_s_per_gpu",
        isl=place.isl_tokens,
        osl=place.osl_tokens,
        concurrency=1,
        length_range=request.length_range,
        free=("load", "precision"),
        usd_per_gpu_h=request.usd_per_gpu_h,
    )
    return asked.context(anchors)


def space(request: SweepRequest, place: Place, context: SearchContext) -> Space:
    """Enumerate a place: what is legal in structure and fits with one client."""
    found = find_baseline(context)
    if found.setting is None:
        return Space(place, (), dict(Counter(reason.code for reason in found.reasons)))
    left_out: Counter[str] = Counter()
    variants: list[tuple[tuple[str, LeverValue], ...]] = []
    seen: set[Deployment] = set()
    listed = traced_candidates if place.trace else candidates
    for changes in listed(request, context, found.setting, left_out):
        deployment, workload = to_deployment(applied(changes, found.setting, context), context)
        if deployment in seen:
            continue
        seen.add(deployment)
        reasons = illegal_reasons(deployment, workload, context)
        if reasons:
            left_out[reasons[0].code] += 1
        else:
            variants.append(tuple(changes.items()))
    return Space(place, tuple(variants), dict(left_out))


def thinned(spaces: Sequence[Space], most: float) -> tuple[Space, ...]:
    """About ``most`` variants altogether, evenly spaced in every place, and at least one of each place."""
    total = sum(len(one.variants) for one in spaces)
    if total <= most:
        return tuple(spaces)
    step = total / most
    return tuple(
        replace(one, variants=tuple(one.variants[int(k * step)] for k in range(ceil(len(one.variants) / step))))
        for one in spaces
    )


def applied(changes: Changes, base: Setting, context: SearchContext) -> Setting:
    """A complete setting; levers that follow another do so."""
    return canonical(with_followers(changes, base, context), context)


def candidates(
    request: SweepRequest, context: SearchContext, base: Setting, left_out: Counter[str]
) -> Iterator[Changes]:
    """Every setting to look at, as changes; what fits nowhere is dropped before its variants are listed."""
    for precision in precisions(request, context):
        for layout in (*layouts(request, context), *splits(request, context)):
            held = {**precision, **layout}
            reasons = _refused(held, base, context)
            if reasons:
                left_out[reasons[0].code] += 1
                continue
            yield held
            if request.schedules and "disagg" not in layout and "pp" not in layout:
                yield from schedules(held, base, context)
            if request.drafters and "pp" not in layout:
                depths = request.split_depths if "disagg" in layout else request.depths
                yield from ({**held, **drafter} for drafter in drafters(depths, context))


def traced_candidates(
    request: SweepRequest, context: SearchContext, base: Setting, left_out: Counter[str]
) -> Iterator[Changes]:
    """Settings to play a trace on: every precision with every layout of one stage, drafter and host tier.

    Colocated replicas and split pools; of host tiers the largest that one replica may have counts.
    """
    for precision in precisions(request, context):
        for layout in (*layouts(request, context), *splits(request, context)):
            held = {**precision, **layout}
            if "pp" in layout:
                continue
            reasons = _refused(held, base, context)
            if reasons:
                left_out[reasons[0].code] += 1
                continue
            for tier in host_tiers(request, held, base, context):
                yield {**held, **tier}
                if request.drafters:
                    yield from ({**held, **tier, **drafter} for drafter in drafters(request.split_depths, context))


def host_tiers(request: SweepRequest, held: Changes, base: Setting, context: SearchContext) -> Iterator[Changes]:
    """No host tier, and the largest that is legal here."""
    yield {}
    sizes = [value for value in _values(context, "host_kv_gb") if value] if request.host_tiers else []
    for value in reversed(sizes):
        deployment, workload = to_deployment(applied({**held, "host_kv_gb": value}, base, context), context)
        if not illegal_reasons(deployment, workload, context):
            yield {"host_kv_gb": value}
            return


def _refused(changes: Changes, base: Setting, context: SearchContext) -> tuple[Reason, ...]:
    deployment, workload = to_deployment(applied(changes, base, context), context)
    return illegal_reasons(deployment, workload, context) or memory_fits(deployment, workload, context)


def precisions(request: SweepRequest, context: SearchContext) -> Iterator[Changes]:
    """Checkpoints and cache formats on hand, as asked."""
    for weight in _values(context, "weight_dtype"):
        for kv in _values(context, "kv_dtype"):
            if (not request.weight_dtypes or weight in request.weight_dtypes) and (
                not request.kv_dtypes or kv in request.kv_dtypes
            ):
                yield {"weight_dtype": weight, "kv_dtype": kv}


def layouts(request: SweepRequest, context: SearchContext) -> Iterator[Changes]:
    """Colocated layouts of one replica: experts split or whole, attention ranks of every width, pipelines."""
    for tp in _ints(context, "tp"):
        for ep in sorted({1, tp} & set(_ints(context, "ep"))):
            for ranks in (value for value in _ints(context, "attn_dp") if value <= tp):
                yield {"tp": tp, "ep": ep, "attn_dp": ranks}
            for stages in _ints(context, "pp"):
                if request.pipelines and stages > 1 and tp * stages <= context.cluster.gpus:
                    yield {"tp": tp, "ep": ep, "pp": stages}


def splits(request: SweepRequest, context: SearchContext) -> Iterator[Changes]:
    """Split pools: both tensor-parallel, prefill as wide or half as wide, or both with whole experts and ranks.

    The engine's first hand-off backend is taken: backends differ in TTFT by a few ms only (paper App. D.4).
    """
    backends = [value for value in _values(context, "disagg") if value != "off"]
    if not request.splits or not backends:
        return
    for tp in _ints(context, "tp"):
        for decode, prefill in _pool_pairs(context, tp):
            for prefills, decodes in POOL_RATIOS:
                if prefills * prefill["tp"] + decodes * tp <= context.cluster.gpus:
                    pool = {f"prefill_{name}": value for name, value in prefill.items()}
                    counts = {"prefill_replicas": prefills, "replicas": decodes}
                    yield {"disagg": backends[0], **decode, **pool, **counts}


def _pool_pairs(context: SearchContext, tp: int) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """Layouts of a decode pool ``tp`` wide with those of its prefill pool."""
    plain = {"tp": tp, "ep": 1, "attn_dp": 1}
    yield plain, plain
    if tp // 2 in _ints(context, "tp"):
        yield plain, {**plain, "tp": tp // 2}
    if context.card.is_moe and tp > 1 and tp in _ints(context, "ep") and tp in _ints(context, "attn_dp"):
        whole = {"tp": tp, "ep": tp, "attn_dp": tp}
        yield whole, whole


def schedules(held: Changes, base: Setting, context: SearchContext) -> Iterator[Changes]:
    """Scheduler settings that this engine and layout does not have by default already."""
    seen = [_effective(held, base, context)]
    for changes in SCHEDULES:
        if any(BY_NAME[name].refuse(context, value) for name, value in changes.items()):
            continue
        effective = _effective({**held, **changes}, base, context)
        if effective not in seen:
            seen.append(effective)
            yield {**held, **changes}


def _effective(changes: Changes, base: Setting, context: SearchContext) -> Any:
    deployment, _ = to_deployment(applied(changes, base, context), context)
    return effective_settings(context.engine, context.engine_version, context.platform, context.card, deployment)


def drafters(depths: tuple[int, ...], context: SearchContext) -> Iterator[Changes]:
    """Drafters whose acceptance is known for this model, at the depths that the engine takes."""
    for method in _values(context, "spec_method"):
        if method == "none" or not _acceptance_known(context, str(method)):
            continue
        for depth in _ints(context, "spec_depth"):
            if depth in depths:
                yield {"spec_method": method, "spec_depth": depth}


def _acceptance_known(context: SearchContext, method: str) -> bool:
    try:
        acceptance(context.card.name, method)
    except DataUnavailable:
        return False
    return True


def _values(context: SearchContext, name: str) -> tuple[LeverValue, ...]:
    return BY_NAME[name].values(context)


def _ints(context: SearchContext, name: str) -> tuple[int, ...]:
    return tuple(value for value in _values(context, name) if isinstance(value, int))
