"""``anchors import`` from the command line: one line for what is missing, a saved anchor that predicts, shared sets."""

import io
import json
import os
import shlex
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from agent.cli.main import main
from evals import anchor_import as study

FLAGS = shlex.split(
    "--gpu H200 --engine vllm --engine-version 0.33.0 --tp 4 --weight-dtype fp8 --kv-dtype bf16 --prefix-cache off "
    "--real-weights --length-range 0.8 --kv-pool-tokens 2000000"
)
LOADS = (1, 4, 16, 32)


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Benchmark files of one deployment."""
    folder = tmp_path_factory.mktemp("ladder")
    case = study.CASES[0]
    truth = study.truth_of(case)
    paths = []
    for clients in LOADS:
        load = study.write.Load(clients, study.ISL, study.OSL, 0.8, case.card.hf_ids[0])
        run = study.write.figures(study.benchmark(truth, clients), study.write.Noise(0.0, 0))
        path = folder / f"c{clients}.json"
        path.write_text(study.write.vllm(run, load))
        paths.append(str(path))
    return paths


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own."""
    for name in [name for name in os.environ if name.startswith(("INFERASIM", "XDG"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def run(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(list(arguments))
        except SystemExit as left:
            code = int(left.code or 0)
    return code, out.getvalue(), err.getvalue()


def test_what_is_missing_is_one_line_and_exit_2(home: Path, ladder: list[str]) -> None:
    code, out, err = run("anchors", "import", *ladder)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert "does not record gpu" in err
    assert "--gpu" in err
    assert not (home / "inferasim").exists()


def test_an_imported_anchor_serves_the_next_prediction(home: Path, ladder: list[str]) -> None:
    code, out, _ = run("anchors", "import", *ladder, *FLAGS, "--json")
    assert code == 0
    report = json.loads(out)
    assert report["kind"] == "served"
    assert Path(report["saved"]).is_file()
    assert report["tpot_residual_pct"] < 1.0
    assert [point["batch"] for point in report["decode"][0]["points"]] == list(LOADS)
    predict = (
        "predict --model Llama-3.1-70B --gpu H200 --engine vllm --engine-version 0.33.0 --tp 4 --weight-dtype fp8 "
        "--isl 2048 --osl 512 --length-range 0.8 --concurrency 16 --json"
    )
    answer = json.loads(run(*predict.split())[1])
    assert answer["mode"] == "anchored"
    assert answer["anchor"] == report["name"]
    newer = json.loads(run(*predict.replace("0.33.0", "0.30.0").split())[1])
    assert "other_build" in {flag["code"] for flag in newer["flags"]}
    assert newer["coverage"] == "projected"


def test_facts_may_stand_in_a_file(home: Path, ladder: list[str], tmp_path: Path) -> None:
    side = tmp_path / "facts.toml"
    side.write_text(
        'gpu = "H200"\nengine = "vllm"\nengine_version = "0.33.0"\ntp = 4\nweight_dtype = "fp8"\nkv_dtype = "bf16"\n'
        'prefix_cache = "off"\nreal_weights = true\nlength_range = 0.8\nkv_pool_tokens = 2000000\n'
    )
    by_file = json.loads(run("anchors", "import", *ladder, "--facts", str(side), "--dry-run", "--json")[1])
    by_flags = json.loads(run("anchors", "import", *ladder, *FLAGS, "--dry-run", "--json")[1])
    assert by_file["sha256"] == by_flags["sha256"]
    assert by_file["saved"] is None
    side.write_text('gpuu = "H200"\n')
    code, _, err = run("anchors", "import", *ladder, "--facts", str(side))
    assert code == 2
    assert "unknown fact 'gpuu'; did you mean 'gpu'?" in err


def test_a_set_is_exported_and_taken_over(home: Path, ladder: list[str], tmp_path: Path) -> None:
    run("anchors", "import", *ladder, *FLAGS)
    archive = str(tmp_path / "set.tar.gz")
    name = "llama-3.1-70b-h200-vllm-0.33.0-tp4-fp8"
    assert run("anchors", "export", archive, name, "--signed-off-by", "me")[0] == 0
    elsewhere = str(tmp_path / "elsewhere")
    code, out, _ = run("anchors", "import", archive, "--anchors", elsewhere, "--json")
    assert code == 0
    assert json.loads(out)["anchors"][0]["name"] == name
    listed = json.loads(run("anchors", "list", "--anchors", elsewhere, "--json")[1])
    assert [one["name"] for one in listed["anchors"]] == [name]
    same = json.loads(run("anchors", "diff", name, f"{elsewhere}/{name}.json", "--json")[1])
    assert same["same_content"] is True


def test_a_wrong_model_name_is_not_taken_silently(home: Path, ladder: list[str]) -> None:
    code, _, err = run("anchors", "import", *ladder, *FLAGS, "--model", "Llama-3.1-8B")
    assert code == 2
    assert "--accept-model-name 'meta-llama/Llama-3.1-70B" in err
