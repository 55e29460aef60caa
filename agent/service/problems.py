"""Errors as RFC 9457 problem details, in the command line's words, without a path, a secret or a traceback."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from agent.failures import DependencyFailed
from ledger.errors import Conflict, LedgerError, UnknownSearch
from ledger.queue import KeyReused, QueueFull
from predictor.errors import BadInput, DataUnavailable, InferaSimError, Refusal, UnknownName

TYPE = "urn:inferasim:problem:"
MEDIA_TYPE = "application/problem+json"
_PATH = re.compile(r"(?<![\w./])(?:~|[A-Za-z]:)?[/\\](?:[^\s:'\"(),;]+[/\\])*([^\s:'\"(),;/\\]*)")
_URL = re.compile(r"\b[a-z][a-z0-9+]*://\S+?(?=[:,;]?(?:\s|$))")


@dataclass(frozen=True, slots=True)
class Problem:
    """One answer that is an error."""

    status: int
    kind: str
    detail: str
    headers: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self, request_id: str | None = None) -> dict[str, Any]:
        """The members of RFC 9457, with the request's id."""
        return {
            "type": TYPE + self.kind,
            "title": TITLES[self.kind],
            "status": self.status,
            "detail": self.detail,
            **({} if request_id is None else {"request_id": request_id}),
            **self.more,
        }


class Failed(Exception):
    """Raised by a handler to answer with a problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)  # its argument: exceptions from another process are built again from theirs
        self.problem = problem

    def __str__(self) -> str:
        return self.problem.detail


TITLES = {
    "bad-input": "The request is malformed",
    "unknown-name": "A name is in no catalogue",
    "refused": "The question is well-formed, and answering it would be wrong",
    "data-unavailable": "A figure that nobody has measured or published",
    "not-found": "No such thing",
    "method-not-allowed": "Not this way",
    "conflict": "It is there already",
    "key-reused": "An idempotency key came with another request",
    "too-large": "The body is too large",
    "unsupported-media-type": "The body is of a kind that is not read here",
    "unauthenticated": "A token is needed",
    "forbidden": "The token does not allow this",
    "too-many-requests": "Too many requests",
    "queue-full": "Too many requests wait already",
    "ledger-unavailable": "The ledger cannot be read or written now",
    "dependency-failed": "Something this depends on failed",
    "timed-out": "The answer took too long",
    "internal": "An internal error",
}


def public(text: str) -> str:
    """A message without the folders of this machine and without addresses.

    >>> public("/home/ann/.cache/inferasim/anchors/a.json: not JSON")
    'a.json: not JSON'
    >>> public("shape '1/2': write ISL/OSL in tokens")
    "shape '1/2': write ISL/OSL in tokens"
    """
    return _PATH.sub(lambda match: match[1] or "(path)", _URL.sub("(address)", text))


def problem_of(error: Exception) -> Problem | None:
    """The problem an expected error is; None for a bug."""
    match error:
        case Failed():
            return error.problem
        case UnknownName():
            return Problem(422, "unknown-name", public(str(error)))
        case BadInput():
            return Problem(422, "bad-input", public(str(error)))
        case Refusal():
            return Problem(422, "refused", public(str(error)))
        case DataUnavailable():
            return Problem(422, "data-unavailable", public(str(error)))
        case DependencyFailed():
            return Problem(503, "dependency-failed", public(str(error)), {"Retry-After": "30"})
        case InferaSimError():
            return Problem(422, "refused", public(str(error)))
        case UnknownSearch():
            found = re.search(r"(search \d+ has no trial \d+|no search \d+)", str(error))
            return Problem(404, "not-found", found[1] if found else "no such search")
        case KeyReused():
            return Problem(422, "key-reused", str(error))
        case QueueFull():
            return Problem(429, "queue-full", str(error), {"Retry-After": "30"})
        case Conflict():
            return Problem(409, "conflict", public(re.sub(r"^ledger .*?: ", "", str(error))))
        case LedgerError():
            return ledger_problem(error)
    return None


def ledger_problem(error: LedgerError) -> Problem:
    """A ledger that fails; where it lies is for the operator's log alone."""
    said = str(error)
    if "no space left" in said:
        detail = "no space left where the ledger lies; every recorded trial is safe, try again later"
    elif "locked" in said:
        detail = "another process holds the ledger; try again in a moment"
    else:
        detail = "the ledger cannot be reached or written; every recorded trial is safe, try again later"
    return Problem(503, "ledger-unavailable", detail, {"Retry-After": "10"})


def of_status(status: int, detail: str) -> Problem:
    """The problem of a bare HTTP status."""
    kinds = {401: "unauthenticated", 403: "forbidden", 404: "not-found", 405: "method-not-allowed", 409: "conflict"}
    kinds |= {413: "too-large", 415: "unsupported-media-type", 429: "too-many-requests", 500: "internal"}
    kind = kinds.get(status, "bad-input" if status < 500 else "internal")
    return Problem(status, kind, detail or HTTPStatus(status).phrase)


INTERNAL = Problem(500, "internal", "an internal error; the operator's log has it under this request id")
