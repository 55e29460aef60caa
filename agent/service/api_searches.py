"""Routes of searches: submit, list, read, follow, cancel, export."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse

from agent.service import asking, questions
from agent.service.bodies import Id, JobBody, Name, ReadBody, Submitted, TuneBody
from agent.service.jobs import end_early
from agent.service.problems import Failed, Problem
from agent.service.state import Caller, Reader, ServiceState, State, Tuner
from agent.service.views import SearchView, parse_cursor
from ledger.errors import Conflict
from ledger.queue import Job

router = APIRouter(prefix="/v1")
Key = Annotated[
    str | None,
    Header(alias="Idempotency-Key", max_length=200, description="The same request sent again gives the first answer."),
]
_KEY = re.compile(r"[\x21-\x7e]{1,200}")


def asked(caller: Caller, key: str | None) -> questions.Asked:
    """Who asks, with a checked idempotency key."""
    if key is not None and not _KEY.fullmatch(key):
        raise Failed(Problem(422, "bad-input", "Idempotency-Key: 1 to 200 printable ASCII characters without spaces"))
    return questions.Asked(caller.name, key)


def submitted(state: State, job: Job, fresh: bool, reading: dict[str, Any] | None = None) -> JSONResponse:
    """202 with where to look."""
    if fresh:
        state.metrics.submitted.labels(job.kind).inc()
        state.pool.wake()
    place = f"/v1/jobs/{job.job_id}" if job.search_id is None else f"/v1/searches/{job.search_id}"
    links = {"self": place}
    if job.search_id is not None:
        links |= {"events": f"{place}/events", "cancel": f"{place}/cancel", "page": f"/searches/{job.search_id}"}
    body = Submitted(job_id=job.job_id, search_id=job.search_id, status=job.status, reading=reading, links=links)
    headers = {"Location": place, **({} if fresh else {"Idempotency-Replayed": "true"})}
    return JSONResponse(body.model_dump(mode="json"), 202, headers)


@router.post("/tune", status_code=202, response_model=Submitted)
async def tune(body: TuneBody, state: ServiceState, caller: Tuner, key: Key = None) -> Response:
    """Submit a search. It runs outside the request: follow its events, or read it until it has ended."""
    wish = asking.Wish(body.fields(), body.text, body.accept, body.planner)
    with_llm = state.asks_llm(body.planner)
    job, fresh, reading = await state.readers(with_llm).run(
        asking.submit_tune, state.settings, wish, with_llm, asked(caller, key)
    )
    return submitted(state, job, fresh, reading)


@router.post("/read")
async def read(body: ReadBody, state: ServiceState, _caller: Reader) -> dict[str, Any]:
    """What a request in words is understood to ask for; nothing is submitted."""
    with_llm = state.asks_llm("auto")
    return await state.readers(with_llm).run(asking.read_text, body.text, with_llm)


@router.get("/searches")
async def searches(
    state: ServiceState,
    _caller: Reader,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    before: Annotated[Id | None, Query(description="Only searches older than this id.")] = None,
    model: Annotated[Name | None, Query()] = None,
) -> dict[str, Any]:
    """Searches, newest first."""
    rows = await asyncio.to_thread(search_rows, state, limit, before, model)
    return {"searches": rows, "next_before": rows[-1]["search_id"] if len(rows) == limit else None}


def search_rows(state: State, limit: int, before: int | None, model: str | None) -> list[dict[str, Any]]:
    """One row a search."""
    found = state.ledger.recent(limit, before, model)
    jobs = state.queue.of_searches([stored.search_id for stored, _, _ in found])
    rows = []
    for stored, trials, legal in found:
        view = SearchView(stored.search_id, stored, jobs.get(stored.search_id))
        best = None if stored.end is None else stored.end.best_index
        rows.append(
            {
                "search_id": stored.search_id,
                "created_at": stored.record.created_at.isoformat(),
                "model": stored.record.model,
                "cluster": stored.record.cluster,
                "objective": stored.record.objective,
                "status": view.status,
                "trials": trials,
                "legal": legal,
                "best_index": best,
                "caller": None if view.job is None else view.job.caller,
            }
        )
    return rows


def lacks_launch(view: SearchView) -> bool:
    """Whether a search has ended and nobody has asked yet how to launch its best trial."""
    return view.ended and view.best is not None and not view.extra


async def whole(state: State, search_id: int) -> SearchView:
    """A search; one that has ended comes with the launch commands of its best trial."""
    view = await state.views.get(search_id)
    if lacks_launch(view):
        async with view.lock:
            if view.best is not None and not view.extra:
                view.extra_failed = True
                view.extra = await state.calls.run(questions.launch, state.settings, search_id, view.best.index)
                view.extra_failed = False
                view.version += 1
    return view


async def answer(state: State, search_id: int) -> bytes:
    """A search as JSON; what was last said of it stands until the launch commands of its end have come."""
    view = await state.views.get(search_id)
    if lacks_launch(view) and view.last_body and not view.extra_failed:
        state.views.aside(search_id, finished(state, search_id))
        return view.last_body
    return (await finished(state, search_id)).body()


async def finished(state: State, search_id: int) -> SearchView:
    """A whole view, whose answer is kept where it will never change."""
    view = await whole(state, search_id)
    if view.ended and view.stored.end is not None:
        state.views.keep_final(view)
    return view


@router.get("/searches/{search_id}", response_model=dict[str, Any])
async def search(search_id: Id, state: ServiceState, _caller: Reader) -> Response:
    """One search: its request, its state, what was refused and why, its best trial and how to launch it."""
    body = state.views.held(search_id) or await answer(state, search_id)
    return Response(body, media_type="application/json")


@router.get(
    "/searches/{search_id}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def events(
    search_id: Id,
    request: Request,
    state: ServiceState,
    caller: Reader,
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID", max_length=40)] = None,
) -> Response:
    """Server-sent events: ``trial``, ``best``, ``hypothesis``, ``budget`` as they happen, then ``end``."""
    await state.views.get(search_id)
    held = state.streams.get(caller.name, 0)
    if held >= state.settings.streams_per_caller:
        detail = f"{held} event streams of yours are open already"
        raise Failed(Problem(429, "too-many-requests", detail, {"Retry-After": "10"}))

    async def stream() -> AsyncIterator[str]:
        state.streams[caller.name] = state.streams.get(caller.name, 0) + 1
        try:
            async for text in state.views.events(search_id, parse_cursor(last_event_id)):
                yield text
                if state.stopping:
                    return
        finally:
            state.streams[caller.name] -= 1
            if not state.streams[caller.name]:
                del state.streams[caller.name]

    return StreamingResponse(stream(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


@router.get("/searches/{search_id}/trials")
async def trials(
    search_id: Id,
    state: ServiceState,
    _caller: Reader,
    first: Annotated[int, Query(ge=0, lt=2**31)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> dict[str, Any]:
    """Trials in the order of the search."""
    from agent.service.views import trial_json

    view = await state.views.get(search_id)
    found = view.trials[first : first + limit]
    return {"trials": [trial_json(one) for one in found], "total": len(view.trials)}


@router.post("/searches/{search_id}/cancel", response_model=JobBody)
async def cancel(search_id: Id, state: ServiceState, caller: Tuner) -> Any:
    """Stop a search; what it has found stands."""
    job = await asyncio.to_thread(state.queue.of_search, search_id)
    if job is None:
        await state.views.get(search_id)  # 404 where there is no such search
        raise Failed(
            Problem(409, "conflict", f"search {search_id}: was not submitted here, so it cannot be stopped here")
        )
    return job_body(await cancelled(state, caller, job))


async def cancelled(state: State, caller: Caller, job: Job) -> Job:
    """Stop a job of the caller's own, or any as an admin."""
    if job.caller != caller.name and not caller.may("admin"):
        raise Failed(Problem(403, "forbidden", f"job {job.job_id}: is another caller's"))

    def stop() -> Job:
        found = state.queue.cancel(job.job_id) or job
        if found.status == "cancelled" and found.search_id is not None:
            message = {"code": "cancelled", "message": "stopped by its caller before it ran"}
            with contextlib.suppress(Conflict):  # its worker ended it in this moment
                end_early(state.ledger, found.search_id, "stopped", message)
        return found

    stopped = await asyncio.to_thread(stop)
    if stopped.search_id is not None:
        state.views.outdated(stopped.search_id)
    return stopped


