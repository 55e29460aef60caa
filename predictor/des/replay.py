"""Untimed replays of a trace through one prefix cache: orders, hits and hit rates.

Order decides agentic hit rates more than policy does, so the two are apart: an order is a sequence of requests, and a
replay feeds it to a cache. Only *longest resident prefix* looks at the cache to choose.

Orders (``N`` slots, session trees assigned in file order):

- *round robin*: slots visited in turn, one request of the slot's tree a visit; an exhausted slot takes the next tree;
- *recorded*: lanes on a clock with recorded service and think times; requests by (dispatch, row);
- *longest*: always the slot whose next request has most resident leading blocks; ties to the oldest candidate.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from predictor.des.prefix_cache import PrefixCache, Stretch
from predictor.errors import BadInput
from predictor.workload.block_size import BlockSize
from predictor.workload.blocks import NO_BLOCKS, Line, Prompt
from predictor.workload.trace import TraceRequest

THINK_CAP_MS = 300_000  # source: AgentX, a tree idle for 300 s is advanced
DEFAULT_SERVICE_MS = 6_500  # source: data/traces/README.md, where a recording lacks the service time


@dataclass(frozen=True, slots=True)
class Dispatch:
    """When each request of a recorded order starts, by row, and when the last one completes."""

    order: tuple[TraceRequest, ...]
    dispatch_ms: tuple[float, ...]
    makespan_ms: float


@dataclass(frozen=True, slots=True)
class ReplayHits:
    """Leading blocks found for each request, in file order and in replay order, and what the cache did."""

    hit_blocks_by_row: tuple[int, ...]
    hit_blocks_in_order: tuple[int, ...]
    evicted_blocks: int
    resident_blocks: int


@dataclass(frozen=True, slots=True)
class HitRates:
    """Hit rates of a replay. Say which one you mean: they differ by points on one trace.

    ``block``: hit blocks over all blocks. ``token``: hit tokens over all prompt tokens, a hit counting at most the
    prompt. ``engine_token``: each hit capped at the full blocks before the last prompt token, as engines compute that
    token and cache no partial block. ``mean_request_token``: the token rate averaged over requests.
    """

    hit_blocks: int
    total_blocks: int
    hit_tokens: int
    total_tokens: int
    engine_hit_tokens: int
    block_frac: float
    token_frac: float
    engine_token_frac: float
    mean_request_token_frac: float


def prompt_of(request: TraceRequest) -> Prompt:
    """The request's blocks; a trace without ids cannot be replayed through a cache."""
    if request.prompt is None:
        raise BadInput(
            f"request {request.request_id!r} has no block ids: a cache replay needs 'hash_ids' or 'new_blocks'"
        )
    return request.prompt


def replay(order: Iterable[TraceRequest], cache: PrefixCache) -> ReplayHits:
    """Serve the requests one after another."""
    hits = [(request.row, cache.use(prompt_of(request)).hit_blocks) for request in order]
    return _replay_hits(hits, cache)


def replay_longest(requests: Sequence[TraceRequest], slots: int, cache: PrefixCache) -> ReplayHits:
    """Serve the longest resident prefix among one request a slot; see the module's text.

    A candidate's prefix changes only when a block under its root line comes or goes, so only those are looked up anew.
    """
    waiting = iter(_trees(requests))
    queue = _Candidates(cache)
    for first in islice(waiting, slots):
        queue.add(iter(first))
    hits = []
    while (best := queue.pop()) is not None:
        request, tree = best
        used = cache.use(prompt_of(request))
        hits.append((request.row, used.hit_blocks))
        queue.refresh(request, used.evicted)
        if not queue.add(tree) and (following := next(waiting, None)) is not None:
            queue.add(iter(following))
    return _replay_hits(hits, cache)


class _Candidates:
    """One waiting request a slot, the longest resident prefix first; a lazy heap with versions."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._heap: list[tuple[int, int, int]] = []  # -resident, order of becoming a candidate, version
        self._waiting: dict[int, tuple[TraceRequest, Iterator[TraceRequest]]] = {}
        self._version: dict[int, int] = {}
        self._by_root: dict[Line | None, set[int]] = {}
        self._made = 0

    def add(self, tree: Iterator[TraceRequest]) -> bool:
        """Take the tree's next request as a candidate; False where it has none."""
        request = next(tree, None)
        if request is None:
            return False
        number = self._made
        self._made += 1
        self._waiting[number] = (request, tree)
        self._by_root.setdefault(_root(prompt_of(request)), set()).add(number)
        self._push(number)
        return True

    def pop(self) -> tuple[TraceRequest, Iterator[TraceRequest]] | None:
        """Remove and return the best candidate."""
        while self._heap:
            _, number, version = heapq.heappop(self._heap)
            if self._version.get(number) == version:
                del self._version[number]
                request, tree = self._waiting.pop(number)
                self._by_root[_root(prompt_of(request))].discard(number)
                return request, tree
        return None

    def refresh(self, served: TraceRequest, evicted: tuple[Stretch, ...]) -> None:
        """Look candidates up again whose root gained or lost blocks."""
        roots = dict.fromkeys([_root(prompt_of(served)), *(stretch.line.root for stretch in evicted)])
        for root in roots:
            for number in sorted(self._by_root.get(root, ())):
                self._push(number)

    def _push(self, number: int) -> None:
        request, _ = self._waiting[number]
        version = self._version[number] = self._version.get(number, 0) + 1
        heapq.heappush(self._heap, (-self._cache.resident_prefix(prompt_of(request)), number, version))


