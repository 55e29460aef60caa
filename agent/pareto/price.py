"""One task of a sweep: some variants under every load, through the one door, as JSON lines."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any

from agent.anchor_files import load_anchors
from agent.evaluate import Evaluator, Judged, error_code
from agent.pareto.request import SweepRequest
from agent.pareto.space import Place, applied, place_context
from agent.pareto.traced import play_sample, sample
from levers.baseline import baseline
from levers.context import LeverValue
from levers.legality import illegal_reasons
from levers.objectives import objective
from levers.space import Setting, as_json_value, normalised, to_deployment
from predictor.cost import usd_per_mtok
from predictor.errors import InferaSimError
from predictor.predict import Catalogue
from predictor.types import Coverage, Deployment, Mode, Workload

MODES: dict[str, Mode | None] = {"auto": None, "anchored": Mode.ANCHORED, "simulate": Mode.SIMULATE}

# Columns of a priced point, in the file's order.
COLUMNS: Mapping[str, type] = {
    "i": int,
    "model": str,
    "engine": str,
    "version": str,
    "isl": int,
    "osl": int,
    "trace": str,
    "concurrency": int,
    "label": str,
    "split": bool,
    "weight": str,
    "kv": str,
    "drafter": str,
    "depth": int,
    "gpus": int,
    "host_kv_gb": float,
    "levers": str,
    "refused": str,
    "output_tok_s_per_gpu": float,
    "total_tok_s_per_gpu": float,
    "interactivity_tok_s_user": float,
    "ttft_ms": float,
    "ttft_ms_p99": float,
    "tpot_ms": float,
    "e2e_ms": float,
    "e2e_ms_p99": float,
    "hit_rate": float,
    "memory_share": float,
    "usd_per_mtok": float,
    "mode": str,
    "coverage": str,
    "anchor": str,
    "method": str,
}
SIGNIFICANT = 7  # digits kept of a figure: far below any model's error, and a third of the file


@dataclass(frozen=True, slots=True)
class Variant:
    """One variant of a place under every load. Its point at the n-th load, counted from 0, is number ``first`` + n."""

    first: int
    place: Place
    changes: tuple[tuple[str, LeverValue], ...]


@dataclass(frozen=True, slots=True)
class Task:
    """Variants that are priced together, load after load: neighbours share schedules, and loads share step prices."""

    variants: tuple[Variant, ...]
    loads: int

    @property
    def points(self) -> int:
        """How many points the task has."""
        return len(self.variants) * self.loads

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the task's points."""
        return tuple(one.first + load for one in self.variants for load in range(self.loads))


def price_task(request: SweepRequest, anchors: str | None, task: Task, done: frozenset[int] = frozenset()) -> str:
    """Price a task's points that are not done yet; one JSON line each."""
    lines: list[str] = []
    benches = {one.place: bench(request, anchors, one.place) for one in task.variants}
    for load, concurrency in enumerate(request.concurrencies):
        for one in task.variants:
            number = one.first + load
            if number in done:
                continue
            evaluator, base = benches[one.place]
            setting = applied({**dict(one.changes), "concurrency": concurrency}, base, evaluator.context)
            deployment, workload = to_deployment(setting, evaluator.context)
            levers = setting.differences(base)
            if one.place.trace:
                row = traced_row(request, number, one.place, levers, deployment, workload, evaluator)
            else:
                row = point_row(
                    number, one.place, levers, deployment, workload, evaluator.evaluate(deployment, workload)
                )
            lines.append(json.dumps(row, allow_nan=False) + "\n")
    return "".join(lines)


@lru_cache(maxsize=128)
def bench(request: SweepRequest, anchors: str | None, place: Place) -> tuple[Evaluator, Setting]:
    """What prices a place, kept by each worker: cards, anchors and the base setting."""
    on_hand = load_anchors(anchors)
    context = place_context(request, place, on_hand)
    usable = tuple(one for one in on_hand if one.signature.model == context.card.name)
    catalogue = Catalogue(context.card, context.platform, context.engine, usable)
    goal = objective("output_tok_s_per_gpu")
    evaluator = Evaluator(
        context,
        catalogue,
        goal,
        mode=MODES[request.mode],
        simulate_splits=request.simulate_splits,
        tell_fusions=False,
    )
    return evaluator, baseline(context)


def point_row(
    number: int,
    place: Place,
    levers: Mapping[str, LeverValue],
    deployment: Deployment,
    workload: Workload,
    judged: Judged,
) -> dict[str, Any]:
    """A point as the file holds it."""
    row = identity_of(number, place, levers, deployment, workload)
    prediction = judged.prediction
    if not judged.legal or prediction is None:
        return {**row, "refused": judged.reasons[0].code}
    memory = prediction.memory
    figures = {
        "output_tok_s_per_gpu": prediction.output_tok_s_per_gpu,
        "total_tok_s_per_gpu": prediction.total_tok_s_per_gpu,
        "interactivity_tok_s_user": prediction.interactivity_tok_s_user,
        "ttft_ms": prediction.ttft_ms.mean,
        "ttft_ms_p99": prediction.ttft_ms.p99,
        "tpot_ms": prediction.tpot_ms.mean,
        "e2e_ms": prediction.e2e_ms.mean,
        "e2e_ms_p99": prediction.e2e_ms.p99,
        "hit_rate": workload.prefix_hit_frac,
        "memory_share": memory.total_bytes / memory.hbm_bytes,
        "usd_per_mtok": prediction.extras.get("usd_per_mtok"),
    }
    return {
        **row,
        **{name: rounded(value) for name, value in figures.items()},
        "mode": str(prediction.mode),
        "coverage": str(prediction.coverage),
        "anchor": prediction.anchor,
        "method": prediction.method,
    }


