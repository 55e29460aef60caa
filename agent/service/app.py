"""The application: routes, errors as problem details, start and stop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from agent.llm.settings import load_settings as load_llm_settings
from agent.service import api_answers, api_searches
from agent.service.bodies import ProblemBody
from agent.service.calls import Calls
from agent.service.edge import Edge
from agent.service.express import Express
from agent.service.limits import BodyLimit, Rate
from agent.service.logs import log
from agent.service.metrics import Metrics
from agent.service.pool import WorkerPool
from agent.service.problems import INTERNAL, MEDIA_TYPE, Failed, Problem, of_status, problem_of
from agent.service.settings import ServiceSettings
from agent.service.state import Reader, ServiceState, State
from agent.service.views import Views
from agent.web.routes import error_page
from agent.web.routes import router as pages
from ledger import open_ledger
from ledger.errors import LedgerError
from ledger.queue import Queue
from ledger.tokens import Tokens
from predictor.errors import InferaSimError
from predictor.version import __version__

UPLOADS = ("/v1/anchors", "/v1/simulate")
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": ProblemBody, "description": what, "content": {MEDIA_TYPE: {}}}
    for status, what in {
        401: "A token is needed.",
        403: "The token does not allow this.",
        404: "No such thing.",
        409: "It is there already.",
        413: "The body is too large.",
        422: "The request is malformed, or answering it would be wrong.",
        429: "Too many requests.",
        503: "Something this depends on is away.",
    }.items()
}


def create_app(settings: ServiceSettings) -> FastAPI:
    """The application on a ledger, which is opened (and made or upgraded) at once."""
    metrics = Metrics()
    ledger = open_ledger(settings.ledger_url)
    talks = settings.llm == "auto" and load_llm_settings().configured

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        queue = Queue(ledger, settings.lease_s)
        state = State(
            settings=settings,
            ledger=ledger,
            queue=queue,
            tokens=Tokens(ledger),
            views=Views(ledger, queue),
            calls=Calls(settings.quick_workers, settings.call_timeout_s),
            talks=Calls(settings.llm_workers, settings.llm_timeout_s) if talks else None,
            pool=WorkerPool(settings),
            metrics=metrics,
            reads=Rate(settings.reads_per_s, 2.0 * settings.reads_per_s),
            writes=Rate(settings.writes_per_min / 60.0, settings.writes_per_min / 4.0),
        )
        app.state.service = state
        if ledger.location.is_sqlite:
            await asyncio.to_thread(queue.take_over)
        with contextlib.suppress(LedgerError):  # one that is away in this moment is waited for as at any other
            await state.views.warm()
        state.pool.start()
        try:
            yield
        finally:
            state.stopping = True
            await state.pool.stop()
            state.calls.close()
            if state.talks is not None:
                state.talks.close()
            ledger.close()

    app = FastAPI(
        title="InferaSim",
        version=__version__,
        summary="Predict and tune LLM serving deployments.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses=PROBLEMS,
    )
    app.include_router(api_searches.router)
    app.include_router(api_answers.router)
    app.include_router(pages)
    app.include_router(operations())
    for kind in (InferaSimError, LedgerError, Failed):
        app.add_exception_handler(kind, expected)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, unexpected)
    app.add_middleware(Express)
    app.add_middleware(
        BodyLimit, limit=lambda path: settings.max_upload_bytes if path in UPLOADS else settings.max_body_bytes
    )
    app.add_middleware(Edge, settings=settings, metrics=metrics)
    return app


def operations() -> Any:
    """Routes for those who run the service."""
    from fastapi import APIRouter

    router = APIRouter(responses={})

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The process answers."""
        return {"status": "ok"}

    @router.get("/readyz")
    async def readyz(state: ServiceState) -> Response:
        """The ledger can be written and work gets done; 503 says what is missing."""
        missing = []
        try:
            await asyncio.wait_for(asyncio.to_thread(state.ledger.check_writable), 5.0)
        except (LedgerError, TimeoutError) as error:
            found = problem_of(error)
            missing.append("the ledger does not answer" if found is None else found.detail)
        if state.settings.workers and not state.pool.alive:
            missing.append("no search process runs")
        if state.stopping:
            missing.append("the service is stopping")
        if missing:
            return problem_response(Problem(503, "dependency-failed", "; ".join(missing), {"Retry-After": "5"}), None)
        return JSONResponse({"status": "ready"})

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics(state: ServiceState, _caller: Reader) -> Response:
        """Figures for Prometheus."""
        figures = state.metrics
        try:
            counts = await asyncio.to_thread(state.queue.counts)
            figures.up.set(1)
            for status, count in counts.items():
                figures.jobs.labels(status).set(count)
        except LedgerError:
            figures.up.set(0)
        figures.streams.set(state.views.streams)
        figures.workers.set(state.pool.alive)
        figures.restarts.set(state.pool.restarts)
        return Response(figures.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


async def respond(request: Request, problem: Problem) -> Response:
    """A problem as JSON for programs, as a page for people."""
    request_id = getattr(request.state, "request_id", None)
    if not request.url.path.startswith("/v1/") and "text/html" in request.headers.get("accept", ""):
        return await error_page(request, problem, request_id)
    return problem_response(problem, request_id)


def problem_response(problem: Problem, request_id: str | None) -> Response:
    """A problem as JSON."""
    return JSONResponse(problem.as_json(request_id), problem.status, dict(problem.headers), media_type=MEDIA_TYPE)


async def expected(request: Request, error: Exception) -> Response:
    """What the product raises on purpose."""
    problem = problem_of(error)
    if problem is None:
        return await unexpected(request, error)
    if problem.status >= 500:
        log().error("failed", error=str(error))
    return await respond(request, problem)


async def http_error(request: Request, error: Exception) -> Response:
    """What the framework raises: no such route, not this method, a body that is too large."""
    assert isinstance(error, HTTPException)
    problem = of_status(error.status_code, str(error.detail))
    return await respond(request, Problem(problem.status, problem.kind, problem.detail, dict(error.headers or {})))


async def invalid(request: Request, error: Exception) -> Response:
    """A field that is missing or has a wrong value: the first in words, all of them as data."""
    assert isinstance(error, RequestValidationError)
    errors = [
        {"field": ".".join(map(str, one["loc"][1:])) or str(one["loc"][0]), "message": one["msg"], "kind": one["type"]}
        for one in error.errors()
    ][:20]
    first = errors[0] if errors else {"field": "body", "message": "malformed"}
    problem = Problem(422, "bad-input", f"{first['field']}: {first['message']}", more={"errors": errors})
    return await respond(request, problem)


async def unexpected(request: Request, error: Exception) -> Response:
    """A bug: named as one, told apart in the log by the request's id."""
    log().error("internal_error", exc_info=error)
    return await respond(request, INTERNAL)
