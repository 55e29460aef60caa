"""A prediction held against a run: figures side by side, the mechanism named, the ledger told, the anchor renewed."""

import io
import json
import os
import shlex
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.cli.main import main
from agent.verify import Probes, compare, explain_gap, held_against
from evals import benchmark_files as write
from ledger import open_ledger
from predictor.anchors.import_formats import BenchRun, read_benchmark
from predictor.des.metrics import HostTimes
from predictor.des.schedulers import scheduler_rules
from predictor.des.simulator import simulate
from predictor.errors import BadFile
from predictor.predict import Catalogue, predict
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.step.model import PrefillCurve, TableStepModel
from predictor.types import Deployment, Intervals, Prediction, SchedulerSettings, Workload
from tests.agent.fake_engine import FakeEngine

WORKLOAD = Workload(1024, 256, 16, length_range_frac=0.8)
STEPS = tuple(8.0 + 0.3 * batch for batch in range(1, 65))
PREFILL = PrefillCurve(5.0, 0.03, 0.0, 0.0)
RULES = scheduler_rules("vllm", "", SchedulerSettings(max_running=64, token_budget=8192))
HOST_MS = 10.0


def table(step: float = 1.0, prefill: float = 1.0) -> TableStepModel:
    curve = replace(PREFILL, fixed_ms=PREFILL.fixed_ms * prefill, per_token_ms=PREFILL.per_token_ms * prefill)
    return TableStepModel(tuple(s * step for s in STEPS), (0.0,) * len(STEPS), curve)


def measured(model: TableStepModel, kv_blocks: int = 100_000) -> BenchRun:
    """What a client would record of an engine with these steps."""
    result = simulate(model, WORKLOAD, RULES, kv_blocks=kv_blocks, host=HostTimes(ms_per_request=HOST_MS))
    load = write.Load(16, 1024, 256, 0.8, "m")
    text = write.vllm(write.figures(result, write.Noise(0.0, 0)), load)
    return read_benchmark(text, "run.json").runs[0]


def prediction() -> Prediction:
    """The prediction of the engine with the unchanged steps."""
    result = simulate(table(), WORKLOAD, RULES, kv_blocks=100_000, host=HostTimes(ms_per_request=HOST_MS))
    catalogue = Catalogue(model_card("Llama-3.1-8B"), platform("MI355X"), engine_profile("vllm"))
    base = predict(Deployment("Llama-3.1-8B", "MI355X", "vLLM", "0.33.0"), WORKLOAD, catalogue)
    prompt = 1024 * 0.9
    return replace(
        base,
        ttft_ms=result.ttft_ms.distribution(),
        tpot_ms=result.tpot_ms.distribution(),
        e2e_ms=result.e2e_ms.distribution(),
        output_tok_s=result.output_tok_s,
        total_tok_s=result.total_tok_s,
        running=result.mean_running,
        prefill_step_ms={"fixed": PREFILL.fixed_ms, "prompt": PREFILL.chunk_ms(round(prompt))},
        extras={**base.extras, "decode_step_ms": STEPS[15], "tokens_per_step": 1.0, "host_ms": HOST_MS},
    )


PREDICTED = prediction()
ALONE_MS = PREFILL.prompt_ms(922) + HOST_MS


def test_a_right_prediction_agrees_and_nothing_is_explained() -> None:
    verification = held_against(PREDICTED, measured(table()), Probes(ALONE_MS))
    assert {one.name for one in verification.compared} >= {
        "ttft_ms.mean",
        "ttft_ms.p50",
        "tpot_ms.mean",
        "tpot_ms.p99",
        "e2e_ms.mean",
        "output_tok_s",
        "total_tok_s",
    }
    assert max(abs(one.error_pct) for one in verification.compared) < 1.0
    assert verification.explained == ()


def test_slower_steps_are_found_in_the_decode_step() -> None:
    said = explain_gap(PREDICTED, measured(table(step=1.4)), Probes(ALONE_MS))
    assert any(line.startswith("decode step: ") for line in said)
    assert not any(line.startswith("prefill stalls") for line in said)


