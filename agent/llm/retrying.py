"""Which failures of a call are worth another attempt, and how long to wait for it."""

from typing import Any

from dspy import lm15


def retryable(error: BaseException) -> bool:
    """Transient failures: rate limits, time-outs, server errors, broken connections. Never a refusal."""
    return isinstance(error, lm15.RateLimitError | lm15.TimeoutError | lm15.ServerError | lm15.TransportError)


def retry_wait(error: Any, attempt: int, first_s: float, longest_s: float) -> float:
    """Seconds before the next attempt: what the server asks for, else doubling from ``first_s``.

    >>> [retry_wait(None, attempt, 1.0, 30.0) for attempt in (1, 2, 3, 9)]
    [1.0, 2.0, 4.0, 30.0]
    """
    asked = getattr(error, "retry_after", None)
    if isinstance(asked, int | float) and not isinstance(asked, bool) and asked >= 0:
        return float(asked)
    return float(min(first_s * 2.0 ** min(attempt - 1, 16), longest_s))
