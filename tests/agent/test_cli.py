"""The command line: stable JSON, one-line errors with exit 2, nothing written on bad input, same bytes twice."""

import io
import json
import os
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.cli.main import main

ROOT = Path(__file__).parents[2]
TUNE = shlex.split(
    "tune --model Llama-3.1-8B --cluster MI355X:8 --engine sglang --objective output_tok_s_per_gpu "
    "--slo 'tpot_ms<=10' --seed-only --json"
)
PREDICT = shlex.split("predict --model Llama-3.1-8B --gpu MI355X --engine sglang --isl 1024 --osl 1024 --json")


@dataclass
class Done:
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str, home: Path) -> Done:
    """Run a command in this process, with a home of its own and captured streams."""
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    code = 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name in [name for name in os.environ if name.startswith(("INFERASIM", "XDG"))]:
            patch.delenv(name)
        patch.setenv("HOME", str(home))
        try:
            main(list(arguments))
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        out.flush()
    return Done(code, out.buffer.getvalue().decode(), err.getvalue())  # type: ignore[attr-defined]


def answer(*arguments: str, home: Path) -> dict[str, Any]:
    done = run(*arguments, home=home)
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def test_predict_prints_the_stable_keys(tmp_path: Path) -> None:
    prediction = answer(*PREDICT, "--concurrency", "16", home=tmp_path)
    keys = {
        "mode",
        "anchor",
        "coverage",
        "flags",
        "gpus",
        "ttft_ms",
        "tpot_ms",
        "itl_ms",
        "e2e_ms",
        "output_tok_s",
        "total_tok_s",
        "total_tok_s_per_gpu",
        "output_tok_s_per_gpu",
        "interactivity_tok_s_user",
        "max_concurrency",
        "memory",
        "wall_ms",
    }
    assert keys <= prediction.keys()
    assert (prediction["mode"], prediction["coverage"]) == ("anchored", "covered")
    assert set(prediction["ttft_ms"]) == {"mean", "p50", "p90", "p99"}
    assert prediction["tpot_ms"]["mean"] == pytest.approx(5.03, rel=0.02)  # Table 20, PP1, 16 clients


def test_predict_without_an_anchor_says_that_it_is_for_ranking(tmp_path: Path) -> None:
    prediction = answer(*PREDICT, "--mode", "simulate", home=tmp_path)
    assert (prediction["mode"], prediction["anchor"]) == ("simulate", None)
    assert any("ranking" in flag["message"] for flag in prediction["flags"])


def test_tune_twice_gives_the_same_bytes_and_records_every_trial(tmp_path: Path) -> None:
    ledgers = [tmp_path / f"{name}.db" for name in ("a", "b")]
    first, second = (answer(*TUNE, "--ledger", str(path), home=tmp_path) for path in ledgers)
    for run_fact in ("search_id", "ledger", "wall_s"):
        first.pop(run_fact), second.pop(run_fact)
    assert json.dumps(first) == json.dumps(second)
    exports = [run("ledger", "export", "--stable", "--ledger", str(path), home=tmp_path).stdout for path in ledgers]
    assert exports[0] == exports[1]
    best, trials = first["best"], first["trials"]
    assert best["prediction"]["mode"] == "anchored"
    assert best["metrics"]["tpot_ms"] <= 10
    lines = [json.loads(line) for line in exports[0].splitlines()]
    recorded = [line for line in lines if line["type"] == "trial"] if "type" in lines[0] else lines[1:-1]
    assert len(recorded) == trials["legal"] + trials["rejected"]
    assert trials["rejected"] > 0
    assert sum(first["reasons"].values()) >= trials["rejected"]
    assert best["score"] == max(trial["score"] for trial in recorded if trial["legal"])
    assert all(trial["reasons"] for trial in recorded if not trial["legal"])


def test_parallel_search_equals_the_serial_one(tmp_path: Path) -> None:
    short = (*TUNE, "--budget", "60")
    serial = answer(*short, "--ledger", str(tmp_path / "a.db"), home=tmp_path)
    parallel = answer(*short, "--jobs", "2", "--ledger", str(tmp_path / "b.db"), home=tmp_path)
    for run_fact in ("search_id", "ledger", "wall_s"):
        serial.pop(run_fact), parallel.pop(run_fact)
    assert serial == parallel


