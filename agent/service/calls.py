"""Quick questions in processes of their own, bounded in number and time: the HTTP process only waits for them."""

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from typing import Any, TypeVar

from agent.service.logs import log
from agent.service.problems import Failed, Problem

Value = TypeVar("Value")
WAITING_PER_PROCESS = 64  # questions; more are refused rather than kept waiting past their time


class Calls:
    """A pool of ``count`` processes; one whose question takes too long is ended and replaced."""

    def __init__(self, count: int, timeout_s: float) -> None:
        self._count, self._timeout_s = count, timeout_s
        self._waiting = 0
        self._start()

    async def run(self, act: Callable[..., Value], *arguments: Any) -> Value:
        """The answer, or what ``act`` raises."""
        if self._waiting >= self._count * WAITING_PER_PROCESS:
            raise Failed(Problem(429, "too-many-requests", "too many questions wait already", {"Retry-After": "2"}))
        self._waiting += 1
        pool = self._pool
        try:
            await asyncio.shield(self._warm)  # a process that is only starting is not too slow
            pool = self._pool
            future = pool.submit(act, *arguments)
            return await asyncio.wait_for(asyncio.wrap_future(future), self._timeout_s)
        except TimeoutError:
            self._replace(pool)
            detail = f"no answer within {self._timeout_s:g} s; ask for less, or submit it as a search"
            raise Failed(Problem(503, "timed-out", detail, {"Retry-After": "5"})) from None
        except BrokenProcessPool:
            self._replace(pool)
            detail = "the process that worked on it died; send the request again"
            raise Failed(Problem(503, "dependency-failed", detail, {"Retry-After": "2"})) from None
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """End the processes; one that still works on a question is not waited for."""
        if self._waiting:
            self._end(self._pool)
        else:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _start(self) -> None:
        self._pool = ProcessPoolExecutor(self._count, mp_context=get_context("spawn"), initializer=_prepare)
        self._warm = asyncio.wrap_future(self._pool.submit(os.getpid))

    def _replace(self, pool: ProcessPoolExecutor) -> None:
        if pool is self._pool:
            log().warning("calls_replaced")
            self._start()
            self._end(pool)

    def _end(self, pool: ProcessPoolExecutor) -> None:
        for process in list((getattr(pool, "_processes", None) or {}).values()):
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)


def _prepare() -> None:
    """Leave with the service process, and import what answers need before the first question comes."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    import agent.handlers
    import agent.launch
    import agent.recorded
    import agent.tune  # noqa: F401


def _leave_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
