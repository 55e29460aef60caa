"""What the routes of one service process share."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from agent.service.calls import Calls
from agent.service.limits import Rate
from agent.service.metrics import Metrics
from agent.service.pool import WorkerPool
from agent.service.problems import Failed, Problem
from agent.service.settings import ServiceSettings
from agent.service.views import Views
from ledger.queue import Queue
from ledger.store import Ledger
from ledger.tokens import SCOPES, Token, Tokens

COOKIE = "inferasim_token"  # a browser's session: HttpOnly, SameSite=Strict
TOKEN_AGE_S = 10.0  # how long a looked-up token is believed: a revoked one works that long
MOST_TOKENS = 1000


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what they may."""

    name: str
    scopes: frozenset[str]

    def may(self, scope: str) -> bool:
        """Admins may everything; who may tune may read."""
        if "admin" in self.scopes or scope in self.scopes:
            return True
        return scope == "read" and "tune" in self.scopes


LOCAL = Caller("local", frozenset(SCOPES))  # the one caller of a service without tokens


@dataclass(slots=True)
class State:
    """Everything that lives as long as the service."""

    settings: ServiceSettings
    ledger: Ledger
    queue: Queue
    tokens: Tokens
    views: Views
    calls: Calls
    talks: Calls | None  # processes with a language model; None where none is set
    pool: WorkerPool
    metrics: Metrics
    reads: Rate
    writes: Rate
    streams: dict[str, int] = field(default_factory=dict)
    stopping: bool = False
    _known: OrderedDict[str, tuple[float, Token | None]] = field(default_factory=OrderedDict)

    def asks_llm(self, planner: str) -> bool:
        """Whether a request goes to the language model; one that insists on it where there is none is refused."""
        if planner == "llm" and self.talks is None:
            from agent.service.asking import NO_MODEL

            raise Failed(Problem(422, "refused", f"planner 'llm': {NO_MODEL}; leave planner out, or say 'seed'"))
        return planner != "seed" and self.talks is not None

    def readers(self, with_llm: bool) -> Calls:
        """The processes that read a request."""
        return self.talks if with_llm and self.talks is not None else self.calls

    async def token(self, text: str) -> Token | None:
        """A token's caller, looked up at most every :data:`TOKEN_AGE_S`; unknown ones are remembered too."""
        now_s = time.monotonic()
        held = self._known.get(text)
        if held is not None and now_s - held[0] < TOKEN_AGE_S:
            return held[1]
        found = await asyncio.to_thread(self.tokens.find, text)
        self._known[text] = (now_s, found)
        while len(self._known) > MOST_TOKENS:
            self._known.popitem(last=False)
        return found


def state_of(request: Request) -> State:
    """The state of the application a request came to."""
    found: State = request.app.state.service
    return found


async def current_state(request: Request) -> State:
    """The same as a dependency; async, because the framework sends a plain function to a thread for each request."""
    return state_of(request)


async def caller_of(request: Request, state: State) -> Caller | None:
    """Who sends a request; None where a token is needed and none that is valid came."""
    if not state.settings.tokens:
        return LOCAL
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not text:
        text = request.cookies.get(COOKIE, "")
    token = await state.token(text.strip()) if 0 < len(text) <= 200 else None
    return None if token is None else Caller(token.name, frozenset(token.scopes))


def allowed(scope: str, write: bool = False) -> Callable[[Request], Awaitable[Caller]]:
    """A dependency: the caller, who may do what ``scope`` names and has not asked too often."""

    async def check(request: Request) -> Caller:
        state = state_of(request)
        caller = await caller_of(request, state)
        if caller is None:
            raise Failed(
                Problem(
                    401,
                    "unauthenticated",
                    "send a valid token: Authorization: Bearer …",
                    {"WWW-Authenticate": "Bearer"},
                )
            )
        request.state.caller = caller.name
        if not caller.may(scope):
            raise Failed(Problem(403, "forbidden", f"this token lacks the scope {scope}"))
        wait_s = (state.writes if write else state.reads).wait_s(caller.name)
        if wait_s > 0:
            after = {"Retry-After": str(int(wait_s) + 1)}
            raise Failed(Problem(429, "too-many-requests", f"too many requests; ask again in {wait_s:.1f} s", after))
        return caller

    return check


ServiceState = Annotated[State, Depends(current_state)]
Reader = Annotated[Caller, Depends(allowed("read"))]
Tuner = Annotated[Caller, Depends(allowed("tune", write=True))]
Admin = Annotated[Caller, Depends(allowed("admin", write=True))]
