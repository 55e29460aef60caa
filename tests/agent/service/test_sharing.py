"""Several service processes on one PostgreSQL share the queue; what one leaves behind another finishes."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from agent.recorded import recorded_request
from agent.tune import tune
from ledger import open_ledger
from ledger.export import export
from tests.agent.service.harness import REQUEST, Served, ended, service, until


def holder(url: str, search_id: int, most_trials: int) -> int | None:
    """The worker that holds a search which is well under way."""
    with psycopg.connect(url) as connection:
        count = connection.execute("SELECT count(*) FROM trial WHERE search_id = %s", (search_id,)).fetchone()
        held = connection.execute("SELECT lease_owner FROM job WHERE search_id = %s", (search_id,)).fetchone()
    if count is None or held is None or not held[0] or count[0] < 25:
        return None
    assert count[0] < most_trials, "too late to disturb it"
    return int(held[0].rpartition(":")[2])


def parent(pid: int) -> int:
    """The process that started another one."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:")))


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has collected yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def undisturbed(url: str, search_id: int, reference: Path) -> tuple[bytes, bytes]:
    """Stable exports: of the search, and of the same request run here without a service."""
    with open_ledger(url, create=False, write=False) as book:
        ours = export(book, [search_id], "jsonl", stable=True)
        request = recorded_request(book.get_search(search_id).record.request)
    tune(request, ledger_url=str(reference))
    with open_ledger(str(reference), create=False, write=False) as book:
        return ours, export(book, [1], "jsonl", stable=True)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to tell which service to kill")
def test_a_killed_service_leaves_its_search_to_the_other(new_database: Callable[[], str], tmp_path: Path) -> None:
    url = new_database()
    options = {"workers": 1, "lease_s": 2}
    with service(tmp_path, url, **options) as one, service(tmp_path, url, **options) as two:
        with one.client() as client:
            search_id = client.post("/v1/tune", json=REQUEST).json()["search_id"]
        worker = until(lambda: holder(url, search_id, 280))
        killed, left = (one, two) if parent(worker) == one.process.pid else (two, one)
        killed.kill()
        assert until(lambda: gone(worker)), "the worker goes with its service"
        with left.client() as client:
            found = ended(client, search_id)
            assert client.get(f"/v1/searches/{search_id}/events").text.count("event: end") == 1
    assert found["status"] == "done"
    ours, theirs = undisturbed(url, search_id, tmp_path / "reference.db")
    assert ours == theirs
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT fence, crashes, status FROM job").fetchone()
    assert row == (2, 1, "done")


def test_a_stopped_service_gives_its_search_back_at_once(new_database: Callable[[], str], tmp_path: Path) -> None:
    url = new_database()
    with service(tmp_path, url, workers=1, lease_s=3600) as one:
        with one.client() as client:
            search_id = client.post("/v1/tune", json=REQUEST).json()["search_id"]
        until(lambda: holder(url, search_id, 280))
        assert one.stop() == 0
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT status, crashes, lease_owner FROM job").fetchone()
    assert row == ("queued", 0, None), "no lease has to run out first"
    with service(tmp_path, url, workers=1, lease_s=3600) as two, two.client() as client:
        assert ended(client, search_id)["status"] == "done"
    ours, theirs = undisturbed(url, search_id, tmp_path / "reference.db")
    assert ours == theirs


def test_a_killed_worker_is_replaced_and_its_search_goes_on(tmp_path: Path, new_database: Callable[[], str]) -> None:
    url = new_database()
    with service(tmp_path, url, workers=1, lease_s=2) as one, one.client() as client:
        search_id = client.post("/v1/tune", json=REQUEST).json()["search_id"]
        os.kill(until(lambda: holder(url, search_id, 280)), 9)
        assert ended(client, search_id)["status"] == "done"
        assert "inferasim_worker_restarts 1.0" in client.get("/metrics").text
    ours, theirs = undisturbed(url, search_id, tmp_path / "reference.db")
    assert ours == theirs


SWEEP = {"models": ["Llama-3.1-8B"], "cluster": "MI355X:8", "engines": ["sglang"]}


def test_a_killed_sweep_starts_anew_and_ends_alike(tmp_path: Path) -> None:
    """Sweeps are pure functions of their request: one that is begun twice says so and gives the same result."""
    request = {**SWEEP, "most_points": 300}
    ledger = str(tmp_path / "ledger.db")
    with service(tmp_path, ledger, workers=1, lease_s=2) as one:
        with one.client() as client:
            job_id = client.post("/v1/pareto", json=request).json()["job_id"]
            until(lambda: client.get(f"/v1/jobs/{job_id}").json()["status"] == "running")
        one.kill()
    with service(tmp_path, ledger, workers=1, lease_s=2) as two, two.client() as client:
        until(lambda: client.get(f"/v1/jobs/{job_id}").json()["finished_at"])
        disturbed = client.get(f"/v1/jobs/{job_id}").json()
        other = client.post("/v1/pareto", json=request).json()["job_id"]
        until(lambda: client.get(f"/v1/jobs/{other}").json()["finished_at"])
        whole = client.get(f"/v1/jobs/{other}").json()
    assert (disturbed["status"], disturbed["attempts"]) == ("done", 2)
    assert (whole["status"], whole["attempts"]) == ("done", 1)
    assert untimed(disturbed["result"]) == untimed(whole["result"])


def untimed(result: dict[str, Any]) -> dict[str, Any]:
    """A result without what the clock decided."""
    return {name: value for name, value in result.items() if not name.endswith("_s")}


def test_sqlite_serves_one_process(tmp_path: Path) -> None:
    ledger = str(tmp_path / "ledger.db")
    with service(tmp_path, ledger, workers=0):
        refused: list[Served] = []
        with (
            pytest.raises(AssertionError, match="another service serves it; SQLite serves one"),
            service(tmp_path, ledger, workers=0) as second,
        ):
            refused.append(second)
        assert refused == []
