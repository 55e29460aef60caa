"""Bring a database to this version's tables.

A fresh database gets its tables at once and is stamped with the newest revision; only an older ledger imports Alembic
and runs the revisions in :mod:`ledger.migrations`. A test holds both ways to the same tables.
"""

from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, inspect, text

from ledger.database import WRITE, Location
from ledger.errors import LedgerError
from ledger.tables import Row

if TYPE_CHECKING:
    from alembic.config import Config

REVISIONS = ("0001", "0002")  # oldest first; a test compares them with the files in migrations/versions
HEAD = REVISIONS[-1]
VERSION_TABLE = "alembic_version"
LOCK_KEY = 0x1EFE2A51  # any constant: PostgreSQL's advisory lock, so that one process creates the tables


def prepare(engine: Engine, location: Location, *, create: bool) -> None:
    """Create, upgrade or accept the tables; raise LedgerError for a database that is no ledger or a newer one."""
    with engine.connect() as connection:
        found = revision(connection, location)
    if found == HEAD:
        return
    if found is None and not create:
        raise LedgerError(f"ledger {location.label}: holds no ledger yet; run a search into it first")
    with engine.connect().execution_options(**{WRITE: True}) as connection, connection.begin():
        if not location.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})
        found = revision(connection, location)  # another process may have done it while this one waited
        if found is None:
            create_all(connection)
        elif found != HEAD:
            upgrade(connection)


def revision(connection: Connection, location: Location) -> str | None:
    """The revision of a database, None for an empty one."""
    tables = set(inspect(connection).get_table_names())
    if VERSION_TABLE not in tables:
        if tables & set(Row.metadata.tables) or (tables and location.is_sqlite):
            raise LedgerError(f"ledger {location.label}: is a database of something else; choose another one")
        return None
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    if found not in REVISIONS:
        raise LedgerError(
            f"ledger {location.label}: its tables have revision {found}, this version knows up to {HEAD};"
            " update inferasim, or use another ledger"
        )
    return str(found)


def create_all(connection: Connection) -> None:
    """Create this version's tables and stamp them, without Alembic."""
    Row.metadata.create_all(connection)
    connection.execute(
        text(
            f"CREATE TABLE {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL, "
            f"CONSTRAINT {VERSION_TABLE}_pkc PRIMARY KEY (version_num) )"
        )
    )
    connection.execute(text(f"INSERT INTO {VERSION_TABLE} (version_num) VALUES (:head)"), {"head": HEAD})


def alembic_config(connection: Connection | None = None) -> "Config":
    """Alembic's settings for the revisions shipped in this package; ``connection`` is the open transaction."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "ledger:migrations")
    config.attributes["connection"] = connection
    return config


def upgrade(connection: Connection, to: str = "head") -> None:
    """Run the revisions that a database lacks, in the caller's transaction."""
    from alembic import command

    command.upgrade(alembic_config(connection), to)
