"""What a worker does with a job: run its search from the ledger, or a sweep, a mix or a trace, and end it."""

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from agent.service.asking import worker_planner
from agent.service.control import CANCELLED, LOST, SHUTDOWN, Control, StopWork
from agent.service.logs import log
from agent.service.problems import INTERNAL, problem_of
from agent.service.settings import ServiceSettings
from ledger.canonical import Json
from ledger.errors import Conflict
from ledger.queue import CANCELLED as JOB_CANCELLED
from ledger.queue import DONE, FAILED, Job, Queue
from ledger.record import NoteRecord, SearchEnd, TrialRecord
from ledger.store import Guard, Ledger, ResumeState
from levers.objectives import Direction, objective
from predictor.errors import BadInput, InferaSimError

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Patient:
    """The part of a ledger that a search writes; waits for a database that is away or full, and loses no trial.

    A commit whose answer was lost is told from another's row by its content: the same trial is not written twice.
    """

    book: Ledger
    control: Control
    patience_s: float

    @property
    def label(self) -> str:
        """Path or URL for messages."""
        return self.book.label

    def resume_state(self, search_id: int) -> ResumeState:
        """What an earlier run recorded."""
        return self._do("resume", lambda: self.book.resume_state(search_id))

    def add_trial(self, search_id: int, trial: TrialRecord, guard: Guard | None = None) -> None:
        """Record one trial."""
        self.control.check()
        try:
            self._do("trial", lambda: self.book.add_trial(search_id, trial, guard))
        except Conflict:
            held = self._do("trial", lambda: self.book.trial(search_id, trial.index))
            if held.stable() != trial.stable():
                raise

    def add_note(self, search_id: int, note: NoteRecord, guard: Guard | None = None) -> int:
        """Record a note."""
        return self._do("note", lambda: self.book.add_note(search_id, note, guard))

    def finish_search(self, search_id: int, end: SearchEnd, guard: Guard | None = None) -> None:
        """Record how it ended; an end whose answer was lost stands."""
        try:
            self._do("end", lambda: self.book.finish_search(search_id, end, guard))
        except Conflict:
            held = self._do("end", lambda: self.book.get_search(search_id)).end
            if held is None or held.stable() != end.stable():
                raise

    def _do(self, what: str, act: Callable[[], Value]) -> Value:
        return self.control.patiently(what, act, self.patience_s)


def run_job(queue: Queue, job: Job, control: Control, settings: ServiceSettings) -> None:
    """Work a job through to its end, or give it back; every way out leaves the ledger readable."""
    book = Patient(queue.ledger, control, settings.database_patience_s)

    def end(status: str, result: Mapping[str, Any] | None = None, problem: Mapping[str, Any] | None = None) -> None:
        control.patiently("job", lambda: queue.finish(job, status, result, problem), settings.database_patience_s)

    try:
        if job.crashes > settings.max_crashes:
            raise BadInput(f"this job took {job.crashes} workers down with it and is given up")
        if job.cancel_requested:
            raise StopWork(CANCELLED)
        if job.kind == "tune":
            _search(book, queue, job, control)
            end(DONE)
        else:
            end(DONE, KINDS[job.kind](job, control, settings, book.book))
        log().info("job_done")
    except StopWork as stop:
        log().info("job_stopped", reason=stop.reason)
        _stopped(book, queue, job, stop.reason)
    except InferaSimError as error:
        log().warning("job_failed", error=str(error))
        _failed(book, queue, job, (problem_of(error) or INTERNAL).as_json())


def _stopped(book: Patient, queue: Queue, job: Job, reason: str) -> None:
    if reason == LOST:
        return
    if reason == SHUTDOWN:
        queue.release(job)
        return
    message = {"code": reason, "message": "stopped by its caller" if reason == CANCELLED else "its time was used up"}
    if job.search_id is not None:
        end_early(book.book, job.search_id, "stopped", message, queue.guard(job))
    queue.finish(job, JOB_CANCELLED if reason == CANCELLED or job.search_id is None else DONE, problem=None)


def _failed(book: Patient, queue: Queue, job: Job, problem: Mapping[str, Any]) -> None:
    if job.search_id is not None:
        message = {"code": "failed", "message": str(problem["detail"])}
        end_early(book.book, job.search_id, "failed", message, queue.guard(job))
    queue.finish(job, FAILED, problem=problem)


