"""A search as a person at a terminal sees it: progress as it comes, and Ctrl-C that keeps what is known."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evals.scripted_llm import Late, Reply, ScriptedLlm
from ledger import open_ledger
from tests.agent.llm.conftest import FINISH, plan, served

ROOT = Path(__file__).parents[3]
# Test runners that spread over workers, and shells that start them in the background, ignore the signal.
MAIN = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from agent.cli.main import main; main()"
)
TUNE = (
    "tune", "--model", "Llama-3.1-8B", "--cluster", "MI355X:8", "--engine", "sglang", "--budget", "60", "--json",
)  # fmt: skip
LIMIT_S = 120  # far above what it takes; a test that waits for a signal must not wait for ever


class Terminal:
    """The far end of a pseudo-terminal, read as it fills."""

    def __init__(self) -> None:
        self._master, self.slave = pty.openpty()
        self._text: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                part = os.read(self._master, 4096)
            except OSError:  # the other end is closed
                return
            if not part:
                return
            self._text.append(part.decode(errors="replace"))

    def close(self) -> str:
        """All that was shown."""
        os.close(self.slave)
        self._thread.join(10)
        os.close(self._master)
        return "".join(self._text)


@contextmanager
def tuning(tmp_path: Path, llm: ScriptedLlm, terminal: Terminal) -> "Iterator[subprocess.Popen[str]]":
    """The command in a process of its own, with its words on the terminal."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("INFERASIM", "XDG", "OPENAI"))}
    environment = {
        **kept, "HOME": str(tmp_path), "COLUMNS": "200", "TERM": "xterm", "INFERASIM_LLM_MODEL": "openai/scripted",
        "INFERASIM_LLM_API_BASE": llm.url, "INFERASIM_LLM_CONTEXT_TOKENS": "32768",
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, *TUNE, "--ledger", str(tmp_path / "l.db")], cwd=ROOT, env=environment, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=terminal.slave,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize("asked", [1, 2], ids=["while it plans", "while it investigates"])
def test_ctrl_c_in_a_call_that_hangs_prints_the_best_so_far(asked: int, tmp_path: Path) -> None:
    replies: list[Reply] = [plan({"tp": 2, "max_running": 64}), FINISH]
    reached = threading.Event()

    def policy(body: object) -> Reply:
        if len(llm.requests) < asked:
            return replies[len(llm.requests) - 1]
        reached.set()
        return Late(600, "never")

    terminal = Terminal()
    with served(policy) as llm, tuning(tmp_path, llm, terminal) as process:
        assert reached.wait(LIMIT_S)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=LIMIT_S)
    shown = terminal.close()
    assert process.returncode == 130, shown
    answer = json.loads(out)
    assert [flag["code"] for flag in answer["flags"]] == ["interrupted"]
    with open_ledger(str(tmp_path / "l.db"), create=False, write=False) as book:
        trials, search = book.trials(1), book.get_search(1)
    assert search.status == "stopped"
    best = trials[answer["best"]["index"]]
    assert best.legal
    assert best.score == max(one.score for one in trials if one.legal and one.score)
    assert "Traceback" not in shown
    assert "trials" in shown  # the progress bar
    assert ("plan: combine what helped" in shown) is (asked == 2)
    assert ("tp=2 max_running=64: " in shown) is (asked == 2)
