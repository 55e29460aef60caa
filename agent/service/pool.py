"""The worker processes of a service: started, watched, replaced when they die, stopped with their work given back."""

import asyncio
import contextlib
import subprocess
import sys
from dataclasses import dataclass, field

from agent.service.logs import log
from agent.service.settings import ServiceSettings

WATCH_S = 0.5
LONGEST_PAUSE_S = 30.0
GRACE_S = 20.0  # to finish the trial in hand and give the job back


@dataclass(slots=True)
class WorkerPool:
    """``settings.workers`` processes of :mod:`agent.service.worker`."""

    settings: ServiceSettings
    processes: list["subprocess.Popen[str]"] = field(default_factory=list)
    restarts: int = 0
    _task: "asyncio.Task[None] | None" = None

    def start(self) -> None:
        """Start all and watch them."""
        self.processes = [self._spawn() for _ in range(self.settings.workers)]
        self._task = asyncio.get_running_loop().create_task(self._watch(), name="worker-pool")

    @property
    def alive(self) -> int:
        """Workers that run."""
        return sum(process.poll() is None for process in self.processes)

    def wake(self) -> None:
        """Tell idle workers that there is work."""
        for process in self.processes:
            self._tell(process, "wake")

    async def stop(self) -> None:
        """Have every worker give its job back and leave; one that does not is ended, and its lease runs out."""
        if self._task is not None:
            self._task.cancel()
        for process in self.processes:
            self._tell(process, "stop")
        for process in self.processes:
            try:
                await asyncio.to_thread(process.wait, GRACE_S)
            except subprocess.TimeoutExpired:
                log().error("worker_killed", pid=process.pid)
                process.kill()
                await asyncio.to_thread(process.wait)
            _close(process)

    def _spawn(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "agent.service.worker"],
            stdin=subprocess.PIPE,
            text=True,
            # A terminal's Ctrl-C is for the service process, which then stops its workers in order. A group, not a
            # session, of their own: Linux weighs sessions against each other, and niceness within one.
            process_group=0,
        )
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.write(self.settings.model_dump_json() + "\n")
            process.stdin.flush()
        return process

    def _tell(self, process: "subprocess.Popen[str]", command: str) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # one that died is started again by the watch
            process.stdin.write(command + "\n")
            process.stdin.flush()

    async def _watch(self) -> None:
        pause_s = 1.0
        while True:
            await asyncio.sleep(WATCH_S)
            dead = [process for process in self.processes if process.poll() is not None]
            if not dead:
                continue
            for process in dead:
                log().error("worker_died", pid=process.pid, exit_code=process.returncode)
                _close(process)
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2.0 * pause_s)
            self.restarts += len(dead)
            self.processes = [self._spawn() if one in dead else one for one in self.processes]


def _close(process: "subprocess.Popen[str]") -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
