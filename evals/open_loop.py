"""Open-loop runs of vLLM on H100 at constant rates, one run a model as anchor (40 rows, with five rivals' errors).

``python -m evals.open_loop --json``. Every row is what the public facade predicts from its model's anchor file. The
anchor of a model is its stage of the lowest rate that is not overloaded: kernel models' steps, scaled so that its
median E2E comes out; what its median TTFT has beyond the simulated one is host time of a request. Medians, because a
stall in the first seconds is part of the mean and not of the step. Targets: E2E mean within 10%, TTFT mean within 18%
at the median.

Rows of overloaded runs, whose requests failed by time-out, are predicted too and scored apart: whether the deployment
holds the rate, and the means of the requests that ended before the time-out.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from evals.corpus import data_dir, parser, run
from evals.open_loop_runs import SIMULATORS, TIMEOUT_MS, Stage, card, stages
from evals.request_runs import rows
from inferasim import (
    Anchor,
    Catalogue,
    Deployment,
    Dtype,
    Layout,
    Mode,
    Precision,
    SchedulerSettings,
    Workload,
    engine_profile,
    platform,
)
from predictor.anchors.schema import SCHEMA_VERSION, checked
from predictor.des.metrics import Samples, SimulationResult
from predictor.engines import effective_settings
from predictor.predict import predict_and_keep
from predictor.step.build_simulated import simulated_step
from predictor.types import Arrival

ENGINE, GPU = "vLLM", "H100"
BLOCK_TOKENS = 16  # vLLM's default
SCALE_ITERATIONS = 4
RIVAL_METRICS = ("e2e_mean", "e2e_p99", "ttft_mean", "ttft_p99")
# A server that keeps up ends its run when the last request has come; it is said to hold the rate within a tenth.
HOLDS_RATE = 0.9


def deployment_of(stage: Stage) -> Deployment:
    """A stage's deployment."""
    return Deployment(
        card(stage.model).name,
        GPU,
        ENGINE,
        layout=Layout(tp=stage.tp),
        precision=Precision(weight=Dtype.BF16, linear=Dtype.BF16, expert=Dtype.BF16, kv=Dtype.BF16),
        scheduler=SchedulerSettings(
            max_running=stage.max_running, token_budget=stage.token_budget, block_size=BLOCK_TOKENS
        ),
    )


