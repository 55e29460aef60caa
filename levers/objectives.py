"""Objectives by name, and service-level bounds on any latency or objective.

The objectives themselves are data in :mod:`levers.catalog.objectives`.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from levers.catalog.objectives import BY_NAME, OBJECTIVES, Direction, Objective, objective
from levers.reasons import Reason
from predictor.errors import BadInput, unknown_name
from predictor.types import Distribution, Prediction

__all__ = [
    "OBJECTIVES",
    "Direction",
    "Objective",
    "Slo",
    "objective",
    "parse_slo",
    "shortfall",
    "violations",
]

LATENCIES: dict[str, Callable[[Prediction], Distribution]] = {
    "ttft_ms": lambda p: p.ttft_ms,
    "tpot_ms": lambda p: p.tpot_ms,
    "itl_ms": lambda p: p.itl_ms,
    "e2e_ms": lambda p: p.e2e_ms,
}
STATISTICS = ("mean", "p50", "p90", "p99")
COST = "usd_per_mtok"  # a bound, no objective: at one price it orders deployments as throughput per GPU does
SLO_METRICS = (*dict.fromkeys((*LATENCIES, *(f"{x}_{s}" for x in LATENCIES for s in STATISTICS), *BY_NAME, COST)),)
SLO_FORM = re.compile(r"\s*([A-Za-z0-9_]+)\s*(<=|>=)\s*([^\s<>=]+)\s*")


@dataclass(frozen=True, slots=True)
class Slo:
    """A bound on one metric."""

    metric: str
    upper: bool  # True: at most the bound
    bound: float

    @property
    def text(self) -> str:
        """As it is written on the command line."""
        return f"{self.metric}{'<=' if self.upper else '>='}{self.bound:g}"

    def read(self, prediction: Prediction) -> float | None:
        """The metric's predicted value, or None where the prediction does not hold it."""
        name, _, statistic = self.metric.rpartition("_")
        if name in LATENCIES and statistic in STATISTICS:
            value: float | None = getattr(LATENCIES[name](prediction), statistic)
            return value
        if self.metric in LATENCIES:
            return LATENCIES[self.metric](prediction).mean
        if self.metric == COST:
            return prediction.extras.get(COST)
        return BY_NAME[self.metric].score(prediction)


def parse_slo(text: str) -> Slo:
    """Read ``METRIC<=NUMBER`` or ``METRIC>=NUMBER``: a latency's mean or percentile, or any objective.

    >>> parse_slo("ttft_ms_p99<=2000")
    Slo(metric='ttft_ms_p99', upper=True, bound=2000.0)
    """
    match = SLO_FORM.fullmatch(text)
    if match is None:
        raise BadInput(f"slo {text!r}: write METRIC<=NUMBER or METRIC>=NUMBER, such as ttft_ms_p99<=2000")
    metric, relation, number = match.groups()
    if metric not in SLO_METRICS:
        raise unknown_name("slo metric", metric, SLO_METRICS)
    try:
        bound = float(number)
    except ValueError:
        raise BadInput(f"slo {text!r}: {number!r} is not a number") from None
    if not 0 <= bound < float("inf"):
        raise BadInput(f"slo {text!r}: the bound must be 0 or more")
    return Slo(metric, relation == "<=", bound)


def violations(prediction: Prediction, slos: Iterable[Slo]) -> tuple[Reason, ...]:
    """Every bound the prediction misses, with its value and the bound; an unknown value is a miss."""
    return tuple(reason for slo in slos if (reason := _violation(prediction, slo)))


def _violation(prediction: Prediction, slo: Slo) -> Reason | None:
    value = slo.read(prediction)
    if value is None:
        why = (
            "there is no price: give --usd-per-gpu-h"
            if slo.metric == COST
            else f"a {prediction.method} prediction does not yield {slo.metric}; simulate it"
        )
        return Reason(f"slo_{slo.metric}_unknown", f"{slo.text} cannot be checked: {why}")
    if (value <= slo.bound) if slo.upper else (value >= slo.bound):
        return None
    side = "over" if slo.upper else "under"
    return Reason(f"slo_{slo.metric}", f"{slo.metric} is {value:,.4g}, {side} the bound of {slo.bound:,g}")


def shortfall(prediction: Prediction, slos: Iterable[Slo]) -> float:
    """How far a prediction is from meeting its bounds: the sum of relative misses; 0 when all are met.

    An unknown value counts as a miss by its whole bound.
    """
    return sum(_miss(slo.read(prediction), slo) for slo in slos)


def _miss(value: float | None, slo: Slo) -> float:
    if value is None:
        return 1.0
    over = value - slo.bound if slo.upper else slo.bound - value
    return max(0.0, over) / max(abs(slo.bound), 1e-12)
