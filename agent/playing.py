"""A trace on one deployment: what the ``simulate`` command and the trace points of a sweep have in common."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from predictor.anchors.select import Selection
from predictor.des.metrics import HostTimes
from predictor.des.play import PlayRules
from predictor.des.replica_cache import reuse_rules
from predictor.des.routing import router_by_name
from predictor.des.rules import SchedulerRules
from predictor.des.trace_sim import DecodePool, TraceResult, simulate_trace
from predictor.des.traced import Reuse
from predictor.engines import Settings, effective_settings
from predictor.errors import BadInput
from predictor.load import pool_rules
from predictor.load_split import handoff_times, prefill_side
from predictor.memory import memory
from predictor.offload import host_tier
from predictor.predict import Catalogue, step_for
from predictor.step.model import StepModel
from predictor.structure import check_deployment
from predictor.types import Deployment, Flag, Layout, MemoryBreakdown, Mode, Workload
from predictor.workload.block_size import BlockSize
from predictor.workload.fitting import Fitting
from predictor.workload.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class Played:
    """What a trace did on a deployment, and how its steps were priced."""

    result: TraceResult
    memory: MemoryBreakdown
    selection: Selection | None
    flags: tuple[Flag, ...]
    over_context: int  # records that no request of this deployment can be


@dataclass(frozen=True, slots=True)
class EntryPool:
    """The replicas that requests come to: those of a colocated deployment, or the prefill pool before ``decode``.

    ``servers`` a request passes, each of which pays its host time (paper D.4).
    """

    layout: Layout
    replicas: int
    rules: SchedulerRules
    kv_tokens: int
    decode: DecodePool | None = None
    servers: int = 1


def entry_pool(
    deployment: Deployment, catalogue: Catalogue, settings: Settings, held: MemoryBreakdown, model: StepModel
) -> EntryPool:
    """Where requests of a deployment go first."""
    profile, layout = catalogue.profile, deployment.layout
    rules = pool_rules(deployment, profile, settings, settings.max_running, layout)
    side = prefill_side(deployment, catalogue.card, catalogue.platform, profile)
    if side is None:
        return EntryPool(layout, deployment.replicas, rules, held.kv_pool_tokens)
    pool = side.pool
    decode = DecodePool(
        model, rules, held.kv_pool_tokens, handoff_times(side), deployment.replicas, layout.attn_dp, layout.gpus
    )
    prefill_rules = pool_rules(deployment, profile, side.settings, side.settings.max_running, pool.layout)
    return EntryPool(pool.layout, pool.replicas, prefill_rules, side.memory.kv_pool_tokens, decode, servers=2)


def play_trace(
    deployment: Deployment,
    workload: Workload,
    catalogue: Catalogue,
    requests: Iterable[TraceRequest],
    block: BlockSize | None,
    play: PlayRules,
    *,
    host_gb: float = 0.0,
    mode: Mode | None = None,
    router: str = "least-loaded",
    answers_return: bool = False,
    served_before: Iterable[TraceRequest] = (),
    progress: Callable[[int], None] | None = None,
) -> Played:
    """Play ``requests`` on replicas of one stage, colocated or split into pools.

    ``workload`` holds the trace's usual lengths and the clients its step prices are chosen for. ``host_gb`` is host
    memory for evicted KV over all replicas; without a prefix cache, or without block ids, nothing is reused. In a split
    the prefill replicas hold the prefix caches. ``served_before``: what every rank served before the trace begins.
    """
    if deployment.layout.pp > 1:
        raise BadInput("pp: traces are played on replicas of one stage; leave out pipelines")
    card, platform, profile = catalogue.card, catalogue.platform, catalogue.profile
    check_deployment(deployment, card)
    settings = effective_settings(profile, deployment.engine_version, platform, card, deployment)
    held = memory(card, platform, deployment, settings)
    step, selection, flags = step_for(deployment, workload, catalogue, settings, mode, None)
    pool = entry_pool(deployment, catalogue, settings, held, step.model)
    reuse = None
    if block is not None and settings.prefix_cache:
        gpus = pool.layout.gpus * pool.replicas
        tier = host_tier(platform, profile.name, host_gb, gpus, held.kv_bytes_per_token) if host_gb else None
        reuse = Reuse(block.tokens, reuse_rules(profile.name), tier, answers_return, card.layers)
    longest = min(card.max_context_tokens, held.kv_pool_tokens, pool.kv_tokens)
    fitting = Fitting(requests, longest)
    result = simulate_trace(
        step.model,
        fitting,
        pool.rules,
        kv_tokens=pool.kv_tokens,
        play=play,
        reuse=reuse,
        router=router_by_name(router, np.random.default_rng(play.seed)),
        replicas=pool.replicas,
        ranks=pool.layout.attn_dp,
        gpus_per_replica=pool.layout.gpus,
        decode=pool.decode,
        host=HostTimes(
            pool.servers * profile.host_ms_per_request,
            pool.servers * profile.host_us_per_prompt_token,
            profile.poll_interval_steps,
        ),
        served_before=Fitting(served_before, longest),
        progress=progress,
    )
    return Played(result, held, selection, (*flags, *result.flags), fitting.dropped)