def identity_of(
    number: int, place: Place, levers: Mapping[str, LeverValue], deployment: Deployment, workload: Workload
) -> dict[str, Any]:
    """What a point is, before it is known what it gives."""
    return {
        "i": number,
        "model": place.model,
        "engine": place.engine,
        "version": deployment.engine_version,
        "isl": workload.isl_tokens,
        "osl": workload.osl_tokens,
        "trace": Path(place.trace).name,
        "concurrency": workload.concurrency,
        "label": pool_label(deployment),
        "split": deployment.prefill is not None,
        "weight": str(deployment.precision.weight),
        "kv": str(deployment.precision.kv),
        "drafter": deployment.speculation.method,
        "depth": deployment.speculation.depth,
        "gpus": deployment.gpus,
        "host_kv_gb": deployment.host_kv_gb,
        "levers": {name: as_json_value(value) for name, value in levers.items() if name != "concurrency"},
    }


def traced_row(
    request: SweepRequest,
    number: int,
    place: Place,
    levers: Mapping[str, LeverValue],
    deployment: Deployment,
    workload: Workload,
    evaluator: Evaluator,
) -> dict[str, Any]:
    """A point of a trace as the file holds it: the sample is played with as many live sessions as there are clients."""
    row = identity_of(number, place, levers, deployment, workload)
    if workload.concurrency > sample(place.trace, request.trace_requests).sessions:
        return {**row, "refused": "trace_sessions"}
    reasons = illegal_reasons(deployment, workload, evaluator.context)
    if reasons:
        return {**row, "refused": reasons[0].code}
    try:
        played = play_sample(request, place.trace, deployment, workload, evaluator.catalogue, evaluator.mode)
    except InferaSimError as error:
        return {**row, "refused": error_code(error)}
    simulation, selection = played.result.simulation, played.selection
    price = evaluator.catalogue.platform.price_usd_per_gpu_h
    per_gpu = played.result.output_tok_s_per_gpu
    columns = simulation.requests
    figures = {
        "output_tok_s_per_gpu": per_gpu,
        "total_tok_s_per_gpu": played.result.total_tok_s_per_gpu,
        "interactivity_tok_s_user": 1000.0 / simulation.tpot_ms.mean,
        "ttft_ms": simulation.ttft_ms.mean,
        "ttft_ms_p99": simulation.ttft_ms.p99,
        "tpot_ms": simulation.tpot_ms.mean,
        "e2e_ms": simulation.e2e_ms.mean,
        "e2e_ms_p99": simulation.e2e_ms.p99,
        "hit_rate": float(columns["cached_tokens"].sum() / columns["prompt_tokens"].sum()),
        "memory_share": played.memory.total_bytes / played.memory.hbm_bytes,
        "usd_per_mtok": None if price is None else usd_per_mtok(price, per_gpu),
    }
    return {
        **row,
        **{name: rounded(value) for name, value in figures.items()},
        "mode": str(Mode.SIMULATE if selection is None else Mode.ANCHORED),
        "coverage": str(Coverage.NONE if selection is None else selection.coverage),
        "anchor": None if selection is None else selection.anchor.name,
        "method": "trace",
    }


def point_deployment(
    request: SweepRequest, anchors: str | None, row: Mapping[str, Any]
) -> tuple[Deployment, Workload, Catalogue]:
    """The deployment and workload of a row of a sweep's file, with what prices it."""
    evaluator, base = bench(request, anchors, place_of(request, row))
    levers = {name: normalised(name, value) for name, value in row["levers"].items()}
    setting = base.changed({**levers, "concurrency": row["concurrency"]})
    return *to_deployment(setting, evaluator.context), evaluator.catalogue


def place_of(request: SweepRequest, row: Mapping[str, Any]) -> Place:
    """The place of a row of a sweep's file."""
    trace = next((path for path in request.traces if Path(path).name == row["trace"]), "")
    return Place(row["model"], row["engine"], row["isl"], row["osl"], trace)


def rounded(value: float | None) -> float | None:
    """A figure to the digits the file keeps.

    >>> rounded(123.456789012)
    123.4568
    """
    return float(f"{value:.{SIGNIFICANT}g}") if value is not None and isfinite(value) else None


def pool_label(deployment: Deployment) -> str:
    """Layouts and counts of the pools in one word.

    >>> from predictor.types import Layout
    >>> pool_label(Deployment("m", "g", "e", layout=Layout(tp=8, ep=8, attn_dp=8)))
    'tp8-ep8-dpa8'
    """
    decode = f"{deployment.replicas}x{deployment.layout.label()}" if deployment.replicas > 1 else ""
    pool = deployment.prefill
    if pool is None:
        return decode or deployment.layout.label()
    return f"P{pool.replicas}x{pool.layout.label()} D{deployment.replicas}x{deployment.layout.label()}"