def round_robin_order(requests: Sequence[TraceRequest], slots: int) -> list[TraceRequest]:
    """One request of each slot's tree in turn; see the module's text."""
    waiting = iter(_trees(requests))
    playing = [iter(tree) for tree in islice(waiting, slots)]
    order: list[TraceRequest] = []
    while playing:
        remaining = []
        for slot in playing:
            tree = slot
            request = next(tree, None)
            while request is None and (following := next(waiting, None)) is not None:
                tree = iter(following)
                request = next(tree, None)
            if request is not None:
                order.append(request)
                remaining.append(tree)
        playing = remaining
    return order


def recorded_order(requests: Sequence[TraceRequest], lanes: int, think_cap_ms: float = THINK_CAP_MS) -> Dispatch:
    """Order by recorded times. A tree goes to the earliest free lane and frees it when all its requests completed.

    ``dispatch = max(completions waited on, else lane start) + min(think, cap)``; ``completion = dispatch + service``.
    """
    free = [(0.0, lane) for lane in range(lanes)]
    dispatch = [0.0] * len(requests)
    makespan = 0.0
    position = {request.request_id: index for index, request in enumerate(requests)}
    for tree in _trees(requests):
        start, lane = heapq.heappop(free)
        completed: dict[str, float] = {}
        for request in tree:
            after = max((completed[name] for name in request.waits_on), default=start)
            begins = after + min(request.think_time_ms, think_cap_ms)
            dispatch[position[request.request_id]] = begins
            service = DEFAULT_SERVICE_MS if request.recorded_api_ms is None else request.recorded_api_ms
            completed[request.request_id] = begins + service
        ends = max(completed.values())
        makespan = max(makespan, ends)
        heapq.heappush(free, (ends, lane))
    by_time = sorted(range(len(requests)), key=lambda index: (dispatch[index], index))
    return Dispatch(tuple(requests[index] for index in by_time), tuple(dispatch), makespan)


def hit_rates(requests: Sequence[TraceRequest], hit_blocks_by_row: Sequence[int], size: BlockSize) -> HitRates:
    """All hit rates of a replay; ``hit_blocks_by_row`` in the order of ``requests``."""
    hit_tokens = engine_tokens = total_blocks = total_tokens = 0
    mean = 0.0
    for request, hit in zip(requests, hit_blocks_by_row, strict=True):
        tokens = min(hit * size.tokens, request.input_tokens)
        hit_tokens += tokens
        engine_tokens += engine_hit_tokens(hit, request.input_tokens, size.tokens)
        total_blocks += prompt_of(request).blocks
        total_tokens += request.input_tokens
        mean += tokens / request.input_tokens
    hit_blocks = sum(hit_blocks_by_row)
    return HitRates(
        hit_blocks=hit_blocks,
        total_blocks=total_blocks,
        hit_tokens=hit_tokens,
        total_tokens=total_tokens,
        engine_hit_tokens=engine_tokens,
        block_frac=hit_blocks / total_blocks if total_blocks else 0.0,
        token_frac=hit_tokens / total_tokens if total_tokens else 0.0,
        engine_token_frac=engine_tokens / total_tokens if total_tokens else 0.0,
        mean_request_token_frac=mean / len(requests) if requests else 0.0,
    )


def engine_hit_tokens(hit_blocks: int, input_tokens: int, block_tokens: int) -> int:
    """Cached tokens an engine reports: full blocks only, and the last prompt token is always computed.

    >>> engine_hit_tokens(14, 6758, 512), engine_hit_tokens(2, 1024, 512)
    (6656, 512)
    """
    return min(hit_blocks, (input_tokens - 1) // block_tokens) * block_tokens


def engine_blocks(request: TraceRequest, block_tokens: int) -> Prompt:
    """The blocks an engine hashes: full ones."""
    return prompt_of(request).head(request.input_tokens // block_tokens)


def _root(prompt: Prompt) -> Line | None:
    return None if prompt == NO_BLOCKS or prompt.line is None else prompt.line.root


def _trees(requests: Sequence[TraceRequest]) -> list[list[TraceRequest]]:
    """Requests by session tree, trees in file order."""
    trees: dict[str, list[TraceRequest]] = {}
    for request in requests:
        trees.setdefault(request.tree_id, []).append(request)
    return list(trees.values())


def _replay_hits(hits: list[tuple[int, int]], cache: PrefixCache) -> ReplayHits:
    in_order = tuple(hit for _, hit in hits)
    by_row = tuple(hit for _, hit in sorted(hits))
    return ReplayHits(by_row, in_order, cache.evicted_blocks, cache.resident_blocks)
