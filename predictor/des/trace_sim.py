"""A trace through replicas with prefix caches, host tiers and a router (paper A.1).

The engine loops are those of :mod:`predictor.des.fleet`; what a trace adds is who sends when
(:mod:`predictor.des.play`, :mod:`predictor.des.sessions`), what is already cached (:mod:`predictor.des.replica_cache`),
what has to be loaded first (:mod:`predictor.des.tiers`) and which replica takes a request
(:mod:`predictor.des.routing`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from predictor.des.clock import TickPrices, units_of
from predictor.des.fleet import HandoffTimes
from predictor.des.hub import Hub, Replica
from predictor.des.metrics import FloatArray, HostTimes, Samples, SimulationResult
from predictor.des.pages import Pool
from predictor.des.planner import scheduler_for
from predictor.des.play import OpenPlayer, Player, PlayRules
from predictor.des.ranks import RankGroup
from predictor.des.recorder import Recorder
from predictor.des.replica import RunReplica
from predictor.des.replica_cache import ReplicaCache
from predictor.des.request import Request
from predictor.des.routers import LeastLoaded as LeastLoadedDecoder
from predictor.des.routing import Candidate, LeastLoaded, RoundRobin, Router
from predictor.des.rules import RankRouting, SchedulerRules
from predictor.des.sessions import SlotPlayer, session_trees
from predictor.des.tiers import TierCache
from predictor.des.traced import AssignedRanks, Loads, MakeRouter, Reuse, TracedRank, TracedReplica
from predictor.errors import BadInput
from predictor.step.model import PrefillCurve, StepModel
from predictor.types import Flag
from predictor.workload.trace import TraceRequest

__all__ = ["DecodePool", "Loads", "Reuse", "TraceResult", "simulate_trace"]


@dataclass(frozen=True, slots=True)
class DecodePool:
    """The decode side of a split deployment; ``kv_tokens`` is the pool of one attention-DP rank."""

    step_model: StepModel
    rules: SchedulerRules
    kv_tokens: int
    handoff: HandoffTimes
    replicas: int = 1
    ranks: int = 1
    gpus_per_replica: int = 1


class TraceResult:
    """What a trace did on a deployment; latencies and throughputs are those of ``simulation``."""

    def __init__(
        self, simulation: SimulationResult, gpus: int, names: Sequence[str], loads: Loads, flags: tuple[Flag, ...]
    ) -> None:
        self.simulation = simulation
        self.gpus = gpus
        self.names = names  # request ids of the trace, by number of the simulated request
        self.loads = loads
        self.flags = flags

    @property
    def total_tok_s_per_gpu(self) -> float:
        """Prompt and output tokens a second and GPU."""
        return self.simulation.total_tok_s / self.gpus

    @property
    def output_tok_s_per_gpu(self) -> float:
        """Output tokens a second and GPU."""
        return self.simulation.output_tok_s / self.gpus

    def hit_rates(self) -> Mapping[int, float]:
        """Share of prompt tokens found cached (in HBM or a tier), by replica."""
        columns = self.simulation.requests
        replica = columns["replica"].astype(np.int64)
        found = np.bincount(replica, columns["cached_tokens"])
        asked = np.bincount(replica, columns["prompt_tokens"])
        return {index: float(found[index] / asked[index]) for index in range(len(asked)) if asked[index]}

    def normalized_interactivity_tok_s(self, percentile: float = 90.0) -> float:
        """AgentX's E2E normalized interactivity: 1 / percentile of (E2E / output tokens), tokens a second."""
        columns = self.simulation.requests
        per_token: FloatArray = columns["e2e_ms"] / columns["output_tokens"]
        return 1000.0 / Samples.of(per_token).percentile(percentile)


class _Routed:
    """The hub's router in terms of a routing policy."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def pick(self, request: Request, replicas: Sequence[Replica]) -> int:
        """Index of the replica."""
        return self._router.choose(request.payload, cast(Sequence[Candidate], replicas))


class _TickHandoff:
    """The hub's hand-off in ticks."""

    def __init__(self, times: HandoffTimes, prices: TickPrices) -> None:
        self._times, self._clock = times, prices.clock

    def ticks(self, request: Request) -> int:
        """From the end of prefill until the decode pool holds the cache."""
        return self._clock.ticks(self._times.handoff_ms(request.prompt_tokens))


