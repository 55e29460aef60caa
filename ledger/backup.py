"""Copies of a ledger in use, and a ledger from a copy: SQLite by its online backup, PostgreSQL by its own tools."""

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from ledger.database import Location, connect, locate, plain_errors
from ledger.errors import LedgerError
from ledger.migrate import revision
from ledger.store import Ledger

TOOLS = "install the PostgreSQL client (Debian's postgresql-client)"


def backup(url: str, target: Path) -> None:
    """Write a whole copy of a ledger to ``target``, which must not exist; writers go on meanwhile."""
    if target.exists():
        raise LedgerError(f"backup {target}: exists already; name a new file")
    if not target.absolute().parent.is_dir():
        raise LedgerError(f"backup {target}: folder {target.absolute().parent} does not exist; create it first")
    Ledger.open(url, create=False, write=False).close()  # it is there, and it is a ledger
    location = locate(url)
    part = target.with_name(f".{target.name}.part")
    try:
        if location.path is not None:
            _copy(location.path, part)
        else:
            _tool("pg_dump", location, "--format=custom", "--no-owner", "--file", str(part))
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def restore(source: Path, url: str) -> None:
    """Make a ledger of a backup; the place must be a new file or an empty database."""
    if not source.is_file():
        raise LedgerError(f"backup {source}: no such file")
    location = locate(url)
    if location.path is not None:
        if location.path.exists():
            raise LedgerError(f"ledger {location.label}: exists already; restore to a new file")
        part = location.path.with_name(f".{location.path.name}.part")
        try:
            _copy(source, part)
            part.replace(location.path)
        finally:
            part.unlink(missing_ok=True)
    else:
        with plain_errors(location):
            engine = connect(location)
            with engine.connect() as connection:
                found = revision(connection, location)
            engine.dispose()
        if found is not None:
            raise LedgerError(f"ledger {location.label}: holds a ledger already; restore to an empty database")
        options = ("--single-transaction", "--exit-on-error", "--no-owner")
        _tool("pg_restore", location, *options, "--dbname", str(location.url.database), str(source))
    Ledger.open(url, create=False).close()  # upgrades an older one, and proves that it can be written


def _copy(source: Path, target: Path) -> None:
    """SQLite's online backup, checked page by page."""
    try:
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as here,
            closing(sqlite3.connect(target)) as there,
        ):
            here.backup(there)
            found = there.execute("PRAGMA integrity_check").fetchone()[0]
    except sqlite3.Error as error:
        raise LedgerError(f"backup of {source}: failed ({error}); check the file and the space on the disk") from None
    if found != "ok":
        raise LedgerError(f"backup of {source}: is damaged ({found})")


def _tool(name: str, location: Location, *options: str) -> None:
    """Run one of PostgreSQL's tools; the password goes through the environment, where no process list shows it."""
    program = shutil.which(name)
    if program is None:
        raise LedgerError(f"ledger {location.label}: {name} is not on the PATH; {TOOLS}")
    parts = {"--host": location.url.host, "--port": location.url.port, "--username": location.url.username}
    where = [text for option, value in parts.items() if value for text in (option, str(value))]
    secret = location.url.password
    environment = {**os.environ, **({} if secret is None else {"PGPASSWORD": str(secret)})}
    named = () if "--dbname" in options else ("--dbname", str(location.url.database))
    done = subprocess.run(
        [program, "--no-password", *where, *named, *options],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[:300]
        raise LedgerError(f"ledger {location.label}: {name} failed ({said})")
