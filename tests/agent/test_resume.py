"""A search killed in the middle leaves a readable ledger, and run again ends as one that was never disturbed."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

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


def _count(path: Path) -> int:
    """Trials so far, read beside the writer; a ledger that is just being made has no table yet."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return int(connection.execute("select count(*) from trial").fetchone()[0])
    except sqlite3.OperationalError:
        return 0