@router.get("/searches/{search_id}/launch", response_class=PlainTextResponse)
async def launch(
    search_id: Id,
    state: ServiceState,
    _caller: Reader,
    trial: Annotated[int | None, Query(ge=0, lt=2**31, description="The best if left out.")] = None,
    file_format: Annotated[Literal["shell", "compose", "kubernetes"], Query(alias="format")] = "shell",
) -> Response:
    """The file that starts a trial, as ``inferasim launch`` prints it."""
    text = await state.calls.run(questions.launch_file, state.settings, search_id, trial, file_format)
    return PlainTextResponse(text if text.endswith("\n") else text + "\n")


@router.get("/searches/{search_id}/explain")
async def explain(
    search_id: Id,
    state: ServiceState,
    _caller: Reader,
    a: Annotated[int, Query(ge=0, lt=2**31, description="A trial.")],
    b: Annotated[int, Query(ge=0, lt=2**31, description="The trial to compare with.")],
    metric: Annotated[Name | None, Query()] = None,
) -> dict[str, Any]:
    """Why trial ``a`` beats trial ``b``, term by term."""
    answer = await state.calls.run(questions.explain, state.settings, f"{search_id}:{a}", f"{search_id}:{b}", metric)
    return questions.plain(answer)


EXPORTS = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}


