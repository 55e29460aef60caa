"""A trace on one deployment: what the ``simulate`` command and the trace points of a sweep have in common."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from predictor.anchors.pool import pool_memory
from predictor.anchors.select import Selection
from predictor.des.metrics import HostTimes
from predictor.des.play import PlayRules
from predictor.des.replica_cache import reuse_rules
from predictor.des.routing import router_by_name
from predictor.des.rules import SchedulerRules
from predictor.des.serial_host import SerialHost
from predictor.des.trace_sim import DecodePool, TraceResult, simulate_trace
from predictor.des.traced import Reuse
from predictor.disagg import split_host_time
from predictor.engines import Settings, effective_settings
from predictor.errors import BadInput
from predictor.load import pool_rules
from predictor.load_split import handoff_times, prefill_side
from predictor.offload import HostTier, host_tier
from predictor.predict import Catalogue, step_for
from predictor.step.build import PricedStep
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
    """The replicas that requests come to: those of a colocated deployment, or the prefill pool before ``decode``."""

    layout: Layout
    replicas: int
    rules: SchedulerRules
    memory: MemoryBreakdown
    model: StepModel
    host: HostTimes
    decode: DecodePool | None = None

    @property
    def gpus(self) -> int:
        """Of all its replicas."""
        return self.layout.gpus * self.replicas


def entry_pool(
    deployment: Deployment,
    catalogue: Catalogue,
    settings: Settings,
    held: MemoryBreakdown,
    step: PricedStep,
    isl_tokens: int,
) -> EntryPool:
    """Where requests of a deployment go first; its steps were priced for prompts of ``isl_tokens``.

    A split pays host time on both servers, half of one's on the prefill step: for the tokens that the step computes.
    """
    profile, layout, model = catalogue.profile, deployment.layout, step.model
    us_per_token = step.host_us_per_prompt_token
    ms_per_request = step.host_ms - us_per_token * isl_tokens / 1000.0
    polls, stall_ms = profile.poll_interval_steps, profile.first_wave_stall_ms
    rules = pool_rules(deployment, profile, settings, settings.max_running, layout)
    side = prefill_side(deployment, catalogue.card, catalogue.platform, profile)
    if side is None:
        host = HostTimes(ms_per_request, us_per_token, polls, stall_ms)
        return EntryPool(layout, deployment.replicas, rules, held, model, host)
    pool = side.pool
    of_request, of_token = split_host_time(ms_per_request), split_host_time(us_per_token)
    decode = DecodePool(
        model, rules, held.kv_pool_tokens, handoff_times(side), deployment.replicas, layout.attn_dp, layout.gpus
    )
    prefill_rules = pool_rules(deployment, profile, side.settings, side.settings.max_running, pool.layout)
    return EntryPool(
        pool.layout,
        pool.replicas,
        prefill_rules,
        side.memory,
        SerialHost(model, of_request.serial_ms, of_token.serial_ms),
        HostTimes(of_request.latency_ms, of_token.latency_ms, polls, stall_ms),
        decode,
    )


def tier_of(deployment: Deployment, catalogue: Catalogue, pool: EntryPool) -> HostTier | None:
    """Host memory behind the prefix caches: ``host_kv_gb`` for each GPU of the pool that holds them."""
    if not deployment.host_kv_gb:
        return None
    host_gb = deployment.host_kv_gb * pool.gpus
    return host_tier(catalogue.platform, catalogue.profile.name, host_gb, pool.gpus, pool.memory.kv_bytes_per_token)


def play_trace(
    deployment: Deployment,
    workload: Workload,
    catalogue: Catalogue,
    requests: Iterable[TraceRequest],
    block: BlockSize | None,
    play: PlayRules,
    *,
    mode: Mode | None = None,
    router: str = "least-loaded",
    answers_return: bool = False,
    served_before: Iterable[TraceRequest] = (),
    progress: Callable[[int], None] | None = None,
) -> Played:
    """Play ``requests`` on replicas of one stage, colocated or split into pools.

    ``workload`` holds the trace's usual lengths and the clients its step prices are chosen for. Without a prefix
    cache, or without block ids, nothing is reused. In a split the prefill replicas hold the prefix caches and the host
    memory for what they evict. ``served_before``: what every rank served before the trace begins.
    """
    if deployment.layout.pp > 1:
        raise BadInput("pp: traces are played on replicas of one stage; leave out pipelines")
    card, platform, profile = catalogue.card, catalogue.platform, catalogue.profile
    check_deployment(deployment, card, profile)
    settings = effective_settings(profile, deployment.engine_version, platform, card, deployment)
    step, selection, flags = step_for(deployment, workload, catalogue, settings, mode, None)
    anchor = selection.anchor if selection is not None else None
    held = pool_memory(deployment, card, platform, profile, settings, anchor)
    pool = entry_pool(deployment, catalogue, settings, held, step, workload.isl_tokens)
    reuse = None
    if block is not None and settings.prefix_cache:
        tier = tier_of(deployment, catalogue, pool)
        reuse = Reuse(block.tokens, reuse_rules(profile.name), tier, answers_return, card.layers)
    longest = min(card.max_context_tokens, held.kv_pool_tokens, pool.memory.kv_pool_tokens)
    fitting = Fitting(requests, longest)
    result = simulate_trace(
        pool.model,
        fitting,
        pool.rules,
        kv_tokens=pool.memory.kv_pool_tokens,
        play=play,
        reuse=reuse,
        router=router_by_name(router, np.random.default_rng(play.seed)),
        replicas=pool.replicas,
        ranks=pool.layout.attn_dp,
        gpus_per_replica=pool.layout.gpus,
        decode=pool.decode,
        host=pool.host,
        served_before=Fitting(served_before, longest),
        progress=progress,
    )
    return Played(result, held, selection, (*flags, *result.flags), fitting.dropped)
