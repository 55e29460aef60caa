"""Load on a service over loopback: readers and event streams while searches run; bounded in count and time.

A reader asks for a search, waits ``--pause-s`` as a page or a CI job does, and asks again. Latencies are of whole
answers as the reader sees them. The memory is that of each process (HTTP, workers, those that answer questions), after
the first fifth of the run (imports, caches that fill) and at its end; it is flat where every one of them is. The load
generator runs on the same cores. It starts once the first search runs: what a service that is only starting takes is
not what its readers wait for.

``python -m evals.service_load --json [--seconds 600]``
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

ROOT = Path(__file__).parents[1]
REQUEST = {"model": "Llama-3.1-8B", "cluster": "MI355X:8", "engine": "sglang", "slos": ["tpot_ms<=10"]}
START_S = 120.0
ANSWER_S = 30.0  # a reader that waits longer counts an error
FLAT_SHARE = 0.05  # of the memory after the first fifth; a leak of one answer a read would be a hundred times that
TARGET_P99_MS = 200.0


@dataclass
class Tally:
    """What was seen."""

    latencies_ms: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    events: int = 0
    streams_ended: int = 0
    running: list[int] = field(default_factory=list)  # ids of searches that run now
    ended: list[int] = field(default_factory=list)
    http_cpu_s: float = 0.0
    rss: list[tuple[float, dict[int, float]]] = field(default_factory=list)  # at s, MB of each process
    roles: dict[int, str] = field(default_factory=dict)  # of each process that was seen


class Connection:
    """A keep-alive HTTP/1.1 connection, as small as a reader needs."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._pair: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body."""
        if self._pair is None:
            self._pair = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._pair
        kind = "content-type: application/json\r\n" if body else ""
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n{kind}content-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        status, headers = await _head(reader)
        return status, await reader.readexactly(int(headers.get("content-length", "0")))

    def close(self) -> None:
        """Drop it; the next question opens another."""
        if self._pair is not None:
            self._pair[1].close()
            self._pair = None


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
    return int(lines[0].split()[1]), headers


async def read(number: int, place: tuple[str, int], tally: Tally, pause_s: float, until_s: float) -> None:
    """One reader: most often a search that runs, now and then one that has ended."""
    connection = Connection(*place)
    await asyncio.sleep(pause_s * (number % 97) / 97.0)  # readers do not march in step
    turn = number
    while time.monotonic() < until_s:
        turn += 1
        from_ended = tally.ended and turn % 5 == 0
        ids = tally.ended[-200:] if from_ended else tally.running
        started_s = time.perf_counter()
        try:
            path = f"/v1/searches/{ids[turn % len(ids)]}"
            status, body = await asyncio.wait_for(connection.ask("GET", path), ANSWER_S)
            tally.latencies_ms.append((time.perf_counter() - started_s) * 1000.0)
            if status != 200 or b'"search_id"' not in body:
                tally.errors.append(f"read: {status} {body[:200]!r}")
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            tally.errors.append(f"read: {type(error).__name__} {error}")
            connection.close()
        await asyncio.sleep(pause_s)
    connection.close()


async def follow(number: int, place: tuple[str, int], tally: Tally, until_s: float) -> None:
    """One event stream after another, each to its search's end."""
    while time.monotonic() < until_s:
        writer = None
        try:
            reader, writer = await asyncio.open_connection(*place)
            search_id = tally.running[number % len(tally.running)]
            writer.write(
                f"GET /v1/searches/{search_id}/events HTTP/1.1\r\nhost: {place[0]}:{place[1]}\r\n\r\n".encode()
            )
            status, _ = await _head(reader)
            if status != 200:
                tally.errors.append(f"stream: {status}")
                await asyncio.sleep(1.0)
                continue
            while time.monotonic() < until_s:
                line = await asyncio.wait_for(reader.readline(), ANSWER_S)
                tally.events += line.startswith(b"event: ")
                if line.startswith(b"event: end"):
                    tally.streams_ended += 1
                    await asyncio.sleep(1.0)  # as a page that goes on to the next search
                    break
                if not line:
                    tally.errors.append("stream: cut before its search ended")
                    break
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            tally.errors.append(f"stream: {type(error).__name__} {error}")
        finally:
            if writer is not None:
                writer.close()


async def keep_searching(
    slot: int, place: tuple[str, int], tally: Tally, started: asyncio.Event, until_s: float
) -> None:
    """One search after another, so that as many run as there are slots."""
    connection, turn = Connection(*place), 0
    while time.monotonic() < until_s:
        turn += 1
        body = json.dumps({**REQUEST, "concurrency": 16 + slot + turn % 200, "budget": 300}).encode()
        status, answer = await asyncio.wait_for(connection.ask("POST", "/v1/tune", body), START_S)
        if status != 202:
            tally.errors.append(f"tune: {status} {answer[:200]!r}")
            await asyncio.sleep(1.0)
            continue
        search_id = int(json.loads(answer)["search_id"])
        tally.running.append(search_id)
        while time.monotonic() < until_s:
            await asyncio.sleep(0.5)
            _, answer = await asyncio.wait_for(connection.ask("GET", f"/v1/searches/{search_id}"), START_S)
            found = json.loads(answer)
            if found["status"] != "queued":
                started.set()
            if found["finished_at"]:
                if found["status"] != "done":
                    tally.errors.append(f"search {search_id}: {found['status']}")
                tally.ended.append(search_id)
                break
        if len(tally.running) > 1:
            tally.running.remove(search_id)
    connection.close()


