"""The pages: ask, correct what was understood, watch, compare, take the launch command away."""

import asyncio
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from agent.service import asking, questions
from agent.service.api_searches import cancelled, search_rows, whole
from agent.service.bodies import Id
from agent.service.problems import Failed, Problem, problem_of
from agent.service.state import COOKIE, Caller, caller_of, state_of
from agent.service.views import SearchView
from agent.web import forms
from agent.web.chart import chart, number
from ledger.record import TrialRecord
from levers.objectives import Direction, objective
from predictor.errors import InferaSimError
from predictor.version import __version__

HERE = Path(__file__).parent
CSRF_COOKIE = "inferasim_csrf"
MOST_FIELDS = 100
ROWS_SHOWN = 25
STATIC = {
    "style.css": "text/css; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}

router = APIRouter(include_in_schema=False)


@lru_cache(maxsize=1)
def templates() -> Environment:
    """The pages' templates; whatever is put into one is escaped."""
    found = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["number"] = lambda value: "–" if value is None else number(value)
    found.filters["plain"] = plain
    found.globals["version"] = __version__
    return found


def plain(value: object) -> str:
    """A lever's value for people."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    return " + ".join(map(str, value)) or "none" if isinstance(value, list | tuple) else str(value)


async def page(request: Request, name: str, status: int = 200, **values: Any) -> HTMLResponse:
    """A page with the reader's CSRF token in its forms."""
    state = state_of(request)
    token = request.cookies.get(CSRF_COOKIE) or ""
    fresh = len(token) < 20
    if fresh:
        token = secrets.token_urlsafe(24)
    caller = await caller_of(request, state)
    shown = {
        "csrf": token,
        "caller": caller,
        "tokens": state.settings.tokens,
        "llm": state.talks is not None,
        "may_tune": caller is not None and caller.may("tune"),
        **values,
    }
    response = HTMLResponse(templates().get_template(name).render(shown), status)
    if fresh:
        secure = state.settings.secure_cookies
        response.set_cookie(CSRF_COOKIE, token, httponly=True, samesite="strict", secure=secure)
    return response


async def error_page(request: Request, problem: Problem, request_id: str | None) -> Response:
    """A problem as a page; who needs a token is led to where to give one."""
    if problem.kind == "unauthenticated" and request.method == "GET":
        return RedirectResponse(f"/login?next={quote(request.url.path)}", 303)
    body = problem.as_json(request_id)
    response = await page(request, "error.html", problem.status, problem=body)
    response.headers.update(problem.headers)
    return response


async def reader(request: Request, scope: str = "read") -> Caller:
    """The caller of a page."""
    state = state_of(request)
    caller = await caller_of(request, state)
    if caller is None:
        raise Failed(Problem(401, "unauthenticated", "give a token first"))
    request.state.caller = caller.name
    if not caller.may(scope):
        raise Failed(Problem(403, "forbidden", f"this token lacks the scope {scope}"))
    rate = state.reads if request.method == "GET" else state.writes
    if rate.wait_s(caller.name) > 0:
        raise Failed(Problem(429, "too-many-requests", "too many requests; wait a moment", {"Retry-After": "5"}))
    return caller


async def form_of(request: Request) -> dict[str, list[str]]:
    """A posted form, if it came from a page of ours."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise Failed(Problem(415, "unsupported-media-type", "send a form"))
    try:
        text = (await request.body()).decode("utf-8")
        fields = parse_qs(text, keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise Failed(Problem(422, "bad-input", "the form cannot be read")) from None
    sent, held = fields.get("csrf", [""])[0], request.cookies.get(CSRF_COOKIE, "")
    if not held or not hmac.compare_digest(sent.encode(), held.encode()):
        raise Failed(Problem(403, "forbidden", "the form is out of date or not ours: load the page again"))
    return fields


# ------------------------------------------------------------------------------------------------------------ asking


@router.get("/")
async def home(request: Request) -> Response:
    """Ask in words, and the newest searches."""
    await reader(request)
    rows = await asyncio.to_thread(search_rows, state_of(request), 20, None, None)
    return await page(request, "home.html", rows=rows, text="", problem=None)


@router.post("/ask")
async def ask(request: Request) -> Response:
    """Read the words and show what was understood, to be corrected."""
    await reader(request)
    fields = await form_of(request)
    text = fields.get("text", [""])[0]
    state = state_of(request)
    try:
        with_llm = state.asks_llm("auto")
        reading = await state.readers(with_llm).run(asking.read_text, text, with_llm)
    except (InferaSimError, Failed) as error:
        rows = await asyncio.to_thread(search_rows, state, 20, None, None)
        return await page(request, "home.html", 422, rows=rows, text=text, problem=said(error))
    values = forms.from_reading(reading)
    return await page(request, "form.html", text=text, reading=reading, problem=None, **forms.context(values))


@router.get("/new")
async def new(request: Request) -> Response:
    """The typed form."""
    await reader(request)
    return await page(request, "form.html", text="", reading=None, problem=None, **forms.context(dict(forms.DEFAULTS)))


@router.post("/new")
async def submit(request: Request) -> Response:
    """Submit the typed form; one with a fault comes back with what was typed."""
    caller = await reader(request, "tune")
    fields = await form_of(request)
    state = state_of(request)
    values = {name: fields.get(name, [""])[0].strip() for name in forms.DEFAULTS}
    try:
        typed = forms.typed(values)
        key = fields.get("key", [""])[0][:64] or None
        asked = questions.Asked(caller.name, key)
        planner = values["planner"] or "auto"
        with_llm = state.asks_llm(planner)
        wish = asking.Wish(typed, planner=planner)
        job, fresh, _ = await state.readers(with_llm).run(asking.submit_tune, state.settings, wish, with_llm, asked)
    except (InferaSimError, Failed) as error:
        shown = forms.context(values)
        return await page(request, "form.html", 422, text="", reading=None, problem=said(error), **shown)
    if fresh:
        state.metrics.submitted.labels("tune").inc()
        state.pool.wake()
    return RedirectResponse(f"/searches/{job.search_id}", 303)


def said(error: Exception) -> str:
    """An expected error in words."""
    problem = problem_of(error)
    return "" if problem is None else problem.detail


# ---------------------------------------------------------------------------------------------------------- watching


@router.get("/searches/{search_id}")
async def search(request: Request, search_id: Id, every: Annotated[bool, Query(alias="all")] = False) -> Response:
    """A search as it runs and when it has ended."""
    await reader(request)
    view = await whole(state_of(request), search_id)
    return await page(request, "search.html", **shown_search(view, every))


@router.get("/searches/{search_id}/live")
async def live(request: Request, search_id: Id, every: Annotated[bool, Query(alias="all")] = False) -> Response:
    """The part of the page that changes, for the script."""
    await reader(request)
    view = await whole(state_of(request), search_id)
    return await page(request, "live.html", **shown_search(view, every))


def shown_search(view: SearchView, every: bool) -> dict[str, Any]:
    """What the search's page shows."""
    record = view.stored.record
    goal = objective(record.objective)
    sign = 1.0 if goal.direction is Direction.MAX else -1.0
    legal = sorted(
        (one for one in view.trials if one.legal and one.score is not None),
        key=lambda one: (-sign * (one.score or 0.0), one.index),
    )
    base = view.trials[0] if view.trials else None
    figures = [(name, label) for name, label in FIGURES if name != goal.name]
    rows = [(one, 0) for one in legal] if every else told_apart(legal, [name for name, _ in figures])[:ROWS_SHOWN]
    if base is not None and base in legal and all(base is not one for one, _ in rows):
        rows = [*rows, (base, 0)]
    return {
        "view": view,
        "wanted": record.request,
        "goal": goal,
        "chart": Markup(chart(view.trials, view.best)),
        "best": view.best,
        "base": base,
        "changed": changed(view.best, base),
        "legal": rows,
        "legal_count": len(legal),
        "every": every,
        "refused": refusals(view.trials),
        "refused_count": len(view.trials) - view.legal,
        "story": story(view),
        "extra": view.extra or NOT_YET,
        "figures": figures,
    }


def told_apart(legal: Sequence[TrialRecord], names: Sequence[str]) -> list[tuple[TrialRecord, int]]:
    """The first trial of each score and figures in a row, and how many after it have the very same."""
    found: list[tuple[TrialRecord, int]] = []
    for one in legal:
        if found and _figures(found[-1][0], names) == _figures(one, names):
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((one, 0))
    return found


def _figures(trial: TrialRecord, names: Sequence[str]) -> tuple[object, ...]:
    return (trial.score, *(trial.metrics.get(name) for name in names))


def story(view: SearchView) -> list[tuple[str, str]]:
    """What a language model planned, noted and concluded, in its words, oldest first."""
    told: list[tuple[str, str]] = []
    for event in view.events:
        if event.name != "hypothesis":
            continue
        facts = json.loads(event.data)
        for label, name in STORY.get(facts["kind"], ()):
            words = facts.get(name)
            lines = words if isinstance(words, list) else [words]
            told += [(label, str(line)) for line in lines if line]
    return told


STORY: Mapping[str, tuple[tuple[str, str], ...]] = {  # by kind of note: what to call it, and where it stands
    "plan": (("Plan", "rationale"), ("Hypothesis", "hypotheses"), ("Polish", "polish")),
    "scratchpad": (("Note", "text"),),
    "summary": (("Summary", "summary"), ("What worked", "worked"), ("Next", "follow_ups")),
    "llm_end": (("Ended", "message"),),
}
NOT_YET: Mapping[str, Any] = {"launch": [], "benchmark": None, "launch_notes": []}
FIGURES = (
    ("output_tok_s_per_gpu", "output tok/s per GPU"),
    ("interactivity_tok_s_user", "tok/s per user"),
    ("ttft_ms", "TTFT, ms"),
    ("tpot_ms", "TPOT, ms"),
    ("e2e_ms", "E2E, ms"),
    ("gpus", "GPUs"),
)


def changed(best: TrialRecord | None, base: TrialRecord | None) -> list[tuple[str, object, object]]:
    """Levers in which the best differs from the baseline."""
    if best is None or base is None:
        return []
    return [
        (name, base.levers.get(name), value) for name, value in best.levers.items() if base.levers.get(name) != value
    ]


def refusals(trials: list[TrialRecord]) -> list[tuple[str, int, list[tuple[int, str]]]]:
    """Reasons by code, most frequent first: how many trials each refused, and in which words."""
    found: dict[str, dict[str, list[int]]] = {}
    for one in trials:
        for code, message in one.reasons:
            found.setdefault(code, {}).setdefault(message, []).append(one.index)
    rows = [
        (
            code,
            len({index for indices in messages.values() for index in indices}),
            sorted(
                ((len(indices), message) for message, indices in messages.items()), key=lambda row: (-row[0], row[1])
            ),
        )
        for code, messages in found.items()
    ]
    return sorted(rows, key=lambda row: (-row[1], row[0]))


@router.get("/searches/{search_id}/compare")
async def compare(
    request: Request,
    search_id: Id,
    a: Annotated[int, Query(ge=0, lt=2**31)],
    b: Annotated[int, Query(ge=0, lt=2**31)],
    metric: Annotated[str | None, Query(max_length=60)] = None,
) -> Response:
    """Two trials, term by term."""
    await reader(request)
    state = state_of(request)
    view = await state.views.get(search_id)
    names = f"{search_id}:{a}", f"{search_id}:{b}"
    answer = await state.calls.run(questions.explain, state.settings, *names, metric)
    return await page(request, "compare.html", view=view, answer=answer, a=a, b=b)


@router.post("/searches/{search_id}/cancel")
async def cancel(request: Request, search_id: Id) -> Response:
    """Stop a search."""
    caller = await reader(request, "tune")
    await form_of(request)
    state = state_of(request)
    job = await asyncio.to_thread(state.queue.of_search, search_id)
    if job is None:
        raise Failed(Problem(409, "conflict", f"search {search_id}: was not submitted here"))
    await cancelled(state, caller, job)
    return RedirectResponse(f"/searches/{search_id}", 303)


# ------------------------------------------------------------------------------------------------------------- doors


@router.get("/login")
async def login(request: Request, next: Annotated[str, Query(max_length=200)] = "/") -> Response:
    """Where a browser gives its token."""
    return await page(request, "login.html", next=inside(next), problem=None)


@router.post("/login")
async def log_in(request: Request) -> Response:
    """Keep a valid token in the browser, where no script reads it."""
    fields = await form_of(request)
    state = state_of(request)
    token, target = fields.get("token", [""])[0].strip(), inside(fields.get("next", ["/"])[0])
    client = request.client.host if request.client else ""
    if state.writes.wait_s(f"login {client}") > 0:
        raise Failed(Problem(429, "too-many-requests", "too many tries; wait a moment", {"Retry-After": "10"}))
    found = await asyncio.to_thread(state.tokens.find, token) if 0 < len(token) <= 200 else None
    if found is None:
        return await page(request, "login.html", 401, next=target, problem="this token is unknown or was revoked")
    response = RedirectResponse(target, 303)
    secure = state.settings.secure_cookies
    response.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=secure)
    return response


@router.post("/logout")
async def log_out(request: Request) -> Response:
    """Forget the token."""
    await form_of(request)
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE)
    return response


def inside(target: str) -> str:
    """A path of this service, never another site.

    >>> inside("/searches/3"), inside("//evil.example"), inside("https://evil.example")
    ('/searches/3', '/', '/')
    """
    return target if target.startswith("/") and not target.startswith(("//", "/\\")) else "/"


# ---------------------------------------------------------------------------------------------------------- the rest


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The OpenAPI document for people, without a script of another site."""
    await reader(request)
    document: Mapping[str, Any] = request.app.openapi()
    operations = [
        {"path": path, "method": method.upper(), **operation}
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return await page(request, "api.html", operations=operations, schemas=document["components"]["schemas"])


@router.get("/static/{name}")
async def static(name: str) -> Response:
    """The style sheet, the script and the icon."""
    kind = STATIC.get(name)
    if kind is None:
        raise Failed(Problem(404, "not-found", "no such file"))
    content = await asyncio.to_thread((HERE / "static" / name).read_bytes)
    return Response(content, media_type=kind, headers={"Cache-Control": "public, max-age=300"})
