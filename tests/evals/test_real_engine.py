"""Real engines: the study itself where asked for (``make engines``), and what judges it, always."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.harvest.request import HarvestRefused
from evals import real_engine
from evals.real_deployments import (
    Limits,
    anchor_request,
    model_card_of,
    served_dtype,
    vllm_command,
    width_request,
)
from evals.real_environment import DUMMY_CONFIG, EnvironmentFailed, RealEngine, cache_folder, environment, llama_ready
from evals.real_machine import Reading, allreduce_us, cpu_platform, read_bytes_per_s, read_machine
from predictor.comm import collective_law
from predictor.transfer.constants import default_constants

REPORTED = ("tpot_median_ape_pct", "throughput_median_ape_pct", "ttft_median_ape_pct", "width", "load_average")
MOST_ERROR_PCT = 40.0

ROOT = Path(__file__).parents[2]
ASKED = os.environ.get("INFERASIM_REAL_ENGINE") == "1"


@pytest.mark.skipif(not ASKED, reason="starts real engines for some minutes: make engines (INFERASIM_REAL_ENGINE=1)")
def test_a_real_engine_is_harvested_and_predicted() -> None:
    arguments = real_engine.arguments().parse_args(["--json"])
    try:
        result = real_engine.evaluate(arguments)
    except EnvironmentFailed as error:
        pytest.skip(f"no engine here: {error}")
    if "engine" not in result:
        pytest.skip(result["skip_reason"])
    sys.stdout.write("\n".join([json.dumps({name: result[name] for name in REPORTED}), *result["missed"], ""]))
    assert result["engine"].startswith("vLLM 0.32.0")
    assert result["targets"] >= 6
    assert {row["token_budget"] for row in result["rows"]} == {256, 512}
    assert {row["max_running"] for row in result["rows"]} == {4, 16}
    assert not [line for line in result["harvest"]["marked"] if line.startswith("real_weights")]
    # The engine sizes its pool by the machine's free memory; every target must fit.
    needed = max(row["clients"] * (row["isl"] + row["osl"]) for row in result["rows"])
    assert result["harvest"]["kv_pool_tokens"] > needed
    assert result["second_adapter"]["stopped"]
    judged = {"tokens_counted"} if real_engine.busy(result) else {"tokens_counted", "prompts_not_cached", "monotone"}
    assert all(check["passed"] for check in result["second_adapter"]["checks"] if check["name"] in judged)
    if result["skipped"]:
        pytest.skip(f"measured twice on a busy machine: {result['skip_reason']}")
    # The study's own targets are 12 and 20%; machines that run tests differ too much to fail a build on them, while a
    # law that is wrong misses these.
    assert result["tpot_median_ape_pct"] <= MOST_ERROR_PCT
    assert result["throughput_median_ape_pct"] <= MOST_ERROR_PCT
    assert result["width"]["median_ape_pct"] <= MOST_ERROR_PCT


@pytest.fixture
def engine(tmp_path: Path) -> RealEngine:
    """Where an environment would lie, with the two models' configs."""
    made = RealEngine(tmp_path)
    for folder in (made.model, made.dummy):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(DUMMY_CONFIG))
    return made


def test_the_dummy_s_heads_divide_by_two(engine: RealEngine) -> None:
    card = model_card_of(engine.dummy)
    assert card.name == "dummy-192m"
    assert card.layers == 12
    wide = width_request(engine, 2, engine.folder)
    assert wide.command is not None
    assert wide.command.env["VLLM_CPU_OMP_THREADS_BIND"] == "0|1"
    assert wide.command.argv[-2:] == ("--tensor-parallel-size", "2")
    assert "--load-format" in wide.command.argv


def test_the_anchor_is_of_real_weights_with_the_cache_off(engine: RealEngine) -> None:
    prepared = anchor_request(engine, engine.folder)
    assert prepared.command is not None
    assert "--no-enable-prefix-caching" in prepared.command.argv
    assert "--load-format" not in prepared.command.argv
    assert prepared.plan.second_batches
    assert prepared.settings.max_running == 16
    assert prepared.settings.token_budget == 512


def test_limits_of_a_start_reach_the_engine(engine: RealEngine) -> None:
    argv = vllm_command(engine, engine.model, 1, engine.folder / "log", Limits(4, 256)).argv
    assert argv[argv.index("--max-num-seqs") + 1] == "4"
    assert argv[argv.index("--max-num-batched-tokens") + 1] == "256"


