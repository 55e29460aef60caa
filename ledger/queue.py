"""The queue of a service: jobs in the ledger's own database, held by lease.

Several service processes on one PostgreSQL share it. A worker claims a job for a while and renews the lease as it
works; one that stops renewing loses the job to whoever claims next. Every claim raises the job's *fence*, and a holder
writes only while the fence is still its own, checked inside the writing transaction (:meth:`Queue.guard`): a process
that was believed dead and wakes up cannot write into a search that another one has taken over.

Leases are in the database's clock, so the clocks of the machines do not matter. A clock that steps forward makes leases
run out early, which the fence makes harmless; one that steps back is noticed by a lease that lies too far ahead.

Fair between callers: of those with waiting jobs the one with the fewest running goes first, then the one that was
served longest ago; among a caller's own jobs the oldest.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, func, or_, text, update
from sqlmodel import col, insert, select

from ledger.canonical import dumps, frozen
from ledger.errors import Conflict, LedgerError
from ledger.record import InputFile, NoteRecord, SearchRecord
from ledger.store import Guard, Ledger
from ledger.tables import JobRow

QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"
STATUSES = (QUEUED, RUNNING, DONE, FAILED, CANCELLED)
CLAIM_LOCK = 0x1EFE2A52  # any constant: PostgreSQL's advisory lock, so that one process chooses at a time
FAR_AHEAD = 3.0  # a lease that many lease times ahead was written before the clock stepped back


class LeaseLost(Conflict):
    """Another worker holds the job now: stop, and write nothing more."""


class KeyReused(Conflict):
    """An idempotency key came with another request than the first time."""


class QueueFull(LedgerError):
    """Too many jobs wait already."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job as it lies in the queue."""

    job_id: int
    kind: str
    caller: str
    search_id: int | None
    request: Mapping[str, Any]
    status: str
    cancel_requested: bool
    fence: int
    crashes: int
    result: Mapping[str, Any] | None
    problem: Mapping[str, Any] | None
    created_at: str
    started_at: str | None
    finished_at: str | None

    @property
    def attempts(self) -> int:
        """How often a worker has begun it: more than once after a crash, a shutdown or a lost lease."""
        return self.fence

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.status in (DONE, FAILED, CANCELLED)


