"""Sweeps: frontiers, the space, the file that survives a kill, backends, and the command."""

import io
import json
import os
import shlex
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cli.main import main
from agent.pareto import Frontier, SweepRequest, charts, run_sweep
from agent.pareto.frontier import X, Y, verdict
from agent.pareto.parallel import mapped
from agent.pareto.price import COLUMNS
from agent.pareto.space import place_context, places, space, thinned
from agent.pareto.store import SweepFile, header_line, read_rows
from agent.tiers import Tier, read_tiers
from levers.legality import illegal_reasons
from levers.space import to_deployment
from predictor.errors import BadFile, BadInput

ROOT = Path(__file__).resolve().parents[2]
SMALL = SweepRequest(
    models=("Llama-3.1-8B",),
    cluster="MI355X:4",
    engines=("sglang",),
    shapes=("512/128",),
    concurrencies=(1, 16),
    kv_dtypes=("bf16",),  # type: ignore[arg-type]
    weight_dtypes=("bf16",),  # type: ignore[arg-type]
    depths=(2,),
    split_depths=(2,),
    schedules=False,
)


def row(number: int, x: float, y: float, **more: Any) -> dict[str, Any]:
    base = {"i": number, X: x, Y: y, "ttft_ms": 100.0, "split": False, "drafter": "none", "engine": "e"}
    return {**base, "model": "m", "isl": 1, "osl": 1, "trace": "", "weight": "fp8", **more}


def dominated(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """The definition, plainly."""
    if other is one or other[X] < one[X] or other[Y] < one[Y]:
        return False
    return bool((other[X], other[Y]) != (one[X], one[Y]) or other["i"] < one["i"])


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), max_size=25),
    st.randoms(use_true_random=False),
)
def test_the_frontier_is_what_nothing_dominates_in_any_order(pairs: list[tuple[int, int]], order: Any) -> None:
    points = [row(number, float(x), float(y)) for number, (x, y) in enumerate(pairs)]
    expected = {one["i"] for one in points if not any(dominated(one, other) for other in points)}
    shuffled = list(points)
    order.shuffle(shuffled)
    frontier = Frontier()
    for one in shuffled:
        frontier.add(one)
    kept = frontier.rows
    assert {one["i"] for one in kept} == expected
    assert [one[X] for one in kept] == sorted(one[X] for one in kept)


def test_tiers_take_the_cheapest_that_meets_both_limits() -> None:
    tiers = (Tier(name="fast", min_tok_s_user=50.0, max_ttft_ms=500.0), Tier(name="any"))
    rows = [
        row(0, 60.0, 100.0, ttft_ms=400.0),
        row(1, 55.0, 200.0, ttft_ms=900.0),
        row(2, 60.0, 120.0, ttft_ms=450.0, split=True, drafter="mtp"),
    ]
    (chart,) = charts(rows, tiers)
    fast, anything = chart.tier_rows("fast"), chart.tier_rows("any")
    assert fast is not None
    assert anything is not None
    assert (fast["i"], anything["i"]) == (2, 1)
    assert chart.tier_rows("fast", "split", drafting=False) is None


def test_verdicts() -> None:
    colocated = row(0, 1.0, 100.0)
    assert verdict(colocated, row(1, 1.0, 102.0))["verdict"] == "tie"
    assert verdict(colocated, row(1, 1.0, 122.0)) == {"verdict": "split", "gain": 1.22}
    assert verdict(colocated, row(1, 1.0, 80.0))["verdict"] == "colocated"
    assert verdict(None, colocated) == {"verdict": "only split", "gain": None}
    assert verdict(colocated, None)["verdict"] == "only colocated"


def test_the_tiers_of_the_paper() -> None:
    named = {tier.name: (tier.min_tok_s_user, tier.max_ttft_ms) for tier in read_tiers()}
    assert named == {
        "realtime": (150.0, 1000.0),
        "interactive": (70.0, 2500.0),
        "responsive": (25.0, 10000.0),
        "bulk": (0.0, None),
    }


