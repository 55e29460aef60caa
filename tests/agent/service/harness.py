"""A real service process for tests: started, talked to over loopback, stopped or killed."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[3]
NONE: Mapping[str, str] = {}
START_S = 120.0  # on a busy machine
REQUEST = {"model": "Llama-3.1-8B", "cluster": "MI355X:8", "engine": "sglang", "slos": ["tpot_ms<=10"]}


@dataclass
class Served:
    """One service process."""

    process: "subprocess.Popen[str]"
    base: str
    errors: list[str]

    def client(self, **options: Any) -> httpx.Client:
        """A client of it."""
        return httpx.Client(base_url=self.base, timeout=60.0, **options)

    def kill(self) -> None:
        """As the kernel would: nothing is said, nothing is finished."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """As an operator would."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def command(*arguments: str) -> list[str]:
    """The command line, as its console script would run it."""
    return [sys.executable, "-m", "agent.cli.main", *arguments]


def environment(home: Path) -> dict[str, str]:
    """A home of its own and none of the caller's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("INFERASIM", "XDG"))}
    return {**kept, "HOME": str(home)}


@contextmanager
def service(
    home: Path, ledger: str, *options: str, variables: Mapping[str, str] = NONE, **settings: object
) -> Iterator[Served]:
    """A service on ``ledger``; keyword arguments are settings, given through the environment."""
    settings = {"call_timeout_s": 600} | settings  # a busy machine fails no test
    given = {f"INFERASIM_SERVE_{name.upper()}": str(value) for name, value in settings.items()}
    process = subprocess.Popen(
        command("serve", "--port", "0", "--ledger", ledger, *options),
        cwd=ROOT,
        env=environment(home) | given | dict(variables),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines: list[str] = []
    address: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if line.startswith("serving on "):
                address.put(line.split()[-1].rstrip("/"))
        address.put(None)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        base = address.get(timeout=START_S)
        assert base is not None, "".join(lines)
        yield Served(process, base, lines)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        reader.join()
        assert process.stderr is not None
        process.stderr.close()


def until(what: Callable[[], Any], seconds: float = 180.0) -> Any:
    """Wait for a true answer."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("it did not happen in time")


def ended(client: httpx.Client, search_id: int) -> dict[str, Any]:
    """The search once it has ended."""

    def look() -> dict[str, Any] | None:
        found = client.get(f"/v1/searches/{search_id}")
        assert found.status_code == 200, found.text
        body: dict[str, Any] = found.json()
        return body if body["finished_at"] or body["status"] in ("failed", "cancelled") else None

    found: dict[str, Any] = until(look)
    return found
