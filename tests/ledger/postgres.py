"""A PostgreSQL server of the tests' own: a temporary cluster on loopback, removed afterwards.

Debian's package `postgresql` is enough. PostgreSQL refuses to run as root, so as root the cluster belongs to an
unprivileged user. `INFERASIM_TEST_POSTGRES=postgresql://user@host/postgres` uses a running server instead.
"""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "INFERASIM_TEST_POSTGRES"
UNPRIVILEGED = ("postgres", "nobody")


class NoServer(Exception):
    """Why no server can be had; the reason of the visible skip."""


@dataclass(frozen=True)
class Cluster:
    """A server of the tests' own, which may be stopped and started."""

    programs: Path
    owner: pwd.struct_passwd | None
    folder: Path
    port: int

    @property
    def url(self) -> str:
        """Its maintenance database."""
        return f"postgresql://tests@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it and wait until it answers."""
        settings = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self.folder} -c fsync=off -c max_connections=40"
        self._control("-l", self.folder / "log", "-o", settings, "-w", "start")

    def stop(self) -> None:
        """Stop it as a power cut would."""
        self._control("-m", "immediate", "-w", "stop")

    def _control(self, *command: object) -> None:
        _run(self.owner, self.folder, self.programs / "pg_ctl", "-D", self.folder / "data", *command)


@contextmanager
def server() -> Iterator[str]:
    """URL of a server's maintenance database, in which databases may be created."""
    if given := os.environ.get(VARIABLE):
        yield given
        return
    with cluster() as found:
        yield found.url


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A running server of the tests' own."""
    programs = _programs()
    owner = _owner()
    folder = Path(tempfile.mkdtemp(prefix="inferasim-postgres-"))
    try:
        if owner is not None:
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        data = folder / "data"
        _run(owner, folder, programs / "initdb", "-D", data, "-U", "tests", "-A", "trust", "-N", "--locale=C.UTF-8")
        made = Cluster(programs, owner, folder, _free_port())
        made.start()
        try:
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(folder)


def _programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        raise NoServer(f"no PostgreSQL server installed (apt-get install postgresql) and {VARIABLE} is not set")
    return found[-1].parent if found else Path(str(on_path)).resolve().parent


def _owner() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    for name in UNPRIVILEGED:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise NoServer(f"root cannot run PostgreSQL, and none of the users {', '.join(UNPRIVILEGED)} exists")


def _run(owner: pwd.struct_passwd | None, folder: Path, *command: object) -> None:
    identity = {} if owner is None else {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
    log = folder / "commands.log"
    with log.open("ab") as output:  # a file, not a pipe: the server inherits it and would hold a pipe open
        done = subprocess.run(
            [str(part) for part in command], stdout=output, stderr=output, cwd=folder, check=False, **identity
        )
    if done.returncode != 0:
        raise NoServer(f"{command[0]} failed: {log.read_text(errors='replace')[-500:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
