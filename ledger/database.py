"""Where a ledger lies: URLs, connections, and database errors as sentences.

SQLite runs in WAL mode with a busy timeout: readers never wait for the one writer, and a killed process loses at most
the transaction it was in. PostgreSQL is reached through psycopg.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import sleep

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from ledger.errors import LedgerError

BUSY_TIMEOUT_S = 20.0  # a writer holds the lock for about a millisecond; twenty seconds is a stuck process
CONNECT_TIMEOUT_S = 10
WRITE = "ledger_write"  # execution option: this transaction will write


@dataclass(frozen=True, slots=True)
class Location:
    """A parsed ledger URL. ``path`` is set for a SQLite file, ``label`` is what messages show: never a password."""

    url: URL
    path: Path | None
    label: str

    @property
    def is_sqlite(self) -> bool:
        """Whether this is SQLite, in a file or in memory."""
        return self.url.get_backend_name() == "sqlite"


def locate(url: str) -> Location:
    """Parse a ledger URL: a path, ``sqlite:///path``, ``:memory:`` or ``postgresql://user@host/name``.

    >>> locate("runs.db").url.render_as_string()
    'sqlite:///runs.db'
    >>> locate("postgresql://ann:secret@db/tuning").label
    'postgresql+psycopg://ann:***@db/tuning'
    """
    if not url.strip():
        raise LedgerError("ledger URL is empty; give a file path or postgresql://user@host/name")
    if "://" not in url:
        name = url if url == ":memory:" else os.path.expanduser(url)
        parsed = URL.create("sqlite", database=name)
    else:
        try:
            parsed = make_url(url)
            backend = parsed.get_backend_name()
        except (ArgumentError, NoSuchModuleError, ValueError):
            raise LedgerError(f"ledger {url.split('://')[0]}://…: not a URL; give a path or postgresql://…") from None
        if backend in ("postgres", "postgresql"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        elif backend != "sqlite":
            raise LedgerError(f"ledger {backend}://…: unknown kind of database; give a path or postgresql://…")
    if parsed.get_backend_name() == "sqlite":
        database = parsed.database or ":memory:"
        path = None if database == ":memory:" else Path(database)
        return Location(parsed.set(database=database), path, str(path or ":memory:"))
    return Location(parsed, None, parsed.render_as_string(hide_password=True))


def connect(location: Location) -> Engine:
    """An engine whose transactions are ours: BEGIN IMMEDIATE where one will write, so that a reader never upgrades."""
    if not location.is_sqlite:
        try:
            arguments = {"connect_timeout": CONNECT_TIMEOUT_S}
            return create_engine(location.url, connect_args=arguments, pool_pre_ping=True)
        except ModuleNotFoundError:
            raise LedgerError(
                f"ledger {location.label}: PostgreSQL needs psycopg; pip install 'inferasim[postgres]'"
            ) from None
    waits: dict[str, object] = {"timeout": BUSY_TIMEOUT_S, "check_same_thread": False}
    if location.path is None:  # one connection, or every checkout would see an empty database of its own
        engine = create_engine(location.url, connect_args=waits, poolclass=StaticPool)
    else:
        engine = create_engine(location.url, connect_args=waits)

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # no implicit BEGIN: the hook below starts every transaction
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = NORMAL")  # with WAL: a killed process loses nothing committed

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(WRITE, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def use_wal(engine: Engine) -> None:
    """Switch a SQLite file to write-ahead logging; SQLite keeps the mode in the file.

    The switch takes an exclusive lock without waiting for it, so two processes that create one ledger have to retry.
    """
    raw = engine.raw_connection()
    try:
        cursor = raw.cursor()
        for attempt in range(200):
            try:
                cursor.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or attempt == 199:
                    raise
                sleep(0.01)
    finally:
        raw.close()


@contextmanager
def plain_errors(location: Location) -> Iterator[None]:
    """Turn what a database driver raises into one line that names the ledger and the way out."""
    try:
        yield
    except DBAPIError as error:
        if error.orig is None:
            raise
        raise LedgerError(f"ledger {location.label}: {_sentence(location, error.orig)}") from error
    except sqlite3.Error as error:
        raise LedgerError(f"ledger {location.label}: {_sentence(location, error)}") from error
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        fix = "pip install 'inferasim[postgres]'"
        raise LedgerError(f"ledger {location.label}: PostgreSQL needs psycopg; {fix}") from None


def _sentence(location: Location, error: BaseException) -> str:
    return _sqlite_sentence(location, error) if isinstance(error, sqlite3.Error) else _postgres_sentence(error)


def _sqlite_sentence(location: Location, error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", "") or ""
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    folder = location.path.absolute().parent if location.path else None
    known = {
        "SQLITE_NOTADB": "is not a SQLite database; choose another path",
        "SQLITE_CORRUPT": f"is damaged ({first}); restore a backup, or recover it with the sqlite3 shell's .recover",
        "SQLITE_CANTOPEN": f"cannot be opened; check that {folder} exists and that you may write there",
        "SQLITE_READONLY": f"is read-only; make it and {folder} writable, or choose another path",
        "SQLITE_FULL": f"no space left on the disk that holds {folder}; free some and resume the search",
        "SQLITE_BUSY": f"is locked by another process for over {BUSY_TIMEOUT_S:.0f} s; stop that process and resume",
        "SQLITE_LOCKED": "is locked by another connection of this process; try again",
        "SQLITE_IOERR": f"the disk that holds {folder} fails ({first}); check its space and health",
        "SQLITE_PERM": "access denied; check the file's permissions",
    }
    for code, sentence in known.items():
        if name == code or name.startswith(code + "_"):
            return sentence
    return first


def _postgres_sentence(error: BaseException) -> str:
    first = " ".join(str(error).split()) or type(error).__name__
    state = getattr(error, "sqlstate", None) or ""
    known = {
        "28": "the server refuses this user; check name and password",
        "3D000": "no such database on the server; create it with createdb",
        "42501": "this user may not create or write the ledger's tables; grant it, or use another database",
        "53100": "no space left on the server's disk; free some and resume the search",
        "53300": "the server has no connection left; close some or raise max_connections",
        "57P": "the server is shutting down or restarting; resume when it is back",
        "08": "the connection was lost; resume when the server is back",
        "25006": "the server is read-only (a standby?); use the primary",
    }
    for code, sentence in known.items():
        if state.startswith(code):
            return f"{sentence} ({first})"
    if not state and 'database "' in first and first.endswith("does not exist"):  # libpq gives no state on connecting
        return f"{known['3D000']} ({first})"
    if not state and "authentication failed" in first:
        return f"{known['28']} ({first})"
    if not state:
        return f"cannot be reached ({first}); start the server or check host, port and name"
    return first


@contextmanager
def quietly() -> Iterator[None]:
    """Ignore a database that fails while it is being closed: everything committed is already safe."""
    with suppress(SQLAlchemyError, sqlite3.Error):
        yield
