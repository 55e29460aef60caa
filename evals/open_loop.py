"""Open-loop runs of vLLM on H100 at constant rates, one run a model as anchor (40 rows, with five rivals' errors).

``python -m evals.open_loop --json``. Steps are the kernel models' (simulated mode), scaled so that the anchor's median
E2E comes out; what its median TTFT has beyond the simulated one is host time of a request and kept. The anchor of a
model is its stage of the lowest rate that is not overloaded; medians, because a stall in the first seconds is part of
the mean and not of the step. Targets: E2E mean within 10%, TTFT mean within 18% at the median.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from evals.corpus import data_dir, parser, run
from evals.open_loop_runs import SIMULATORS, Stage, card, stages
from evals.request_runs import rows
from predictor.des.clients import OpenArrivals
from predictor.des.fleet import ReplicaSpec, simulate_fleet
from predictor.des.metrics import HostTimes, Samples, SimulationResult
from predictor.des.request import Request
from predictor.des.schedulers import scheduler_rules
from predictor.engines import effective_settings
from predictor.memory import memory
from predictor.profiles.loader import engine_profile, platform
from predictor.step.build_simulated import simulated_step
from predictor.step.model import DecodeLine, PrefillCurve, StepModel
from predictor.types import Deployment, Dtype, Layout, Precision, SchedulerSettings, Workload

ENGINE, GPU = "vLLM", "h100"
SCALE_ITERATIONS = 4
RIVAL_METRICS = ("e2e_mean", "e2e_p99", "ttft_mean", "ttft_p99")


class SharedPrompts:
    """Prefix cache of few prompts that come round again: after one round all their whole blocks are resident."""

    def __init__(self, block_tokens: int, system_tokens: int) -> None:
        self._block = block_tokens
        self._system = system_tokens
        self._seen: set[int] = set()

    def lookup(self, request: Request) -> int:
        """All whole blocks before the last token of a known prompt, else those of the shared system prompt."""
        known = request.prompt_tokens - 1 if request.payload in self._seen else self._system if self._seen else 0
        return known // self._block * self._block

    def insert(self, request: Request) -> None:
        """The prompt is known from now on."""
        self._seen.add(request.payload)


@dataclass(frozen=True, slots=True)
class ScaledSteps:
    """A step model times a factor."""

    base: StepModel
    factor: float

    @property
    def prefill(self) -> PrefillCurve:
        """Scaled coefficients."""
        curve, k = self.base.prefill, self.factor
        return PrefillCurve(
            curve.fixed_ms * k,
            curve.per_token_ms * k,
            curve.per_token2_ms * k,
            curve.mixed_fixed_ms * k,
            curve.per_request_ms * k,
        )

    @property
    def tokens_per_step(self) -> float:
        """As the base's."""
        return self.base.tokens_per_step

    def decode_line(self, batch: int, context_tokens: float = 0.0) -> DecodeLine:
        """Scaled line."""
        line = self.base.decode_line(batch, context_tokens)
        return DecodeLine(
            line.intercept_ms * self.factor, line.slope_ms_per_token * self.factor, line.end_context_tokens
        )


@dataclass(frozen=True, slots=True)
class Served:
    """One model on its GPUs: kernel steps with the anchor's factor, pool, host time of a request."""

    steps: StepModel
    kv_tokens: int
    factor: float = 1.0
    host_ms: float = 0.0


def kernel_steps(stage: Stage) -> Served:
    """Steps and pool of a stage's deployment from kernel models and the memory model."""
    model_card, gpu, profile = card(stage.model), platform(GPU), engine_profile(ENGINE)
    deployment = Deployment(
        stage.model,
        GPU,
        ENGINE,
        layout=Layout(tp=stage.tp),
        precision=Precision(weight=Dtype.BF16, linear=Dtype.BF16, expert=Dtype.BF16, kv=Dtype.BF16),
        scheduler=SchedulerSettings(max_running=stage.max_running, token_budget=stage.token_budget),
    )
    settings = effective_settings(profile, "", gpu, model_card, deployment)
    workload = Workload(stage.prompt_tokens, stage.output_tokens, concurrency=stage.max_running)
    step = simulated_step(deployment, workload, model_card, gpu, profile, settings)
    return Served(step.model, memory(model_card, gpu, deployment, settings).kv_pool_tokens)


