"""The outermost layer: request ids, security headers, hosts and origins, the access log and its figures."""

import re
import time
import uuid
from urllib.parse import urlsplit

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.service.logs import log
from agent.service.metrics import Metrics
from agent.service.problems import MEDIA_TYPE, Problem
from agent.service.settings import ServiceSettings

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]", "::1")
SAFE = ("GET", "HEAD", "OPTIONS")
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Edge:
    """ASGI middleware around everything."""

    def __init__(self, app: ASGIApp, settings: ServiceSettings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._hosts = settings.allowed_hosts or (() if settings.tokens else (*LOOPBACK_NAMES, settings.host))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it, and log it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        started_s, status = time.perf_counter(), 500

        async def answered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                out = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    out.setdefault(name, value)
                if self._settings.secure_cookies:
                    out.setdefault("Strict-Transport-Security", "max-age=31536000")
                out.setdefault("Cache-Control", "no-store")
                out["X-Request-Id"] = request_id
            await send(message)

        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        refusal = self._refusal(scope["method"], headers)
        try:
            if refusal is not None:
                await _answer(refusal, request_id, answered)
            else:
                await self._app(scope, receive, answered)
        finally:
            self._record(scope, status, time.perf_counter() - started_s)

    def _refusal(self, method: str, headers: Headers) -> Problem | None:
        """A foreign host name (DNS rebinding) or a foreign page that posts here."""
        host = headers.get("host", "")
        name = host.rsplit(":", 1)[0] if re.search(r":\d+$", host) else host
        if self._hosts and name not in self._hosts:
            return Problem(403, "forbidden", "this service is not reached by that host name")
        if method in SAFE:
            return None
        origin = headers.get("origin")
        foreign = origin is not None and urlsplit(origin).netloc != host
        if foreign or headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return Problem(403, "forbidden", "requests that change something must come from this service's own pages")
        return None

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None) or "(none)"
        streamed = route.endswith("/events")
        self._metrics.requests.labels(scope["method"] if scope["method"] in METHODS else "other", route, status).inc()
        if not streamed:
            self._metrics.seconds.labels(route).observe(seconds)
        log().info(
            "request",
            method=scope["method"],
            path=scope["path"],
            route=route,
            status=status,
            seconds=round(seconds, 4),
            caller=scope["state"].get("caller"),
            search_id=(scope.get("path_params") or {}).get("search_id"),
        )


METHODS = (*SAFE, "POST", "PUT", "PATCH", "DELETE")


async def _answer(problem: Problem, request_id: str, send: Send) -> None:
    import json

    body = json.dumps(problem.as_json(request_id)).encode()
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