def simulate_trace(
    step_model: StepModel,
    requests: Iterable[TraceRequest],
    rules: SchedulerRules,
    *,
    kv_tokens: int,
    play: PlayRules = PlayRules(),
    reuse: Reuse | None = None,
    router: Router | None = None,
    replicas: int = 1,
    ranks: int = 1,
    rank_router: MakeRouter | None = None,
    gpus_per_replica: int = 1,
    decode: DecodePool | None = None,
    host: HostTimes = HostTimes(),
    served_before: Iterable[TraceRequest] = (),
    progress: Callable[[int], None] | None = None,
) -> TraceResult:
    """Play a trace on equal replicas of ``ranks`` attention-DP ranks with a KV pool of ``kv_tokens`` each.

    ``requests`` are read as they are needed. ``reuse`` None, or a trace without block ids: nothing is reused, which is
    flagged. The router (least-loaded by default) chooses before the hit is known to the scheduler; ``rank_router``
    makes the one inside each replica (the engine's own by default). With ``decode`` the replicas only prefill, and
    requests decode on the least loaded replica of that pool. ``served_before``: what every rank has served when the
    trace begins, as when one server is measured at several loads. ``progress`` is told now and then how many requests
    have finished.
    """
    for name, value in (("replicas", replicas), ("ranks", ranks)):
        if value < 1:
            raise BadInput(f"{name} {value}: at least 1")
    units = max(units_of(step_model), units_of(decode.step_model) if decode is not None else 0)
    prices = TickPrices(step_model, units)
    player: Player
    if play.slots is None:
        player = OpenPlayer(requests, play, prices.clock)
    else:
        player = SlotPlayer(session_trees(requests), play, prices.clock)
    recorder = Recorder(prices.clock, player.warm_requests, progress)
    handoff = _TickHandoff(decode.handoff, prices) if decode is not None else None
    hub = Hub(player, _Routed(router or LeastLoaded()), recorder, LeastLoadedDecoder(), handoff)
    player.attach(hub)
    make_router = rank_router or _engine_rank_router(rules)
    pool = _Pool(hub, rules, kv_tokens, prices, step_model.prefill, reuse, host, decode is not None)
    made = [pool.replica(index, ranks, make_router()) for index in range(replicas)]
    hub.replicas.extend(made)
    gpus = replicas * gpus_per_replica
    if decode is not None:
        hub.decoders.extend(_decoders(hub, decode, TickPrices(decode.step_model, units), replicas))
        gpus += decode.replicas * decode.gpus_per_replica
    for request in served_before:
        for replica in made:
            replica.remember(request)
    player.ended = lambda request, following: made[request.replica].finished(request, following)
    hub.run()
    loads = sum((replica.loads for replica in made), Loads())
    return TraceResult(recorder.result(host, "timed_runs"), gpus, player.names, loads, _flags(reuse, player))


def _engine_rank_router(rules: SchedulerRules) -> MakeRouter:
    return RoundRobin if rules.rank_routing is RankRouting.ROUND_ROBIN else LeastLoaded


@dataclass(frozen=True, slots=True)
class _Pool:
    """Makes the replicas that hold prefix caches."""

    hub: Hub
    rules: SchedulerRules
    kv_tokens: int
    prices: TickPrices
    prefill: PrefillCurve
    reuse: Reuse | None
    host: HostTimes
    split: bool

    def replica(self, index: int, ranks: int, rank_router: Router) -> TracedReplica:
        """One replica."""
        made = [self._rank() for _ in range(ranks)]
        schedulers = [rank.scheduler for rank in made]
        group = schedulers[0] if ranks == 1 else AssignedRanks(schedulers, self.prices, self.rules.rank_routing)
        stall = self.prices.clock.ticks(self.host.first_wave_stall_ms)
        inner = RunReplica(self.hub, index, group, self.prices, None, stall)
        return TracedReplica(inner, made, rank_router, self.hub, self.prices.clock, self.split)

    def _rank(self) -> TracedRank:
        cache = self._cache()
        rules = self.rules
        scheduler = scheduler_for(
            rules,
            Pool(self.kv_tokens // rules.block_tokens),
            grow=self.prices.grow,
            unit=self.prices.context_units,
            prefix_cache=cache,
            poll_interval_steps=self.host.poll_interval_steps,
            prefill_only=self.split,
        )
        if cache is not None:
            pages = scheduler.pages
            scheduler.chunk_runs = False  # the cache looks at the pool whenever a request comes
            cache.attach(lambda: (pages.pool.total - pages.available()) * rules.block_tokens)
        return TracedRank(scheduler, cache, self.prefill, self.reuse)

    def _cache(self) -> ReplicaCache | None:
        reuse = self.reuse
        if reuse is None:
            return None
        tier, block_tokens = reuse.tier, reuse.block_tokens

        def tier_cache(hbm_blocks: int) -> TierCache | None:
            return TierCache(tier, block_tokens, hbm_blocks) if tier is not None else None

        return ReplicaCache(self.kv_tokens, block_tokens, reuse.rules, tier_cache)


def _decoders(hub: Hub, decode: DecodePool, prices: TickPrices, first: int) -> list[RunReplica]:
    """Replicas of the decode pool; their indices go on counting behind the prefill pool's."""
    rules = decode.rules
    made = []
    for index in range(first, first + decode.replicas):
        schedulers = [
            scheduler_for(
                rules,
                Pool(decode.kv_tokens // rules.block_tokens),
                grow=prices.grow,
                unit=prices.context_units,
            )
            for _ in range(decode.ranks)
        ]
        group = schedulers[0] if decode.ranks == 1 else RankGroup(schedulers, prices, rules.rank_routing)
        made.append(RunReplica(hub, index, group, prices))
    return made


def _flags(reuse: Reuse | None, player: Player) -> tuple[Flag, ...]:
    if reuse is None:
        return (Flag("no_prefix_cache", "prefix reuse was not simulated"),)
    if player.without_ids:
        return (
            Flag(
                "requests_without_block_ids", f"{player.without_ids} requests name no blocks; they were given no hits"
            ),
        )
    return ()