def test_an_operators_tiers(tmp_path: Path) -> None:
    file = tmp_path / "tiers.toml"
    file.write_text('[[tier]]\nname = "voice"\nmin_tok_s_user = 20.0\nmax_ttft_ms = 300.0\n')
    assert [tier.name for tier in read_tiers(str(file))] == ["voice"]
    for text, said in (
        ("[[tier]]\nname = 3\n", "tier.0.name"),
        ('[[tier]]\nname = "a"\n[[tier]]\nname = "a"\n', "must differ"),
        ("tier = 1", "tier"),
        ("=", "not readable"),
    ):
        file.write_text(text)
        with pytest.raises(BadFile, match=said):
            read_tiers(str(file))


def test_every_variant_is_legal_once_and_every_axis_is_there() -> None:
    request = SMALL.model_copy(
        update={"schedules": True, "cluster": "MI355X:8", "depths": (1, 3), "split_depths": (3,)}
    )
    (place,) = places(request)
    context = place_context(request, place, ())
    found = space(request, place, context)
    from agent.pareto.space import applied
    from levers.baseline import baseline

    base = baseline(context)
    launched = [to_deployment(applied(dict(one), base, context), context) for one in found.variants]
    assert len({deployment for deployment, _ in launched}) == len(launched)
    assert all(not illegal_reasons(deployment, workload, context) for deployment, workload in launched)
    deployments = [deployment for deployment, _ in launched]
    assert {1, 2, 4, 8} == {one.layout.tp for one in deployments}
    assert {one.speculation.depth for one in deployments} == {0, 1, 3}
    assert any(one.prefill for one in deployments)
    assert any(one.layout.pp > 1 for one in deployments)
    assert len({one.scheduler for one in deployments}) > 2
    (thin,) = thinned([found], len(found.variants) / 3)
    assert thin.variants == found.variants[::3]
    (half,) = thinned([found], len(found.variants) / 2.5)
    assert half.variants[:3] == (found.variants[0], found.variants[2], found.variants[5])
    assert thinned([found], 1e9) == (found,)


def test_a_model_that_fits_nowhere_says_why() -> None:
    request = SMALL.model_copy(update={"models": ("DeepSeek-R1",), "cluster": "MI355X:1"})
    (place,) = places(request)
    found = space(request, place, place_context(request, place, ()))
    assert found.variants == ()
    assert found.left_out


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sweep") / "whole.jsonl"
    run_sweep(SMALL, out=file)
    return file


def test_rows_have_their_columns_and_dominated_points_are_kept(whole: Path) -> None:
    rows = list(read_rows(whole))
    assert sorted(one["i"] for one in rows) == list(range(len(rows)))
    priced = [one for one in rows if "refused" not in one]
    assert all(set(one) == set(COLUMNS) - {"refused"} for one in priced)
    sweep = run_sweep(SMALL, out=whole)
    assert sweep.resumed == sweep.points == len(rows)
    assert len(sweep.charts[0].whole.rows) < sweep.charts[0].points == len(priced)


@pytest.mark.parametrize("keep", [0.0, 0.4, 0.99])
def test_killed_and_resumed_is_the_same_sweep(whole: Path, tmp_path: Path, keep: float) -> None:
    content = whole.read_bytes()
    header = content.index(b"\n") + 1
    killed = tmp_path / "killed.jsonl"
    killed.write_bytes(content[: header + int((len(content) - header) * keep) + 7])  # in the middle of a line
    again = run_sweep(SMALL, out=killed)
    assert again.resumed < again.points
    assert sorted(killed.read_bytes().splitlines()) == sorted(content.splitlines())
    first = run_sweep(SMALL, out=whole).as_json()
    assert again.as_json()["charts"] == first["charts"]


def test_a_file_of_another_sweep_is_refused(whole: Path) -> None:
    with pytest.raises(BadInput, match="another sweep"):
        run_sweep(SMALL.model_copy(update={"concurrencies": (1, 8)}), out=whole)
    assert run_sweep(SMALL, out=whole).resumed


