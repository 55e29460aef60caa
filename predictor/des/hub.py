"""The clock of a simulation: who acts at a tick, and in which order.

SimPy orders equal times by insertion, which differs between a simulation by runs and one by steps. So the order is
said: at one tick first everything arrives (priority 0), then steps end (1), then one turn (2) tells the traffic source
who finished, routes what arrived and lets replicas plan, all in index order.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, cast

import simpy
from simpy.events import EventPriority

from predictor.des.recorder import Recorder
from predictor.des.request import Request, Sent

ARRIVE = EventPriority(0)
END = EventPriority(1)
TURN = EventPriority(2)


class Source(Protocol):
    """Traffic: what is sent at the start, at given times, and when a request finishes."""

    def initial(self) -> Iterable[Sent]:
        """Requests and the ticks at which they are sent, in order of time; may be endless and is read lazily."""
        ...

    def finished(self, request: Request, now: int) -> Iterable[Sent]:
        """Requests sent because this one finished, each a delay in ticks from now."""
        ...


class Replica(Protocol):
    """An engine that the hub can hand requests to."""

    index: int  # in the whole fleet

    @property
    def load(self) -> int:
        """Requests sent to it and not finished."""
        ...

    def submit(self, request: Request, now: int) -> None:
        """Take a request."""
        ...

    def release(self, request: Request) -> None:
        """The KV of a request it prefilled has left for another pool."""
        ...

    def wake(self, now: int) -> None:
        """Plan, or let what came in shorten the run under way."""
        ...

    def measure_from(self, now: int) -> None:
        """The measured time begins: steps that ended by now do not count."""
        ...


class Router(Protocol):
    """Picks the replica of a request."""

    def pick(self, request: Request, replicas: Sequence[Replica]) -> int:
        """Position of the replica in the pool."""
        ...


class Handoff(Protocol):
    """Time of a request's KV between the pools."""

    def ticks(self, request: Request) -> int:
        """From the end of its prefill until the decode pool holds its cache."""
        ...


class Timer(simpy.Event):
    """One callback after a delay, with a priority; the callback finds ``value`` in the event."""

    def __init__(
        self,
        env: simpy.Environment,
        delay: int,
        priority: EventPriority,
        callback: Callable[[simpy.Event], None],
        value: object = None,
    ) -> None:
        self.env = env
        self.callbacks = [callback]
        self._value = value
        self._ok = True
        env.schedule(self, priority, delay)


