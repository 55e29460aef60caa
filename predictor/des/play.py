"""Traffic from a trace: the rules of a replay, and requests at their recorded times (paper §3.4, A.1).

A row without dependencies starts at its timestamp; a row with dependencies when all completed, plus its think time.
Session trees in slots: :mod:`predictor.des.sessions`.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

import simpy

from predictor.des.clock import Clock
from predictor.des.hub import ARRIVE, Hub
from predictor.des.request import Request, Sent
from predictor.errors import BadFile, BadInput
from predictor.workload.trace import DEFAULT_HISTORY_RECORDS, TraceRequest

DEFAULT_LOOKAHEAD_RECORDS = 10_000

Ended = Callable[[Request, TraceRequest | None], None]  # a request that finished, and the turn that continues it


@dataclass(frozen=True, slots=True)
class PlayRules:
    """How a trace is played.

    ``slots`` None: open, at the recorded times. ``think_cap_ms``: longest pause of a tree. ``idle_cap_ms``: where
    nothing is in flight, all pauses are shortened so that the next request comes within this. ``start_frac``: each
    slot's first tree begins at a point drawn uniformly from this part of its requests. ``warm_up_requests``: one-token
    requests a slot sends from there, without pauses and before anything is measured. ``duration_ms``: nothing is sent
    after that much measured time.
    """

    slots: int | None = None
    think_cap_ms: float | None = None
    idle_cap_ms: float | None = None
    start_frac: tuple[float, float] = (0.0, 0.0)
    warm_up_requests: int = 0
    duration_ms: float | None = None
    lookahead_records: int = DEFAULT_LOOKAHEAD_RECORDS
    seed: int = 0

    def __post_init__(self) -> None:
        if self.slots is not None and self.slots < 1:
            raise BadInput(f"slots {self.slots}: at least 1, or None for recorded times")
        low, high = self.start_frac
        if not 0.0 <= low <= high < 1.0:
            raise BadInput(f"start_frac {self.start_frac}: two shares of a tree, 0 <= low <= high < 1")
        if self.slots is None and (self.warm_up_requests or self.start_frac != (0.0, 0.0) or self.idle_cap_ms):
            raise BadInput("start_frac, warm_up_requests and idle_cap_ms belong to slots")


def agentx_rules(slots: int, seed: int = 42) -> PlayRules:
    """The AgentX scenario: pauses up to 300 s, 10 s where all is idle, an hour measured after warming up.

    source: AIPerf 0.13.0, scenario inferencex-agentx-mvp; start points 0-100% of a trace, 1 + 10 warm-up requests
    """
    return PlayRules(
        slots=slots,
        think_cap_ms=300_000.0,
        idle_cap_ms=10_000.0,
        start_frac=(0.0, 0.99),
        warm_up_requests=11,
        duration_ms=3_600_000.0,
        seed=seed,
    )


class Player:
    """Keeps what is due and in flight, and one timer for the earliest of it."""

    def __init__(self, rules: PlayRules, clock: Clock) -> None:
        self.rules = rules
        self.clock = clock
        self.warm_requests = 0  # the first so many requests are not measured
        self.names: list[str] = []  # the trace's names of the requests sent, by number
        self.without_ids = 0
        self.ended: Ended = lambda request, following: None
        self._hub: Hub | None = None
        self._due: list[tuple[int, int, TraceRequest]] = []  # due tick plus all shifts before, order, request
        self._shift = 0  # ticks by which idle time was cut
        self._pushed = self._in_flight = self._version = 0
        self._armed: int | None = None  # tick of the timer under way
        self._began: int | None = None  # tick at which measuring began

    def attach(self, hub: Hub) -> None:
        """The hub whose clock it uses."""
        self._hub = hub

    def _request(self, trace: TraceRequest, output_tokens: int | None = None) -> Request:
        """A trace's request, ready to be sent. An empty recorded answer still costs its first token."""
        number = len(self.names)
        self.names.append(trace.request_id)
        self.without_ids += trace.prompt is None
        self._in_flight += 1
        return Request(number, trace.input_tokens, output_tokens or max(1, trace.output_tokens), payload=trace)

    def _pause(self, trace: TraceRequest) -> int:
        cap = self.rules.think_cap_ms
        return self.clock.ticks(trace.think_time_ms if cap is None else min(trace.think_time_ms, cap))

    def _over(self, now: int) -> bool:
        limit = self.rules.duration_ms
        return limit is not None and self._began is not None and now - self._began >= self.clock.ticks(limit)

    def _later(self, due: int, trace: TraceRequest) -> None:
        heappush(self._due, (due + self._shift, self._pushed, trace))
        self._pushed += 1

    def _take_due(self, now: int) -> Iterator[Sent]:
        """What is due now, as requests to send at once."""
        while self._due and self._due[0][0] - self._shift <= now:
            _, _, trace = heappop(self._due)
            if not self._over(now):
                yield 0, self._request(trace)

    def _arm(self, now: int) -> None:
        """One timer for the earliest due request; idle time is cut first."""
        self._refill(now)
        if not self._due or self._over(now):
            self._version += 1
            self._armed = None
            return
        due = self._due[0][0] - self._shift
        if self.rules.idle_cap_ms is not None and not self._in_flight:
            wait = self.clock.ticks(self.rules.idle_cap_ms)
            self._shift += max(0, due - now - wait)
            due = self._due[0][0] - self._shift
        if due == self._armed:
            return
        self._armed = due
        self._version += 1
        version = self._version
        hub = self._hub
        assert hub is not None, "attach() comes first"

        def arrive(event: simpy.Event) -> None:
            if version != self._version:
                return
            self._armed = None
            now = int(event.env.now)
            sent = next(self._take_due(now), None)
            self._arm(now)  # first, so that the turn sees what else is due at this tick
            if sent is not None:
                hub.arrive(sent[1])

        hub.at(max(0, due - now), ARRIVE, arrive)

    def _refill(self, now: int) -> None:
        """Read on, where reading is driven by time."""


