"""Replicas of a trace-driven simulation: attention-DP ranks with caches, tiers and host links of their own.

A request goes to a rank, waits there for what has to be loaded from its tier, and then enters the rank's scheduler
(paper A.1, B.6). The ranks of a replica run in lockstep.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import simpy

from predictor.des.clock import Clock
from predictor.des.hub import ARRIVE, Hub
from predictor.des.ranks import RankGroup
from predictor.des.replica import RunReplica
from predictor.des.replica_cache import ReplicaCache, ReuseRules
from predictor.des.request import Request
from predictor.des.routing import Router
from predictor.des.runs import RunScheduler
from predictor.offload import HostTier, exposed_load_ms
from predictor.step.model import PrefillCurve
from predictor.workload.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class Reuse:
    """Prefix caching of every rank: block size of the trace, the engine's rules, and a host tier per rank.

    ``answers_return``: the next turn holds the server's own answer, as with real agents. A replay that sends the
    recorded text (AgentX) never does, and what decode wrote is never found again.
    """

    block_tokens: int
    rules: ReuseRules
    tier: HostTier | None = None
    answers_return: bool = False
    layers: int = 1  # a layerwise load exposes at least its first layer


@dataclass(slots=True)
class Loads:
    """Loads from host tiers: how many requests waited for one, and for how many tokens and ms in all."""

    requests: int = 0
    tokens: int = 0
    exposed_ms: float = 0.0

    def __add__(self, other: "Loads") -> "Loads":
        return Loads(self.requests + other.requests, self.tokens + other.tokens, self.exposed_ms + other.exposed_ms)


@dataclass(slots=True)
class TracedRank:
    """One scheduler with its cache, as a router sees it."""

    scheduler: RunScheduler
    cache: ReplicaCache | None
    prefill: PrefillCurve
    reuse: Reuse | None
    loads: Loads = field(default_factory=Loads)
    loading: int = 0
    kv_tokens: int = 0  # prompt tokens of unfinished requests
    _prefilling: dict[int, tuple[Request, int]] = field(default_factory=dict)

    @property
    def load(self) -> int:
        """Requests sent here and not finished."""
        return self.scheduler.load + self.loading

    @property
    def prefill_tokens(self) -> int:
        """Uncached prompt tokens of requests that have no first token yet."""
        self._prefilling = {key: each for key, each in self._prefilling.items() if each[0].first < 0}
        return sum(tokens for _, tokens in self._prefilling.values())

    def cached_tokens(self, request: TraceRequest) -> int:
        """Leading prompt tokens it would not have to compute."""
        return self.cache.cached_tokens(request) if self.cache is not None else 0

    def take(self, request: Request, now_ms: float) -> float:
        """A request comes here; returns how long it waits for its load, ms."""
        cached = self.cached_tokens(request.payload)
        self.kv_tokens += request.prompt_tokens
        self._prefilling[request.id] = (request, request.prompt_tokens - cached)
        if self.cache is None or self.reuse is None or self.reuse.tier is None:
            return 0.0
        blocks = self.cache.found_below(request)
        if not blocks:
            return 0.0
        load_ms = self.cache.load(request, now_ms) - now_ms
        new_tokens = request.prompt_tokens - cached
        prefill_ms = self.prefill.fixed_ms + self.prefill.chunk_ms(new_tokens, cached)
        exposed_ms = exposed_load_ms(self.reuse.tier.rule, load_ms, prefill_ms, self.reuse.layers)
        self.loads = self.loads + Loads(1, blocks * self.reuse.block_tokens, exposed_ms)
        return exposed_ms

    def leave(self, request: Request, following: TraceRequest | None) -> None:
        """A request's KV is no longer used here; ``following`` is the turn that goes on from it."""
        self.kv_tokens -= request.prompt_tokens
        self._prefilling.pop(request.id, None)
        if self.cache is not None:
            returns = self.reuse is not None and self.reuse.answers_return
            self.cache.finished(request, following if returns else None)


class AssignedRanks(RankGroup):
    """Ranks in lockstep whose requests come with their rank."""

    def submit(self, request: Request, stamp: int) -> None:
        """See :class:`RankGroup`; ``request.rank`` is set."""
        self._touched.add(request.rank)
        self.ranks[request.rank].submit(request, stamp)


class TracedReplica:
    """A replica behind its caches. ``split``: it only prefills, and lets a request's KV go when it was handed over."""

    def __init__(
        self, inner: RunReplica, ranks: Sequence[TracedRank], rank_router: Router, hub: Hub, clock: Clock, split: bool
    ) -> None:
        self.index = inner.index
        self.ranks = list(ranks)
        self._inner, self._rank_router, self._hub, self._clock, self._split = inner, rank_router, hub, clock, split
        self._rank_of: dict[int, int] = {}

    @property
    def load(self) -> int:
        """Requests sent here and not finished."""
        return sum(rank.load for rank in self.ranks)

    @property
    def kv_tokens(self) -> int:
        """Prompt tokens of unfinished requests."""
        return sum(rank.kv_tokens for rank in self.ranks)

    @property
    def prefill_tokens(self) -> int:
        """Uncached prompt tokens of requests that have no first token yet."""
        return sum(rank.prefill_tokens for rank in self.ranks)

    def cached_tokens(self, request: TraceRequest) -> int:
        """Leading prompt tokens its best rank would not have to compute."""
        return max(rank.cached_tokens(request) for rank in self.ranks)

    def submit(self, request: Request, now: int) -> None:
        """Take a request, at once or when its prefix is loaded."""
        index = self._rank_router.choose(request.payload, self.ranks) if len(self.ranks) > 1 else 0
        request.rank = self._rank_of[request.id] = index
        rank = self.ranks[index]
        delay = self._clock.ticks(rank.take(request, self._clock.ms(now)))
        if not delay:
            self._inner.submit(request, now)
            return
        rank.loading += 1

        def loaded(event: simpy.Event) -> None:
            rank.loading -= 1
            self._inner.submit(request, int(event.env.now))
            self._hub.ended(self, [])

        self._hub.at(delay, ARRIVE, loaded)

    def wake(self, now: int) -> None:
        """Plan, or let what came in shorten the run under way."""
        self._inner.wake(now)

    def release(self, request: Request) -> None:
        """The KV of a request prefilled here has left."""
        self._inner.release(request)
        self._leave(request, None)

    def measure_from(self, now: int) -> None:
        """The measured time begins."""
        self._inner.measure_from(now)

    def remember(self, request: TraceRequest) -> None:
        """Its prompt was served here before the simulation began."""
        for rank in self.ranks:
            if rank.cache is not None:
                rank.cache.remember(request)

    def finished(self, request: Request, following: TraceRequest | None) -> None:
        """A request ended; in a split its KV left this pool before."""
        if not self._split:
            self._leave(request, following)

    def _leave(self, request: Request, following: TraceRequest | None) -> None:
        self.ranks[self._rank_of.pop(request.id)].leave(request, following)

    @property
    def loads(self) -> Loads:
        """Loads of all ranks."""
        return sum((rank.loads for rank in self.ranks), Loads())


MakeRouter = Callable[[], Router]