class Hub:
    """Moves requests between source, router and replicas.

    With a hand-off, requests are prefilled by ``replicas`` and decoded by ``decoders``, whose indices go on counting;
    ``handoff`` says how long their KV travels.
    """

    def __init__(
        self,
        source: Source,
        router: Router,
        recorder: Recorder,
        decode_router: Router | None = None,
        handoff: Handoff | None = None,
    ) -> None:
        self.env = simpy.Environment()
        self.recorder = recorder
        self.replicas: list[Replica] = []
        self.decoders: list[Replica] = []
        self._router = router
        self._decode_router = decode_router
        self._handoff = handoff
        self._source = source
        self._arrivals: Iterator[Sent] = iter(())
        self._arrived: list[Request] = []
        self._handed: list[tuple[int, Request]] = []  # prefill replica, request whose KV has arrived
        self._finished: list[tuple[int, list[Request]]] = []
        self._touched: set[int] = set()
        self._turn_due = False

    def run(self) -> None:
        """Simulate until nothing is left to do."""
        self._arrivals = iter(self._source.initial())
        self._await_arrival()
        self.env.run()

    def at(
        self, delay: int, priority: EventPriority, callback: Callable[[simpy.Event], None], value: object = None
    ) -> None:
        """Call back after a delay."""
        Timer(self.env, delay, priority, callback, value)

    def ended(self, replica: Replica, finished: list[Request]) -> None:
        """A replica is at a boundary; to be called at priority END."""
        self._touched.add(replica.index)
        if finished:
            self._finished.append((replica.index, finished))
        self._ask_turn()

    def _await_arrival(self) -> None:
        """Hold one arrival event at a time, so that endless traffic needs no memory."""
        coming = next(self._arrivals, None)
        if coming is not None:
            self.at(coming[0] - int(self.env.now), ARRIVE, self._next_arrival, coming[1])

    def _next_arrival(self, event: simpy.Event) -> None:
        self._await_arrival()  # first, so that the turn sees another arrival of the same tick
        self.arrive(cast(Request, event.value))

    def arrive(self, request: Request) -> None:
        """A request reaches the router; to be called at priority ARRIVE."""
        request.arrival = int(self.env.now)
        self._arrived.append(request)
        self._ask_turn()

    def _ask_turn(self) -> None:
        """Take the turn when all else of this tick is done: at once if nothing else is due."""
        if self._turn_due:
            return
        if self.env.peek() > self.env.now:
            self._turn()
        else:
            self._turn_due = True
            self.at(0, TURN, self._turn_now)

    def _turn_now(self, event: simpy.Event) -> None:
        self._turn()

    def _turn(self) -> None:
        self._turn_due = False
        now = int(self.env.now)
        arrived, self._arrived = self._arrived, []
        if self._finished:
            self._settle(now, arrived)
        if self._handed:
            self._deliver(now, arrived)
        if len(arrived) > 1:
            arrived.sort(key=lambda request: request.id)
        if self._handoff is None and len(self.replicas) == 1:
            replica = self.replicas[0]
            for request in arrived:
                replica.submit(request, now)
            self._touched.clear()
            replica.wake(now)
            return
        for request in arrived:
            request.replica = self._send(request, self.replicas, self._router, now)
        touched = sorted(self._touched) if len(self._touched) > 1 else list(self._touched)
        self._touched.clear()
        count = len(self.replicas)
        for index in touched:
            replica = self.replicas[index] if index < count else self.decoders[index - count]
            replica.wake(now)

    def _send(self, request: Request, replicas: Sequence[Replica], router: Router | None, now: int) -> int:
        position = router.pick(request, replicas) if router is not None and len(replicas) > 1 else 0
        replica = replicas[position]
        replica.submit(request, now)
        self._touched.add(replica.index)
        return replica.index

    def _settle(self, now: int, arrived: list[Request]) -> None:
        """Requests that ended a stage: on to the next pool, or back to the source."""
        if len(self._finished) > 1:
            self._finished.sort(key=lambda entry: entry[0])
        for index, requests in self._finished:
            for request in requests:
                if self._handoff is not None and index < len(self.replicas):
                    self._hand_over(index, request, self._handoff.ticks(request))
                else:
                    self._complete(request, now, arrived)
        self._finished.clear()

    def _complete(self, request: Request, now: int, arrived: list[Request]) -> None:
        if self.recorder.finished(request, now):
            for replica in (*self.replicas, *self.decoders):
                replica.measure_from(now)
        for delay, following in self._source.finished(request, now):
            if delay:
                self._send_later(delay, following)
            else:
                following.arrival = now
                arrived.append(following)

    def _send_later(self, delay: int, request: Request) -> None:
        self.at(delay, ARRIVE, lambda event: self.arrive(cast(Request, event.value)), request)

    def _hand_over(self, index: int, request: Request, delay: int) -> None:
        def arrive(_: simpy.Event) -> None:
            self._handed.append((index, request))
            self._ask_turn()

        self.at(delay, ARRIVE, arrive)

    def _deliver(self, now: int, arrived: list[Request]) -> None:
        """KV that has arrived frees the prefill replica's blocks and joins the decode pool's queue."""
        handed, self._handed = self._handed, []
        handed.sort(key=lambda entry: entry[1].id)
        for index, request in handed:
            self.replicas[index].release(request)
            self._touched.add(index)
            if request.output_tokens == 1:
                request.first = request.finished = now
                self._complete(request, now, arrived)
                continue
            request.kv_ready = True
            request.start_step = -1
            self._send(request, self.decoders, self._decode_router, now)
