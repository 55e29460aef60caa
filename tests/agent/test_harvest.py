"""A whole harvest against a real server with known steps, and everything that can go wrong on the way."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from agent.anchor_store import Store
from agent.failures import DependencyFailed, EndpointFailed, EngineFailed
from agent.harvest import checks, sweeps
from agent.harvest import engine as engine_module
from agent.harvest.engine import EngineCommand, group_alive, port_is_free, running
from agent.harvest.idle import Idle
from agent.harvest.request import HarvestRefused, HarvestRequest, Prepared, prepare
from agent.harvest.run import harvest
from agent.harvest.state import Kept
from predictor.anchors.check import doubts
from predictor.anchors.schema import all_fields, parse_anchor
from predictor.errors import BadInput
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.types import Deployment, Layout, SchedulerSettings
from tests.agent.fake_engine import FakeEngine, Script

QUIET: Callable[[str], None] = lambda text: None  # noqa: E731
IDLE: Callable[[bool], Idle] = lambda serving: Idle(True, "test")  # noqa: E731
FAKE = Path(__file__).with_name("fake_engine.py")


def request_for(folder: Path, **changes: object) -> HarvestRequest:
    base = HarvestRequest(
        deployment=Deployment("Llama-3.1-8B", "MI355X", "vLLM", "0.33.0", scheduler=SchedulerSettings(max_running=16)),
        card=model_card("Llama-3.1-8B"),
        platform=platform("MI355X"),
        profile=engine_profile("vllm"),
        prompt_tokens=32,
        batches=(1, 2),
        window_steps=16,
        repeats=1,
        state_folder=folder,
        url="http://127.0.0.1:1",
        timeout_s=20.0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def prepared_for(engine: FakeEngine, folder: Path, **changes: object) -> Prepared:
    return prepare(request_for(folder, url=engine.url, **changes))


@pytest.fixture(autouse=True)
def _any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy test machine may starve the client at any moment: these tests are not about how steady it is."""
    for name in ("READING_PCT", "SPREAD_PCT"):
        monkeypatch.setattr(checks, name, 1e6)
        monkeypatch.setattr(sweeps, name, 1e6)