def simulate_stage(served: Served, stage: Stage) -> SimulationResult:
    """All requests of a stage at equal gaps."""
    rules = scheduler_rules(
        ENGINE, "", SchedulerSettings(max_running=stage.max_running, token_budget=stage.token_budget)
    )

    def requests() -> Iterator[Request]:
        for i in range(stage.requests):
            yield Request(i, stage.prompt_tokens, stage.output_tokens, payload=i % stage.distinct_prompts)

    spec = ReplicaSpec(
        ScaledSteps(served.steps, served.factor),
        rules,
        served.kv_tokens // rules.block_tokens,
        prefix_cache=lambda: SharedPrompts(rules.block_tokens, stage.system_tokens),
    )
    return simulate_fleet(
        spec,
        source=lambda clock: OpenArrivals(requests(), repeat(1000.0 / stage.rate_per_s), clock),
        host=HostTimes(served.host_ms),
    )


def anchor_of(all_stages: Sequence[Stage], model: str) -> Stage:
    """The stage of a model's lowest rate that is not overloaded; the first by name among equals."""
    usable = [s for s in all_stages if s.model == model and not s.whole_run and not s.overloaded]
    return min(usable, key=lambda s: (s.rate_per_s, s.experiment))


def calibrated(anchor: Stage) -> Served:
    """Factor and host time that make the anchor's medians come out."""
    served = kernel_steps(anchor)
    span_ms = anchor.e2e_p50_ms - anchor.ttft_p50_ms
    for _ in range(SCALE_ITERATIONS):
        result = simulate_stage(served, anchor)
        served = replace(served, factor=served.factor * span_ms / (result.e2e_ms.p50 - result.ttft_ms.p50))
    return replace(served, host_ms=max(0.0, anchor.ttft_p50_ms - simulate_stage(served, anchor).ttft_ms.p50))


@dataclass(frozen=True, slots=True)
class OpenRow:
    """One row: measured and predicted statistics in ms, and whether it counts as a target."""

    stage: Stage
    predicted: Mapping[str, float]
    role: str  # target, anchor, or holds_anchor (a whole run of which the anchor is a stage)

    @property
    def measured(self) -> dict[str, float]:
        """What the client saw, by the predicted statistics' names."""
        return {key: float(getattr(self.stage, f"{key}_ms")) for key in RIVAL_METRICS}

    def ape_pct(self, metric: str) -> float:
        """Absolute percentage error."""
        return abs(self.predicted[metric] / self.measured[metric] - 1.0) * 100.0


def pooled(results: Sequence[SimulationResult]) -> dict[str, float]:
    """Statistics over the requests of one or several stages."""
    columns = [result.requests for result in results]
    samples = {
        metric: Samples.of(np.concatenate([each[f"{metric}_ms"] for each in columns])) for metric in ("e2e", "ttft")
    }
    return {
        f"{metric}_{name}": float(getattr(each, name)) for metric, each in samples.items() for name in ("mean", "p99")
    }


def predicted_rows(all_stages: Sequence[Stage]) -> list[OpenRow]:
    """Every row that is not overloaded and no plain copy of its only stage."""
    result: list[OpenRow] = []
    for model in sorted({stage.model for stage in all_stages}):
        anchor = anchor_of(all_stages, model)
        served = calibrated(anchor)
        usable = [stage for stage in all_stages if stage.model == model and not stage.overloaded]
        runs: dict[str, list[SimulationResult]] = {}
        for stage in usable:
            if not stage.whole_run:
                simulated = simulate_stage(served, stage)
                runs.setdefault(stage.experiment, []).append(simulated)
                result.append(OpenRow(stage, pooled([simulated]), "anchor" if stage == anchor else "target"))
        for stage in usable:
            if stage.whole_run and len(runs[stage.experiment]) > 1:
                role = "holds_anchor" if stage.experiment == anchor.experiment else "target"
                result.append(OpenRow(stage, pooled(runs[stage.experiment]), role))
    return result


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
        if row.role != "anchor"
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
    overloaded = sum(stage.overloaded for stage in all_stages)
    return {
        **errors(targets),
        "rows_in_file": len(all_stages),
        "left_out": {
            "anchor": sum(row.role == "anchor" for row in found),
            "whole run with the anchor among its stages": sum(row.role == "holds_anchor" for row in found),
            "whole run that repeats its only stage": len(all_stages) - len(found) - overloaded,
            "overloaded: requests failed by timeout": overloaded,
        },
        "by_model": by_model,
        "rivals": rivals(data, found),
        "rows": [
            {
                "experiment": row.stage.experiment,
                "stage": row.stage.stage,
                "role": row.role,
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
