"""A whole harvest against a real server with known steps: what it writes, refuses, marks and keeps."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agent.anchor_store import Store
from agent.failures import EndpointFailed
from agent.harvest.idle import Idle
from agent.harvest.request import HarvestRefused, prepare
from agent.harvest.run import harvest
from predictor.anchors.check import doubts
from predictor.anchors.schema import all_fields, parse_anchor
from predictor.errors import BadInput
from predictor.types import Layout
from tests.agent.fake_engine import FakeEngine, Script
from tests.agent.harvest_requests import IDLE, QUIET, prepared_for, request_for

pytestmark = pytest.mark.usefixtures("any_machine", "no_leftovers")


def test_a_harvest_writes_what_the_engine_does(tmp_path: Path) -> None:
    script = Script(step_ms=lambda batch: 4.0 + batch, prefill_ms=lambda tokens: 3.0 + 0.8 * tokens)
    with FakeEngine(script) as engine:  # a window that a busy machine cannot miss with both readings of the counters
        result = harvest(prepared_for(engine, tmp_path, window_steps=80), QUIET, IDLE)
    anchor = result.anchor
    assert parse_anchor(json.dumps(all_fields(anchor)), "again") == anchor
    assert [point.batch for point in anchor.decode[0].points] == [1, 2]
    for point in anchor.decode[0].points:
        assert point.readings is not None
        assert point.readings.span_ms is not None
        assert point.readings.span_ms > 0.0  # as the client saw it, which may be starved here
        # A sleep is never shorter than asked.
        assert point.readings.server_ms is not None
        assert point.readings.server_ms >= 0.99 * (4.0 + point.batch)
    assert anchor.decode[0].prompt_tokens == 32
    assert [point.tokens for point in anchor.prefill.points] == [8, 16, 32, 64, 128]
    assert all(point.step_ms >= 3.0 + 0.8 * point.tokens for point in anchor.prefill.points)
    assert anchor.packed_probe is not None
    assert anchor.packed_probe.sequences == 4
    assert anchor.signature.engine_version == "0.33.0"
    assert anchor.kv_pool_tokens == 131072
    assert anchor.provenance.prefix_cache_off
    names = [check.name for check in anchor.provenance.checks]
    assert {"idle", "prefix_cache_off", "prompts_not_cached", "real_weights", "prompt_length", "tokens_counted"} <= set(
        names
    )
    assert {"readings_agree", "repeats_agree", "decode_32_monotone", "prefill_monotone", "packing"} <= set(names)
    assert list(tmp_path.glob("*.jsonl"))  # until the artefact is saved
    result.kept.forget()
    assert not list(tmp_path.glob("*.jsonl"))


def test_a_second_prompt_length_makes_a_second_sweep(tmp_path: Path) -> None:
    with FakeEngine() as engine:
        result = harvest(prepared_for(engine, tmp_path, second_prompt_tokens=128, probe=False), QUIET, IDLE)
    assert [sweep.prompt_tokens for sweep in result.anchor.decode] == [32, 128]
    assert [point.batch for point in result.anchor.decode[1].points] == [1, 2]
    assert result.anchor.packed_probe is None


def test_the_engine_s_own_release_is_written_down(tmp_path: Path) -> None:
    with FakeEngine(Script(version="0.34.1")) as engine:
        anchor = harvest(prepared_for(engine, tmp_path), QUIET, IDLE).anchor
    assert anchor.signature.engine_version == "0.34.1"
    assert any("the engine says it is 0.34.1; 0.33.0 was asked for" in note for note in anchor.provenance.notes)


@pytest.mark.parametrize(
    ("script", "check"),
    [
        (Script(says_prefix_cache="True"), "prefix_cache_off: the server says enable_prefix_caching is True"),
        (Script(prefix_cache=True, says_prefix_cache=None), r"prompts_not_cached: \d+ cached prompt tokens counted"),
        (Script(prefix_cache=True, says_prefix_cache=None, counters=False, prefill_ms=lambda n: 2.0 + 0.8 * n),
         "prompts_not_cached: a prompt sent again takes"),
    ],
)  # fmt: skip
def test_a_prefix_cache_leaves_no_artefact(tmp_path: Path, script: Script, check: str) -> None:
    with FakeEngine(script) as engine, pytest.raises(HarvestRefused, match=check):
        harvest(prepared_for(engine, tmp_path), QUIET, IDLE)
    assert not list(tmp_path.glob("*.jsonl"))


def test_uncounted_tokens_leave_no_artefact(tmp_path: Path) -> None:
    script = Script(tokens_per_chunk=2, returns_ids=False)
    with FakeEngine(script) as engine, pytest.raises(HarvestRefused, match=r"tokens_counted: 2\.00 tokens a message"):
        harvest(prepared_for(engine, tmp_path), QUIET, IDLE)


def test_failed_checks_mark_the_artefact_and_become_doubts(tmp_path: Path) -> None:
    script = Script(wrong_prompt_count=9, prefill_ms=lambda n: 400.0 if n == 16 else 2.0 + 0.8 * n)
    with FakeEngine(script) as engine:
        result = harvest(prepared_for(engine, tmp_path, dummy_weights=True), QUIET, IDLE)
    failed = {check.name for check in result.failed}
    assert {"prompt_length", "prefill_monotone", "real_weights"} <= failed
    assert not result.anchor.provenance.real_weights
    said = {flag.code for flag in doubts(result.anchor)}
    assert {"check_prompt_length", "check_prefill_monotone", "random_weights"} <= said


def test_a_batch_beyond_the_running_cap_ends_the_sweep(tmp_path: Path) -> None:
    with FakeEngine(Script(max_running=2)) as engine:
        result = harvest(prepared_for(engine, tmp_path, batches=(1, 2, 4), probe=False), QUIET, IDLE)
    assert [point.batch for point in result.anchor.decode[0].points] == [1, 2]
    assert any("batch 4 at 32 tokens never decodes together" in note for note in result.notes)


def test_busy_devices_are_refused_unless_accepted(tmp_path: Path) -> None:
    def busy(serving: bool) -> Idle:
        return Idle(False, "GPU 0: 97% busy")

    with FakeEngine() as engine:
        with pytest.raises(BadInput, match=r"not idle: GPU 0: 97% busy; .*--even-busy"):
            harvest(prepared_for(engine, tmp_path), QUIET, busy)
        result = harvest(prepared_for(engine, tmp_path, even_busy=True), QUIET, busy)
    assert "idle" in {check.name for check in result.failed}


# Faults of the endpoint, and resuming after them


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (Script(status_after=14), "HTTP 500"),
        (Script(truncate_after=14), "broke after|was cut after"),
        (Script(error_event_after=14), "engine core died"),
    ],
)
def test_a_fault_in_a_sweep_keeps_what_was_measured(tmp_path: Path, script: Script, said: str) -> None:
    with FakeEngine(script) as engine, pytest.raises(EndpointFailed, match=said):
        harvest(prepared_for(engine, tmp_path), QUIET, IDLE)
    assert list(tmp_path.glob("*.jsonl"))
    assert not list(tmp_path.glob("*.json"))


def test_an_interrupted_harvest_resumes(tmp_path: Path) -> None:
    with FakeEngine(Script(status_after=20)) as engine, pytest.raises(EndpointFailed):
        harvest(prepared_for(engine, tmp_path), QUIET, IDLE)
    with FakeEngine() as engine:
        said: list[str] = []
        result = harvest(prepared_for(engine, tmp_path), said.append, IDLE)
        fresh_requests = len(engine.bodies)
    assert any(line.startswith("resuming: ") for line in said)
    assert len(result.anchor.decode[0].points) == 2
    with FakeEngine() as engine:
        harvest(prepared_for(engine, tmp_path / "other"), QUIET, IDLE)
        assert fresh_requests < len(engine.bodies)


def test_another_plan_does_not_take_over_measurements(tmp_path: Path) -> None:
    with FakeEngine(Script(status_after=20)) as engine, pytest.raises(EndpointFailed):
        harvest(prepared_for(engine, tmp_path), QUIET, IDLE)
    with FakeEngine() as engine:
        said: list[str] = []
        harvest(prepared_for(engine, tmp_path, prompt_tokens=24), said.append, IDLE)
    assert not any(line.startswith("resuming") for line in said)


def test_an_engine_that_serves_another_model_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    with FakeEngine(Script(model="Qwen/Qwen3-32B")) as engine:
        with pytest.raises(BadInput, match=r"'Qwen/Qwen3-32B' is Qwen3-32B, Llama-3\.1-8B was asked for"):
            harvest(prepared_for(engine, tmp_path), QUIET, IDLE)
        assert engine.bodies == []
    assert not list(tmp_path.iterdir())


def test_nobody_at_the_address_is_said(tmp_path: Path, port: int) -> None:
    with pytest.raises(EndpointFailed, match="not reachable"):
        harvest(prepare(request_for(tmp_path, url=f"http://127.0.0.1:{port}")), QUIET, IDLE)


def test_a_saved_harvest_is_found_again(tmp_path: Path) -> None:
    with FakeEngine() as engine:
        anchor = harvest(prepared_for(engine, tmp_path / "state"), QUIET, IDLE).anchor
    Store(tmp_path / "anchors").save(anchor)
    ((_, again),) = Store(tmp_path / "anchors").anchors()
    assert again.content_hash == anchor.content_hash


def test_only_one_colocated_replica_is_harvested(tmp_path: Path) -> None:
    for changed in ({"layout": Layout(tp=1, pp=2)}, {"replicas": 2}):
        wanted = replace(request_for(tmp_path).deployment, **changed)  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="reduce the target first"):
            prepare(request_for(tmp_path, deployment=wanted))