def end_early(book: Ledger, search_id: int, status: str, stop: Mapping[str, str], guard: Guard | None = None) -> None:
    """End a search with what it has: its best trial so far stands."""
    from ledger.queries import reason_counts

    if book.get_search(search_id).end is not None:
        return
    trials = book.trials(search_id)
    best = best_of(trials, book.get_search(search_id).record.objective)
    legal = sum(trial.legal for trial in trials)
    counts: dict[str, Json] = {
        "scored": sum(trial.score is not None for trial in trials),
        "legal": legal,
        "rejected": len(trials) - legal,
    }
    reasons: dict[str, Json] = dict(reason_counts(trials))
    summary: dict[str, Json] = {"trials": counts, "reasons": reasons, "stop": dict(stop)}
    end = SearchEnd(status, datetime.now(UTC), None if best is None else best.index, summary)
    book.finish_search(search_id, end, guard)


def best_of(trials: tuple[TrialRecord, ...], name: str) -> TrialRecord | None:
    """The best legal trial by an objective; the earlier one keeps a tie."""
    sign = 1.0 if objective(name).direction is Direction.MAX else -1.0
    legal = [trial for trial in trials if trial.legal and trial.score is not None]
    return max(legal, key=lambda trial: sign * (trial.score or 0.0), default=None)


def _search(book: Patient, queue: Queue, job: Job, control: Control) -> None:
    """Run the job's search, from the very inputs it was submitted with, on whatever machine this is."""
    from agent.recorded import recorded_request
    from agent.tune import prepare, search
    from predictor.anchors.schema import parse_anchor

    assert job.search_id is not None
    search_id = job.search_id
    stored = control.patiently("search", lambda: book.book.get_search(search_id), book.patience_s)
    if stored.end is not None:
        return
    texts = [one.text for one in book.book.inputs(search_id) if one.kind == "anchor"]
    anchors = tuple(parse_anchor(text, f"search {search_id}") for text in texts)
    request = recorded_request(stored.record.request)
    planner = worker_planner(stored.record.request.get("planner"), request.guidance, book.resume_state(search_id).notes)
    prepared = prepare(request, anchors, planner)
    if prepared.record.input_sha256 != stored.record.input_sha256:
        raise BadInput(
            f"search {search_id}: was submitted to another version of the service, whose catalogue or language model "
            "differs; ask again"
        )
    search(
        prepared,
        book,  # type: ignore[arg-type]  # the part of a Ledger that a search uses
        search_id,
        progress=lambda _trial: control.check(),
        guard=queue.guard(job),
    )


def _pareto(job: Job, control: Control, settings: ServiceSettings, _book: Ledger) -> dict[str, Any]:
    from agent.pareto import SweepRequest, run_sweep
    from agent.tiers import given_tiers

    request = SweepRequest.model_validate(job.request["request"])
    tiers = given_tiers(job.request.get("tiers"))
    sweep = run_sweep(
        request, tiers=tiers, anchors=settings.anchors_folder, progress=lambda _done, _all: control.check()
    )
    return _plain(sweep.as_json())


def _mix(job: Job, control: Control, settings: ServiceSettings, _book: Ledger) -> dict[str, Any]:
    from agent.cluster import parse_cluster
    from agent.mix import parse_demands, plan_mix
    from agent.mix.plan import check_fleet
    from agent.pareto import SweepRequest
    from agent.tiers import given_tiers

    request = SweepRequest.model_validate(job.request["request"])
    tiers = given_tiers(job.request.get("tiers"))
    demands = parse_demands(tuple(job.request["demands"]), request.models, tiers)
    fleet = check_fleet(job.request["fleet"], parse_cluster(request.cluster)[1].gpus, demands)
    found = plan_mix(
        request,
        tiers,
        demands,
        fleet_gpus=fleet,
        keep_spare=job.request["spare"],
        anchors=settings.anchors_folder,
        progress=lambda _done, _all: control.check(),
    )
    return _plain(found.as_json())


def _plain(answer: dict[str, Any]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(json.dumps(answer, allow_nan=False))
    return value


def _simulate(job: Job, control: Control, settings: ServiceSettings, book: Ledger) -> dict[str, Any]:
    from agent.simulating import TraceOptions, simulate_once

    trace = book.input(job.request["trace_sha256"])
    assert trace is not None, "a trace is stored with its job"
    with tempfile.TemporaryDirectory(prefix="inferasim-") as folder:
        path = Path(folder) / "trace"
        path.write_text(trace.text, encoding="utf-8", newline="")
        options = TraceOptions(path=str(path), **job.request["options"])
        answer = simulate_once(
            dict(job.request["fields"]),
            options,
            anchors=settings.anchors_folder,
            progress=lambda _finished: control.check(),
        )
    return _plain(answer)


Work = Callable[[Job, Control, ServiceSettings, Ledger], dict[str, Any]]
KINDS: dict[str, Work] = {"pareto": _pareto, "mix": _mix, "simulate": _simulate}
