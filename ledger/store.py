"""The ledger: append-only store of searches, on SQLite or PostgreSQL.

Contract, the same on every back end (``tests/ledger/test_contract.py``):

- Append-only. A search, a trial, a note and an end are each written once, in a transaction of their own, and never
  change. A process killed at any moment leaves every trial whole or absent.
- What is read equals what was written, to the last bit of every number.
- Trials of a search have unique indices and come back in index order, whatever order they were written in. Several
  processes may write to different searches at once; two that write one search get a :class:`ledger.errors.Conflict`.
- A finished search takes no more trials. Notes may follow an end (a verification comes later).
- Readers never wait for a writer. A Ledger may be shared by threads, not by forked processes.
- Every failure is a LedgerError of one line that names the ledger.

Importing this module imports SQLAlchemy; commands that open no ledger import :mod:`ledger` alone.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from sqlalchemy import ColumnElement, Connection, Engine, bindparam, func
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, insert, select

from ledger import rows
from ledger.database import WRITE, Location, connect, locate, plain_errors, quietly, use_wal
from ledger.errors import Conflict, LedgerError, UnknownSearch
from ledger.migrate import prepare
from ledger.record import InputFile, NoteRecord, SearchEnd, SearchRecord, StoredSearch, TrialRecord
from ledger.tables import EndRow, InputRow, NoteRow, SearchRow, TrialRow

# Statements of the hot path, built once: SQLAlchemy spends more on building a statement than SQLite on running it.
_INSERT_TRIAL = insert(TrialRow)
_LOCK_SEARCH = select(SearchRow.id).where(col(SearchRow.id) == bindparam("search_id")).with_for_update()
_FIND_END = select(EndRow.search_id).where(col(EndRow.search_id) == bindparam("search_id"))

# Needs all the rights of a trial and writes none, so that a read-only ledger shows before any work is done. (A bare
# BEGIN IMMEDIATE does not tell: SQLite makes it a read transaction on a read-only file.)
_WRITE_NOTHING = "INSERT INTO trial SELECT * FROM trial WHERE 1 = 0"

Guard = Callable[[Connection], None]  # run inside a writing transaction; raises where the writer may write no more


@dataclass(frozen=True, slots=True)
class ResumeState:
    """What a killed search had done: its input and its trials by index. A search with an end needs no resuming."""

    search: StoredSearch
    trials: Mapping[int, TrialRecord]
    notes: tuple[NoteRecord, ...]

    @property
    def first_missing(self) -> int:
        """The lowest index that is not recorded: where a serial search goes on."""
        return next(index for index in range(len(self.trials) + 1) if index not in self.trials)


class Ledger:
    """An open ledger. Use as a context manager, or call :meth:`close`."""

    def __init__(self, engine: Engine, location: Location) -> None:
        self._engine = engine
        self._location = location
        self._file = self._file_identity()

    @classmethod
    def open(cls, url: str, *, create: bool = True, write: bool = True) -> Self:
        """Open a ledger by path or URL, making its tables if it is new and upgrading them if they are older.

        ``create=False`` refuses a database that is not there or is empty, for commands that only read; ``write=False``
        does not ask for write access. The folder of a file is never created: a mistyped path is an error.
        """
        location = locate(url)
        _check_path(location, create=create)
        engine: Engine | None = None
        try:
            with plain_errors(location):
                engine = connect(location)
                if location.path and write:
                    use_wal(engine)
                prepare(engine, location, create=create)
                if write:
                    _write_nothing(engine)
        except BaseException:
            if engine is not None:
                engine.dispose()
            raise
        return cls(engine, location)

    def close(self) -> None:
        """Close every connection; everything committed is already on disk."""
        with quietly():
            self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def check_writable(self) -> None:
        """Raise LedgerError where nothing can be written now."""
        self._check_file()
        with plain_errors(self._location):
            _write_nothing(self._engine)

    @property
    def label(self) -> str:
        """Path or URL for messages, password hidden."""
        return self._location.label

    @property
    def location(self) -> Location:
        """Where it lies."""
        return self._location

    # ------------------------------------------------------------------------------------------------- writing

    def create_search(self, record: SearchRecord, inputs: Iterable[InputFile] = ()) -> int:
        """Record the whole input of a search and the files it read; returns the search's id."""
        with self.transaction() as connection:
            return self.insert_search(connection, record, inputs)

    def insert_search(
        self,
        connection: Connection,
        record: SearchRecord,
        inputs: Iterable[InputFile] = (),
        notes: Iterable[NoteRecord] = (),
    ) -> int:
        """As :meth:`create_search`, inside a transaction of :meth:`transaction`; ``notes`` are what it begins with."""
        self.put_inputs(connection, inputs)
        row = insert(SearchRow).returning(col(SearchRow.id))
        search_id = connection.execute(row, rows.search_values(record)).scalar_one()
        assert search_id is not None  # the column is a primary key; only the row class allows None
        for position, note in enumerate(notes):
            connection.execute(insert(NoteRow), rows.note_values(search_id, position, note))
        return search_id

    def add_inputs(self, inputs: Iterable[InputFile]) -> tuple[str, ...]:
        """Record files by content; one that is there already is left alone. Returns their hashes."""
        files = tuple(inputs)
        with self.transaction() as connection:
            self.put_inputs(connection, files)
        return tuple(file.sha256 for file in files)

    def add_trial(self, search_id: int, trial: TrialRecord, guard: Guard | None = None) -> None:
        """Record one trial of an unfinished search, in a transaction of its own."""
        with self.transaction(f"trial {trial.index} of search {search_id} is recorded already") as connection:
            self._lock_search(connection, search_id)
            if guard is not None:
                guard(connection)
            self._refuse_finished(connection, search_id)
            connection.execute(_INSERT_TRIAL, rows.trial_values(search_id, trial))

    def add_note(self, search_id: int, note: NoteRecord, guard: Guard | None = None) -> int:
        """Record a plan, an LLM call, a scratchpad note or a verification; returns its position."""
        with self.transaction() as connection:
            self._lock_search(connection, search_id)
            if guard is not None:
                guard(connection)
            last = select(func.max(NoteRow.position)).where(col(NoteRow.search_id) == search_id)
            newest = connection.execute(last).scalar()
            position = 0 if newest is None else int(newest) + 1
            connection.execute(insert(NoteRow), rows.note_values(search_id, position, note))
            return position

    def finish_search(self, search_id: int, end: SearchEnd, guard: Guard | None = None) -> None:
        """Record how a search ended; it takes no more trials after this."""
        with self.transaction() as connection:
            self._lock_search(connection, search_id)
            if guard is not None:
                guard(connection)
            self._refuse_finished(connection, search_id)
            best = col(TrialRow.search_id) == search_id, col(TrialRow.trial_index) == end.best_index
            if (
                end.best_index is not None
                and connection.execute(select(TrialRow.trial_index).where(*best)).first() is None
            ):
                raise LedgerError(
                    f"ledger {self.label}: search {search_id} has no trial {end.best_index}, named as its best"
                )
            connection.execute(insert(EndRow), rows.end_values(search_id, end))

    # ------------------------------------------------------------------------------------------------- reading

    def get_search(self, search_id: int) -> StoredSearch:
        """One search with its whole input."""
        found = self._searches(col(SearchRow.id) == search_id)
        if not found:
            raise self._unknown(search_id)
        return found[0]

    def searches(self, *, model: str | None = None, input_sha256: str | None = None) -> tuple[StoredSearch, ...]:
        """Searches in the order they were created, all of them or those of a model or of one exact input."""
        conditions = [] if model is None else [col(SearchRow.model) == model]
        conditions += [] if input_sha256 is None else [col(SearchRow.input_sha256) == input_sha256]
        return self._searches(*conditions)

    def recent(
        self, limit: int, before: int | None = None, model: str | None = None
    ) -> tuple[tuple[StoredSearch, int, int], ...]:
        """The newest searches, or those older than id ``before``, each with its counts of trials and legal trials."""
        ids = select(SearchRow.id).order_by(col(SearchRow.id).desc()).limit(limit)
        if before is not None:
            ids = ids.where(col(SearchRow.id) < before)
        if model is not None:
            ids = ids.where(col(SearchRow.model) == model)
        with self.reading() as session:
            wanted = [one for one in session.exec(ids) if one is not None]
            query = (
                select(TrialRow.search_id, func.count(), func.sum(TrialRow.legal))
                .where(col(TrialRow.search_id).in_(wanted))
                .group_by(col(TrialRow.search_id))
            )
            counts = {search_id: (int(count), int(legal)) for search_id, count, legal in session.exec(query)}
        found = self._searches(col(SearchRow.id).in_(wanted))
        return tuple((one, *counts.get(one.search_id, (0, 0))) for one in reversed(found))

    def trials(self, search_id: int) -> tuple[TrialRecord, ...]:
        """Every trial of a search, in index order."""
        with self.reading() as session:
            self._require(session, search_id)
            query = select(TrialRow).where(col(TrialRow.search_id) == search_id).order_by(col(TrialRow.trial_index))
            return tuple(rows.trial_record(row) for row in session.exec(query))

    def trial(self, search_id: int, index: int) -> TrialRecord:
        """One trial."""
        with self.reading() as session:
            self._require(session, search_id)
            row = session.get(TrialRow, (search_id, index))
            if row is None:
                raise UnknownSearch(f"ledger {self.label}: search {search_id} has no trial {index}")
            return rows.trial_record(row)

    def trials_from(self, search_id: int, first: int, most: int = 1000) -> tuple[TrialRecord, ...]:
        """Trials of a search from index ``first`` on, in index order, ``most`` at once."""
        with self.reading() as session:
            query = (
                select(TrialRow)
                .where(col(TrialRow.search_id) == search_id, col(TrialRow.trial_index) >= first)
                .order_by(col(TrialRow.trial_index))
                .limit(most)
            )
            return tuple(rows.trial_record(row) for row in session.exec(query))

    def notes_from(self, search_id: int, first: int) -> tuple[NoteRecord, ...]:
        """Notes of a search from position ``first`` on, in the order written."""
        with self.reading() as session:
            query = (
                select(NoteRow)
                .where(col(NoteRow.search_id) == search_id, col(NoteRow.position) >= first)
                .order_by(col(NoteRow.position))
            )
            return tuple(rows.note_record(row) for row in session.exec(query))

    def trial_counts(self) -> dict[int, tuple[int, int]]:
        """Search id to (trials, legal trials); searches without trials are absent."""
        with self.reading() as session:
            query = select(TrialRow.search_id, func.count(), func.sum(TrialRow.legal)).group_by(col(TrialRow.search_id))
            return {search_id: (count, int(legal)) for search_id, count, legal in session.exec(query)}

    def notes(self, search_id: int) -> tuple[NoteRecord, ...]:
        """Every note of a search, in the order written."""
        with self.reading() as session:
            self._require(session, search_id)
            query = select(NoteRow).where(col(NoteRow.search_id) == search_id).order_by(col(NoteRow.position))
            return tuple(rows.note_record(row) for row in session.exec(query))

    def input(self, sha256: str) -> InputFile | None:
        """A stored input by its content hash."""
        with self.reading() as session:
            row = session.get(InputRow, sha256)
            return None if row is None else rows.input_record(row)

    def inputs(self, search_id: int) -> tuple[InputFile, ...]:
        """The stored inputs of a search: model card, catalogue, anchors, prompts, as far as they were handed in."""
        record = self.get_search(search_id).record
        hashes = (record.model_card_sha256, record.catalogue_sha256, *record.anchor_sha256s)
        found = (self.input(sha256) for sha256 in dict.fromkeys((*hashes, *record.prompt_sha256s.values())))
        return tuple(file for file in found if file is not None)

    def resume_state(self, search_id: int) -> ResumeState:
        """All that a killed search had recorded."""
        search = self.get_search(search_id)
        trials = {trial.index: trial for trial in self.trials(search_id)}
        return ResumeState(search, trials, self.notes(search_id))

    def unfinished(self, record: SearchRecord) -> StoredSearch | None:
        """The newest search of exactly this input that has no end: the one to resume."""
        same = self.searches(input_sha256=record.input_sha256)
        return next((search for search in reversed(same) if search.end is None), None)

    # ------------------------------------------------------------------------------------------------- inside

    @contextmanager
    def transaction(self, conflict: str = "another process writes this search") -> Iterator[Connection]:
        """One transaction that holds the write lock from its start, commits as a whole or leaves nothing."""
        self._check_file()
        try:
            with plain_errors(self._location):
                try:
                    with self._engine.connect().execution_options(**{WRITE: True}) as connection, connection.begin():
                        yield connection
                except IntegrityError as error:
                    raise Conflict(f"ledger {self.label}: {conflict}") from error
        except LedgerError:
            self._check_file()  # "disk I/O error" on a deleted file is better told as what it is
            raise

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """One snapshot."""
        self._check_file()
        with plain_errors(self._location), Session(self._engine) as session:
            yield session

    def put_inputs(self, connection: Connection, inputs: Iterable[InputFile]) -> None:
        """As :meth:`add_inputs`, inside a transaction."""
        for file in inputs:
            make = sqlite_insert if self._location.is_sqlite else postgres_insert
            connection.execute(make(InputRow).on_conflict_do_nothing(), rows.input_values(file))

    def _lock_search(self, connection: Connection, search_id: int) -> None:
        """Serialise writers of one search (PostgreSQL row lock; SQLite has one writer anyway)."""
        if connection.execute(_LOCK_SEARCH, {"search_id": search_id}).first() is None:
            raise self._unknown(search_id)

    def _refuse_finished(self, connection: Connection, search_id: int) -> None:
        if connection.execute(_FIND_END, {"search_id": search_id}).first() is not None:
            raise Conflict(f"ledger {self.label}: search {search_id} is finished and takes no more")

    def _searches(self, *conditions: ColumnElement[bool]) -> tuple[StoredSearch, ...]:
        query = (
            select(SearchRow, EndRow)
            .join(EndRow, col(EndRow.search_id) == col(SearchRow.id), isouter=True)
            .where(*conditions)
            .order_by(col(SearchRow.id))
        )
        with self.reading() as session:
            return tuple(rows.stored_search(row, end) for row, end in session.exec(query))

    def _require(self, session: Session, search_id: int) -> None:
        if session.get(SearchRow, search_id) is None:
            raise self._unknown(search_id)

    def _unknown(self, search_id: int) -> UnknownSearch:
        return UnknownSearch(f"ledger {self.label}: no search {search_id}; `inferasim ledger list` shows those it has")

    def _file_identity(self) -> tuple[int, int] | None:
        path = self._location.path
        if path is None:
            return None
        try:
            found = os.stat(path)
        except OSError:
            return (-1, -1)
        return (found.st_dev, found.st_ino)

    def _check_file(self) -> None:
        """SQLite would go on writing into a deleted file without a word."""
        if self._file_identity() != self._file:
            raise LedgerError(
                f"ledger {self.label}: the file was deleted or replaced while open; restore it and resume"
            )


def _check_path(location: Location, *, create: bool) -> None:
    """The mistakes that SQLite would report vaguely or not at all."""
    path = location.path
    if path is None:
        return
    if path.is_dir():
        raise LedgerError(f"ledger {path}: is a folder; give a file, for example {path / 'ledger.db'}")
    if path.exists():
        return
    if not create:
        raise LedgerError(f"ledger {path}: no such file; run a search into it first, or check --ledger")
    if not path.absolute().parent.is_dir():
        raise LedgerError(f"ledger {path}: folder {path.absolute().parent} does not exist; create it first")


def _write_nothing(engine: Engine) -> None:
    with engine.connect().execution_options(**{WRITE: True}) as connection, connection.begin():
        connection.exec_driver_sql(_WRITE_NOTHING)