def workload_of(stage: Stage) -> Workload:
    """A stage's traffic. The prompts are few and come round again, so all whole blocks before the last token are
    cached; only the first round, under 2% of a stage, is not."""
    cached = (stage.prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    clients = gcd(stage.requests, stage.max_running)
    return Workload(
        stage.prompt_tokens,
        stage.output_tokens,
        concurrency=clients,
        requests_per_client=stage.requests // clients,
        arrival=Arrival.CONSTANT,
        request_rate_per_s=stage.rate_per_s,
        prefix_hit_frac=(cached + 0.5) / stage.prompt_tokens,  # shares are cut to whole tokens
    )


def predicted(stage: Stage, anchor: Anchor) -> SimulationResult:
    """What the product says of a stage, request by request."""
    catalogue = Catalogue(card(stage.model), platform(GPU), engine_profile(ENGINE))
    _, result = predict_and_keep(deployment_of(stage), workload_of(stage), catalogue, mode=Mode.ANCHORED, anchor=anchor)
    if result is None:
        raise ValueError(f"{stage.experiment} {stage.stage}: open arrivals are always simulated")
    return result


def kernel_anchor(stage: Stage) -> Anchor:
    """The anchor file of a stage before anything of its run is read: kernel models at its lengths and at twice them."""
    deployment, workload = deployment_of(stage), workload_of(stage)
    model_card, gpu, profile = card(stage.model), platform(GPU), engine_profile(ENGINE)
    settings = effective_settings(profile, "", gpu, model_card, deployment)
    model = simulated_step(deployment, workload, model_card, gpu, profile, settings).model
    curve, precision = model.prefill, deployment.precision

    def sweep(times: int) -> dict[str, Any]:
        prompt, answer = times * stage.prompt_tokens, times * stage.output_tokens
        contexts = [(batch, batch * (prompt + answer / 2.0)) for batch in range(1, stage.max_running + 1)]
        return {
            "prompt_tokens": prompt,
            "output_tokens": answer,
            "kind": "scaled",
            "points": [
                {"batch": batch, "step_ms": model.decode_line(batch, context).at(context)}
                for batch, context in contexts
            ],
        }

    return checked(
        Anchor,
        {
            "schema_version": SCHEMA_VERSION,
            "name": f"{stage.model} at {stage.rate_per_s:g}/s",
            "signature": {
                "gpu": deployment.gpu,
                "engine": deployment.engine,
                "model": deployment.model,
                "weight_dtype": precision.weight,
                "linear_dtype": precision.linear,
                "expert_dtype": precision.expert,
                "kv_dtype": precision.kv,
                "tp": stage.tp,
            },
            "decode": [sweep(1), sweep(2)],
            "prefill": {
                "points": [{"tokens": stage.prompt_tokens, "step_ms": curve.prompt_ms(stage.prompt_tokens)}],
                "fixed_ms": curve.fixed_ms,
                "per_token_ms": curve.per_token_ms,
                "per_token2_ms": curve.per_token2_ms,
                "per_request_ms": curve.per_request_ms,
                "mixed_fixed_ms": curve.mixed_fixed_ms,
            },
            "provenance": {
                "real_weights": True,
                "prefix_cache_off": True,  # kernel models: nothing was read from a cache
                "source": "kernel models scaled to one public open-loop run",
                "coarse": True,
            },
        },
    )


def scaled(anchor: Anchor, factor: float) -> Anchor:
    """All steps of an anchor times a factor."""
    fit = anchor.prefill
    return replace(
        anchor,
        decode=tuple(
            replace(one, points=tuple(replace(point, step_ms=point.step_ms * factor) for point in one.points))
            for one in anchor.decode
        ),
        prefill=replace(
            fit,
            points=tuple(replace(point, step_ms=point.step_ms * factor) for point in fit.points),
            fixed_ms=fit.fixed_ms * factor,
            per_token_ms=fit.per_token_ms * factor,
            per_token2_ms=fit.per_token2_ms * factor,
            per_request_ms=fit.per_request_ms * factor,
            mixed_fixed_ms=fit.mixed_fixed_ms * factor,
        ),
    )


def anchor_stage(all_stages: Sequence[Stage], model: str) -> Stage:
    """The stage of a model's lowest rate that is not overloaded; the first by name among equals."""
    usable = [s for s in all_stages if s.model == model and not s.whole_run and not s.overloaded]
    return min(usable, key=lambda s: (s.rate_per_s, s.experiment))


def calibrated(stage: Stage, anchor: Anchor) -> Anchor:
    """The anchor with the factor and host time that make the stage's medians come out."""
    span_ms = stage.e2e_p50_ms - stage.ttft_p50_ms
    for _ in range(SCALE_ITERATIONS):
        result = predicted(stage, anchor)
        anchor = scaled(anchor, span_ms / (result.e2e_ms.p50 - result.ttft_ms.p50))
    host_ms = max(0.0, stage.ttft_p50_ms - predicted(stage, anchor).ttft_ms.p50)
    return replace(anchor, host=replace(anchor.host, per_request_ms=host_ms))


@dataclass(frozen=True, slots=True)
class OpenRow:
    """One row: measured and predicted statistics in ms, and what it counts as.

    ``role``: target; anchor; holds_anchor (a whole run of which the anchor is a stage); copy (a whole run that repeats
    its only stage); overloaded. ``held_rate``: whether the deployment is predicted to keep up.
    """

    stage: Stage
    predicted: Mapping[str, float]
    role: str
    held_rate: bool = True

    @property
    def measured(self) -> dict[str, float]:
        """What the client saw, by the predicted statistics' names."""
        return {key: float(getattr(self.stage, f"{key}_ms")) for key in RIVAL_METRICS}

    def ape_pct(self, metric: str) -> float:
        """Absolute percentage error."""
        return abs(self.predicted[metric] / self.measured[metric] - 1.0) * 100.0


def pooled(results: Sequence[SimulationResult], timeout_ms: float = float("inf")) -> dict[str, float]:
    """Statistics over the requests of one or several stages that end before the time-out."""
    columns = [result.requests for result in results]
    kept = [each["e2e_ms"] < timeout_ms for each in columns]
    samples = {
        metric: Samples.of(np.concatenate([each[f"{metric}_ms"][k] for each, k in zip(columns, kept, strict=True)]))
        for metric in ("e2e", "ttft")
    }
    return {
        f"{metric}_{name}": float(getattr(each, name)) for metric, each in samples.items() for name in ("mean", "p99")
    }


def holds_rate(result: SimulationResult, stage: Stage) -> bool:
    """Whether requests leave as fast as they come."""
    return result.completed / result.duration_ms * 1e3 >= HOLDS_RATE * stage.rate_per_s


def predicted_rows(all_stages: Sequence[Stage]) -> list[OpenRow]:
    """Every row of the file."""
    return [row for model in sorted({s.model for s in all_stages}) for row in _rows_of(all_stages, model)]


def _rows_of(all_stages: Sequence[Stage], model: str) -> list[OpenRow]:
    first = anchor_stage(all_stages, model)
    anchor = calibrated(first, kernel_anchor(first))
    found: list[OpenRow] = []
    runs: dict[str, list[tuple[Stage, SimulationResult]]] = {}
    own = [stage for stage in all_stages if stage.model == model]
    for stage in own:
        if not stage.whole_run:
            result = predicted(stage, anchor)
            runs.setdefault(stage.experiment, []).append((stage, result))
            role = "anchor" if stage == first else "overloaded" if stage.overloaded else "target"
            told = pooled([result], TIMEOUT_MS)
            found.append(OpenRow(stage, told, role, holds_rate(result, stage)))
    for stage in own:
        if stage.whole_run:
            parts = runs[stage.experiment]
            alone = "overloaded" if stage.overloaded else "copy"
            held = "holds_anchor" if stage.experiment == first.experiment else "target"
            told = pooled([result for _, result in parts], TIMEOUT_MS)
            rate = all(holds_rate(result, part) for part, result in parts)
            found.append(OpenRow(stage, told, alone if len(parts) == 1 else held, rate))
    return found


ROLES = ("target", "copy", "holds_anchor", "overloaded", "anchor")


def errors(found: Sequence[OpenRow]) -> dict[str, Any]:
    """Median errors of some rows."""
    medians = {f"{m}_median_ape_pct": round(median(row.ape_pct(m) for row in found), 2) for m in RIVAL_METRICS}
    return {"n": len(found), **medians}


def rivals(data: Path, ours: Sequence[OpenRow]) -> dict[str, Any]:
    """Other simulators: on the rows of ours that they were run on, and on all whole runs they were run on.

    ``stage_index`` -1 is a whole run. Rows are the same where experiment and stage are; the anchor stage is left out.
    """
    mine = {
        (row.stage.experiment, -1 if row.stage.whole_run else int(row.stage.stage.removeprefix("stage_"))): row
        for row in ours
        if row.role in ("target", "holds_anchor")
    }
    table = rows(data / SIMULATORS)
    result: dict[str, Any] = {}
    for name in sorted({row["simulator"] for row in table}):
        theirs = [row for row in table if row["simulator"] == name and row["metric_name"] in RIVAL_METRICS]
        same = [row for row in theirs if (row["experiment"], int(row["stage_index"])) in mine]
        keys = {(row["experiment"], int(row["stage_index"])) for row in same}
        entry: dict[str, Any] = {"all_whole_runs": _rival_errors([r for r in theirs if int(r["stage_index"]) == -1])}
        if same:
            entry["same_rows"] = _rival_errors(same)
            entry["ours_on_same_rows"] = errors([mine[key] for key in sorted(keys)])
        result[name] = entry
    return result


def _rival_errors(found: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    by_metric: dict[str, list[float]] = {}
    for row in found:
        error = abs(float(row["predicted"]) / float(row["actual"]) - 1.0) * 100.0
        by_metric.setdefault(row["metric_name"], []).append(error)
    medians = {f"{m}_median_ape_pct": round(median(each), 2) for m, each in sorted(by_metric.items())}
    return {"n": max((len(each) for each in by_metric.values()), default=0), **medians}


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """Predict all rows that are no anchor and compare."""
    data = data_dir(args.corpus)
    all_stages = stages(data)
    found = predicted_rows(all_stages)
    targets = [row for row in found if row.role == "target"]
    by_model = {
        model: errors([row for row in targets if row.stage.model == model])
        for model in sorted({row.stage.model for row in targets})
    }
    by_role = {role: [row for row in found if row.role == role] for role in ROLES}
    saturated = [row for row in found if not row.stage.whole_run]
    return {
        **errors(targets),
        "rows_in_file": len(all_stages),
        "predicted": len(found),
        "by_role": {role: errors(of_role) for role, of_role in by_role.items() if of_role},
        "all_but_anchors": errors([row for row in found if row.role not in ("anchor", "overloaded")]),
        "saturation": {
            "right": sum(row.held_rate is not row.stage.overloaded for row in saturated),
            "total": len(saturated),
        },
        "targets": {
            "e2e_mean_median_ape_pct": {"target": 10.0, "best_rival": 15.2},
            "ttft_mean_median_ape_pct": {"target": 18.0, "best_rival": 18.5},
        },
        "by_model": by_model,
        "rivals": rivals(data, found),
        "rows": [
            {
                "experiment": row.stage.experiment,
                "stage": row.stage.stage,
                "role": row.role,
                "held_rate": row.held_rate,
                "rate_per_s": row.stage.rate_per_s or None,
                **{
                    metric: {
                        "measured_ms": round(row.measured[metric], 2),
                        "predicted_ms": round(row.predicted[metric], 2),
                        "error_pct": round((row.predicted[metric] / row.measured[metric] - 1.0) * 100.0, 1),
                    }
                    for metric in RIVAL_METRICS
                },
            }
            for row in found
        ],
    }


if __name__ == "__main__":
    raise SystemExit(run(evaluate, parser(__doc__.splitlines()[0])))