@pytest.fixture
def port() -> int:
    """A free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    return number


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


# The engine as a process


def command(port: int, folder: Path, *arguments: str) -> EngineCommand:
    argv = (sys.executable, str(FAKE), "--port", str(port), *arguments)
    return EngineCommand(argv, port, folder / "engine.log", ready_limit_s=30.0)


def test_an_engine_is_started_harvested_and_stopped(tmp_path: Path, port: int) -> None:
    wanted = request_for(tmp_path, url=None, batches=(1, 2), command=command(port, tmp_path, "--start-delay", "0.2"))
    result = harvest(prepare(wanted), QUIET, IDLE)
    assert result.anchor.kv_pool_tokens == 131072
    assert port_is_free(port)
    assert "loading weights" in (tmp_path / "engine.log").read_text()


def test_what_the_start_log_says_wins(tmp_path: Path, port: int) -> None:
    said = "SGL max_total_num_tokens=9000, chunked_prefill_size=64, max_prefill_tokens=128, max_running_requests=7, "
    said += "context_len=4096\nCapture cuda graph bs [1, 2, 4]"
    wanted = request_for(tmp_path, url=None, command=command(port, tmp_path, "--says", said))
    result = harvest(prepare(wanted), QUIET, IDLE)
    assert result.anchor.kv_pool_tokens == 9000
    assert result.anchor.signature.capture_sizes == (1, 2, 4)
    (limits,) = [check for check in result.failed if check.name == "limits_as_asked"]
    assert limits.detail.startswith("max_running 7, asked 16; graph sizes (1, 2, 4), asked (1, 2, 4, 8, 16")


def test_a_taken_port_is_said_before_anything_starts(tmp_path: Path) -> None:
    with FakeEngine() as engine:
        taken = engine.server.server_address[1]
        with pytest.raises(EngineFailed, match=f"port {taken} is taken"), running(command(taken, tmp_path), QUIET):
            pass
    assert not (tmp_path / "engine.log").exists()


@pytest.mark.parametrize(
    ("death", "said"),
    [
        ("model", "ended with code 3: ValueError: unsupported model architecture"),
        ("memory", r"No available memory for the cache blocks.*ran out of memory: lower --kv-mem-fraction"),
        ("device", r"CUDA out of memory.*ran out of memory: lower --kv-mem-fraction"),
        ("port", r"address already in use; port \d+ was taken: give another --port"),
        ("killed", r"ended with code -9: INFO loading shards: 40%; it was killed from outside.*see dmesg"),
    ],
)
def test_an_engine_that_dies_at_its_start_says_why(tmp_path: Path, port: int, death: str, said: str) -> None:
    wanted = request_for(tmp_path, url=None, command=command(port, tmp_path, "--die-at-start", death))
    with pytest.raises(EngineFailed, match=said) as error:
        harvest(prepare(wanted), QUIET, IDLE)
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["engine.log"]


def test_an_engine_that_dies_in_a_sweep_says_why(tmp_path: Path, port: int) -> None:
    wanted = request_for(tmp_path, url=None, command=command(port, tmp_path, "--die-after", "15"))
    with pytest.raises(EngineFailed, match=r"out of memory.*lower --kv-mem-fraction"):
        harvest(prepare(wanted), QUIET, IDLE)
    assert not list(tmp_path.glob("*.json"))
    assert list(tmp_path.glob("*.jsonl"))


def test_an_engine_that_takes_too_long_is_given_up(tmp_path: Path, port: int) -> None:
    slow = replace(command(port, tmp_path, "--start-delay", "60"), ready_limit_s=1.0)
    with pytest.raises(EngineFailed, match=r"not ready after .*last words: (INFO|\(nothing yet)"), running(slow, QUIET):
        pass


def test_a_program_that_is_not_there_is_said(tmp_path: Path, port: int) -> None:
    missing = EngineCommand(("no-such-engine",), port, tmp_path / "engine.log")
    with pytest.raises(EngineFailed, match="no-such-engine: no such program"), running(missing, QUIET):
        pass


@pytest.mark.parametrize("leave", [KeyboardInterrupt, RuntimeError, EndpointFailed, DependencyFailed])
def test_the_whole_group_ends_however_the_block_is_left(
    tmp_path: Path, port: int, leave: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "TERM_WAIT_S", 0.5)
    monkeypatch.setattr(engine_module, "DEATH_WAIT_S", 0.1)
    pids: list[int] = []

    def leaving() -> None:
        with running(command(port, tmp_path, "--child"), QUIET) as process:
            pids.append(process.pid)
            raise leave("stop")

    with pytest.raises(leave):
        leaving()
    assert not group_alive(pids[0])  # a child that ignores termination included


@contextmanager
def default_interrupts() -> Iterator[None]:
    """Test runners that spread over workers ignore the signal in them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_while_an_engine_starts_stops_it(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "TELL_EVERY_S", 0.0)
    groups: list[int] = []

    def interrupt(text: str) -> None:
        groups.extend(children())
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5.0)

    wanted = request_for(tmp_path, url=None, command=command(port, tmp_path, "--start-delay", "60"))
    with default_interrupts(), pytest.raises(KeyboardInterrupt):
        harvest(prepare(wanted), interrupt, IDLE)
    assert groups
    assert not any(group_alive(group) for group in groups)
    assert [path.name for path in tmp_path.iterdir()] == ["engine.log"]


def test_a_second_ctrl_c_does_not_leave_the_engine_behind(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []
    usual = engine_module.group_alive

    def impatient(group: int) -> bool:
        monkeypatch.setattr(engine_module, "group_alive", usual)  # once, in the middle of the stop
        raise KeyboardInterrupt

    def leaving() -> None:
        with running(command(port, tmp_path, "--child"), QUIET) as process:
            pids.append(process.pid)
            monkeypatch.setattr(engine_module, "group_alive", impatient)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leaving()
    assert not group_alive(pids[0])  # the child that ignores termination included


def test_a_termination_signal_stops_the_engine_too(tmp_path: Path, port: int) -> None:
    code = (
        "import sys; from pathlib import Path; from agent.harvest.engine import EngineCommand, running\n"
        f"argv = (sys.executable, {str(FAKE)!r}, '--port', '{port}')\n"
        f"command = EngineCommand(argv, {port}, Path({str(tmp_path)!r}) / 'e.log')\n"
        "with running(command, lambda text: None) as process:\n"
        "    print(process.pid, flush=True)\n"
        "    import time; time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL
    )
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGTERM)
        parent.wait(30)
        assert not group_alive(pid)
    finally:
        parent.kill()
        parent.wait(10)
        if parent.stdout is not None:
            parent.stdout.close()


