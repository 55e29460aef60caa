"""Routes that answer at once (predictions, catalogues, anchors) and those that queue sweeps, mixes and traces."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from agent.service import questions
from agent.service.api_searches import Key, asked, submitted
from agent.service.bodies import MixBody, Name, ParetoBody, PredictBody, Submitted, Tokens, Width
from agent.service.problems import Failed, Problem
from agent.service.state import Admin, Reader, ServiceState, Tuner
from predictor.types import Dtype

router = APIRouter(prefix="/v1")
RAW_JSON = {"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}}
RAW_TRACE = {"requestBody": {"required": True, "content": {"text/plain": {"schema": {"type": "string"}}}}}


@router.post("/predict")
async def predict(body: PredictBody, state: ServiceState, _caller: Reader) -> dict[str, Any]:
    """Predict one deployment; the keys of ``inferasim predict --json``."""
    fields = body.model_dump(mode="json", exclude={"mode", "method"})
    answer = await state.calls.run(questions.predict, state.settings, fields, body.mode, body.method)
    return questions.plain(answer)


@router.post("/pareto", status_code=202, response_model=Submitted)
async def pareto(body: ParetoBody, state: ServiceState, caller: Tuner, key: Key = None) -> Response:
    """Sweep deployments; the job's result has the keys of ``inferasim pareto --json``."""
    who = asked(caller, key)
    fields = body.model_dump(mode="json", exclude={"tiers"})
    more = {"tiers": tiers_of(body)}
    return submitted(state, *await state.calls.run(questions.submit_sweep, state.settings, "pareto", fields, more, who))


@router.post("/mix", status_code=202, response_model=Submitted)
async def mix(body: MixBody, state: ServiceState, caller: Tuner, key: Key = None) -> Response:
    """One deployment for each model and tier; the job's result has the keys of ``inferasim mix --json``."""
    who = asked(caller, key)
    more = {"demands": list(body.demands), "fleet": body.fleet, "spare": body.spare, "tiers": tiers_of(body)}
    fields = body.model_dump(mode="json", exclude=set(more))
    return submitted(state, *await state.calls.run(questions.submit_sweep, state.settings, "mix", fields, more, who))


def tiers_of(body: ParetoBody) -> list[dict[str, Any]] | None:
    """A caller's own tiers as JSON; None where the tool's are meant."""
    return None if body.tiers is None else [one.model_dump(mode="json") for one in body.tiers]


@router.post("/simulate", status_code=202, response_model=Submitted, openapi_extra=RAW_TRACE)
async def simulate(
    request: Request,
    state: ServiceState,
    caller: Tuner,
    model: Annotated[Name, Query()],
    gpu: Annotated[Name, Query()],
    engine: Annotated[Name, Query()],
    engine_version: Annotated[str, Query(max_length=200)] = "",
    tp: Annotated[Width, Query()] = 1,
    ep: Annotated[Width, Query()] = 1,
    attn_dp: Annotated[Width, Query()] = 1,
    replicas: Annotated[int, Query(ge=1, le=256)] = 1,
    weight_dtype: Annotated[Dtype | None, Query()] = None,
    kv_dtype: Annotated[Dtype, Query()] = Dtype.BF16,
    router_name: Annotated[Name, Query(alias="router")] = "least-loaded",
    slots: Annotated[int | None, Query(ge=1, le=100_000)] = None,
    think_cap_ms: Annotated[float | None, Query(ge=0, le=1e12)] = None,
    answers_return: bool = False,
    block_tokens: Annotated[Tokens | None, Query()] = None,
    skip_bad_records: bool = False,
    seed: Annotated[int, Query(ge=0, lt=2**31)] = 0,
    key: Key = None,
) -> Response:
    """Play a trace, sent as the body, on a deployment; the result has the keys of ``inferasim simulate --json``."""
    who = asked(caller, key)
    fields = {
        "model": model,
        "gpu": gpu,
        "engine": engine,
        "engine_version": engine_version,
        "tp": tp,
        "ep": ep,
        "attn_dp": attn_dp,
        "replicas": replicas,
        "weight_dtype": None if weight_dtype is None else weight_dtype.value,
        "kv_dtype": kv_dtype.value,
    }
    options = {
        "router": router_name,
        "slots": slots,
        "think_cap_ms": think_cap_ms,
        "answers_return": answers_return,
        "block_tokens": block_tokens,
        "skip_bad_records": skip_bad_records,
        "seed": seed,
    }
    text = await body_text(request)
    return submitted(state, *await state.calls.run(questions.submit_trace, state.settings, text, fields, options, who))


async def body_text(request: Request) -> str:
    """A body as UTF-8 text without NUL, which no file read here holds."""
    try:
        text = (await request.body()).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Failed(Problem(422, "bad-input", f"body: not UTF-8 text (byte {error.start})")) from None
    if "\x00" in text:
        raise Failed(Problem(422, "bad-input", f"body: holds a NUL character (character {text.index(chr(0))})"))
    return text


@router.get("/anchors")
async def anchors(state: ServiceState, _caller: Reader) -> dict[str, Any]:
    """Anchors on hand; the keys of ``inferasim anchors list --json``."""
    return {"anchors": await state.calls.run(questions.anchors, state.settings)}


@router.post("/anchors", status_code=201, openapi_extra=RAW_JSON)
async def upload_anchor(
    request: Request,
    state: ServiceState,
    _caller: Admin,
    replace: Annotated[bool, Query(description="Replace one of the same kernel set and width.")] = False,
    dry_run: Annotated[bool, Query(description="Check it, and keep nothing.")] = False,
) -> dict[str, Any]:
    """Upload an anchor, with the command line's checks: schema, fit, kernel set, name."""
    text = await body_text(request)
    return await state.calls.run(questions.save_anchor, state.settings, text, replace, not dry_run)


@router.get("/levers")
async def levers(
    state: ServiceState,
    _caller: Reader,
    model: Annotated[Name | None, Query(description="Shows the legal values for it.")] = None,
    cluster: Annotated[Name, Query()] = "MI355X:8",
    engine: Annotated[Name, Query()] = "sglang",
    engine_version: Annotated[str, Query(max_length=200)] = "",
) -> dict[str, Any]:
    """The levers and, for a model and cluster, their legal values."""
    answer = await state.calls.run(questions.levers, model, cluster, engine, engine_version)
    return questions.plain(answer)
