"""A trace on one deployment: what the ``simulate`` command and the trace points of a sweep have in common."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from predictor.anchors.select import Selection
from predictor.des.metrics import HostTimes
from predictor.des.play import PlayRules
from predictor.des.replica_cache import reuse_rules
from predictor.des.routing import router_by_name
from predictor.des.trace_sim import TraceResult, simulate_trace
from predictor.des.traced import Reuse
from predictor.engines import effective_settings
from predictor.errors import BadInput
from predictor.load import pool_rules
from predictor.memory import memory
from predictor.offload import host_tier
from predictor.predict import Catalogue, step_for
from predictor.structure import check_deployment
from predictor.types import Deployment, Flag, MemoryBreakdown, Mode, Workload
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
    progress: Callable[[int], None] | None = None,
) -> Played:
    """Play ``requests`` on colocated replicas of one stage.

    ``workload`` holds the trace's usual lengths and the clients its step prices are chosen for. ``host_gb`` is host
    memory for evicted KV over all replicas; without a prefix cache, or without block ids, nothing is reused.
    """
    if deployment.prefill is not None or deployment.layout.pp > 1:
        raise BadInput("traces are played on colocated replicas of one stage: leave out split pools and pipelines")
    card, platform, profile = catalogue.card, catalogue.platform, catalogue.profile
    check_deployment(deployment, card)
    settings = effective_settings(profile, deployment.engine_version, platform, card, deployment)
    held = memory(card, platform, deployment, settings)
    step, selection, flags = step_for(deployment, workload, catalogue, settings, mode, None)
    layout = deployment.layout
    reuse = None
    if block is not None and settings.prefix_cache:
        gpus = layout.gpus * deployment.replicas
        tier = host_tier(platform, profile.name, host_gb, gpus, held.kv_bytes_per_token) if host_gb else None
        reuse = Reuse(block.tokens, reuse_rules(profile.name), tier, answers_return, card.layers)
    fitting = Fitting(requests, min(card.max_context_tokens, held.kv_pool_tokens))
    result = simulate_trace(
        step.model,
        fitting,
        pool_rules(deployment, profile, settings, settings.max_running, layout),
        kv_tokens=held.kv_pool_tokens,
        play=play,
        reuse=reuse,
        router=router_by_name(router, np.random.default_rng(play.seed)),
        replicas=deployment.replicas,
        ranks=layout.attn_dp,
        gpus_per_replica=layout.gpus,
        host=HostTimes(profile.host_ms_per_request, profile.host_us_per_prompt_token, profile.poll_interval_steps),
        progress=progress,
    )
    return Played(result, held, selection, (*flags, *result.flags), fitting.dropped)