def rss_mb(pid: int) -> float:
    """Resident memory of a process, MB; 0 where it has gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def cpu_s(pid: int) -> float:
    """CPU time a process has used: what its answers cost however busy the machine is."""
    try:
        parts = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """Processes a process has started, and theirs."""
    try:
        found = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]
    except OSError:
        return []
    return found + [grandchild for child in found for grandchild in children(child)]


def role(pid: int, http_pid: int) -> str:
    """What a process of the service is for."""
    if pid == http_pid:
        return "http"
    try:
        line = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "gone"
    return next((name for word, name in ROLES.items() if word in line), "other")


ROLES = {"agent.service.worker": "worker", "spawn_main": "answers", "resource_tracker": "tracker"}


async def watch(pid: int, tally: Tally, until_s: float, every_s: float) -> None:
    """Note the memory now and then."""
    begin_s = time.monotonic()
    while time.monotonic() < until_s:
        held = {one: rss_mb(one) for one in (pid, *children(pid))}
        tally.roles |= {one: role(one, pid) for one in held if one not in tally.roles}
        tally.rss.append((time.monotonic() - begin_s, held))
        workers = "+".join(f"{mb:.0f}" for one, mb in held.items() if tally.roles[one] == "worker")
        print(
            f"{tally.rss[-1][0]:4.0f} s: {len(tally.latencies_ms)} reads, {len(tally.ended)} searches ended, "
            f"HTTP process {held[pid]:.0f} MB, workers {workers} MB, all processes {sum(held.values()):.0f} MB, "
            f"load {os.getloadavg()[0]:.1f}",
            file=sys.stderr,
        )
        await asyncio.sleep(every_s)


async def load(place: tuple[str, int], pid: int, options: argparse.Namespace) -> Tally:
    """Everything at once, for so many seconds."""
    tally, started = Tally(), asyncio.Event()
    until_s = time.monotonic() + options.seconds
    searches = [
        asyncio.create_task(keep_searching(slot, place, tally, started, until_s)) for slot in range(options.searches)
    ]
    await asyncio.wait_for(started.wait(), START_S)
    before_s = cpu_s(pid)
    await asyncio.gather(
        *searches,
        *(read(number, place, tally, options.pause_s, until_s) for number in range(options.readers)),
        *(follow(number, place, tally, until_s) for number in range(options.streams)),
        watch(pid, tally, until_s, max(1.0, options.seconds / 60.0)),
    )
    tally.http_cpu_s = cpu_s(pid) - before_s
    return tally


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the values lie.

    >>> quantile([3.0, 1.0, 2.0, 4.0], 0.5)
    2.0
    """
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, round(share * len(ordered)) - 1))]


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of one process over the run, MB."""

    role: str
    begin_mb: float  # median of the second fifth of its samples
    end_mb: float  # median of the last fifth
    peak_mb: float
    mb_per_min: float  # slope after the first fifth, by least squares

    @property
    def growth_mb(self) -> float:
        """Memory at the end less that after the first fifth."""
        return self.end_mb - self.begin_mb

    @property
    def flat(self) -> bool:
        """Whether it grew by no more than :data:`FLAT_SHARE`."""
        return self.growth_mb <= FLAT_SHARE * self.begin_mb

    def as_json(self) -> dict[str, Any]:
        """For the output."""
        figures = {name: round(getattr(self, name), 2) for name in ("begin_mb", "end_mb", "peak_mb", "mb_per_min")}
        return {"role": self.role, **figures, "growth_mb": round(self.growth_mb, 2), "flat": self.flat}


def memory(role: str, samples: Sequence[tuple[float, float]]) -> Memory:
    """Of samples (at s, MB).

    >>> found = memory("worker", [(60.0 * minute, 100.0 + 2.0 * minute) for minute in range(10)])
    >>> found.begin_mb, found.end_mb, found.peak_mb, round(found.mb_per_min, 6), found.flat
    (105.0, 117.0, 118.0, 2.0, False)
    """
    part = max(1, len(samples) // 5)
    late = samples[len(samples) // 5 :]
    slope = linear_regression([at_s / 60.0 for at_s, _ in late], [mb for _, mb in late]).slope if len(late) > 1 else 0.0
    return Memory(
        role=role,
        begin_mb=median(mb for _, mb in samples[part : 2 * part] or samples),
        end_mb=median(mb for _, mb in samples[-part:]),
        peak_mb=max(mb for _, mb in samples),
        mb_per_min=slope,
    )


def memories(rss: Sequence[tuple[float, dict[int, float]]], roles: dict[int, str]) -> list[Memory]:
    """Of every process that was there at the end; one that came late is judged on what it lived."""
    last = rss[-1][1]
    return [memory(roles[pid], [(at_s, held[pid]) for at_s, held in rss if held.get(pid)]) for pid in last if last[pid]]


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Start a service, load it, stop it; the figures."""
    with tempfile.TemporaryDirectory(prefix="inferasim-load-") as folder:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("INFERASIM", "XDG"))}
        settings = {"INFERASIM_SERVE_WORKERS": str(options.searches), "INFERASIM_SERVE_LOG_LEVEL": "warning"}
        settings |= {"INFERASIM_SERVE_RUNNING_PER_CALLER": str(options.searches), "HOME": folder}
        settings |= {"INFERASIM_SERVE_WRITES_PER_MIN": "100000"}
        ledger = options.ledger or str(Path(folder) / "ledger.db")
        line = [sys.executable, "-m", "agent.cli.main", "serve", "--port", "0", "--ledger", ledger]
        with Path(folder, "log").open("w+", encoding="utf-8") as log:
            process = subprocess.Popen(line, cwd=ROOT, env=kept | settings, stderr=log, stdout=subprocess.DEVNULL)
            try:
                place = _place(process, Path(folder, "log"))
                tally = asyncio.run(load(place, process.pid, options))
            finally:
                process.terminate()
                process.wait(60)
    reads = tally.latencies_ms
    p99_ms, found = quantile(reads, 0.99), memories(tally.rss, tally.roles)
    mine = next(one for one in found if one.role == "http")
    workers = [one for one in found if one.role == "worker"]
    # A worker that died and was replaced would start small again, and hide what it had grown to.
    replaced = sum(name == "worker" for name in tally.roles.values()) - options.searches
    flat = all(one.flat for one in found) and not replaced
    print(
        f"p99 {p99_ms:.0f} ms (target {TARGET_P99_MS:.0f}), {len(tally.errors)} errors; memory over the last four "
        f"fifths of {options.seconds:.0f} s {'flat' if flat else 'grows'}: "
        + ", ".join(f"{one.role} {one.growth_mb:+.1f} on {one.begin_mb:.0f} MB" for one in found),
        file=sys.stderr,
    )
    return {
        "errors": len(tally.errors),
        "read_p99_ms": p99_ms,
        "events_delivered": tally.events,
        "rss_growth_mb": mine.growth_mb,
        "rss_flat": flat,
        "rss_mb_per_min": mine.mb_per_min,
        "rss_peak_mb": mine.peak_mb,
        "worker_rss_growth_mb": max((one.growth_mb for one in workers), default=0.0),
        "worker_rss_mb_per_min": max((one.mb_per_min for one in workers), default=0.0),
        "worker_rss_peak_mb": max((one.peak_mb for one in workers), default=0.0),
        "workers_replaced": replaced,
        "processes": [one.as_json() for one in found],
        "read_p50_ms": quantile(reads, 0.5),
        "read_p90_ms": quantile(reads, 0.9),
        "read_max_ms": max(reads),
        "reads": len(reads),
        "reads_per_s": len(reads) / options.seconds,
        "http_cpu_ms_per_read": 1000.0 * tally.http_cpu_s / len(reads),
        "rss_mb": mine.end_mb,
        "rss_growth_all_mb": sum(one.growth_mb for one in found),
        "streams_ended": tally.streams_ended,
        "searches_ended": len(tally.ended),
        "readers": options.readers,
        "streams": options.streams,
        "searches": options.searches,
        "pause_s": options.pause_s,
        "seconds": options.seconds,
        "load_average": os.getloadavg()[0],
        "cores": os.cpu_count(),
        "rss_over_time_mb": [
            [round(at_s), *(round(mb, 1) for pid, mb in held.items() if tally.roles[pid] in ("http", "worker"))]
            for at_s, held in tally.rss
        ],
        "first_errors": tally.errors[:5],
    }


def _place(process: "subprocess.Popen[bytes]", log: Path) -> tuple[str, int]:
    """Where the service listens, once it does."""
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s and process.poll() is None:
        said = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("serving on ")]
        if said:
            host, _, port = said[0].rstrip("/").rpartition("//")[2].rpartition(":")
            return host, int(port)
        time.sleep(0.1)
    raise SystemExit(f"the service did not start: {log.read_text(encoding='utf-8')[-500:]}")


def main() -> None:
    """Print one JSON object, or the figures one a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--readers", type=int, default=200)
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--searches", type=int, default=4)
    parser.add_argument("--pause-s", type=float, default=1.0, help="between a reader's questions")
    parser.add_argument("--ledger", default="", help="file or postgresql:// URL; a new SQLite file if left out")
    options = parser.parse_args()
    figures = run(options)
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:20} {value}")


if __name__ == "__main__":
    main()
