"""What comes in and goes out over HTTP, in typed form: the OpenAPI document is made of these.

The same fields as the command line's, with bounds that no honest request reaches.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agent.pareto.request import SweepRequest
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
        return self.model_dump(mode="json", exclude_none=True, exclude={"text", "accept"})


class ReadBody(Body):
    """A request in words, to see what is understood."""

    text: Annotated[Text, Field(min_length=1)]


class PredictBody(Body):
    """One deployment under one workload: the fields of :class:`agent.predict_request.PredictRequest`."""

    model: Name
    gpu: Name
    engine: Name
    engine_version: Annotated[str, Field(max_length=200)] = ""
    tp: Width = 1
    ep: Width = 1
    pp: Width = 1
    attn_dp: Width = 1
    dcp: Width = 1
    nodes: Width = 1
    replicas: Width = 1
    prefill_tp: Width | None = None
    prefill_ep: Width = 1
    prefill_attn_dp: Width = 1
    prefill_replicas: Width = 1
    handoff: Annotated[str, Field(max_length=100)] = ""
    weight_dtype: Dtype | None = None
    linear_dtype: Dtype | None = None
    expert_dtype: Dtype | None = None
    kv_dtype: Dtype = Dtype.BF16
    graph_mode: Name = "full"
    allreduce: Name = "custom"
    a2a: Name = "none"
    spec_method: Name = "none"
    spec_depth: Annotated[int, Field(ge=0, le=64)] = 0
    max_running: Clients | None = None
    token_budget: Tokens | None = None
    chunk_size: Tokens | None = None
    kv_mem_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    host_kv_gb: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    isl: Tokens
    osl: Tokens
    concurrency: Clients = 1
    arrival: Arrival = Arrival.CLOSED
    request_rate: Positive | None = None
    length_range: Annotated[float, Field(gt=0, le=1)] = 1.0
    prefix_hit: Share = 0.0
    usd_per_gpu_h: Positive | None = None
    mode: Mode = "auto"
    method: Literal["auto", "analytic", "des"] = "auto"


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
    created_at: str
    started_at: str | None = None
    finished_at: str | None = None
    result: dict[str, Any] | None = None
    problem: dict[str, Any] | None = None