def test_ctrl_c_in_a_sweep_keeps_measurements_and_says_so(tmp_path: Path) -> None:
    said: list[str] = []

    def interrupt(text: str) -> None:
        said.append(text)
        if text.startswith("batch"):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5.0)

    with default_interrupts(), FakeEngine() as engine, pytest.raises(KeyboardInterrupt):
        harvest(prepared_for(engine, tmp_path), interrupt, IDLE)
    assert said[-1].startswith("interrupted: ")
    assert list(tmp_path.glob("*.jsonl"))


def test_a_full_disk_stops_the_harvest_with_a_line(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with FakeEngine() as engine, pytest.raises(BadInput, match=r"measurement not kept|cannot be read"):
        harvest(prepared_for(engine, blocked / "state"), QUIET, IDLE)


def test_no_space_left_is_one_line(tmp_path: Path) -> None:
    full = Path("/dev/full")  # every write to it fails as on a full disk
    if not full.exists():
        pytest.skip("no /dev/full on this system")
    with pytest.raises(BadInput, match=r"measurement not kept \(No space left on device\): the harvest stops here"):
        Kept(full, {}).keep("prefill 8", {"tokens": 8})


def test_a_log_that_cannot_be_written_is_said_before_anything_starts(tmp_path: Path, port: int) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    wanted = request_for(tmp_path, url=None, command=command(port, blocked / "deeper"))
    with pytest.raises(BadInput, match=r"engine\.log: cannot start the engine"):
        harvest(prepare(wanted), QUIET, IDLE)


def test_what_a_command_reads_is_written_when_it_starts(tmp_path: Path, port: int) -> None:
    started = replace(command(port, tmp_path / "run"), files=(("extra.yaml", "a: 1\n"),))
    assert not (tmp_path / "run").exists()
    with running(started, QUIET):
        assert (tmp_path / "run" / "extra.yaml").read_text() == "a: 1\n"


def test_a_clock_that_is_set_moves_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's clock is monotonic: the wall clock going back an hour at every look changes nothing."""
    wall = iter(range(10**9, 0, -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(wall)))
    script = Script(step_ms=lambda batch: 4.0, prefill_ms=lambda tokens: 3.0 + 0.8 * tokens)
    with FakeEngine(script) as engine:
        anchor = harvest(prepared_for(engine, tmp_path), QUIET, IDLE).anchor
    for point in anchor.decode[0].points:
        assert point.readings is not None
        assert point.readings.span_ms is not None
        assert 3.9 <= point.readings.span_ms < 400.0
    assert all(point.step_ms >= 3.0 for point in anchor.prefill.points)


def test_a_saved_harvest_is_found_again(tmp_path: Path) -> None:
    with FakeEngine() as engine:
        anchor = harvest(prepared_for(engine, tmp_path / "state"), QUIET, IDLE).anchor
    Store(tmp_path / "anchors").save(anchor)
    ((_, again),) = Store(tmp_path / "anchors").anchors()
    assert again.content_hash == anchor.content_hash


def children() -> set[int]:
    """Processes this one started and that still run; other tests' worker pools may be among them."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # a process that ended meanwhile
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            found |= {int(stat.parent.name)} if parent == os.getpid() else set()
    return found


@pytest.fixture(autouse=True)
def _no_leftovers() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before


def test_only_one_colocated_replica_is_harvested(tmp_path: Path) -> None:
    for changed in ({"layout": Layout(tp=1, pp=2)}, {"replicas": 2}):
        wanted = replace(request_for(tmp_path).deployment, **changed)  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="reduce the target first"):
            prepare(request_for(tmp_path, deployment=wanted))
