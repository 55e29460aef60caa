"""An engine as a child process: started in its own session, watched until it answers, stopped with its whole group.

Whatever ends the harvest, an error, an interrupt or a termination signal, ends the engine and every process it started.
"""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import httpx

from agent.failures import EndpointFailed, EngineFailed
from predictor.errors import BadInput

Say = Callable[[str], None]
READY_PATHS = ("/health", "/v1/models")
TERM_WAIT_S = 20.0
POLL_S = 0.5
DEATH_WAIT_S = 3.0
TELL_EVERY_S = 10.0
TAIL_BYTES = 200_000
_OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemory|No available memory for the cache blocks|HIP error.*memory", re.I
)
_PORT_TAKEN = re.compile(r"address already in use", re.I)


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """What to start, where it will listen, and where its words go."""

    argv: tuple[str, ...]
    port: int
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    ready_limit_s: float = 3600.0
    files: tuple[tuple[str, str], ...] = ()  # name and text of what the command reads, written beside the log

    @property
    def url(self) -> str:
        """Where clients talk to it."""
        return f"http://127.0.0.1:{self.port}"


def port_is_free(port: int) -> bool:
    """Whether a server could listen on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextmanager
def running(command: EngineCommand, say: Say) -> Iterator[subprocess.Popen[bytes]]:
    """Start an engine, wait until it answers, and stop it and its children however the block is left."""
    if not port_is_free(command.port):
        raise EngineFailed(f"port {command.port} is taken: stop what listens there or give another --port")
    with _terminable():
        process = _start(command)
        try:
            wait_ready(command, process, say)
            yield process
        except EndpointFailed as error:
            # A broken connection comes first, the end of the process a moment later.
            if _ends_within(process, DEATH_WAIT_S):
                raise EngineFailed(_death(command, process)) from error
            raise
        finally:
            stop(process)


def _ends_within(process: subprocess.Popen[bytes], limit_s: float) -> bool:
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return False
    return True


@contextmanager
def _terminable() -> Iterator[None]:
    """Let a termination signal leave through the blocks that stop the engine, as an interrupt does."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        earlier = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not the main thread: the signal is somebody else's business
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)


def _start(command: EngineCommand) -> subprocess.Popen[bytes]:
    try:
        command.log.parent.mkdir(parents=True, exist_ok=True)
        for name, text in command.files:
            (command.log.parent / name).write_text(text, encoding="utf-8")
        with command.log.open("wb") as log:
            return subprocess.Popen(
                list(command.argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **command.env},
                cwd=command.cwd,
                start_new_session=True,
            )
    except FileNotFoundError:
        raise EngineFailed(f"{command.argv[0]}: no such program; install the engine or give --url of one") from None
    except OSError as error:
        raise BadInput(f"{command.log}: cannot start the engine ({error.strerror})") from None


def wait_ready(command: EngineCommand, process: subprocess.Popen[bytes], say: Say) -> None:
    """Poll until the engine answers; raises EngineFailed when it dies or takes too long."""
    started = told = time.monotonic()
    with httpx.Client(timeout=5.0, trust_env=False) as client:
        while True:
            if process.poll() is not None:
                raise EngineFailed(_death(command, process))
            if _answers(client, command.url):
                say(f"engine ready after {time.monotonic() - started:.0f} s")
                return
            waited = time.monotonic() - started
            if waited > command.ready_limit_s:
                raise EngineFailed(
                    f"engine not ready after {waited:.0f} s; last words: {last_words(command.log)} (log: {command.log})"
                )
            if time.monotonic() - told > TELL_EVERY_S:
                told = time.monotonic()
                say(f"starting, {waited:.0f} s: {last_words(command.log)}")
            time.sleep(POLL_S)


def _answers(client: httpx.Client, url: str) -> bool:
    for path in READY_PATHS:
        try:
            if client.get(f"{url}{path}").status_code == httpx.codes.OK:
                return True
        except httpx.HTTPError:
            return False
    return False


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the engine's process group: ask, wait, insist. Returns when nothing of it is left.

    An interrupt while it waits stops the asking, not the stopping: it is raised again once the group has ended.
    """
    interrupted: KeyboardInterrupt | None = None
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            _wait_gone(process)
        except (ProcessLookupError, PermissionError):
            break
        except KeyboardInterrupt as again:
            interrupted = again
            continue
        if not group_alive(process.pid):
            break
    # A leader whose other threads are still ending looks ended and cannot be reaped yet.
    with suppress(subprocess.TimeoutExpired):
        process.wait(TERM_WAIT_S)
    if interrupted is not None:
        raise interrupted


def _wait_gone(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a group, not longer than it is given."""
    deadline = time.monotonic() + TERM_WAIT_S
    while time.monotonic() < deadline:
        process.poll()  # reap the leader, so that an empty group is seen as gone
        if not group_alive(process.pid):
            return
        time.sleep(0.05)


def group_alive(group: int) -> bool:
    """Whether any process of a group still runs; one that ended and waits to be reaped by init does not."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    stats = list(Path("/proc").glob("[0-9]*/stat"))
    return any(_runs_in(path, group) for path in stats) if stats else True


def _runs_in(stat: Path, group: int) -> bool:
    """Whether a process of ``/proc`` is of the group and has not ended."""
    try:
        fields = stat.read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return len(fields) > 2 and int(fields[2]) == group and fields[0] not in "ZX"


def read_log(path: Path) -> str:
    """The log's text; its end where it is long."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            size = file.tell()
            file.seek(max(0, size - 20 * TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def last_words(path: Path, lines: int = 1) -> str:
    """The last lines that say something."""
    said = [line.strip() for line in read_log(path)[-TAIL_BYTES:].splitlines() if line.strip()]
    return " / ".join(said[-lines:])[-300:] or "(nothing yet)"


def _death(command: EngineCommand, process: subprocess.Popen[bytes]) -> str:
    """Why an engine ended, as far as its log tells, and what to do."""
    text = read_log(command.log)[-TAIL_BYTES:]
    hint = ""
    if _OUT_OF_MEMORY.search(text):
        hint = "; it ran out of memory: lower --kv-mem-fraction or the context length, or use more GPUs"
    elif _PORT_TAKEN.search(text):
        hint = f"; port {command.port} was taken: give another --port"
    elif process.returncode == -signal.SIGKILL:
        hint = "; it was killed from outside, as a system does that runs out of memory: see dmesg"
    blame = [line.strip() for line in text.splitlines() if re.search(r"error|exception|failed", line, re.I)]
    said = (blame[-1] if blame else last_words(command.log))[:300]
    return f"the engine ended with code {process.returncode}: {said}{hint} (log: {command.log})"