def test_an_impossible_bound_is_a_result_with_exit_1(tmp_path: Path) -> None:
    done = run(*TUNE, "--slo", "ttft_ms<=0.001", "--budget", "20", "--ledger", str(tmp_path / "l.db"), home=tmp_path)
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert result["best"] is None
    assert result["reasons"]["slo_ttft_ms"] > 0


BAD = {
    "unknown model": ((*TUNE, "--model", "Lama-3.1-8B"), ("Lama-3.1-8B", "Llama-3.1-8B")),
    "unknown gpu": ((*TUNE, "--cluster", "MI35X:8"), ("MI35X", "MI355X")),
    "malformed cluster": ((*TUNE, "--cluster", "MI355X"), ("MI355X", "GPU:N")),
    "unknown engine": ((*TUNE, "--engine", "vlm"), ("vlm", "vLLM")),
    "unknown objective": ((*TUNE, "--objective", "speed"), ("speed",)),
    "unknown slo metric": ((*TUNE, "--slo", "tpott_ms<=5"), ("tpott_ms", "tpot_ms")),
    "negative isl": ((*TUNE, "--isl", "-5"), ("isl", "-5", "at least 1")),
    "zero concurrency": ((*TUNE, "--concurrency", "0"), ("concurrency", "0")),
    "pin that divides nothing": ((*TUNE, "--pin", "tp=3"), ("tp", "3")),
    "unknown pin": ((*TUNE, "--pin", "width=3"), ("width",)),
    "zero budget": ((*TUNE, "--budget", "0"), ("budget", "0")),
    "missing anchors": ((*TUNE, "--anchors", "/no/such/folder"), ("/no/such/folder",)),
    "tp that divides no heads": ((*PREDICT, "--tp", "3"), ("tp 3", "32")),
    "negative osl": ((*PREDICT, "--osl", "-1"), ("osl", "-1")),
    "ep without experts": ((*PREDICT, "--tp", "2", "--ep", "2"), ("ep 2", "no experts")),
    "unknown dtype": ((*PREDICT, "--kv-dtype", "int3"), ("kv-dtype", "int3")),
    "unknown mode": ((*PREDICT, "--mode", "guess"), ("guess", "anchored")),
    "too long": ((*PREDICT, "--isl", "200000"), ("isl", "131072")),
    "no number": ((*PREDICT, "--isl", "many"), ("isl", "many")),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_2(case: str, tmp_path: Path) -> None:
    arguments, said = BAD[case]
    book = tmp_path / "ledger.db"
    extra = ("--ledger", str(book)) if arguments[0] == "tune" else ()
    done = run(*arguments, *extra, home=tmp_path)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert all(word in done.stderr for word in said), done.stderr
    assert not book.exists()


def test_an_anchor_of_another_gpu_is_refused_naming_both(tmp_path: Path) -> None:
    anchor = next((ROOT / "predictor" / "anchors" / "bundled").glob("llama*.json"))
    done = run(
        "predict", "--model", "Llama-3.1-8B", "--gpu", "H200", "--engine", "sglang", "--isl", "1024", "--osl", "1024",
        "--mode", "anchored", "--anchors", str(anchor), home=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    assert "MI355X" in done.stderr
    assert "H200" in done.stderr


def test_a_malformed_anchor_names_file_and_field(tmp_path: Path) -> None:
    source = next((ROOT / "predictor" / "anchors" / "bundled").glob("llama*.json"))
    broken = tmp_path / "broken.json"
    broken.write_text(source.read_text().replace('"step_ms": 4.46', '"step_ms": -4.46'))
    for arguments in (
        ("anchors", "check", str(broken)),
        (*TUNE, "--anchors", str(broken)),
        (*PREDICT, "--anchors", str(broken)),
    ):
        done = run(*arguments, home=tmp_path)
        assert done.returncode == 2
        assert "broken.json" in done.stderr
        assert "step_ms" in done.stderr


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("predict --modell x", "No such option: --modell; nearest: --model; all options: inferasim predict --help"),
        ("predict --modle x", "No such option: --modle; nearest: --model; all options: inferasim predict --help"),
        ("predict --cluster x", "No such option: --cluster; nearest: --gpu; all options: inferasim predict --help"),
        ("ledger diff 1 2 --jsn", "No such option: --jsn; nearest: --json; all options: inferasim ledger diff --help"),
        ("ledger --json", "No such option: --json; all options: inferasim ledger --help"),
        ("ledger exprt", "No such command 'exprt'. Did you mean 'export'?; all commands: inferasim ledger --help"),
    ],
)
def test_a_misspelt_option_is_answered_with_the_nearest_and_where_the_rest_is(
    typed: str, said: str, tmp_path: Path
) -> None:
    done = run(*shlex.split(typed), home=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (2, "", said)


def test_an_unwritable_ledger_is_bad_input(tmp_path: Path) -> None:
    for place in ("/proc/ledger.db", str(tmp_path / "no" / "folder" / "ledger.db"), str(tmp_path)):
        done = run(*TUNE, "--ledger", place, home=tmp_path)
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1
        assert done.stdout == ""


@pytest.mark.parametrize(
    "command",
    ["levers", "objectives", "models", "platforms", "engines", "anchors list",
     "levers --model Qwen3-235B-A22B --cluster H200:8 --engine vllm"],
)  # fmt: skip
def test_catalogue_commands_answer_in_both_forms(command: str, tmp_path: Path) -> None:
    machine = run(*command.split(), "--json", home=tmp_path)
    assert machine.returncode == 0, machine.stderr
    assert len(machine.stdout.splitlines()) == 1
    json.loads(machine.stdout)
    people = run(*command.split(), home=tmp_path)
    assert people.returncode == 0, people.stderr
    assert people.stdout


def test_ledger_commands_read_what_tune_wrote(tmp_path: Path) -> None:
    book = str(tmp_path / "l.db")
    answer(*TUNE, "--budget", "30", "--ledger", book, home=tmp_path)
    answer(*TUNE, "--budget", "40", "--ledger", book, home=tmp_path)
    listed = answer("ledger", "list", "--ledger", book, "--json", home=tmp_path)
    assert [row["search_id"] for row in listed["searches"]] == [1, 2]
    shown = answer("ledger", "show", "1", "--ledger", book, "--json", home=tmp_path)
    assert shown["best"]["legal"]
    difference = answer("ledger", "diff", "1", "2", "--ledger", book, "--json", home=tmp_path)
    assert [one["field"] for one in difference["inputs"]] == ["request.budget"]
    assert run("ledger", "show", "9", "--ledger", book, home=tmp_path).returncode == 2


def test_a_recorded_trial_can_be_launched(tmp_path: Path) -> None:
    book = str(tmp_path / "l.db")
    best = answer(*TUNE, "--budget", "20", "--ledger", book, home=tmp_path)["best"]
    assert best["launch"]
    assert "vllm bench serve" in best["benchmark"]
    shell = run("launch", "1", "--ledger", book, home=tmp_path)
    assert shell.returncode == 0, shell.stderr
    assert best["launch"][0] in shell.stdout
    first = run("launch", "1:0", "--ledger", book, "--format", "kubernetes", home=tmp_path)
    assert "kind: StatefulSet" in first.stdout
    for bad, said in (("x", "SEARCH:TRIAL"), ("9", "9"), ("1:999", "999")):
        done = run("launch", bad, "--ledger", book, home=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr


SIMULATED = shlex.split(
    "predict --model Llama-3.1-8B --gpu H100 --engine vllm --isl 1024 --osl 1024 --concurrency 16 --json"
)


@pytest.mark.parametrize("command", [PREDICT, SIMULATED], ids=["anchored", "simulated"])
def test_heavy_libraries_stay_out_of_the_light_commands(command: list[str], tmp_path: Path) -> None:
    code = (
        "import sys\nfrom agent.cli.main import main\n"
        f"sys.argv = ['inferasim', *{command!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'dspy', 'litellm', 'sqlalchemy', 'sqlmodel', 'alembic', 'pandas', 'scipy', 'pydantic', 'simpy',\n"
        "         'rich', 'yaml', 'httpx', 'joblib', 'structlog',\n"
        "         'numpy.random', 'numpy.ma', 'predictor.speculation'} & set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stderr.strip() == "[]"
