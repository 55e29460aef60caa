"""What readers of a search see: read from the ledger once a moment, however many readers there are.

A view holds a search's trials and notes as ready-made events. While someone watches it reads the ledger a few times a
second, for all of them; a search that has ended is read once.
"""

import asyncio
import contextlib
import json
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.service.problems import Failed
from ledger.errors import LedgerError
from ledger.queue import Job, Queue
from ledger.record import NoteRecord, StoredSearch, TrialRecord
from ledger.store import Ledger
from levers.objectives import Direction, objective
from predictor.errors import InferaSimError

FRESH_S = 0.5  # after this an answer about a running search is read anew
STALE_S = 2.0  # until this the old answer is given while it is read anew: no reader waits for the ledger
HEARTBEAT_S = 15.0  # a comment on a silent stream, so that proxies keep it open
MOST_VIEWS, MOST_TRIALS = 32, 20_000  # held at once: some 5 kB a trial
MOST_ENDED = 4  # of them views of searches that have ended: their answers are kept apart, their trials read again
MOST_BODIES = 2_000  # answers about searches that have ended: some 5 kB each
HYPOTHESES = ("plan", "scratchpad", "summary", "llm_end")  # notes that say what is believed, for the stream


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event and where the reader stands after it: trials and notes seen."""

    name: str
    data: str
    trials: int
    notes: int

    def text(self) -> str:
        """As it goes over the wire."""
        return f"id: {self.trials}.{self.notes}\nevent: {self.name}\ndata: {self.data}\n\n"


def parse_cursor(text: str | None) -> tuple[int, int]:
    """A ``Last-Event-ID`` as trials and notes seen; anything else starts from the beginning.

    >>> parse_cursor("12.3"), parse_cursor(None), parse_cursor("x")
    ((12, 3), (0, 0), (0, 0))
    """
    first, _, second = (text or "").partition(".")
    if first.isdecimal() and second.isdecimal() and len(first) < 10 and len(second) < 10:
        return int(first), int(second)
    return 0, 0


@dataclass(slots=True)
class SearchView:
    """One search as the ledger has it."""

    search_id: int
    stored: StoredSearch
    job: Job | None
    trials: list[TrialRecord] = field(default_factory=list)
    best: TrialRecord | None = None
    notes: int = 0
    events: list[Event] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    scored: int = 0
    legal: int = 0
    ended: bool = False
    read_at_s: float = -math.inf
    version: int = 0
    extra: dict[str, Any] = field(default_factory=dict)  # what is computed once for a search that has ended
    extra_failed: bool = False  # the last try: whoever asks next waits for the next one and hears why
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _body: tuple[int, bytes] = (-1, b"")

    @property
    def status(self) -> str:
        """queued, running, done, nothing_legal, stopped, failed, cancelled or unfinished."""
        if self.stored.end is not None:
            cancelled = self.job is not None and self.job.status == "cancelled"
            return "cancelled" if cancelled else self.stored.end.status
        if self.job is None:
            return "unfinished"
        return self.job.status if self.job.status != "done" else "unfinished"

    def take(
        self, stored: StoredSearch, job: Job | None, trials: tuple[TrialRecord, ...], notes: tuple[NoteRecord, ...]
    ) -> None:
        """Take in what is new."""
        before = (self.status, len(self.events))
        self.stored, self.job = stored, job
        sign = 1.0 if objective(stored.record.objective).direction is Direction.MAX else -1.0
        for trial in trials:
            self.trials.append(trial)
            self.scored += trial.score is not None
            self.legal += trial.legal
            for code in {code for code, _ in trial.reasons}:
                self.reasons[code] = self.reasons.get(code, 0) + 1
            self._event("trial", trial_json(trial))
            if not trial.legal or trial.score is None:
                continue
            if self.best is None or sign * trial.score > sign * (self.best.score or 0.0):
                self.best = trial
                self._event("best", {"index": trial.index, "score": trial.score, "name": trial.hypothesis})
        for note in notes:
            self.notes += 1
            if note.kind in HYPOTHESES:
                self._event("hypothesis", {"kind": note.kind, **note.facts})
        if trials:
            self._event("budget", {"priced": self.scored, "budget": self.budget, "trials": len(self.trials)})
        done = stored.end is not None or (job is not None and job.ended)
        if done and not self.ended:
            if stored.end is not None and stored.end.best_index is not None:
                self.best = self.trials[stored.end.best_index]
            self._event("end", {"status": self.status, "best": None if self.best is None else self.best.index})
        self.ended = done
        self.read_at_s = time.monotonic()
        if before != (self.status, len(self.events)) or self.version == 0:
            self.version += 1

    @property
    def budget(self) -> int:
        """Trials at most."""
        found = self.stored.record.request.get("budget", 0)
        return found if isinstance(found, int) else 0

    def body(self) -> bytes:
        """The search as JSON, made once for all readers."""
        if self._body[0] != self.version:
            self._body = (self.version, json.dumps(self.as_json(), allow_nan=False).encode())
        return self._body[1]

    @property
    def last_body(self) -> bytes:
        """The newest answer that was made; empty before the first."""
        return self._body[1]

    def as_json(self) -> dict[str, Any]:
        """The search as ``/v1/searches/{id}`` has it."""
        record, end = self.stored.record, self.stored.end
        priced = {"scored": self.scored, "legal": self.legal, "rejected": len(self.trials) - self.legal}
        return {
            "search_id": self.search_id,
            "status": self.status,
            "caller": None if self.job is None else self.job.caller,
            "created_at": record.created_at.isoformat(),
            "finished_at": None if end is None else end.finished_at.isoformat(),
            "input_sha256": record.input_sha256,
            "request": dict(record.request),
            "budget": self.budget,
            "trials": priced,
            "reasons": dict(sorted(self.reasons.items(), key=lambda pair: (-pair[1], pair[0]))),
            "best": None if self.best is None else {**trial_json(self.best), **self.extra},
            "fusion_opportunities": [] if self.best is None else [dict(one) for one in self.best.fusion_opportunities],
            "problem": None if self.job is None else self.job.problem,
            "cancel_requested": self.job is not None and self.job.cancel_requested,
        }

    def since(self, trials: int, notes: int) -> list[Event]:
        """Events a reader who has seen so many trials and notes has not; the end always."""
        return [one for one in self.events if one.trials > trials or one.notes > notes or one.name == "end"]

    def _event(self, name: str, data: Mapping[str, Any]) -> None:
        text = json.dumps(data, allow_nan=False)
        self.events.append(Event(name, text, len(self.trials), self.notes))


def trial_json(trial: TrialRecord) -> dict[str, Any]:
    """A trial as the service shows it."""
    return {
        "index": trial.index,
        "origin": trial.origin,
        "name": trial.hypothesis,
        "legal": trial.legal,
        "score": trial.score,
        "levers": dict(trial.levers),
        "metrics": dict(trial.metrics),
        "reasons": [{"code": code, "message": message} for code, message in trial.reasons],
        "flags": [{"code": code, "message": message} for code, message in trial.flags],
        "mode": trial.mode,
        "anchor": trial.anchor,
    }


class Views:
    """The views of one service process."""

    def __init__(self, ledger: Ledger, queue: Queue) -> None:
        self._ledger, self._queue = ledger, queue
        self._views: OrderedDict[int, SearchView] = OrderedDict()
        self._bodies: OrderedDict[int, bytes] = OrderedDict()
        self._making = asyncio.Lock()
        self._aside: dict[int, asyncio.Task[None]] = {}
        self.streams = 0

    async def warm(self) -> None:
        """Ask the ledger once what readers will: the first of them does not wait for statements to be compiled."""

        def ask() -> None:
            self._ledger.recent(1)
            self._queue.of_search(0)
            self._ledger.trials_from(0, 0)
            self._ledger.notes_from(0, 0)

        await asyncio.to_thread(ask)

    def held(self, search_id: int) -> bytes | None:
        """The answer at hand: of a search that has ended, or of one that runs, :data:`STALE_S` old at most.

        One over :data:`FRESH_S` is read anew beside: what a reader waits for is never the ledger.
        """
        final = self._bodies.get(search_id)
        if final is not None:
            return final
        view = self._views.get(search_id)
        if view is None or view.ended:
            return None
        age_s = time.monotonic() - view.read_at_s
        if age_s > STALE_S:
            return None
        if age_s > FRESH_S:
            self.aside(search_id, self._freshen(view))
        return view.body()

    def aside(self, search_id: int, work: Coroutine[Any, Any, object]) -> None:
        """Do something for a search that no reader waits for; one thing at a time. A failure is told to who waits."""
        if search_id in self._aside:
            work.close()
            return

        async def quietly() -> None:
            with contextlib.suppress(InferaSimError, LedgerError, Failed):
                await work

        task = asyncio.get_running_loop().create_task(quietly())
        self._aside[search_id] = task
        task.add_done_callback(lambda _task: self._aside.pop(search_id, None))

    def outdated(self, search_id: int) -> None:
        """Something was changed here: the next reader sees it."""
        view = self._views.get(search_id)
        if view is not None:
            view.read_at_s = -math.inf

    def keep_final(self, view: SearchView) -> None:
        """Keep the answer about a search that has ended: it never changes."""
        self._bodies[view.search_id] = view.body()
        while len(self._bodies) > MOST_BODIES:
            self._bodies.popitem(last=False)

    async def get(self, search_id: int) -> SearchView:
        """A search, at most :data:`FRESH_S` old. Raises UnknownSearch."""
        view = self._views.get(search_id)
        if view is None:
            async with self._making:
                view = self._views.get(search_id)
                if view is None:
                    stored, job = await asyncio.to_thread(self._head, search_id)
                    view = SearchView(search_id, stored, job)
                    await self._read(view)
                    self._keep(view)
                    return view
        self._views.move_to_end(search_id)
        await self._freshen(view)
        return view

    async def events(self, search_id: int, cursor: tuple[int, int]) -> AsyncIterator[str]:
        """Everything after ``cursor`` as it happens, to the search's end."""
        view = await self.get(search_id)
        sent = 0
        self.streams += 1
        silent_s = 0.0
        try:
            backlog = view.since(*cursor)
            sent = len(view.events)
            yield "retry: 2000\n\n" + "".join(event.text() for event in backlog)
            while not view.ended:
                await asyncio.sleep(FRESH_S)
                silent_s += FRESH_S
                await self._freshen(view)
                if sent < len(view.events):
                    fresh, sent, silent_s = view.events[sent:], len(view.events), 0.0
                    yield "".join(event.text() for event in fresh)
                elif silent_s >= HEARTBEAT_S:
                    silent_s = 0.0
                    yield ": still here\n\n"
        finally:
            self.streams -= 1

    async def _freshen(self, view: SearchView) -> None:
        """Read what is new where the view is too old; readers who come at once wait for one reading."""
        if view.ended or time.monotonic() - view.read_at_s <= FRESH_S:
            return
        async with view.lock:
            if not view.ended and time.monotonic() - view.read_at_s > FRESH_S:
                await self._read(view)

    def _keep(self, view: SearchView) -> None:
        self._views[view.search_id] = view
        ended = [one.search_id for one in self._views.values() if one.ended and one is not view]
        for search_id in ended[: max(0, len(ended) - MOST_ENDED)]:
            del self._views[search_id]
        while len(self._views) > 1 and (
            len(self._views) > MOST_VIEWS or sum(len(one.trials) for one in self._views.values()) > MOST_TRIALS
        ):
            self._views.popitem(last=False)

    def _head(self, search_id: int) -> tuple[StoredSearch, Job | None]:
        return self._ledger.get_search(search_id), self._queue.of_search(search_id)

    async def _read(self, view: SearchView) -> None:
        """Read what is new. The end is read before the trials: it is only there when they all are."""

        def new() -> tuple[StoredSearch, Job | None, tuple[TrialRecord, ...], tuple[NoteRecord, ...]]:
            stored, job = self._head(view.search_id)
            trials: tuple[TrialRecord, ...] = ()
            while True:
                more = self._ledger.trials_from(view.search_id, len(view.trials) + len(trials))
                trials += more
                if len(more) < 1000:
                    return stored, job, trials, self._ledger.notes_from(view.search_id, view.notes)

        view.take(*await asyncio.to_thread(new))
