"""Flat prediction requests, as flags, a file or HTTP give them, turned into the predictor's types, and answers."""

from dataclasses import asdict, dataclass, is_dataclass
from typing import Annotated, Any, TypeVar

from predictor.cards import EngineProfile, ModelCard
from predictor.errors import BadFile, BadInput
from predictor.profiles.decode import decode
from predictor.types import (
    Arrival,
    Deployment,
    Distribution,
    Dtype,
    Intervals,
    Kernels,
    Layout,
    Precision,
    Prediction,
    PrefillPool,
    SchedulerSettings,
    Speculation,
    StartMode,
    Workload,
)

Request = TypeVar("Request")


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictRequest:
    """One deployment under one workload. None leaves a choice to the checkpoint or the engine.

    A plain record, so that one prediction need not load a validation library; :func:`validated` checks it.
    """

    model: str
    gpu: str
    engine: str
    engine_version: str = ""
    tp: int = 1
    ep: int = 1
    pp: int = 1
    attn_dp: int = 1
    dcp: int = 1
    nodes: int = 1
    replicas: int = 1
    prefill_tp: int | None = None
    prefill_ep: int = 1
    prefill_attn_dp: int = 1
    prefill_replicas: int = 1
    handoff: str = ""
    weight_dtype: Dtype | None = None
    linear_dtype: Dtype | None = None
    expert_dtype: Dtype | None = None
    kv_dtype: Dtype = Dtype.BF16
    graph_mode: str = "full"
    allreduce: str = "custom"
    a2a: str = "none"
    spec_method: str = "none"
    spec_depth: int = 0
    max_running: int | None = None
    token_budget: int | None = None
    chunk_size: int | None = None
    kv_mem_fraction: float | None = None
    host_kv_gb: float = 0.0
    isl: int
    osl: int
    concurrency: int = 1
    arrival: Arrival = Arrival.CLOSED
    request_rate: float | None = None
    length_range: float = 1.0
    prefix_hit: float = 0.0
    usd_per_gpu_h: Annotated[float | None, (">", 0)] = None

    def deployment(self, card: ModelCard, gpu: str, profile: EngineProfile, release: str) -> Deployment:
        """The deployment; weights default to the maker's own checkpoint, activations to the weights' format."""
        weight = self.weight_dtype or card.weight_dtypes[0]
        if weight not in card.weight_dtypes:
            legal = ", ".join(card.weight_dtypes)
            raise BadInput(f"weight-dtype {weight}: no such checkpoint of {card.name} is known; legal: {legal}")
        precision = Precision(
            weight=weight,
            linear=self.linear_dtype or weight,
            expert=self.expert_dtype
            or (card.expert_dtype if self.weight_dtype is None and card.expert_dtype else weight),
            kv=self.kv_dtype,
        )
        scheduler = SchedulerSettings(
            max_running=self.max_running,
            token_budget=self.token_budget,
            chunk_size=self.chunk_size,
            kv_mem_fraction=self.kv_mem_fraction,
        )
        prefill = None
        if self.prefill_tp is not None:
            if not self.handoff:
                raise BadInput("handoff '': a prefill pool needs one of nixl, mooncake, mori")
            layout = Layout(tp=self.prefill_tp, ep=self.prefill_ep, attn_dp=self.prefill_attn_dp)
            prefill = PrefillPool(layout, self.prefill_replicas, self.handoff, scheduler)
        return Deployment(
            model=card.name,
            gpu=gpu,
            engine=profile.name,
            engine_version=release,
            layout=Layout(self.tp, self.ep, self.pp, self.attn_dp, self.dcp, self.nodes),
            precision=precision,
            kernels=Kernels(graph_mode=self.graph_mode, allreduce=self.allreduce, a2a=self.a2a),
            scheduler=scheduler,
            speculation=Speculation(self.spec_method, self.spec_depth),
            replicas=self.replicas,
            prefill=prefill,
            host_kv_gb=self.host_kv_gb,
        )

    def workload(self) -> Workload:
        """The workload."""
        return Workload(
            isl_tokens=self.isl,
            osl_tokens=self.osl,
            concurrency=self.concurrency,
            arrival=self.arrival,
            request_rate_per_s=self.request_rate,
            length_range_frac=self.length_range,
            start=StartMode.BURST,
            prefix_hit_frac=self.prefix_hit,
        )


def prediction_json(prediction: Prediction) -> dict[str, Any]:
    """The stable keys of ``predict --json``."""
    return {
        "mode": prediction.mode,
        "method": prediction.method,
        "anchor": prediction.anchor,
        "coverage": prediction.coverage,
        "flags": [{"code": flag.code, "message": flag.message} for flag in prediction.flags],
        "gpus": prediction.gpus,
        "ttft_ms": _latency(prediction.ttft_ms),
        "tpot_ms": _latency(prediction.tpot_ms),
        "itl_ms": _latency(prediction.itl_ms),
        "e2e_ms": _latency(prediction.e2e_ms),
        "output_tok_s": prediction.output_tok_s,
        "total_tok_s": prediction.total_tok_s,
        "total_tok_s_per_gpu": prediction.total_tok_s_per_gpu,
        "output_tok_s_per_gpu": prediction.output_tok_s_per_gpu,
        "interactivity_tok_s_user": prediction.interactivity_tok_s_user,
        "usd_per_mtok": prediction.extras.get("usd_per_mtok"),
        "max_concurrency": prediction.max_concurrency,
        "running": prediction.running,
        "memory": asdict(prediction.memory),
        "step_ms": dict(prediction.step_ms),
        "prefill_step_ms": dict(prediction.prefill_step_ms),
        "extras": dict(prediction.extras),
        "interval_80": None if prediction.interval_80 is None else interval_json(prediction.interval_80),
    }


def interval_json(found: Intervals) -> dict[str, Any]:
    """80% intervals by metric, the kind of transfer they were calibrated on, or why there are none."""
    return {
        "kind": found.kind or None,
        "outside": found.outside or None,
        "rows": found.rows,
        "stacks": found.stacks,
        "bounds": {name: list(bounds) for name, bounds in found.bounds.items()},
    }


def _latency(distribution: Distribution) -> dict[str, float | None]:
    return {"mean": distribution.mean, "p50": distribution.p50, "p90": distribution.p90, "p99": distribution.p99}


def validated(kind: type[Request], **fields: object) -> Request:
    """Build a request; the first invalid field becomes one line with its value and what is legal."""
    if is_dataclass(kind):
        try:
            return decode(kind, fields, "", "")
        except BadFile as error:
            name, separator, rest = str(error).partition(": ")
            raise BadInput(f"{name.replace('_', '-')}{separator}{rest}") from None
    from pydantic import ValidationError  # the other requests load it anyway

    try:
        return kind(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        name = "-".join(str(part) for part in first["loc"]).replace("_", "-")
        raise BadInput(f"{name} {first['input']!r}: {first['msg']}") from None
