"""What harvest tests share: requests on a fake engine, its command, interrupts, and the processes a test started."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from agent.harvest.engine import EngineCommand
from agent.harvest.idle import Idle
from agent.harvest.request import HarvestRequest, Prepared, prepare
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.types import Deployment, SchedulerSettings
from tests.agent.fake_engine import FakeEngine

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


def command(port: int, folder: Path, *arguments: str) -> EngineCommand:
    argv = (sys.executable, str(FAKE), "--port", str(port), *arguments)
    return EngineCommand(argv, port, folder / "engine.log", ready_limit_s=30.0)


@contextmanager
def default_interrupts() -> Iterator[None]:
    """Test runners that spread over workers ignore the signal in them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def children() -> set[int]:
    """Processes this one started and that still run; other tests' worker pools may be among them."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # a process that ended meanwhile
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            found |= {int(stat.parent.name)} if parent == os.getpid() else set()
    return found
