"""What comes in and goes out over HTTP, in typed form: the OpenAPI document is made of these.

The same fields as the command line's, with bounds that no honest request reaches.
"""

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from agent.pareto.request import SweepRequest
from agent.predict_request import PredictRequest
from predictor.types import Arrival, Dtype

Name = Annotated[str, Field(min_length=1, max_length=200)]
Names = Annotated[tuple[Name, ...], Field(max_length=100)]
Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
Clients = Annotated[int, Field(ge=1, le=100_000)]
Width = Annotated[int, Field(ge=1, le=4096)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, le=1e9)]
Mode = Literal["auto", "anchored", "simulate"]
Id = Annotated[int, Field(ge=1, lt=2**31)]
Text = Annotated[str, Field(max_length=4000)]


class Body(BaseModel):
    """Base of request bodies: an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TuneBody(Body):
    """A search: in words (``text``), in fields, or both; fields win over the text."""

    text: Annotated[Text, Field(description="What to tune, in words.")] = ""
    accept: Annotated[bool, Field(description="Accept what is proposed for what the text leaves open.")] = False
    planner: Annotated[
        Literal["auto", "seed", "llm"],
        Field(description="Who reads and searches: the language model (auto: where the service has one), or rules."),
    ] = "auto"
    guidance: Annotated[str, Field(max_length=2000, description="Hints for the language model.")] | None = None
    model: Name | None = None
    cluster: Annotated[Name | None, Field(description="GPU:N or GPU:NxNODES, such as MI355X:8 or H200:8x2.")] = None
    engine: Name | None = None
    engine_version: Name | None = None
    objective: Name | None = None
    slos: Annotated[Names | None, Field(description="METRIC<=NUMBER or METRIC>=NUMBER.")] = None
    isl: Tokens | None = None
    osl: Tokens | None = None
    concurrency: Clients | None = None
    arrival: Arrival | None = None
    request_rate: Positive | None = None
    length_range: Annotated[float, Field(gt=0, le=1)] | None = None
    prefix_hit: Share | None = None
    pins: Annotated[Names | None, Field(description="LEVER=VALUE kept fixed.")] = None
    free: Annotated[Names | None, Field(description="Levers to open, or load, or precision.")] = None
    validated: tuple[Dtype, ...] | None = None
    usd_per_gpu_h: Positive | None = None
    budget: Annotated[int, Field(ge=1, le=100_000, description="Trials at most.")] | None = None

    def fields(self) -> dict[str, Any]:
        """What was said, without text."""
        return self.model_dump(mode="json", exclude_none=True, exclude={"text", "accept", "planner"})


class ReadBody(Body):
    """A request in words, to see what is understood."""

    text: Annotated[Text, Field(min_length=1)]


LIMITS: dict[str, Any] = {  # bounds of a prediction's fields that no honest request reaches
    "model": Name,
    "gpu": Name,
    "engine": Name,
    "engine_version": Annotated[str, Field(max_length=200)],
    **dict.fromkeys(("tp", "ep", "pp", "attn_dp", "dcp", "nodes", "replicas"), Width),
    **dict.fromkeys(("prefill_ep", "prefill_attn_dp", "prefill_replicas"), Width),
    "prefill_tp": Width | None,
    "handoff": Annotated[str, Field(max_length=100)],
    **dict.fromkeys(("graph_mode", "allreduce", "a2a", "spec_method"), Name),
    "spec_depth": Annotated[int, Field(ge=0, le=64)],
    "max_running": Clients | None,
    **dict.fromkeys(("token_budget", "chunk_size"), Tokens | None),
    "kv_mem_fraction": Annotated[float, Field(gt=0, le=1)] | None,
    "host_kv_gb": Annotated[float, Field(ge=0, le=1e6)],
    **dict.fromkeys(("isl", "osl"), Tokens),
    "concurrency": Clients,
    **dict.fromkeys(("request_rate", "usd_per_gpu_h"), Positive | None),
    "length_range": Annotated[float, Field(gt=0, le=1)],
    "prefix_hit": Share,
}


def prediction_fields() -> dict[str, Any]:
    """The fields of a :class:`PredictRequest` with its defaults, each within its limits; choices need none."""
    types = get_type_hints(PredictRequest)
    return {
        one.name: (LIMITS.get(one.name, types[one.name]), ... if one.default is MISSING else one.default)
        for one in fields(PredictRequest)
    }


if TYPE_CHECKING:
    Prediction = Body
else:
    Prediction = create_model("Prediction", __base__=Body, **prediction_fields())


class PredictBody(Prediction):
    """One deployment under one workload: the fields of ``inferasim predict``."""

    mode: Mode = "auto"
    method: Literal["auto", "analytic", "des"] = "auto"


class TierBody(Body):
    """A class of users: the least tokens a second one of them sees, and the longest wait for the first token."""

    name: Name
    min_tok_s_user: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    max_ttft_ms: Positive | None = None


class ParetoBody(SweepRequest):
    """A sweep; ``most_points`` is required and bounded by the service."""

    models: Annotated[tuple[Name, ...], Field(min_length=1, max_length=20)]
    cluster: Name
    engines: Names = ()
    engine_version: Annotated[str, Field(max_length=200)] = ""
    shapes: Annotated[tuple[Name, ...], Field(min_length=1, max_length=20)] = ("1024/1024",)
    concurrencies: Annotated[tuple[Clients, ...], Field(min_length=1, max_length=50)] = (
        1,
        2,
        4,
        8,
        16,
        32,
        64,
        128,
        256,
    )
    depths: Annotated[tuple[Annotated[int, Field(ge=1, le=64)], ...], Field(max_length=64)] = tuple(range(1, 9))
    split_depths: Annotated[tuple[Annotated[int, Field(ge=1, le=64)], ...], Field(max_length=64)] = (1, 3, 5, 7)
    length_range: Annotated[float, Field(gt=0, le=1)] = 1.0
    mode: Mode = "auto"
    usd_per_gpu_h: Positive | None = None
    most_points: Annotated[int, Field(ge=1, le=1_000_000)] | None = 2000
    tiers: Annotated[
        tuple[TierBody, ...] | None,
        Field(min_length=1, max_length=20, description="Latency tiers, strictest first; the tool's four if left out."),
    ] = None


class MixBody(ParetoBody):
    """A mix: one deployment for each model and latency tier, and a fleet divided among them."""

    demands: Annotated[Names, Field(description="MODEL:TIER=USERS, or MODEL:TIER=NUMBERtok/s.")] = ()
    fleet: Annotated[int, Field(ge=1, le=1_000_000, description="GPUs to divide.")] | None = None
    spare: Annotated[int, Field(ge=0, le=1_000_000)] = 0


class ProblemBody(BaseModel):
    """An error as RFC 9457 problem details."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str | None = None
    errors: list[dict[str, Any]] | None = None


class Submitted(BaseModel):
    """A search or sweep that was taken on."""

    job_id: int
    search_id: int | None = None
    status: str
    reading: dict[str, Any] | None = None
    links: dict[str, str]


class JobBody(BaseModel):
    """A job of the queue: a sweep, a mix, a trace, or the job behind a search."""

    job_id: int
    kind: str
    caller: str
    search_id: int | None = None
    status: str
    cancel_requested: bool
    attempts: int
    created_at: str
    started_at: str | None = None
    finished_at: str | None = None
    result: dict[str, Any] | None = None
    problem: dict[str, Any] | None = None
