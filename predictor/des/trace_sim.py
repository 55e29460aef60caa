"""A trace through replicas with prefix caches, host tiers and a router (paper A.1).

The replicas are those of :mod:`predictor.des.simulator`; what a trace adds is who sends when
(:mod:`predictor.des.play`, :mod:`predictor.des.sessions`), what is already cached
(:mod:`predictor.des.replica_cache`), what has to be loaded first (:mod:`predictor.des.tiers`) and which replica takes a
request (:mod:`predictor.des.routing`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import simpy

from predictor.des.clock import Clock, TickPrices
from predictor.des.hub import ARRIVE, Hub, Replica
from predictor.des.metrics import FloatArray, HostTimes, Samples, SimulationResult
from predictor.des.pages import Pool
from predictor.des.planner import scheduler_for
from predictor.des.play import OpenPlayer, Player, PlayRules
from predictor.des.recorder import Recorder
from predictor.des.replica import RunReplica
from predictor.des.replica_cache import ReplicaCache, ReuseRules
from predictor.des.request import Request
from predictor.des.routing import Candidate, LeastLoaded, Router
from predictor.des.rules import SchedulerRules
from predictor.des.sessions import SlotPlayer, session_trees
from predictor.des.tiers import TierCache
from predictor.errors import BadInput
from predictor.offload import HostTier, exposed_load_ms
from predictor.step.model import PrefillCurve, StepModel
from predictor.types import Flag
from predictor.workload.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class Reuse:
    """Prefix caching of every replica: block size of the trace, the engine's rules, and a host tier per replica.

    ``answers_return``: the next turn holds the server's own answer, as with real agents. A replay that sends the
    recorded text (AgentX) never does, and what decode wrote is never found again.
    """

    block_tokens: int
    rules: ReuseRules
    tier: HostTier | None = None
    answers_return: bool = False
    layers: int = 1  # a layerwise load exposes at least its first layer


class TraceResult:
    """What a trace did on a deployment; latencies and throughputs are those of ``simulation``."""

    def __init__(
        self, simulation: SimulationResult, gpus: int, names: Sequence[str], loads: "Loads", flags: tuple[Flag, ...]
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


@dataclass(slots=True)
class Loads:
    """Loads from host tiers: how many requests waited for one, and for how many tokens and ms in all."""

    requests: int = 0
    tokens: int = 0
    exposed_ms: float = 0.0


class TracedReplica:
    """A replica behind its cache: loads from the tier come first and delay their own request only."""

    def __init__(
        self,
        inner: RunReplica,
        hub: Hub,
        clock: Clock,
        prefill: PrefillCurve,
        cache: ReplicaCache | None,
        reuse: Reuse | None,
    ) -> None:
        self.index = inner.index
        self.cache = cache
        self.loads = Loads()
        self._inner, self._hub, self._clock, self._prefill, self._reuse = inner, hub, clock, prefill, reuse
        self._loading = 0
        self._kv_tokens = 0
        self._prefilling: dict[int, tuple[Request, int]] = {}

    @property
    def load(self) -> int:
        """Requests sent here and not finished."""
        return self._inner.load + self._loading

    @property
    def kv_tokens(self) -> int:
        """Prompt tokens of unfinished requests."""
        return self._kv_tokens

    @property
    def prefill_tokens(self) -> int:
        """Uncached prompt tokens of requests that have no first token yet."""
        self._prefilling = {key: each for key, each in self._prefilling.items() if each[0].first < 0}
        return sum(tokens for _, tokens in self._prefilling.values())

    def cached_tokens(self, request: TraceRequest) -> int:
        """Leading prompt tokens it would not have to compute."""
        return self.cache.cached_tokens(request) if self.cache is not None else 0

    def submit(self, request: Request, now: int) -> None:
        """Take a request, at once or when its prefix is loaded."""
        cached = self.cached_tokens(request.payload)
        self._kv_tokens += request.prompt_tokens
        self._prefilling[request.id] = (request, request.prompt_tokens - cached)
        delay = self._load_ticks(request, request.prompt_tokens - cached, now)
        if not delay:
            self._inner.submit(request, now)
            return
        self._loading += 1

        def loaded(event: simpy.Event) -> None:
            self._loading -= 1
            self._inner.submit(request, int(event.env.now))
            self._hub.ended(self, [])

        self._hub.at(delay, ARRIVE, loaded)

    def wake(self, now: int) -> None:
        """Plan, or let what came in shorten the run under way."""
        self._inner.wake(now)

    def release(self, request: Request) -> None:
        """The KV of a request prefilled here has left."""
        self._inner.release(request)

    def measure_from(self, now: int) -> None:
        """The measured time begins."""
        self._inner.measure_from(now)

    def remember(self, request: TraceRequest) -> None:
        """Its prompt was served before the simulation began."""
        if self.cache is not None:
            self.cache.remember(request)

    def finished(self, request: Request, following: TraceRequest | None) -> None:
        """A request of this replica ended."""
        self._kv_tokens -= request.prompt_tokens
        self._prefilling.pop(request.id, None)
        if self.cache is not None:
            returns = self._reuse is not None and self._reuse.answers_return
            self.cache.finished(request, following if returns else None)

    def _load_ticks(self, request: Request, uncached_tokens: int, now: int) -> int:
        if self.cache is None or self._reuse is None or self._reuse.tier is None:
            return 0
        tier = self._reuse.tier
        blocks = self.cache.found_below(request)
        if not blocks:
            return 0
        now_ms = self._clock.ms(now)
        load_ms = self.cache.load(request, now_ms) - now_ms
        prefill_ms = self._prefill.fixed_ms + self._prefill.chunk_ms(
            uncached_tokens, request.prompt_tokens - uncached_tokens
        )
        exposed_ms = exposed_load_ms(tier.rule, load_ms, prefill_ms, self._reuse.layers)
        self.loads.requests += 1
        self.loads.tokens += blocks * self._reuse.block_tokens
        self.loads.exposed_ms += exposed_ms
        return self._clock.ticks(exposed_ms)


class _Routed:
    """The hub's router in terms of a routing policy."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def pick(self, request: Request, replicas: Sequence[Replica]) -> int:
        """Index of the replica."""
        return self._router.choose(request.payload, cast(Sequence[Candidate], replicas))


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
    gpus_per_replica: int = 1,
    host: HostTimes = HostTimes(),
    served_before: Iterable[TraceRequest] = (),
) -> TraceResult:
    """Play a trace on ``replicas`` equal replicas of ``kv_tokens`` KV pool each.

    ``requests`` are read as they are needed. ``reuse`` None, or a trace without block ids: nothing is reused, which is
    flagged. The router (least-loaded by default) chooses before the hit is known to the scheduler. ``served_before``:
    what every replica has served when the trace begins, as when one server is measured at several loads.
    """
    if replicas < 1:
        raise BadInput(f"replicas {replicas}: at least 1")
    prices = TickPrices(step_model)
    player: Player
    if play.slots is None:
        player = OpenPlayer(requests, play, prices.clock)
    else:
        player = SlotPlayer(session_trees(requests), play, prices.clock)
    recorder = Recorder(prices.clock, player.warm_requests)
    hub = Hub(player, _Routed(router or LeastLoaded()), recorder)
    player.attach(hub)
    made = [_replica(hub, index, rules, kv_tokens, prices, step_model, reuse, host) for index in range(replicas)]
    hub.replicas.extend(made)
    for request in served_before:
        for replica in made:
            replica.remember(request)
    player.ended = lambda request, following: made[request.replica].finished(request, following)
    hub.run()
    return TraceResult(
        recorder.result(host, "runs"), replicas * gpus_per_replica, player.names, _total(made), _flags(reuse, player)
    )


