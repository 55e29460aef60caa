"""Which replica takes a request (paper A.1): six policies, each one method.

A router sees replicas only through :class:`Candidate`: their load, and how much of this request's prompt each one has
cached. Ties go to the lowest index. Policies with memory (round robin, random, sticky) keep it in the object; the
random one is given its generator.
"""

import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from predictor.errors import unknown_name
from predictor.workload.trace import TraceRequest


class Candidate(Protocol):
    """A replica as a router sees it."""

    @property
    def load(self) -> int:
        """Requests sent to it and not finished."""
        ...

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV its unfinished requests hold or will hold once prefilled."""
        ...

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens of its requests that still wait for prefill."""
        ...

    def cached_tokens(self, request: TraceRequest) -> int:
        """Leading prompt tokens it would not have to compute."""
        ...


class Router(Protocol):
    """A routing policy."""

    def choose(self, request: TraceRequest, replicas: Sequence[Candidate]) -> int:
        """Index of the replica that takes the request."""
        ...


class LeastLoaded:
    """Fewest unfinished requests."""

    def choose(self, request: TraceRequest, replicas: Sequence[Candidate]) -> int:
        """See :class:`Router`."""
        return min(range(len(replicas)), key=lambda index: replicas[index].load)


class RoundRobin:
    """Replicas in turn."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: TraceRequest, replicas: Sequence[Candidate]) -> int:
        """See :class:`Router`."""
        index = self._next % len(replicas)
        self._next = index + 1
        return index


class Random:
    """Uniform, from the generator given."""

    def __init__(self, rng: "np.random.Generator") -> None:
        self._rng = rng

    def choose(self, request: TraceRequest, replicas: Sequence[Candidate]) -> int:
        """See :class:`Router`."""
        return int(self._rng.integers(len(replicas)))


@dataclass(frozen=True, slots=True)
class KvAware:
    """Least cost of prefill not found in the cache plus KV held: ``w·prefill + kv``, both in tokens.

    ``prefill`` is what waits there plus this prompt's uncached part; ``kv`` what is held plus this prompt. Cluster
    routers that weigh prefix overlap against load do this in blocks, with a weight of one by default.
    source: Dynamo documentation, "Router Design": potential prefill blocks, potential active blocks, overlap weight
    """

    overlap_weight: float = 1.0

    def choose(self, request: TraceRequest, replicas: Sequence[Candidate]) -> int:
        """See :class:`Router`."""
        prompt_tokens = request.input_tokens

        def cost(index: int) -> float:
            replica = replicas[index]
            prefill = replica.prefill_tokens + prompt_tokens - replica.cached_tokens(request)
            return self.overlap_weight * prefill + replica.kv_tokens + prompt_tokens

        return min(range(len(replicas)), key=cost)


@dataclass(frozen=True, slots=True)
class PrefixHash:
    """Requests whose first ``blocks`` blocks are equal go to one replica; without ids, those of one session do.

    Rendezvous hashing: the replica with the highest hash of (prefix, index), so that adding one moves few prefixes.
    """

    blocks: int = 1

    def choose(self, request: TraceRequest, replicas: Sequence[Candidate]) -> int:
        """See :class:`Router`."""
        head = request.prompt.head(self.blocks) if request.prompt is not None else None
        line = head.line if head is not None else None
        key = f"session {request.tree_id}" if head is None or line is None else f"{line.serial} {head.blocks}"
        return max(range(len(replicas)), key=lambda index: (zlib.crc32(f"{key} {index}".encode()), -index))


class StickySession:
    """A session tree stays where its first request went; that one goes where the other policy says.

    The least recently seen trees are forgotten beyond ``most_sessions``.
    """

    def __init__(self, first: Router, most_sessions: int = 100_000) -> None:
        self._first = first
        self._most = most_sessions
        self._home: OrderedDict[str, int] = OrderedDict()

    def choose(self, request: TraceRequest, replicas: Sequence[Candidate]) -> int:
        """See :class:`Router`."""
        index = self._home.get(request.tree_id)
        if index is None or index >= len(replicas):
            index = self._first.choose(request, replicas)
        self._home[request.tree_id] = index
        self._home.move_to_end(request.tree_id)
        if len(self._home) > self._most:
            self._home.popitem(last=False)
        return index


ROUTERS: dict[str, Callable[[np.random.Generator], Router]] = {
    "least-loaded": lambda rng: LeastLoaded(),
    "kv-aware": lambda rng: KvAware(),
    "prefix-hash": lambda rng: PrefixHash(),
    "round-robin": lambda rng: RoundRobin(),
    "random": Random,
    "sticky-session": lambda rng: StickySession(LeastLoaded()),
}


def router_by_name(name: str, rng: "np.random.Generator") -> Router:
    """A fresh router of a named policy.

    >>> type(router_by_name("round-robin", np.random.default_rng(0))).__name__
    'RoundRobin'
    """
    if name not in ROUTERS:
        raise unknown_name("router", name, ROUTERS)
    return ROUTERS[name](rng)
