"""What may stop a job from outside: its caller, a shutdown, a time limit, another worker that took it over."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from agent.service.logs import log
from ledger.errors import LedgerError
from ledger.queue import Job, LeaseLost, Queue

Value = TypeVar("Value")
CANCELLED, SHUTDOWN, TIME_LIMIT, LOST = "cancelled", "shutdown", "time_limit", "lost"
RENEWALS = 3  # in one lease: two may fail before it runs out


class StopWork(BaseException):
    """Leave the job now. A BaseException, so that no handler for a failed proposal or tool swallows it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Control:
    """Renews the lease of a job in a thread of its own and gathers reasons to stop; use as a context manager."""

    def __init__(self, queue: Queue, job: Job, shutdown: threading.Event, limit_s: float) -> None:
        self._queue, self._job, self._shutdown = queue, job, shutdown
        self._until_s = time.monotonic() + limit_s  # of the monotonic clock, which no one sets
        self._done = threading.Event()
        self._asked: str | None = None
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    @property
    def reason(self) -> str | None:
        """Why to stop, if there is a reason."""
        if self._asked is not None:
            return self._asked
        if self._shutdown.is_set():
            return SHUTDOWN
        return TIME_LIMIT if time.monotonic() > self._until_s else None

    def check(self) -> None:
        """Raise StopWork where there is a reason to."""
        reason = self.reason
        if reason is not None:
            raise StopWork(reason)

    def wait(self, seconds: float) -> None:
        """Sleep, but not through a reason to stop."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self.check()
            time.sleep(min(0.1, max(0.0, until_s - time.monotonic())))

    def patiently(self, what: str, act: Callable[[], Value], patience_s: float) -> Value:
        """Act, waiting for a ledger that is away or full; one that refuses for good is not waited for."""
        until_s, pause_s = time.monotonic() + patience_s, 0.1
        while True:
            try:
                return act()
            except LeaseLost:
                raise StopWork(LOST) from None
            except LedgerError as error:
                if type(error) is not LedgerError or time.monotonic() + pause_s > until_s:
                    raise
                log().warning("ledger_waits", what=what, error=str(error), pause_s=pause_s)
            self.wait(pause_s)
            pause_s = min(5.0, 2.0 * pause_s)

    def _renew(self) -> None:
        pause_s = self._queue.lease_s / RENEWALS
        while not self._done.wait(min(pause_s, 2.0)):
            try:
                if self._queue.renew(self._job):
                    self._asked = CANCELLED
            except LeaseLost:
                self._asked = LOST
                return
            except LedgerError as error:
                log().warning("lease_not_renewed", job_id=self._job.job_id, error=str(error))
