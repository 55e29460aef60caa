"""The question asked most, answered on a short way: one search whose answer is at hand.

The same answer as the route's. Whatever is not plain (no answer at hand, no valid token, too many requests) goes on to
the route, which says what is wrong. Matching routes and solving their dependencies costs more than the answer itself.
"""

import re
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from agent.service.state import caller_of, state_of

_SEARCH = re.compile(r"/v1/searches/([1-9][0-9]{0,9})")


@dataclass(frozen=True, slots=True)
class Place:
    """The route's name for logs and figures."""

    path: str = "/v1/searches/{search_id}"


ROUTE = Place()


class Express:
    """ASGI middleware around the routes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer at once, or leave it to the route."""
        asked = _SEARCH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "GET" else None
        body = None if asked is None else await _at_hand(Request(scope), int(asked[1]))
        if asked is None or body is None:
            await self._app(scope, receive, send)
            return
        scope["route"], scope["path_params"] = ROUTE, {"search_id": int(asked[1])}
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def _at_hand(request: Request, search_id: int) -> bytes | None:
    state = state_of(request)
    caller = await caller_of(request, state)
    if caller is None or not caller.may("read"):
        return None
    body = state.views.held(search_id)
    if body is None or state.reads.wait_s(caller.name) > 0:
        return None
    request.state.caller = caller.name
    return body