@dataclass(frozen=True, slots=True)
class NewJob:
    """What a caller asks for."""

    kind: str
    caller: str
    request: Mapping[str, Any]
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many jobs may wait, of one caller and of all."""

    queued_per_caller: int = 50
    queued: int = 500


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


class Queue:
    """The queue of an open ledger. ``clock`` replaces the database's, for tests."""

    def __init__(self, ledger: Ledger, lease_s: float = 30.0, clock: Callable[[], float] | None = None) -> None:
        self.ledger = ledger
        self.lease_s = lease_s
        self._clock = clock

    # ------------------------------------------------------------------------------------------------- submitting

    def submit(
        self,
        new: NewJob,
        bounds: Bounds,
        search: tuple[SearchRecord, Iterable[InputFile]] | None = None,
        inputs: Iterable[InputFile] = (),
        notes: Iterable[NoteRecord] = (),
    ) -> tuple[Job, bool]:
        """Take a job on, with its search and inputs in the same transaction; also says whether it is a new one.

        ``notes`` are what the search begins with: how its request was read. The same caller's same idempotency key
        gives the first job back; with another request it is refused.
        """
        body = dumps(frozen(dict(new.request), "request"))
        with self.ledger.transaction("the same request was sent twice at once") as connection:
            self._serialise(connection)
            known = _known(connection, new, body)
            if known is not None:
                return known, False
            waiting = _counts(connection, col(JobRow.status) == QUEUED)
            if waiting.get(new.caller, 0) >= bounds.queued_per_caller:
                raise QueueFull(f"{bounds.queued_per_caller} of your requests wait already; send this one again later")
            if sum(waiting.values()) >= bounds.queued:
                raise QueueFull(f"{bounds.queued} requests wait already; send this one again later")
            search_id = None if search is None else self.ledger.insert_search(connection, *search, notes)
            self.ledger.put_inputs(connection, inputs)
            row = insert(JobRow).returning(col(JobRow.id))
            values = {
                "kind": new.kind,
                "caller": new.caller,
                "search_id": search_id,
                "request_json": body,
                "idempotency_key": new.idempotency_key,
                "status": QUEUED,
                "cancel_requested": 0,
                "fence": 0,
                "crashes": 0,
                "created_at": _now(),
            }
            job_id = connection.execute(row, values).scalar_one()
            return _jobs(connection, col(JobRow.id) == job_id)[0], True

    def known(self, new: NewJob) -> Job | None:
        """The job that the same request with the same key made before. Raises KeyReused for another request."""
        body = dumps(frozen(dict(new.request), "request"))
        with self.ledger.reading() as session:
            return _known(session.connection(), new, body)

    # ---------------------------------------------------------------------------------------------------- working

    def claim(self, owner: str, running_per_caller: int = 10**6) -> Job | None:
        """Take the next job for ``lease_s``; None where nothing waits. A job whose lease ran out counts a crash."""
        with self.ledger.transaction() as connection:
            self._serialise(connection)
            now_s = self._now_s(connection)
            free = or_(col(JobRow.status) == QUEUED, self._expired(now_s))
            oldest = dict(
                connection.execute(
                    select(col(JobRow.caller), func.min(JobRow.id)).where(free).group_by(col(JobRow.caller))
                ).all()
            )
            running = _counts(connection, col(JobRow.status) == RUNNING, ~self._expired(now_s))
            served = dict(
                connection.execute(
                    select(col(JobRow.caller), func.max(JobRow.started_at)).group_by(col(JobRow.caller))
                ).all()
            )
            callers = [caller for caller in oldest if running.get(caller, 0) < running_per_caller]
            if not callers:
                return None
            chosen = min(callers, key=lambda one: (running.get(one, 0), served.get(one) or "", oldest[one]))
            job = _jobs(connection, col(JobRow.id) == oldest[chosen])[0]
            connection.execute(
                update(JobRow)
                .where(col(JobRow.id) == job.job_id)
                .values(
                    status=RUNNING,
                    fence=job.fence + 1,
                    crashes=job.crashes + (job.status == RUNNING),
                    lease_owner=owner,
                    lease_until_s=now_s + self.lease_s,
                    started_at=_now(),
                )
            )
            return _jobs(connection, col(JobRow.id) == job.job_id)[0]

    def renew(self, job: Job) -> bool:
        """Hold a job for another ``lease_s``; says whether its caller wants it stopped. Raises LeaseLost."""
        with self.ledger.transaction() as connection:
            self._change(connection, job, lease_until_s=self._now_s(connection) + self.lease_s)
            return _jobs(connection, col(JobRow.id) == job.job_id)[0].cancel_requested

    def release(self, job: Job) -> None:
        """Give a job back unfinished, for any worker to go on with."""
        with self.ledger.transaction() as connection:
            self._change(connection, job, status=QUEUED, lease_owner=None, lease_until_s=None)

    def finish(
        self,
        job: Job,
        status: str,
        result: Mapping[str, Any] | None = None,
        problem: Mapping[str, Any] | None = None,
    ) -> None:
        """End a job."""
        with self.ledger.transaction() as connection:
            self._change(
                connection,
                job,
                status=status,
                lease_owner=None,
                lease_until_s=None,
                result_json=None if result is None else json.dumps(result, allow_nan=False),
                problem_json=None if problem is None else json.dumps(problem, allow_nan=False),
                finished_at=_now(),
            )

    def guard(self, job: Job) -> Guard:
        """What refuses to write once the job is someone else's; it holds the job's row to the end of the transaction.

        On PostgreSQL that makes a claim wait for a write that is under way; SQLite has one writer anyway.
        """
        held = select(col(JobRow.id)).where(*_held(job))
        if not self.ledger.location.is_sqlite:
            held = held.with_for_update(read=True)

        def check(connection: Connection) -> None:
            if connection.execute(held).first() is None:
                raise _lost(job)

        return check

    def take_over(self) -> int:
        """Free every lease at once: for the one process of a SQLite ledger, as it starts. Returns how many."""
        with self.ledger.transaction() as connection:
            done = connection.execute(
                update(JobRow).where(col(JobRow.status) == RUNNING).values(lease_until_s=0.0, lease_owner=None)
            )
            return int(done.rowcount)

    # -------------------------------------------------------------------------------------------------- cancelling

    def cancel(self, job_id: int) -> Job | None:
        """Stop a job: at once where it waits, soon where it runs; one that has ended stays as it is."""
        with self.ledger.transaction() as connection:
            self._serialise(connection)
            found = _jobs(connection, col(JobRow.id) == job_id)
            if not found or found[0].ended:
                return found[0] if found else None
            waits = found[0].status == QUEUED
            values: dict[str, Any] = {"cancel_requested": 1}
            if waits:
                values |= {"status": CANCELLED, "finished_at": _now()}
            connection.execute(update(JobRow).where(col(JobRow.id) == job_id).values(**values))
            return _jobs(connection, col(JobRow.id) == job_id)[0]

    # ----------------------------------------------------------------------------------------------------- reading

    def job(self, job_id: int) -> Job | None:
        """One job by its id."""
        return self._one(col(JobRow.id) == job_id)

    def of_search(self, search_id: int) -> Job | None:
        """The job that runs a search; a search of the command line has none."""
        return self._one(col(JobRow.search_id) == search_id)

    def of_searches(self, search_ids: Sequence[int]) -> dict[int, Job]:
        """The jobs of several searches."""
        with self.ledger.reading() as session:
            found = _jobs(session.connection(), col(JobRow.search_id).in_(search_ids))
        return {job.search_id: job for job in found if job.search_id is not None}

    def counts(self) -> dict[str, int]:
        """Jobs by status."""
        with self.ledger.reading() as session:
            rows = session.exec(select(JobRow.status, func.count()).group_by(col(JobRow.status))).all()
        return {status: 0 for status in STATUSES} | {status: int(count) for status, count in rows}

    # ------------------------------------------------------------------------------------------------------ inside

    def _one(self, condition: ColumnElement[bool]) -> Job | None:
        with self.ledger.reading() as session:
            found = _jobs(session.connection(), condition)
        return found[0] if found else None

    def _serialise(self, connection: Connection) -> None:
        """One process at a time chooses or counts; SQLite's write lock does the same."""
        if not self.ledger.location.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": CLAIM_LOCK})

    def _now_s(self, connection: Connection) -> float:
        if self._clock is not None:
            return self._clock()
        if self.ledger.location.is_sqlite:
            return time.time()
        return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())

    def _expired(self, now_s: float) -> ColumnElement[bool]:
        until = col(JobRow.lease_until_s)
        return and_(
            col(JobRow.status) == RUNNING,
            or_(until < now_s, until > now_s + FAR_AHEAD * self.lease_s),
        )

    def _change(self, connection: Connection, job: Job, **values: Any) -> None:
        if connection.execute(update(JobRow).where(*_held(job)).values(**values)).rowcount == 0:
            raise _lost(job)


