"""Reports of a real sweep and a real search: written by the command, opened in a browser, shown as tables."""

import csv
import json
from pathlib import Path

import pytest

from agent.cli.main import main
from agent.pareto.store import read_rows
from tests.agent.charts.test_page import see_all
from tests.browser import PHONE, OpenPage


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    assert isinstance(left.value.code, int)
    return left.value.code


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweep") / "points.jsonl"
    options = "--model Qwen3-14B --cluster MI355X:2 --engine vllm --concurrency 4 --concurrency 32 --usd-per-gpu-h 3"
    assert run("pareto", *options.split(), "--no-pipelines", "--points", "24", "--out", str(path), "--json") == 0
    return path


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> str:
    ledger = str(tmp_path_factory.mktemp("search") / "ledger.db")
    options = "--model Llama-3.1-8B --cluster MI355X:2 --engine sglang --slo tpot_ms<=10 --budget 30 --seed-only --json"
    assert run("tune", *options.split(), "--ledger", ledger) == 0
    return ledger


def measured_of(sweep: Path, path: Path) -> Path:
    """A measured file of three of the sweep's points, each a tenth off."""
    rows = [row for row in read_rows(sweep) if "refused" not in row][:3]
    names = ("model", "isl", "osl", "concurrency", "engine", "weight", "kv", "label", "drafter", "depth")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, (*names, "output_tok_s_per_gpu", "tpot_ms"))
        writer.writeheader()
        for row in rows:
            told = {name: row[name] for name in names}
            writer.writerow(
                {**told, "output_tok_s_per_gpu": row["output_tok_s_per_gpu"] / 1.1, "tpot_ms": row["tpot_ms"] * 1.1}
            )
    return path


def test_a_sweep_s_page_on_a_phone(sweep: Path, open_page: OpenPage, tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="plotly is not installed")
    page, points = tmp_path / "sweep.html", measured_of(sweep, tmp_path / "measured.csv")
    assert run("report", str(sweep), "-o", str(page), "--measured", str(points)) == 0
    opened = open_page(page, size=PHONE)
    see_all(opened)
    opened.assert_clean()
    opened.assert_no_sideways_scroll()
    titles = [one.inner_text() for one in opened.page.query_selector_all("figure h3")]
    for wanted in ("Frontier by engine", "Colocated or split", "Decode step", "Memory", "TTFT", "Timeline"):
        assert any(title.startswith(wanted) for title in titles), f"{wanted} is missing from {titles}"
    assert "measured" in opened.page.text_content("figure .legend >> nth=0")
    assert any(title.startswith("Predicted against measured") for title in titles)
    assert "USD/Mtok" in opened.page.inner_text("main")


def test_a_search_s_page(search: str, open_page: OpenPage, tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="plotly is not installed")
    page = tmp_path / "search.html"
    assert run("report", "1", "-o", str(page), "--ledger", search) == 0
    opened = open_page(page)
    see_all(opened)
    opened.assert_clean()
    text = opened.page.inner_text("body")
    for wanted in ("What to deploy", "sglang", "Every trial", "Why it beats the baseline", "Inside the best"):
        assert wanted in text


def test_reports_as_tables_and_as_json(sweep: Path, search: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("report", str(sweep)) == 0
    assert "Colocated or split" in capsys.readouterr().out
    assert run("report", "1", "--ledger", search) == 0
    assert "Decode step by term" in capsys.readouterr().out
    assert run("report", str(sweep), "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["figures"]) >= 7
    assert answer["files"] == []


def test_pictures_of_a_whole_report(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert run("report", str(sweep), "--plot", str(tmp_path / "p.svg"), "--json") == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert len(files) >= 7
    assert all(Path(name).read_text(encoding="utf-8").rstrip().endswith("</svg>") for name in files)


def test_commands_draw_their_own_answer(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    traffic = "--isl 256 --osl 64 --concurrency 4"
    deployment = "--model Llama-3.1-8B --gpu MI355X --engine sglang --tp 1"
    assert run("predict", *deployment.split(), *traffic.split(), "--plot", str(tmp_path / "p.png"), "--json") == 0
    sweep = "--model Llama-3.1-8B --cluster MI355X:1 --engine sglang --shape 256/64 --concurrency 4 --points 4"
    assert run("pareto", *sweep.split(), "--plot", str(tmp_path / "s.png"), "--json") == 0
    trace = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 500 * n, "input_length": 600 + n, "output_length": 20, "hash_ids": [n, -n - 1]} for n in range(9)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    played = ("--trace", str(trace), "--block-tokens", "512", "--plot", str(tmp_path / "t.png"), "--json")
    assert run("simulate", *deployment.split(), *played) == 0
    names = {path.name for path in tmp_path.glob("*.png")}
    assert {"p-deployment-step.png", "p-deployment-timeline.png", "t-trace-ttft.png", "t-trace-load.png"} <= names
    assert any(name.endswith("-engines.png") for name in names)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("report /nowhere/points.jsonl", "points.jsonl"),
        ("report 99 --ledger LEDGER", "99"),
        ("report SWEEP --measured /nowhere.csv", "/nowhere.csv"),
        ("report 1 --ledger LEDGER --measured x.csv", "--measured"),
        ("report SWEEP --plot picture.gif", "picture.gif"),
    ],
)
def test_bad_input_is_one_line(
    line: str, word: str, sweep: Path, search: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*line.replace("SWEEP", str(sweep)).replace("LEDGER", search).split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert word in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ("m,1024,1024,4,,10", "output_tok_s_per_gpu"),
        ("m,1024,1024,4,many,10", "no number"),
        ("m,1024,1024,4,100,-1", "above zero"),
        ("m,1024,1024,4.5,100,10", "whole number"),
    ],
)
def test_a_bad_measured_row_names_its_line_and_column(row: str, word: str, tmp_path: Path) -> None:
    from agent.charts.measured import read_measured
    from predictor.errors import BadFile

    path = tmp_path / "m.csv"
    path.write_text(f"model,isl,osl,concurrency,output_tok_s_per_gpu,tpot_ms\n{row}\n", encoding="utf-8")
    with pytest.raises(BadFile, match=f"m.csv:2.*{word}"):
        read_measured(path)
