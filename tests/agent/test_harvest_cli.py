"""``inferasim harvest`` from the command line."""

import io
import json
import os
import shlex
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from agent.cli.main import main
from agent.harvest import checks, run, sweeps
from agent.harvest.idle import Idle
from tests.agent.fake_engine import FakeEngine, Script

DEPLOYMENT = shlex.split("--model Llama-3.1-8B --gpu MI355X --engine vllm --engine-version 0.33.0")
SMALL = shlex.split("--prompt-tokens 32 --batches 1,2 --window-steps 16 --repeats 1 --no-probe")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, an idle machine, no view on how steady it is."""
    for name in [name for name in os.environ if name.startswith(("INFERASIM", "XDG"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("READING_PCT", "SPREAD_PCT"):
        monkeypatch.setattr(checks, name, 1e6)
        monkeypatch.setattr(sweeps, name, 1e6)
    monkeypatch.setattr(run.harvest, "__defaults__", (lambda serving: Idle(True, "test"),))
    return tmp_path


def command(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(list(arguments))
        except SystemExit as left:
            code = int(left.code or 0)
    return code, out.getvalue(), err.getvalue()


def test_a_dry_run_shows_plan_minutes_and_command_and_starts_nothing(home: Path) -> None:
    arguments = (*DEPLOYMENT, "--tp", "2", "--max-running", "64", "--port", "8123", "--dry-run")
    code, out, err = command("harvest", *arguments, "--json")
    assert code == 0
    assert err == ""
    plan = json.loads(out)
    assert plan["batches"] == [1, 2, 4, 8, 16, 32, 64]
    assert len(plan["prefill_tokens"]) == 5
    assert plan["gpu_minutes"] == pytest.approx(2 * plan["minutes"], abs=0.2)
    line = shlex.join(plan["command"])
    assert line.startswith("vllm serve ")
    assert "--tensor-parallel-size 2" in line
    assert "--no-enable-prefix-caching" in line
    assert "--host 127.0.0.1 --port 8123" in line
    assert not list(home.iterdir())
    assert command("harvest", *arguments)[1].count("vllm serve") == 1


@pytest.mark.parametrize(
    ("engine", "flag"),
    [
        ("sglang", "--disable-radix-cache"),
        ("atom", "--no-enable_prefix_caching"),
        ("vllm", "--no-enable-prefix-caching"),
    ],
)
def test_every_launcher_turns_the_prefix_cache_off(engine: str, flag: str) -> None:
    code, out, err = command(
        "harvest", *shlex.split(f"--model Llama-3.1-8B --gpu MI355X --engine {engine} --dry-run --json")
    )
    assert code == 0, err
    assert flag in json.loads(out)["command"]


def test_a_harvest_is_saved_and_not_repeated_by_accident(home: Path) -> None:
    with FakeEngine() as engine:
        code, out, err = command("harvest", *DEPLOYMENT, *SMALL, "--url", engine.url, "--json")
        assert code == 0, err
        report = json.loads(out)
        saved = Path(report["saved"])
        assert saved.is_file()
        assert saved.parent == home / "inferasim" / "anchors"
        assert not list((home / "inferasim" / "harvest").glob("*.jsonl"))
        asked = len(engine.bodies)
        listed = json.loads(command("anchors", "list", "--anchors", str(saved.parent), "--json")[1])
        assert listed["anchors"][0]["batches"] == [1, 2]
        if report["marked"] == []:
            assert json.loads(command("anchors", "check", str(saved), "--json")[1])["anchors"][0]["doubts"]
        again = command("harvest", *DEPLOYMENT, *SMALL, "--url", engine.url, "--max-running", "8")
        assert len(engine.bodies) == asked
    assert again[0] == 2
    assert "already; measure it again with --replace" in again[2]


def test_an_engine_that_fails_is_exit_3_with_one_line() -> None:
    with FakeEngine(Script(status_after=3)) as engine:
        code, out, err = command("harvest", *DEPLOYMENT, *SMALL, "--url", engine.url, "--json")
    assert (code, out) == (3, "")
    assert err.count("\n") == 1
    assert "HTTP 500" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--batches 1,x", "batches '1,x'"),
        ("--batches 0", "batches '0'"),
        ("--prompt-tokens 200000", "over the context"),
    ],
)
def test_bad_input_is_exit_2_with_one_line(arguments: str, said: str) -> None:
    code, out, err = command("harvest", *DEPLOYMENT, *shlex.split(arguments), "--dry-run")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert said in err
