"""One task of a sweep: some variants under every load, through the one door, as JSON lines."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Any

from agent.anchor_files import load_anchors
from agent.evaluate import Evaluator, Judged
from agent.pareto.request import SweepRequest
from agent.pareto.space import Place, applied, place_context
from levers.baseline import baseline
from levers.context import LeverValue
from levers.objectives import objective
from levers.space import Setting, as_json_value, normalised, to_deployment
from predictor.predict import Catalogue
from predictor.types import Deployment, Mode, Workload

MODES: dict[str, Mode | None] = {"auto": None, "anchored": Mode.ANCHORED, "simulate": Mode.SIMULATE}

# Columns of a priced point, in the file's order.
COLUMNS: Mapping[str, type] = {
    "i": int,
    "model": str,
    "engine": str,
    "version": str,
    "isl": int,
    "osl": int,
    "concurrency": int,
    "label": str,
    "split": bool,
    "weight": str,
    "kv": str,
    "drafter": str,
    "depth": int,
    "gpus": int,
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
            judged = evaluator.evaluate(deployment, workload)
            row = point_row(number, one.place, setting.differences(base), deployment, workload, judged)
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
    row: dict[str, Any] = {
        "i": number,
        "model": place.model,
        "engine": place.engine,
        "version": deployment.engine_version,
        "isl": workload.isl_tokens,
        "osl": workload.osl_tokens,
        "concurrency": workload.concurrency,
        "label": pool_label(deployment),
        "split": deployment.prefill is not None,
        "weight": str(deployment.precision.weight),
        "kv": str(deployment.precision.kv),
        "drafter": deployment.speculation.method,
        "depth": deployment.speculation.depth,
        "gpus": deployment.gpus,
        "levers": {name: as_json_value(value) for name, value in levers.items() if name != "concurrency"},
    }
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


def point_deployment(
    request: SweepRequest, anchors: str | None, row: Mapping[str, Any]
) -> tuple[Deployment, Workload, Catalogue]:
    """The deployment and workload of a row of a sweep's file, with what prices it."""
    evaluator, base = bench(request, anchors, Place(row["model"], row["engine"], row["isl"], row["osl"]))
    levers = {name: normalised(name, value) for name, value in row["levers"].items()}
    setting = base.changed({**levers, "concurrency": row["concurrency"]})
    return *to_deployment(setting, evaluator.context), evaluator.catalogue


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