def _held(job: Job) -> tuple[ColumnElement[bool], ...]:
    return col(JobRow.id) == job.job_id, col(JobRow.fence) == job.fence, col(JobRow.status) == RUNNING


def _lost(job: Job) -> LeaseLost:
    return LeaseLost(f"job {job.job_id}: its lease ran out and another worker has taken it over")


def _counts(connection: Connection, *conditions: ColumnElement[bool]) -> dict[str, int]:
    query = select(col(JobRow.caller), func.count()).where(*conditions).group_by(col(JobRow.caller))
    return {caller: int(count) for caller, count in connection.execute(query)}


def _known(connection: Connection, new: NewJob, body: str) -> Job | None:
    if new.idempotency_key is None:
        return None
    found = _jobs(connection, col(JobRow.caller) == new.caller, col(JobRow.idempotency_key) == new.idempotency_key)
    if not found:
        return None
    if found[0].kind != new.kind or dumps(frozen(dict(found[0].request), "request")) != body:
        raise KeyReused(
            f"idempotency key {new.idempotency_key!r}: was sent before with another request; "
            "use a new key for a new request"
        )
    return found[0]


_COLUMNS = JobRow.__table__  # type: ignore[attr-defined]  # SQLModel adds it to table classes


def _jobs(connection: Connection, *conditions: ColumnElement[bool]) -> list[Job]:
    found = connection.execute(select(_COLUMNS).where(*conditions).order_by(col(JobRow.id)))
    return [_job(row) for row in found.mappings()]


def _job(row: RowMapping) -> Job:
    return Job(
        job_id=row["id"],
        kind=row["kind"],
        caller=row["caller"],
        search_id=row["search_id"],
        request=json.loads(row["request_json"]),
        status=row["status"],
        cancel_requested=bool(row["cancel_requested"]),
        fence=row["fence"],
        crashes=row["crashes"],
        result=None if row["result_json"] is None else json.loads(row["result_json"]),
        problem=None if row["problem_json"] is None else json.loads(row["problem_json"]),
        created_at=row["created_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
    )