def test_the_engine_s_processes_sleep_instead_of_polling(engine: RealEngine) -> None:
    command = vllm_command(engine, engine.model, 1, engine.folder / "log")
    code = "import os, time; begun = time.monotonic(); os.sched_yield(); print(time.monotonic() - begun)"
    said = subprocess.run(
        [sys.executable, "-c", code], env=command.env, capture_output=True, text=True, check=True
    ).stdout
    assert float(said) >= 0.0005


def test_a_stopped_engine_s_orphans_count_as_one_s_own() -> None:
    """A parent that dies first leaves its child to whoever adopts it: here the study, which then knows its seconds."""
    code = """
import subprocess, sys, time
from evals.real_machine import adopt_orphans, collect_orphans, read_machine
adopt_orphans()
parent = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'sum(range(2 * 10**7))'])"
subprocess.run([sys.executable, "-c", parent], check=True)
before, deadline = read_machine().own_s, time.monotonic() + 60
while read_machine().own_s < before + 0.1 and time.monotonic() < deadline:
    time.sleep(0.05)
    collect_orphans()
print(read_machine().own_s - before)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert float(said) >= 0.1


def test_an_environment_is_known_by_its_pins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("a", 1) == cache_folder("a", 1)
    assert cache_folder("a", 1) != cache_folder("a", 2)
    assert cache_folder("a").is_relative_to(tmp_path)


def test_an_environment_that_cannot_be_made_says_which_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evals.real_environment._pip", lambda python: [str(python), "-c", "raise SystemExit('no net')"])
    with pytest.raises(EnvironmentFailed, match=r"llama\.cpp failed in .*: no net"):
        llama_ready(tmp_path / "new")
    assert not (tmp_path / "new" / "ready").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFailed, match="cannot be made"):
        llama_ready(tmp_path / "file" / "below")


def test_the_engine_never_asks_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "x")
    env = environment()
    assert env["HF_HUB_OFFLINE"] == "1"
    assert env["VLLM_HOST_IP"] == "127.0.0.1"
    assert "OPENBLAS_CORETYPE" not in env


# What judges a run


def result(**changes: Any) -> dict[str, Any]:
    return {
        "tpot_median_ape_pct": 5.0,
        "throughput_median_ape_pct": 5.0,
        "width": {"median_ape_pct": 5.0},
        "load_average": 0.3,
        "others_busy_cores": 0.05,
    } | changes


def test_a_missed_target_is_named() -> None:
    assert real_engine.missed(result()) == []
    assert real_engine.missed(result(tpot_median_ape_pct=13.0)) == ["TPOT off by 13.0% (at most 12%)"]
    assert real_engine.missed(result(width={"median_ape_pct": 21.0})) == ["TP1 to TP2 off by 21.0% (at most 20%)"]


def test_a_busy_machine_is_told_by_load_and_by_what_others_use() -> None:
    assert real_engine.busy(result()) is None
    assert "load average 4.0" in (real_engine.busy(result(load_average=4.0)) or "")
    assert "0.90 cores" in (real_engine.busy(result(others_busy_cores=0.9)) or "")


@pytest.mark.parametrize(
    ("load", "errors", "attempts", "skipped", "missed"),
    [
        (0.3, [5.0], 1, False, False),
        (0.3, [50.0, 40.0], 2, False, True),  # quiet and wrong twice: no skip
        (4.0, [5.0], 1, False, False),  # busy and right all the same
        (4.0, [50.0, 5.0], 2, False, False),
        (4.0, [50.0, 40.0], 2, True, True),
    ],
)
def test_a_miss_gets_one_more_try_and_a_busy_machine_a_skip(
    monkeypatch: pytest.MonkeyPatch, load: float, errors: list[float], attempts: int, skipped: bool, missed: bool
) -> None:
    given = [result(tpot_median_ape_pct=error, load_average=load) for error in errors]
    made: list[dict[str, Any]] = []

    def attempt(engine: object, server: object, until: object) -> dict[str, Any]:
        made.append(given[len(made)])
        return made[-1]

    monkeypatch.setattr(real_engine, "attempt", attempt)
    monkeypatch.setattr(real_engine, "ready", lambda folder, say: None)
    monkeypatch.setattr(real_engine, "llama_ready", lambda say: None)
    found = real_engine.evaluate(real_engine.arguments().parse_args([]))
    assert len(made) == attempts
    assert found["skipped"] is skipped
    assert bool(found["missed"]) is missed
    assert (found["skip_reason"] is not None) is skipped


@pytest.mark.parametrize(
    ("load", "second", "skipped"), [(4.0, True, True), (4.0, False, False), (0.3, False, False), (0.3, True, None)]
)
def test_a_refused_harvest_gets_one_more_try_too(
    monkeypatch: pytest.MonkeyPatch, load: float, second: bool, skipped: bool | None
) -> None:
    busy = {"load_average": load, "others_busy_cores": 0.0}
    refused = {"failure": HarvestRefused("no artefact: readings_agree: 30% apart")} | busy
    given = iter([dict(refused), dict(refused) if second else result(load_average=load)])
    monkeypatch.setattr(real_engine, "attempt", lambda engine, server, until: next(given))
    monkeypatch.setattr(real_engine, "ready", lambda folder, say: None)
    monkeypatch.setattr(real_engine, "llama_ready", lambda say: None)
    if skipped is None:
        with pytest.raises(HarvestRefused, match="30% apart"):
            real_engine.evaluate(real_engine.arguments().parse_args([]))
        return
    found = real_engine.evaluate(real_engine.arguments().parse_args([]))
    assert found["skipped"] is skipped
    assert bool(found["skip_reason"]) is skipped
    json.dumps(found)  # the command prints it
    assert "30% apart" in found["first_attempt"]["failure"]


def test_a_machine_that_never_gets_there_is_skipped_with_the_step_it_stopped_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def attempt(engine: object, server: object, until: real_engine.Until) -> dict[str, Any]:
        until.say("batch 1: 20 ms")
        raise AssertionError("the limit had passed")

    monkeypatch.setattr(real_engine, "attempt", attempt)
    monkeypatch.setattr(real_engine, "ready", lambda folder, say: None)
    monkeypatch.setattr(real_engine, "llama_ready", lambda say: None)
    found = real_engine.evaluate(real_engine.arguments().parse_args(["--limit-min", "-1"]))
    assert found["skipped"]
    assert "before the rest of a harvest" in found["skip_reason"]


def test_others_are_what_this_process_and_its_children_did_not_use() -> None:
    assert Reading(10.0, 8.0, 3.0).others_since(Reading(0.0, 0.0, 0.0)) == 0.5
    assert Reading(10.0, 2.9, 3.0).others_since(Reading(0.0, 0.0, 0.0)) == 0.0
    now = read_machine()
    assert now.busy_s > 0.0
    assert now.own_s > 0.0


def test_without_proc_nobody_else_is_busy(tmp_path: Path) -> None:
    assert read_machine(tmp_path / "none").others_since(read_machine(tmp_path / "none")) <= 1.0


def test_memory_is_read_by_as_many_as_asked() -> None:
    assert read_bytes_per_s(1) > 1e7


def test_a_core_is_the_gpu_of_a_cpu() -> None:
    """Weights stream at the rate that was read, and half as fast where they are twice as wide."""
    one = cpu_platform(3e9)
    assert one.hbm_bytes_per_s * default_constants(one).stream_share == pytest.approx(3e9)
    assert one.link_bytes_per_s == 1.5e9
    assert cpu_platform(3e9, 4.0).hbm_bytes_per_s == pytest.approx(one.hbm_bytes_per_s / 2.0)


@pytest.mark.parametrize(("flags", "served"), [("fpu avx avx2", "float32"), ("avx2 avx512f avx512_bf16", "bfloat16")])
def test_bf16_is_served_where_the_cpu_has_it(tmp_path: Path, flags: str, served: str) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: {flags}\n")
    assert served_dtype(tmp_path / "cpuinfo") == served
    assert served_dtype(tmp_path / "none") == "float32"


def test_a_reduction_over_sockets_starts_as_late_as_it_was_timed(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$3" 1500.5 | cut -d" " -f2\n')
    python.chmod(0o755)
    timed = allreduce_us(python, 2, 1, dict(os.environ))
    assert timed == 1500.5
    slow, quick = (collective_law(cpu_platform(2e10, 4.0, us, 2), "all_reduce", 2).us(4096) for us in (timed, None))
    assert slow == pytest.approx(1500.5 + 4096 / 1e4, rel=1e-3)
    assert quick < 20.0