def test_slower_prompts_are_found_in_stalls_and_prefill() -> None:
    run = measured(table(prefill=3.0))
    said = explain_gap(PREDICTED, run, Probes(3.0 * PREFILL.prompt_ms(922) + HOST_MS))
    assert any(line.startswith("prefill stalls: ") for line in said)
    assert any(line.startswith("prefill: one prompt alone takes") for line in said)
    assert not any(line.startswith("decode step") for line in said)


def test_a_wave_at_the_running_batch_is_believed_before_the_median_gap() -> None:
    said = explain_gap(PREDICTED, measured(table(step=1.4)), Probes(ALONE_MS, STEPS[15] * 1.4, 16))
    assert any("(wave of 16)" in line for line in said)


def test_a_small_pool_is_found_in_the_running_requests() -> None:
    blocks = 4 * (1280 // RULES.block_tokens + 1)
    said = explain_gap(PREDICTED, measured(table(), blocks), Probes(ALONE_MS))
    assert any("a smaller KV pool or running cap than assumed" in line for line in said)


def test_without_a_prompt_alone_the_ttft_is_not_explained() -> None:
    said = explain_gap(PREDICTED, measured(table(prefill=3.0)))
    assert any("no prompt was timed alone to tell why" in line for line in said)


def test_the_interval_says_whether_it_holds() -> None:
    tpot_ms = PREDICTED.tpot_ms.mean
    inside = replace(PREDICTED, interval_80=Intervals("same width", {"tpot_ms": (0.9 * tpot_ms, 1.1 * tpot_ms)}))
    (one,) = [one for one in compare(inside, measured(table(1.05))) if one.inside is not None]
    assert (one.name, one.inside) == ("tpot_ms.mean", True)
    (one,) = [one for one in compare(inside, measured(table(1.4))) if one.inside is not None]
    assert one.inside is False


def test_a_run_with_mixed_up_units_is_refused() -> None:
    run = measured(table())
    with pytest.raises(BadFile, match="looks like seconds"):
        held_against(PREDICTED, replace(run, tpot=run.tpot.scaled(1e-3)))


# From the command line

DEPLOYMENT = shlex.split(
    "--model Llama-3.1-8B --gpu MI355X --engine vllm --engine-version 0.33.0 --isl 1024 --osl 256 --concurrency 16 "
    "--length-range 0.8"
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache and a ledger of its own."""
    for name in [name for name in os.environ if name.startswith(("INFERASIM", "XDG"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
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


def answer(*arguments: str) -> dict[str, Any]:
    code, out, err = command(*arguments, "--json")
    assert code == 0, err
    value: dict[str, Any] = json.loads(out)
    return value


def result_file(folder: Path, clients: int = 16, isl: int = 1024, osl: int = 256) -> str:
    workload = replace(WORKLOAD, concurrency=clients, isl_tokens=isl, osl_tokens=osl)
    result = simulate(table(), workload, RULES, kv_blocks=100_000)
    load = write.Load(clients, isl, osl, 0.8, "m")
    path = folder / "bench.json"
    path.write_text(write.vllm(write.figures(result, write.Noise(0.0, 0)), load))
    return str(path)


def test_a_file_of_any_client_is_held_against_a_prediction(tmp_path: Path) -> None:
    report = answer("verify", *DEPLOYMENT, "--result", result_file(tmp_path))
    assert report["compared"]["tpot_ms.mean"]["measured"] > 8.0
    assert report["client"] == "vllm bench serve"
    assert report["explained"]
    code, _, err = command("verify", *DEPLOYMENT, "--result", result_file(tmp_path, clients=8))
    assert code == 2
    assert "holds no single run at concurrency 16 (it has 8)" in err


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    path = Path(result_file(tmp_path))
    path.write_text(path.read_text().replace('"model_id": "m"', '"model_id": "Qwen/Qwen3-32B"'))
    code, _, err = command("verify", *DEPLOYMENT, "--result", str(path))
    assert code == 2
    assert "'Qwen/Qwen3-32B' is Qwen3-32B, Llama-3.1-8B was asked for" in err


def test_a_verification_can_re_anchor(tmp_path: Path) -> None:
    before = answer("verify", *DEPLOYMENT, "--result", result_file(tmp_path))
    report = answer("verify", *DEPLOYMENT, "--result", result_file(tmp_path), "--reanchor")
    assert Path(report["reanchored"]["saved"]).is_file()
    after = answer("verify", *DEPLOYMENT, "--result", result_file(tmp_path))
    assert after["anchor"] == report["reanchored"]["name"]
    wrong = [abs(r["compared"]["tpot_ms.mean"]["error_pct"]) for r in (before, after)]
    assert wrong[1] < 3.0 < wrong[0]


def test_a_verified_trial_is_written_into_the_ledger(tmp_path: Path) -> None:
    tuned = answer(
        *shlex.split(
            "tune --model Llama-3.1-8B --cluster MI355X:8 --engine sglang --objective output_tok_s_per_gpu "
            "--slo tpot_ms<=10 --seed-only --budget 40"
        ),
        "--ledger",
        str(tmp_path / "book.db"),
    )
    levers = tuned["best"]["levers"]
    search = str(tuned["search_id"])
    clients = int(levers["concurrency"])
    file = result_file(tmp_path, clients, 1024, 1024)
    report = answer("verify", search, "--result", file, "--ledger", str(tmp_path / "book.db"))
    with open_ledger(str(tmp_path / "book.db"), create=False, write=False) as book:
        notes = [one for one in book.notes(tuned["search_id"]) if one.kind == "verification"]
    assert len(notes) == 1
    compared = dict(notes[0].facts)["compared"]
    assert compared["tpot_ms.mean"]["measured"] == report["compared"]["tpot_ms.mean"]["measured"]  # type: ignore[index,call-overload]
    code, _, err = command("verify", search, "--model", "Llama-3.1-8B", "--result", file)
    assert code == 2
    assert "says this already" in err


def test_a_live_endpoint_is_benchmarked_with_the_simulated_lengths(tmp_path: Path) -> None:
    small = shlex.split(
        "--model Llama-3.1-8B --gpu MI355X --engine vllm --engine-version 0.33.0 --isl 48 --osl 24 --concurrency 2 "
        "--length-range 0.5 --requests-per-client 2"
    )
    with FakeEngine() as engine:
        report = answer("verify", *small, "--url", engine.url)
        bodies = [body for body in engine.bodies if body["max_tokens"] <= 24 and body["max_tokens"] > 2]
    assert report["client"] == "inferasim client"
    assert report["requests"] == 4
    assert report["failed"] == 0
    assert report["prompt_alone_ms"] > 0.0
    assert report["step_ms"] > 0.0
    assert all(24 <= len(body["prompt"]) <= 48 for body in bodies)
    again = predict_lengths()
    assert sorted((len(body["prompt"]), body["max_tokens"]) for body in bodies[-4:]) == sorted(again)


def predict_lengths() -> list[tuple[int, int]]:
    from predictor.workload.synthetic import lengths

    workload = Workload(48, 24, 2, length_range_frac=0.5, requests_per_client=2)
    drawn = lengths(workload, 0)
    return [next(drawn) for _ in range(4)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("verify", "--url of an endpoint or --result"),
        ("verify --url http://x --result y", "one of them"),
        ("verify --url http://x --model Llama-3.1-8B", "give --gpu, --engine, --isl, --osl"),
        ("verify 1 --url http://127.0.0.1:1", "no file|does not exist|no ledger|not there|no such"),
    ],
)
def test_bad_input_is_one_line(arguments: str, said: str) -> None:
    code, out, err = command(*shlex.split(arguments))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert any(word in err for word in said.split("|")), err
