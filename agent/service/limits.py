"""Limits on what comes in: the size of a body, and how often one caller may ask."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

DRAINED = 4  # times the limit: read and dropped, so that a sender hears the answer rather than a reset connection
MOST_CALLERS = 10_000  # remembered at once; the longest silent is forgotten first


@dataclass(slots=True)
class Bucket:
    """Allowance of one caller: ``left`` requests now."""

    left: float
    at_s: float


class Rate:
    """A token bucket a caller: ``per_s`` requests a second on average, ``burst`` at once."""

    def __init__(self, per_s: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._burst, self._clock = per_s, max(1.0, burst), clock
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def wait_s(self, caller: str) -> float:
        """0 where the caller may ask now, which is counted; else after how long to ask again."""
        now_s = self._clock()
        bucket = self._buckets.pop(caller, None) or Bucket(self._burst, now_s)
        bucket.left = min(self._burst, bucket.left + max(0.0, now_s - bucket.at_s) * self._per_s)
        bucket.at_s = now_s
        self._buckets[caller] = bucket
        if len(self._buckets) > MOST_CALLERS:
            self._buckets.popitem(last=False)
        if bucket.left < 1.0:
            return (1.0 - bucket.left) / self._per_s
        bucket.left -= 1.0
        return 0.0


class TooLarge(HTTPException):
    """A body went over its limit; an HTTPException, because the framework hides any other that a body raises."""

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"the body may have {limit} bytes at most")


class BodyLimit:
    """ASGI middleware: a body over ``limit(path)`` bytes is refused before or while it is read."""

    def __init__(self, app: ASGIApp, limit: Callable[[str], int]) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count what comes in."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._limit(scope["path"])
        stated = dict(scope["headers"]).get(b"content-length", b"")
        seen, refused = 0, stated.isdigit() and int(stated) > limit

        async def counted() -> Message:
            nonlocal seen, refused
            while True:
                message = await receive()
                seen += len(message.get("body", b""))
                refused = refused or seen > limit
                if not refused:
                    return message
                if not message.get("more_body", False) or seen > DRAINED * limit:
                    raise TooLarge(limit)

        await self._app(scope, counted, send)
