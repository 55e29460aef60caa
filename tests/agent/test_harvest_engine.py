"""The engine as a child process, and everything that can go wrong on the way: deaths, interrupts, disks, clocks."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agent.failures import DependencyFailed, EndpointFailed, EngineFailed
from agent.harvest import engine as engine_module
from agent.harvest.engine import EngineCommand, group_alive, port_is_free, running
from agent.harvest.request import prepare
from agent.harvest.run import harvest
from agent.harvest.state import Kept
from predictor.errors import BadInput
from tests.agent.fake_engine import FakeEngine, Script
from tests.agent.harvest_requests import (
    FAKE,
    IDLE,
    QUIET,
    children,
    command,
    default_interrupts,
    prepared_for,
    request_for,
)

pytestmark = pytest.mark.usefixtures("any_machine", "no_leftovers")


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
