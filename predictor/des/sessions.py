"""Live session trees in slots (paper §3.4, A.1).

N session trees live at once: a tree starts when a slot is free, whatever its recorded start (offsets of days would
keep the asked concurrency from ever being reached), sub-agents run inside their tree's slot, and the slot is refilled
when the whole tree has completed.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from predictor.des.clock import Clock
from predictor.des.play import Player, PlayRules
from predictor.des.request import Request, Sent
from predictor.errors import BadFile
from predictor.workload.trace import TraceRequest


def session_trees(requests: Iterable[TraceRequest]) -> Iterator[list[TraceRequest]]:
    """Requests by session tree, each tree when it is complete. A tree's rows must stand together in the file."""
    seen: set[str] = set()
    tree: list[TraceRequest] = []
    for request in requests:
        if tree and tree[0].tree_id != request.tree_id:
            yield tree
            tree = []
        if not tree:
            if request.tree_id in seen:
                raise BadFile(
                    f"request {request.request_id!r}: session tree {request.tree_id!r} was complete; to play in slots, "
                    "sort the trace by session tree"
                )
            seen.add(request.tree_id)
        tree.append(request)
    if tree:
        yield tree


class SlotPlayer(Player):
    """N live session trees."""

    def __init__(self, trees: Iterable[Sequence[TraceRequest]], rules: PlayRules, clock: Clock) -> None:
        super().__init__(rules, clock)
        self._trees = iter(trees)
        self._slot_of: dict[str, _Tree] = {}
        self._warming: dict[int, _Tree] = {}
        rng, (low, high) = np.random.default_rng(rules.seed), rules.start_frac
        self._first = [
            _Tree(rows, int(rng.uniform(low, high) * len(rows)) if high > 0 else 0)
            for rows in islice(self._trees, rules.slots)
        ]
        if rules.warm_up_requests:
            self.warm_requests = sum(tree.warm_up(rules.warm_up_requests) for tree in self._first)

    def initial(self) -> Iterator[Sent]:
        """The first request or requests of each slot; while warming up, one a slot."""
        first, self._first = self._first, []
        if self.warm_requests:
            for tree in first:
                yield 0, self._warm(tree)
            return
        self._began = 0
        for tree in first:
            self._start(tree, 0)
        yield from self._take_due(0)
        self._arm(0)

    def finished(self, request: Request, now: int) -> Iterator[Sent]:
        """What this completion sets free, at once or after a pause."""
        trace: TraceRequest = request.payload
        self._in_flight -= 1
        if request.id in self._warming:
            yield from self._warmed(request, trace, now)
            return
        tree = self._slot_of[trace.tree_id]
        self.ended(request, tree.following(trace))
        for ready in tree.complete(trace):
            self._later(now + self._pause(ready), ready)
        if tree.done:
            del self._slot_of[trace.tree_id]
            rows = next(self._trees, None) if not self._over(now) else None
            if rows is not None:
                self._start(_Tree(rows, 0), now)
        yield from self._take_due(now)
        self._arm(now)

    def _start(self, tree: "_Tree", now: int) -> None:
        self._slot_of[tree.rows[0].tree_id] = tree
        for ready in tree.ready():
            self._later(now + self._pause(ready), ready)

    def _warm(self, tree: "_Tree") -> Request:
        request = self._request(tree.next_warm(), output_tokens=1)
        self._warming[request.id] = tree
        return request

    def _warmed(self, request: Request, trace: TraceRequest, now: int) -> Iterator[Sent]:
        """The slot's next warm-up request, or, behind the last of all, the measured start."""
        tree = self._warming.pop(request.id)
        self.ended(request, None)
        if tree.warm_left:
            yield 0, self._warm(tree)
            return
        self._slot_of[trace.tree_id] = tree
        if self._warming:
            return
        self._began = now
        for waiting in list(self._slot_of.values()):
            if waiting.done:
                del self._slot_of[waiting.rows[0].tree_id]
                rows = next(self._trees, None)
                if rows is not None:
                    self._start(_Tree(rows, 0), now)
            else:
                self._start(waiting, now)
        yield from self._take_due(now)
        self._arm(now)


class _Tree:
    """What is left of one session tree and what each request waits for."""

    def __init__(self, rows: Sequence[TraceRequest], begin: int) -> None:
        self.rows = rows
        self.warm_left = 0
        self._next = begin
        self._dependents: dict[str, list[TraceRequest]] = {}
        self._missing: dict[str, int] = {}
        self._left = len(rows) - begin

    def warm_up(self, requests: int) -> int:
        """Plan to send so many from the one before the starting point on; returns how many there are."""
        self._next = max(0, self._next - 1)
        self._left = len(self.rows) - self._next
        self.warm_left = min(requests, len(self.rows) - self._next)
        return self.warm_left

    def next_warm(self) -> TraceRequest:
        """The next request of the warm-up."""
        self._next += 1
        self._left -= 1
        self.warm_left -= 1
        return self.rows[self._next - 1]

    def ready(self) -> list[TraceRequest]:
        """Requests that wait for nothing; what lies before the starting point counts as completed."""
        rest = self.rows[self._next :]
        names = {row.request_id for row in rest}
        for row in rest:
            waits_on = [name for name in row.waits_on if name in names]
            self._missing[row.request_id] = len(waits_on)
            for name in waits_on:
                self._dependents.setdefault(name, []).append(row)
        return [row for row in rest if not self._missing[row.request_id]]

    def complete(self, row: TraceRequest) -> list[TraceRequest]:
        """Requests that waited for this one last."""
        self._left -= 1
        free = []
        for dependent in self._dependents.pop(row.request_id, ()):
            self._missing[dependent.request_id] -= 1
            if not self._missing[dependent.request_id]:
                free.append(dependent)
        return free

    def following(self, row: TraceRequest) -> TraceRequest | None:
        """The next turn of the same session."""
        dependents = self._dependents.get(row.request_id, ())
        return next((each for each in dependents if each.session_id == row.session_id), None)

    @property
    def done(self) -> bool:
        """Whether nothing of it is left to complete."""
        return self._left == 0
