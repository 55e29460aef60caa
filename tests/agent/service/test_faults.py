"""A disk that fills, a database that goes away and returns, a clock that jumps: a clear error, and no lost trial."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.agent.service.harness import REQUEST, ended, service, until
from tests.agent.service.test_sharing import holder, undisturbed
from tests.ledger import postgres


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system, small, but with room for the write-ahead log of a search."""
    folder = tmp_path / "small"
    folder.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(line, check=False, capture_output=True).returncode != 0:
        pytest.skip("a small file system cannot be mounted here: needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def recorded(client: httpx.Client, search_id: int) -> int:
    """Trials so far."""
    trials: dict[str, int] = client.get(f"/v1/searches/{search_id}").json()["trials"]
    return trials["legal"] + trials["rejected"]


def test_a_disk_that_fills_halts_a_search_and_loses_nothing(small_disk: Path, tmp_path: Path) -> None:
    ledger = str(small_disk / "ledger.db")
    with service(tmp_path, ledger, workers=1, database_patience_s=600) as one, one.client() as client:
        search_id = client.post("/v1/tune", json=REQUEST).json()["search_id"]
        until(lambda: recorded(client, search_id) > 5)
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as sink:
            try:
                while sink.write(b"\0" * 4096):
                    pass
            except OSError:
                pass
        until(lambda: any("no space left" in line for line in one.errors))
        before = recorded(client, search_id)
        refused = client.post("/v1/tune", json=REQUEST)
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert "every recorded trial is safe" in refused.json()["detail"]
        assert str(small_disk) not in refused.text
        assert client.get("/healthz").status_code == 200
        assert recorded(client, search_id) >= before > 0, "what is there can be read"
        filler.unlink()
        assert ended(client, search_id)["status"] == "done"
    ours, theirs = undisturbed(ledger, search_id, tmp_path / "reference.db")
    assert ours == theirs


def test_a_database_that_goes_away_and_returns(tmp_path: Path) -> None:
    try:
        with postgres.cluster() as server:
            _goes_away(server, tmp_path)
    except postgres.NoServer as error:
        pytest.skip(str(error))


def _goes_away(server: postgres.Cluster, tmp_path: Path) -> None:
    with service(tmp_path, server.url, workers=1, lease_s=3) as one, one.client() as client:
        search_id = client.post("/v1/tune", json=REQUEST).json()["search_id"]
        until(lambda: holder(server.url, search_id, 280))
        server.stop()
        away = until(lambda: _unlike(client.get("/readyz"), 200))
        assert away.status_code == 503
        assert "the ledger cannot be reached" in away.json()["detail"]
        for answer in (client.get("/v1/searches"), client.post("/v1/tune", json=REQUEST)):
            assert answer.status_code == 503
            assert answer.json()["type"] == "urn:inferasim:problem:ledger-unavailable"
            assert "127.0.0.1" not in answer.text
        assert client.get("/healthz").status_code == 200
        assert "inferasim_ledger_up 0.0" in client.get("/metrics").text
        server.start()
        assert ended_despite_errors(client, search_id)["status"] == "done"
        assert client.get("/readyz").status_code == 200
        assert any("ledger_waits" in line or "lease_not_renewed" in line for line in one.errors)
    ours, theirs = undisturbed(server.url, search_id, tmp_path / "reference.db")
    assert ours == theirs


def _unlike(answer: httpx.Response, status: int) -> httpx.Response | None:
    return answer if answer.status_code != status else None


def ended_despite_errors(client: httpx.Client, search_id: int) -> dict[str, Any]:
    """As ``ended``, through the moments in which the database is only just back."""

    def look() -> dict[str, Any] | None:
        found = client.get(f"/v1/searches/{search_id}")
        return found.json() if found.status_code == 200 and found.json()["finished_at"] else None

    answer: dict[str, Any] = until(look)
    return answer


def test_a_clock_that_jumps_gives_a_search_to_another_worker_in_one_piece(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    """To a database whose clock leaps ahead every lease has run out, though its holder lives and goes on writing."""
    url = new_database()
    with service(tmp_path, url, workers=2, lease_s=60) as one, one.client() as client:
        search_id = client.post("/v1/tune", json=REQUEST).json()["search_id"]
        first = until(lambda: holder(url, search_id, 280))
        with psycopg.connect(url, autocommit=True) as connection:
            moved = connection.execute("UPDATE job SET lease_until_s = 0 WHERE status = 'running'").rowcount
            assert moved == 1
        assert ended(client, search_id)["status"] == "done"
        assert Path(f"/proc/{first}").exists(), "nothing died"
    ours, theirs = undisturbed(url, search_id, tmp_path / "reference.db")
    assert ours == theirs
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT status, fence = crashes + 1 FROM job").fetchone()
    assert row == ("done", True)
