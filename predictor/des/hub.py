"""The clock of a simulation: who acts at a tick, and in which order.

SimPy orders equal times by insertion, which differs between a simulation by runs and one by steps. So the order is
said: at one tick first everything arrives (priority 0), then steps end (1), then one turn (2) tells the traffic source
who finished, routes what arrived and lets replicas plan, all in index order.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import simpy
from simpy.events import EventPriority

from predictor.des.recorder import Recorder
from predictor.des.request import Request

ARRIVE = EventPriority(0)
END = EventPriority(1)
TURN = EventPriority(2)

Sent = tuple[int, Request]  # ticks, request


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

    index: int

    @property
    def load(self) -> int:
        """Requests sent to it and not finished."""
        ...

    def submit(self, request: Request, now: int) -> None:
        """Take a request."""
        ...

    def wake(self, now: int) -> None:
        """Plan, or let what came in shorten the run under way."""
        ...


class Router(Protocol):
    """Picks the replica of a request."""

    def pick(self, request: Request, replicas: Sequence[Replica]) -> int:
        """Index of the replica."""
        ...


class Timer(simpy.Event):
    """One callback after a delay, with a priority."""

    def __init__(
        self, env: simpy.Environment, delay: int, priority: EventPriority, callback: Callable[[simpy.Event], None]
    ) -> None:
        self.env = env
        self.callbacks = [callback]
        self._value = None
        self._ok = True
        env.schedule(self, priority, delay)


class Hub:
    """Moves requests between source, router and replicas."""

    def __init__(self, source: Source, router: Router, recorder: Recorder) -> None:
        self.env = simpy.Environment()
        self.recorder = recorder
        self.replicas: list[Replica] = []
        self._source = source
        self._router = router
        self._arrivals: Iterator[Sent] = iter(())
        self._arrived: list[Request] = []
        self._finished: list[tuple[int, list[Request]]] = []
        self._touched: set[int] = set()
        self._turn_due = False

    def run(self) -> None:
        """Simulate until nothing is left to do."""
        self._arrivals = iter(self._source.initial())
        self._await_arrival()
        self.env.run()

    def at(self, delay: int, priority: EventPriority, callback: Callable[[simpy.Event], None]) -> None:
        """Call back after a delay."""
        Timer(self.env, delay, priority, callback)

    def ended(self, replica: Replica, finished: list[Request]) -> None:
        """A replica is at a boundary; to be called at priority END."""
        self._touched.add(replica.index)
        if finished:
            self._finished.append((replica.index, finished))
        self._ask_turn()

    def _await_arrival(self) -> None:
        """Hold one arrival event at a time, so that endless traffic needs no memory."""
        for when, request in self._arrivals:

            def arrive(_: simpy.Event, request: Request = request) -> None:
                self._await_arrival()  # first, so that the turn sees another arrival of the same tick
                self.arrive(request)

            self.at(when - int(self.env.now), ARRIVE, arrive)
            return

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
            self.at(0, TURN, lambda _: self._turn())

    def _turn(self) -> None:
        self._turn_due = False
        now = int(self.env.now)
        arrived, self._arrived = self._arrived, []
        if self._finished:
            self._finished.sort(key=lambda entry: entry[0])
            for _, requests in self._finished:
                for request in requests:
                    self.recorder.finished(request, now)
                    for delay, following in self._source.finished(request, now):
                        if delay == 0:
                            following.arrival = now
                            arrived.append(following)
                        else:
                            self._send_later(delay, following)
            self._finished.clear()
        if len(arrived) > 1:
            arrived.sort(key=lambda request: request.id)
        for request in arrived:
            index = self._router.pick(request, self.replicas) if len(self.replicas) > 1 else 0
            request.replica = index
            self.replicas[index].submit(request, now)
            self._touched.add(index)
        touched = sorted(self._touched) if len(self._touched) > 1 else list(self._touched)
        self._touched.clear()
        for index in touched:
            self.replicas[index].wake(now)

    def _send_later(self, delay: int, request: Request) -> None:
        self.at(delay, ARRIVE, lambda _: self.arrive(request))
