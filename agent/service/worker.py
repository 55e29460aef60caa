"""A search process: claims jobs, runs them, renews their leases. Started by :mod:`agent.service.pool`.

Settings come as one JSON line on stdin; further lines are commands: ``wake`` looks into the queue at once, ``stop``
gives the job in hand back, with every trial recorded, and leaves. The end of stdin means that the service process died:
the worker leaves at once and its lease runs out.
"""

import ctypes
import os
import socket
import sys
import threading

import structlog

from agent.service.control import Control
from agent.service.jobs import run_job
from agent.service.logs import log, set_up
from agent.service.settings import ServiceSettings
from ledger import open_ledger
from ledger.errors import LedgerError
from ledger.queue import Job, Queue

LONGEST_PAUSE_S = 30.0


class Worker:
    """One process's loop."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.owner = f"{socket.gethostname()}:{os.getpid()}"
        self.stop, self.wake = threading.Event(), threading.Event()

    def listen(self) -> None:
        """Read commands until stdin ends, which is the end of the service process."""
        for line in sys.stdin:
            if line.strip() == "stop":
                self.stop.set()
            self.wake.set()
        if not self.stop.is_set():
            os._exit(1)

    def run(self) -> None:
        """Work until told to stop; a ledger that fails is tried again, less and less often."""
        pause_s = self.settings.poll_s
        while not self.stop.is_set():
            try:
                with open_ledger(self.settings.ledger_url) as book:
                    pause_s = self.settings.poll_s
                    self._work(Queue(book, self.settings.lease_s))
            except LedgerError as error:
                log().error("ledger_failed", error=str(error), pause_s=pause_s)
                self.wake.wait(pause_s)
                self.wake.clear()
                pause_s = min(LONGEST_PAUSE_S, 2.0 * pause_s)

    def _work(self, queue: Queue) -> None:
        while not self.stop.is_set():
            job = queue.claim(self.owner, self.settings.running_per_caller)
            if job is None:
                self.wake.wait(self.settings.poll_s)
                self.wake.clear()
                continue
            with structlog.contextvars.bound_contextvars(**_ids(job)):
                log().info("job_claimed", kind=job.kind, crashes=job.crashes, attempt=job.attempts)
                with Control(queue, job, self.stop, self.settings.max_search_s) as control:
                    run_job(queue, job, control, self.settings)
                give_memory_back()


def give_memory_back() -> None:
    """What a job has freed goes back to the system, where the C library can do so: else fragments pile up over jobs."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def _ids(job: Job) -> dict[str, int]:
    return {"job_id": job.job_id, **({} if job.search_id is None else {"search_id": job.search_id})}


def main() -> None:
    """Run a worker on the settings of stdin's first line."""
    settings = ServiceSettings.model_validate_json(sys.stdin.readline())
    set_up(settings.log_level)
    if settings.nice and hasattr(os, "nice"):
        os.nice(settings.nice)
    worker = Worker(settings)
    threading.Thread(target=worker.listen, name="commands", daemon=True).start()
    worker.run()


if __name__ == "__main__":
    main()
