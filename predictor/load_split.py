"""A workload on a disaggregated deployment: both pools in closed form, or simulated request by request."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from predictor.analytic_split import SplitPools
from predictor.cards import EngineProfile, Handoff, ModelCard, Platform
from predictor.des.metrics import HostTimes
from predictor.disagg import handoff_backend, handoff_ms, split_host_time
from predictor.engines import Settings, effective_settings
from predictor.errors import BadInput
from predictor.load import (
    Served,
    closed_form,
    mean_decoding,
    pool_blocks,
    pool_rules,
    served_by_simulation,
    simulated_extras,
    stated_cache,
)
from predictor.memory import max_concurrency, memory
from predictor.step.build import PricedStep
from predictor.types import Deployment, MemoryBreakdown, PrefillPool, Workload

if TYPE_CHECKING:
    from predictor.des.fleet import HandoffTimes


@dataclass(frozen=True, slots=True)
class PrefillSide:
    """The prefill pool, resolved."""

    pool: PrefillPool
    settings: Settings
    memory: MemoryBreakdown
    handoff: Handoff
    layers: int


def split_served(
    deployment: Deployment,
    workload: Workload,
    card: ModelCard,
    platform: Platform,
    profile: EngineProfile,
    settings: Settings,
    held: MemoryBreakdown,
    cap: int,
    step: PricedStep,
    simulate: bool,
) -> Served:
    """What two pools serve: request by request, or means of a closed loop."""
    side = prefill_side(deployment, card, platform, profile)
    if side is None:
        raise BadInput(f"{deployment.model} at {deployment.layout.label()}: not split into two pools")
    if simulate:
        return simulated_split(deployment, workload, profile, settings, held, cap, step, side)
    return closed_form(deployment, workload, settings, cap, step, split_pools(deployment, workload, side, cap, step))


def prefill_side(
    deployment: Deployment, card: ModelCard, platform: Platform, profile: EngineProfile
) -> PrefillSide | None:
    """Settings, memory and hand-off of the prefill pool, None for a colocated deployment.

    Raises DoesNotFit where the pool does not hold the model, UnknownName for a hand-off the platform lacks.
    """
    pool = deployment.prefill
    if pool is None:
        return None
    settings = effective_settings(profile, deployment.engine_version, platform, card, deployment, "prefill")
    held = memory(card, platform, deployment, settings, pool="prefill")
    return PrefillSide(pool, settings, held, handoff_backend(platform, pool.handoff), card.layers)


def split_pools(
    deployment: Deployment, workload: Workload, side: PrefillSide, cap: int, step: PricedStep
) -> SplitPools:
    """The two pools as the closed form takes them; ``cap`` bounds a decode replica's running requests."""
    host = split_host_time(step.host_ms)
    kv_bytes = side.memory.kv_bytes_per_token * workload.isl_tokens
    return SplitPools(
        prefill_replicas=side.pool.replicas,
        decode_replicas=deployment.replicas,
        decode_ranks=deployment.layout.attn_dp,
        max_running=cap,
        prefill_tokens_per_step=side.settings.chunk_size * side.pool.layout.attn_dp,
        handoff_ms=handoff_ms(side.handoff, kv_bytes, side.layers),
        serial_host_ms=host.serial_ms,
        latency_host_ms=host.latency_ms,
    )


def handoff_times(side: PrefillSide) -> "HandoffTimes":
    """What handing a request's cache over costs the simulator."""
    from predictor.des.fleet import HandoffTimes  # only splits need fleets

    return HandoffTimes(
        side.handoff.floor_us / 1000.0,
        side.handoff.bandwidth_gb_s * 1e6,
        side.memory.kv_bytes_per_token,
        side.layers,
        side.handoff.layer_streamed,
    )


def simulated_split(
    deployment: Deployment,
    workload: Workload,
    profile: EngineProfile,
    settings: Settings,
    held: MemoryBreakdown,
    cap: int,
    step: PricedStep,
    side: PrefillSide,
) -> Served:
    """Both pools with all their replicas behind least-loaded routers; nothing is scaled afterwards."""
    from predictor.des.fleet import ReplicaSpec, simulate_fleet  # only splits need fleets

    decode_ranks, prefill_ranks = deployment.layout.attn_dp, side.pool.layout.attn_dp
    most = max(1, min(settings.max_running, cap // decode_ranks))
    decode_rules = pool_rules(deployment, profile, settings, most, deployment.layout)
    prefill_rules = pool_rules(deployment, profile, side.settings, side.settings.max_running, side.pool.layout)
    depth = decode_rules.draft_tokens
    prompts_held = max(1, max_concurrency(side.memory, workload.isl_tokens + 1, side.pool.layout) // prefill_ranks)
    decode = ReplicaSpec(
        step.model,
        decode_rules,
        pool_blocks(held, workload, most, decode_rules.block_tokens, None, depth),
        deployment.replicas,
        decode_ranks,
    )
    prefill = ReplicaSpec(
        step.model,
        prefill_rules,
        pool_blocks(side.memory, workload, prompts_held, prefill_rules.block_tokens, None, depth),
        side.pool.replicas,
        prefill_ranks,
        prefix_cache=stated_cache(workload),
    )
    host = split_host_time(step.host_ms)
    result = simulate_fleet(
        decode,
        workload,
        prefill=prefill,
        handoff=handoff_times(side),
        prefill_host_ms=host.serial_ms,
        host=HostTimes(host.latency_ms, 0.0, profile.poll_interval_steps, profile.first_wave_stall_ms),
        seed=workload.seed,
    )
    decoding = mean_decoding(result)
    batch = max(1, round(decoding / deployment.replicas / decode_ranks))
    context = batch * (workload.isl_tokens + workload.osl_tokens / 2.0)
    bare_step = step.model.decode_line(batch, context).at(context)
    extras = simulated_extras(result, step, workload, bare_step)
    alone = {"mixed_step_ms": bare_step, "mixed_step_frac": 0.0}  # no prefill step meets a decode
    return served_by_simulation(result, running=decoding, extras={**extras, **alone})