def _replica(
    hub: Hub,
    index: int,
    rules: SchedulerRules,
    kv_tokens: int,
    prices: TickPrices,
    step_model: StepModel,
    reuse: Reuse | None,
    host: HostTimes,
) -> TracedReplica:
    cache = None
    if reuse is not None:
        tier = reuse.tier

        def tier_for(hbm_blocks: int) -> TierCache:
            assert tier is not None
            return TierCache(tier, reuse.block_tokens, hbm_blocks)

        cache = ReplicaCache(kv_tokens, reuse.block_tokens, reuse.rules, tier_for if tier is not None else None)
    scheduler = scheduler_for(
        rules,
        Pool(kv_tokens // rules.block_tokens),
        grow=prices.grow,
        unit=prices.context_units,
        prefix_cache=cache,
        poll_interval_steps=host.poll_interval_steps,
    )
    if cache is not None:
        pages = scheduler.pages
        cache.attach(lambda: (pages.pool.total - pages.available()) * rules.block_tokens)
    stall = prices.clock.ticks(host.first_wave_stall_ms)
    inner = RunReplica(hub, index, scheduler, prices, None, stall)
    return TracedReplica(inner, hub, prices.clock, step_model.prefill, cache, reuse)


def _total(replicas: Sequence[TracedReplica]) -> Loads:
    return Loads(
        sum(replica.loads.requests for replica in replicas),
        sum(replica.loads.tokens for replica in replicas),
        sum(replica.loads.exposed_ms for replica in replicas),
    )


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
