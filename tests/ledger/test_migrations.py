"""The tables made at once and the tables made by the revisions are the same tables."""

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, inspect

from ledger import SearchRecord, TrialRecord, open_ledger
from ledger.database import WRITE, connect, locate
from ledger.migrate import HEAD, REVISIONS, alembic_config, create_all, prepare, revision, upgrade
from ledger.tables import Row


def migrated(url: str) -> Engine:
    """A database brought from nothing to the newest revision by Alembic alone."""
    engine = connect(locate(url))
    with engine.connect().execution_options(**{WRITE: True}) as connection, connection.begin():
        upgrade(connection)
    return engine


def test_the_list_of_revisions_is_the_files() -> None:
    script = ScriptDirectory.from_config(alembic_config())
    assert [found.revision for found in script.walk_revisions()][::-1] == list(REVISIONS)
    assert script.get_current_head() == HEAD


def test_the_revisions_lead_to_the_tables_of_the_code(lasting_url: str) -> None:
    engine = migrated(lasting_url)
    with engine.connect() as connection:
        assert revision(connection, locate(lasting_url)) == HEAD
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Row.metadata) == []
    engine.dispose()


def test_sqlite_schemas_match_to_the_constraint(tmp_path: Path) -> None:
    """Autogeneration does not compare primary keys, checks and autoincrement; the schema text does."""
    migrated(str(tmp_path / "migrated.db")).dispose()
    open_ledger(str(tmp_path / "made.db")).close()

    def schema(name: str) -> dict[str, list[str]]:
        connection = sqlite3.connect(tmp_path / name)
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        connection.close()
        return {name: sorted(re.findall(r"\w+|[()]", text)) for name, text in rows}

    assert schema("migrated.db") == schema("made.db")


def test_postgresql_constraints_match(new_database: Callable[[], str]) -> None:
    one, two = migrated(new_database()), connect(locate(new_database()))
    with two.begin() as connection:
        create_all(connection)
    for table in Row.metadata.tables:
        for ask in ("get_pk_constraint", "get_foreign_keys", "get_check_constraints", "get_indexes"):
            assert getattr(inspect(one), ask)(table) == getattr(inspect(two), ask)(table)
    one.dispose()
    two.dispose()


def test_an_older_ledger_is_upgraded_when_opened(
    lasting_url: str, search: SearchRecord, trials: tuple[TrialRecord, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pretended older revision takes the Alembic path and keeps its rows."""
    with open_ledger(lasting_url) as ledger:
        search_id = ledger.create_search(search)
        ledger.add_trial(search_id, trials[0])
    upgraded: list[str] = []
    monkeypatch.setattr("ledger.migrate.REVISIONS", ("0000", *REVISIONS))
    monkeypatch.setattr("ledger.migrate.upgrade", lambda _connection: upgraded.append("yes"))
    location = locate(lasting_url)
    engine = connect(location)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0000'")
    prepare(engine, location, create=False)
    assert upgraded == ["yes"]
    engine.dispose()


def test_revisions_undo_themselves(lasting_url: str) -> None:
    from alembic import command

    engine = migrated(lasting_url)
    with engine.connect().execution_options(**{WRITE: True}) as connection, connection.begin():
        command.downgrade(alembic_config(connection), "base")
        assert set(inspect(connection).get_table_names()) == {"alembic_version"}
    engine.dispose()
