"""Figures of single deployments that are priced again: step, memory, latencies, a replica's timeline."""

from collections.abc import Mapping
from dataclasses import dataclass

from agent.charts.breakdown import memory_figure, step_figure
from agent.charts.figure import Figure
from agent.charts.latency import cdf_figure, lanes_figure, load_figure
from predictor.des.metrics import SimulationResult
from predictor.predict import Catalogue, predict_and_keep
from predictor.types import Deployment, Mode, Prediction, Workload


@dataclass(frozen=True, slots=True)
class Shown:
    """A deployment with its prediction and, where it was simulated, its requests."""

    deployment: Deployment
    prediction: Prediction
    result: SimulationResult | None

    @property
    def one_replica(self) -> bool:
        """Whether the simulated requests are one replica's: a split shows all of its replicas at once."""
        return self.deployment.prefill is None


def shown(deployment: Deployment, workload: Workload, catalogue: Catalogue, mode: Mode | None = None) -> Shown:
    """Price a deployment again, split pools request by request too."""
    method = "des" if deployment.prefill is not None else "auto"
    return Shown(deployment, *predict_and_keep(deployment, workload, catalogue, mode=mode, method=method))


def deployment_figures(prefix: str, found: Mapping[str, Shown], timeline_of: str) -> tuple[Figure, ...]:
    """Bars for all of them, curves for those that were simulated, and the timeline of one."""
    figures = [
        step_figure(f"{prefix}-step", {name: one.prediction.step_ms for name, one in found.items()}),
        memory_figure(f"{prefix}-memory", {name: one.prediction.memory for name, one in found.items()}),
    ]
    results = {name: one.result for name, one in found.items() if one.result is not None}
    if results:
        figures += latency_figures(prefix, results)
    chosen = found[timeline_of]
    if chosen.result is not None:
        figures += timeline_figures(prefix, timeline_of, chosen.result, chosen.one_replica)
    return tuple(figures)


def latency_figures(prefix: str, results: Mapping[str, SimulationResult]) -> tuple[Figure, ...]:
    """Cumulative shares of TTFT, ITL and E2E, a curve for each result."""
    return tuple(cdf_figure(f"{prefix}-{metric}", metric, results) for metric in ("ttft", "itl", "e2e"))


def timeline_figures(
    prefix: str, name: str, result: SimulationResult, one_replica: bool = True
) -> tuple[Figure, Figure]:
    """Requests over time, and some clients one by one."""
    return (
        load_figure(f"{prefix}-load", name, result, one_replica),
        lanes_figure(f"{prefix}-timeline", name, result, one_replica),
    )