class OpenPlayer(Player):
    """Requests at their recorded times; turns after what they wait for.

    Reads ``lookahead_records`` ahead, so that a turn can be sent before its recorded place in the file, and so that
    rows out of order by less than that are sorted.
    """

    def __init__(self, requests: Iterable[TraceRequest], rules: PlayRules, clock: Clock) -> None:
        super().__init__(rules, clock)
        self._requests = iter(requests)
        self._exhausted = False
        self._ahead = 0  # rows read and not yet sent
        self._arrivals = 0  # of those, rows that come at their own time
        self._completed: OrderedDict[str, int] = OrderedDict()  # request -> tick
        self._pending: set[str] = set()  # read and not completed
        self._missing: dict[str, int] = {}
        self._dependents: dict[str, list[TraceRequest]] = {}
        self._last_arrival_ms = 0.0

    def initial(self) -> Iterator[Sent]:
        """What arrives first; the rest follows by timer."""
        self._began = 0
        self._refill(0)
        yield from self._take_due(0)
        self._arm(0)

    def finished(self, request: Request, now: int) -> Iterator[Sent]:
        """Turns that waited for this one."""
        trace: TraceRequest = request.payload
        self._in_flight -= 1
        self._pending.discard(trace.request_id)
        self._completed[trace.request_id] = now
        if len(self._completed) > DEFAULT_HISTORY_RECORDS:
            self._completed.popitem(last=False)
        dependents = self._dependents.pop(trace.request_id, [])
        self.ended(request, next((each for each in dependents if each.session_id == trace.session_id), None))
        for dependent in dependents:
            self._missing[dependent.request_id] -= 1
            if not self._missing[dependent.request_id]:
                del self._missing[dependent.request_id]
                self._later(now + self._pause(dependent), dependent)
        yield from self._take_due(now)
        self._arm(now)

    def _request(self, trace: TraceRequest, output_tokens: int | None = None) -> Request:
        self._ahead -= 1
        self._arrivals -= not trace.waits_on
        return super()._request(trace, output_tokens)

    def _refill(self, now: int) -> None:
        """Read on until enough is ahead, and at least to the next row that comes at its own time."""
        while not self._exhausted and (self._ahead < self.rules.lookahead_records or not self._arrivals):
            row = next(self._requests, None)
            if row is None:
                self._exhausted = True
                return
            self._ahead += 1
            self._pending.add(row.request_id)
            waits_on = [name for name in row.waits_on if name in self._pending]
            if waits_on:
                self._missing[row.request_id] = len(waits_on)
                for name in waits_on:
                    self._dependents.setdefault(name, []).append(row)
            elif row.waits_on:
                ended = max((self._completed.get(name, 0) for name in row.waits_on), default=0)
                self._later(max(now, ended + self._pause(row)), row)
            else:
                self._arrivals += 1
                self._later(self._arrival(row, now), row)

    def _arrival(self, row: TraceRequest, now: int) -> int:
        if row.arrival_ms is None:
            raise BadFile(f"request {row.request_id!r} has no timestamp and waits for nothing: play the trace in slots")
        due = self.clock.ticks(row.arrival_ms)
        if due < now:
            raise BadFile(
                f"request {row.request_id!r} arrived at {row.arrival_ms:g} ms and stands over "
                f"{self.rules.lookahead_records} records behind later ones: sort the trace by timestamp"
            )
        return due