def test_a_torn_header_is_written_anew(tmp_path: Path) -> None:
    file = tmp_path / "torn.jsonl"
    header = header_line({}, "x", 1)
    file.write_text(header[:10])
    SweepFile(file, header).close()
    assert file.read_text() == header


def test_two_workers_give_the_same_charts(whole: Path) -> None:
    assert run_sweep(SMALL, jobs=2).as_json()["charts"] == run_sweep(SMALL, out=whole).as_json()["charts"]


def test_parquet_holds_the_same_points(whole: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "points.parquet"
    run_sweep(SMALL, out=file)
    table = parquet.read_table(file)
    assert table.column_names == list(COLUMNS)
    assert table.column(Y).to_pylist() == [one.get(Y) for one in read_rows(whole)]


def _shout(text: str) -> str:
    return text.upper()


@pytest.mark.parametrize("backend", ["ray", "dask"])
def test_a_missing_cluster_backend_is_named_with_its_extra(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, {"ray": "ray", "dask": "distributed"}[backend], None)
    with pytest.raises(BadInput, match=f"inferasim\\[{backend}\\]"):
        list(mapped(_shout, ["a"], 2, backend))


CLUSTER = """
import sys
from agent.pareto import SweepRequest, run_sweep
if __name__ == "__main__":
    request = SweepRequest.model_validate_json(sys.argv[2])
    sweep = run_sweep(request, jobs=2, backend=sys.argv[1])
    alone = run_sweep(request)
    assert sweep.points == alone.points > 0
    assert sweep.as_json()["charts"] == alone.as_json()["charts"]
    print("same")
"""


@pytest.mark.parametrize(("backend", "module"), [("ray", "ray"), ("dask", "distributed")])
def test_a_sweep_on_a_local_cluster_of_two_workers(backend: str, module: str, tmp_path: Path) -> None:
    """A real cluster in a process of its own: what its client leaves running cannot reach other tests."""
    pytest.importorskip(module, reason=f"{module} is not installed")
    script = tmp_path / "cluster.py"
    script.write_text(CLUSTER, encoding="utf-8")
    asked = SMALL.model_copy(update={"most_points": 40}).model_dump_json()
    done = subprocess.run(
        [sys.executable, str(script), backend, asked],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"},
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("same")


def test_a_sweep_killed_by_force_goes_on_where_it_stopped(whole: Path, tmp_path: Path) -> None:
    file = tmp_path / "killed.jsonl"
    script = tmp_path / "sweep.py"
    script.write_text(
        "import sys, time\nfrom pathlib import Path\nfrom agent.pareto import SweepRequest, run_sweep\n"
        "request = SweepRequest.model_validate_json(sys.argv[1])\n"
        # slower than life, so that the kill falls between the first task and the last
        "run_sweep(request, out=Path(sys.argv[2]), progress=lambda done, points: time.sleep(0.5))\n",
        encoding="utf-8",
    )
    running = subprocess.Popen(
        [sys.executable, str(script), SMALL.model_dump_json(), str(file)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
    )
    try:
        while running.poll() is None and not (file.exists() and file.read_bytes().count(b"\n") > 1):
            time.sleep(0.02)
    finally:
        running.kill()
        running.wait()
    again = run_sweep(SMALL, out=file)
    assert 0 < again.resumed < again.points
    assert again.as_json()["charts"] == run_sweep(SMALL, out=whole).as_json()["charts"]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four sessions of three turns; each turn holds the one before it."""
    path = tmp_path_factory.mktemp("trace") / "sessions.jsonl"
    lines = []
    for turn in range(3):
        for session in range(4):
            blocks = [1000 * session + number for number in range(8 * (turn + 1))]
            tokens = 512 * len(blocks) - (511 if session == 3 else 0)  # one token of a last block tells their size
            fields = {"session_id": f"s{session}", "timestamp": 20_000 * turn, "input_length": tokens}
            lines.append(json.dumps({**fields, "output_length": 64, "hash_ids": blocks}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_trace_points_with_and_without_a_host_tier(trace: Path, tmp_path: Path) -> None:
    asked = SMALL.model_copy(
        update={"shapes": (), "traces": (str(trace),), "concurrencies": (2, 8), "engines": ("vllm",)}
    )
    file = tmp_path / "traced.jsonl"
    sweep = run_sweep(asked, out=file)
    rows = list(sweep.rows())
    assert {row["concurrency"] for row in rows} == {2}
    assert sweep.refused == {"trace_sessions": len(rows)}  # eight sessions live at once are more than it holds
    assert {(row["split"], bool(row["host_kv_gb"])) for row in rows} == {
        (split, tier) for split in (False, True) for tier in (False, True)
    }
    assert all(row["trace"] == "sessions.jsonl" and row["method"] == "trace" for row in rows)
    assert all(0.4 < row["hit_rate"] < 0.7 for row in rows)  # two of three turns find the one before
    answer = sweep.as_json()
    assert (answer["trace_points"], answer["simulated_share"]) == (len(rows), 1.0)
    (chart,) = answer["charts"]
    assert chart["trace"] == "sessions.jsonl"
    assert {tier["verdict"] for tier in chart["tiers"]} & {"colocated", "split", "tie"}  # bulk is met by both
    assert run_sweep(asked.model_copy(update={"host_tiers": False})).points < sweep.points


def test_a_model_that_holds_less_than_the_trace_s_usual_request_is_left_out(trace: Path, tmp_path: Path) -> None:
    long = tmp_path / "long.jsonl"
    rows = [
        {"session_id": f"s{tokens}", "timestamp": 0, "input_length": tokens, "output_length": 9, "hash_ids": blocks}
        for tokens, blocks in ((59_905, list(range(118))), (60_416, list(range(200, 318))))
    ]
    long.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    asked = SMALL.model_copy(update={"models": ("Qwen3-14B",), "shapes": (), "traces": (str(long), str(trace))})
    sweep = run_sweep(asked.model_copy(update={"concurrencies": (1,), "most_points": 4}))
    assert sweep.as_json()["left_out"]["trace_over_context"] == 1
    assert {row["trace"] for row in sweep.rows()} == {"sessions.jsonl"}


def test_a_trace_is_the_mix_s_traffic_too(trace: Path) -> None:
    options = "mix --model Llama-3.1-8B --cluster MI355X:1 --engine vllm --concurrency 2 --no-drafters --json --trace"
    code, text = command(*options.split(), str(trace))
    assert code == 0
    assert json.loads(text)["slots"][-1]["pick"]["trace"] == "sessions.jsonl"


def command(*arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit) as leaving:
        main(list(arguments))
    return int(leaving.value.code or 0), out.getvalue()


ASK = shlex.split(
    "pareto --model Llama-3.1-8B --cluster MI355X:2 --engine sglang --shape 256/64 --concurrency 4 --depth 1 "
    "--weight-dtype bf16 --kv-dtype bf16 --no-schedules --usd-per-gpu-h 2"
)


def test_command(tmp_path: Path) -> None:
    file = tmp_path / "points.jsonl"
    code, text = command(*ASK, "--out", str(file), "--json")
    answer = json.loads(text)
    assert code == 0
    assert answer["points"] == answer["priced"] + sum(answer["refused"].values())
    assert answer["charts"][0]["frontier"][0]["usd_per_mtok"] > 0
    assert {tier["tier"] for tier in answer["charts"][0]["tiers"]} == {"realtime", "interactive", "responsive", "bulk"}
    code, text = command(*ASK, "--out", str(file))
    assert code == 0
    assert "frontier" in text
    assert "USD" in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["--shape", "12"], "ISL/OSL"),
        (["--backend", "lokey"], "loky"),
        (["--engine", "trtllm"], "does not run"),
        (["--mode", "fast"], "anchored"),
        (["--tiers", "absent.toml"], "absent.toml"),
        (["--jobs", "0"], "jobs"),
        (["--points", "0"], "most-points"),
    ],
)
def test_bad_input_is_one_line(changes: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main([*ASK, *changes])
    assert leaving.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
