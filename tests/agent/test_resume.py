"""A search killed in the middle leaves a readable ledger, and run again ends as one that was never disturbed."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from agent.request import TuningRequest
from agent.tune import tune
from ledger import open_ledger
from ledger.export import export

ROOT = Path(__file__).parents[2]
TUNE = [
    sys.executable, "-m", "agent.cli.main", "tune", "--model", "Llama-3.1-8B", "--cluster", "MI355X:8",
    "--engine", "sglang", "--slo", "tpot_ms<=10", "--seed-only", "--json", "--ledger",
]  # fmt: skip


def recorded(path: Path) -> int:
    if not path.exists():
        return 0
    with open_ledger(str(path), create=False, write=False) as book:
        searches = book.searches()
        return len(book.trials(searches[0].search_id)) if searches else 0


def test_kill_in_the_middle_then_resume(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole.db", tmp_path / "killed.db"
    subprocess.run([*TUNE, str(whole)], cwd=ROOT, check=True, capture_output=True)
    process = subprocess.Popen([*TUNE, str(killed)], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(6000):
            if killed.exists() and killed.stat().st_size > 0 and _count(killed) >= 40:
                break
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    left = recorded(killed)
    assert 0 < left < recorded(whole)
    with open_ledger(str(killed), create=False) as book:
        assert book.get_search(1).status == "unfinished"
        assert [trial.index for trial in book.trials(1)] == list(range(left))
    resume = [*TUNE[:3], "ledger", "resume", "1", "--json", "--ledger", str(killed)]
    again = subprocess.run(resume, cwd=ROOT, check=True, capture_output=True, text=True)
    assert json.loads(again.stdout)["resumed_trials"] == left
    exports = []
    for path in (whole, killed):
        with open_ledger(str(path), create=False, write=False) as book:
            exports.append(export(book, [1], "jsonl", stable=True))
    assert exports[0] == exports[1]


REQUEST = {
    "model": "Llama-3.1-8B",
    "cluster": "MI355X:8",
    "engine": "sglang",
    "objective": "output_tok_s_per_gpu",
    "slos": ("tpot_ms<=10",),
    "budget": 60,
}
KILLED_AT = """
import json, os, signal, sys
from agent.request import TuningRequest
from agent.tune import tune
fields, ledger, last = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
fields["slos"] = tuple(fields["slos"])
def die(trial):
    if trial.index == last:
        os.kill(os.getpid(), signal.SIGKILL)
tune(TuningRequest(**fields), ledger_url=ledger, progress=die)
"""


def stable(path: Path) -> bytes:
    """The export of the only search of a ledger, without what differs from run to run."""
    with open_ledger(str(path), create=False, write=False) as book:
        return export(book, [1], "jsonl", stable=True)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, int]:
    """Export of a serial search that nothing disturbed, and its number of trials."""
    path = tmp_path_factory.mktemp("undisturbed") / "serial.db"
    tune(TuningRequest(**REQUEST), ledger_url=str(path))  # type: ignore[arg-type]
    return stable(path), recorded(path)


def test_a_parallel_search_exports_what_a_serial_one_does(undisturbed: tuple[bytes, int], tmp_path: Path) -> None:
    path = tmp_path / "parallel.db"
    tune(TuningRequest(**REQUEST), ledger_url=str(path), jobs=2)  # type: ignore[arg-type]
    assert stable(path) == undisturbed[0]


@pytest.mark.parametrize(("draw", "jobs"), [(1, 1), (2, 2), (3, 1)])
def test_killed_at_any_trial_and_resumed_it_exports_the_same(
    draw: int, jobs: int, undisturbed: tuple[bytes, int], tmp_path: Path
) -> None:
    whole, trials = undisturbed
    last = random.Random(draw).randrange(trials - 1)  # any but the last trial, after which the search has ended
    path = tmp_path / "killed.db"
    command = [sys.executable, "-c", KILLED_AT, json.dumps(REQUEST), str(path), str(last)]
    died = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert recorded(path) == last + 1
    resumed = tune(TuningRequest(**REQUEST), ledger_url=str(path), jobs=jobs)  # type: ignore[arg-type]
    assert resumed.resumed == last + 1
    assert stable(path) == whole


def _count(path: Path) -> int:
    """Trials so far, read beside the writer; a ledger that is just being made has no table yet."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return int(connection.execute("select count(*) from trial").fetchone()[0])
    except sqlite3.OperationalError:
        return 0