@router.get(
    "/searches/{search_id}/export",
    response_class=Response,
    responses={200: {"content": {"application/x-ndjson": {}, "text/csv": {}}}},
)
async def export(
    search_id: Id,
    state: ServiceState,
    _caller: Reader,
    file_format: Annotated[Literal["jsonl", "csv"], Query(alias="format")] = "jsonl",
) -> Response:
    """The search with every trial, as ``inferasim ledger export`` writes it."""
    content = await state.calls.run(questions.export, state.settings, search_id, file_format)
    name = f'attachment; filename="search-{search_id}.{file_format}"'
    return Response(content, media_type=EXPORTS[file_format], headers={"Content-Disposition": name})


@router.get(
    "/searches/{search_id}/report",
    response_class=Response,
    responses={200: {"content": {"text/html": {"schema": {"type": "string"}}}}},
)
async def report(search_id: Id, state: ServiceState, _caller: Reader) -> Response:
    """The report ``inferasim report`` makes: one HTML file that needs nothing else."""
    content = await state.calls.run(questions.report, state.settings, search_id)
    name = f'attachment; filename="search-{search_id}.html"'
    return Response(content, media_type="text/html", headers={"Content-Disposition": name})


@router.get("/jobs/{job_id}", response_model=JobBody)
async def job(job_id: Id, state: ServiceState, _caller: Reader) -> Any:
    """One job: a sweep, a mix or a trace, with its result once it has one."""
    return job_body(await the_job(state, job_id))


@router.post("/jobs/{job_id}/cancel", response_model=JobBody)
async def cancel_job(job_id: Id, state: ServiceState, caller: Tuner) -> Any:
    """Stop a job."""
    return job_body(await cancelled(state, caller, await the_job(state, job_id)))


async def the_job(state: State, job_id: int) -> Job:
    """A job, or 404."""
    found = await asyncio.to_thread(state.queue.job, job_id)
    if found is None:
        raise Failed(Problem(404, "not-found", f"no job {job_id}"))
    return found


def job_body(job: Job) -> JSONResponse:
    """A job as JSON."""
    fields = {name: getattr(job, name) for name in JobBody.model_fields}
    return JSONResponse({**fields, "result": job.result})
