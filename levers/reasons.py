"""Reasons: why a value, a setting or a deployment is not legal, or what to know about one that is.

An illegal candidate is a value, not an exception: every check returns all its reasons. The code is stable (ledgers and
counts use it); the message is a sentence that says what to do instead.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """One stable code and one sentence a person can act on."""

    code: str
    message: str
