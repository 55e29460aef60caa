"""Frontiers of measured configurations: hits, what deploying from the predicted one loses, colocated or split.

A chart is one GPU, model and request shape: all engines, precisions, layouts, loads and drafters. Its frontier is
throughput per GPU against interactivity. Every point of a chart was measured, so each pick can be checked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from agent.tiers import Tier
from evals.candidates import Candidate, grouped
from evals.scoring import frontier, quantile, spearman

Chart = Sequence[Candidate]

# A deployment may be that much slower for a user than what was asked for (paper §5.8, "at most 3% lower").
SLOWER_ALLOWED = 0.03
NOTHING_SERVES_PCT = 100.0


def charts(every: Sequence[Candidate]) -> list[list[Candidate]]:
    """Charts with at least one predicted point: a chart of anchors alone tells nothing."""
    groups = grouped(every, lambda c: (c.gpu, c.model, c.shape))
    return [chart for chart in groups if any(c.is_prediction for c in chart)]


def measured_frontier(chart: Chart) -> list[int]:
    """Points that no measured point beats, in order of the chart."""
    return sorted(frontier([(c.interactivity, c.per_gpu) for c in chart]))


def predicted_frontier(chart: Chart) -> list[int]:
    """Points that no predicted point beats, in order of the chart."""
    return sorted(frontier([(c.predicted_interactivity, c.predicted_per_gpu) for c in chart]))


def deployed_lost_pct(chart: Chart) -> list[float]:
    """For each configuration of the predicted frontier, as measured: throughput per GPU below the best of the chart.

    The best is the best measured among those that serve users at least as fast as the configuration really does.
    """
    losses = []
    for i in predicted_frontier(chart):
        deployed = chart[i]
        best = max(c.per_gpu for c in chart if c.interactivity >= deployed.interactivity)
        losses.append(100.0 * (1.0 - deployed.per_gpu / best))
    return losses


def asked_lost_pct(chart: Chart) -> list[float]:
    """For each measured frontier point: throughput per GPU given up by choosing among the predicted frontier only.

    The best of the predicted frontier that serves users as fast (3% allowed), by what it measured.
    """
    predicted = [chart[i] for i in predicted_frontier(chart)]
    losses = []
    for i in measured_frontier(chart):
        wanted = chart[i]
        serves = [c for c in predicted if c.interactivity >= (1.0 - SLOWER_ALLOWED) * wanted.interactivity]
        best = max((c.per_gpu for c in serves), default=None)
        losses.append(NOTHING_SERVES_PCT if best is None else 100.0 * max(0.0, 1.0 - best / wanted.per_gpu))
    return losses


@dataclass(frozen=True, slots=True)
class Asked:
    """One speed asked for: what the configuration picked by prediction alone turned out to be."""

    lost_pct: float  # throughput per GPU below the best that serves the speed
    slower_pct: float  # interactivity below the speed asked for


def picked_by_prediction(chart: Chart) -> list[Asked]:
    """For each measured frontier point's speed: take the most throughput per GPU predicted at that speed.

    Nobody may look at a measurement. What is predicted to serve nowhere takes the fastest prediction.
    """
    found = []
    for i in measured_frontier(chart):
        wanted = chart[i]
        serves = [c for c in chart if c.predicted_interactivity >= wanted.interactivity]
        pick = (
            max(serves, key=lambda c: c.predicted_per_gpu)
            if serves
            else max(chart, key=lambda c: c.predicted_interactivity)
        )
        found.append(
            Asked(
                100.0 * max(0.0, 1.0 - pick.per_gpu / wanted.per_gpu),
                100.0 * max(0.0, 1.0 - pick.interactivity / wanted.interactivity),
            )
        )
    return found


# ---- colocated or split --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decision:
    """One chart and tier: which kind gives more throughput per GPU, measured and predicted."""

    chart: str
    tier: str
    measured: str  # "split" or "colocated"
    predicted: str  # or "neither"
    measured_gain: float | None  # split over colocated; None where one kind only meets the tier

    @property
    def right(self) -> bool:
        """Whether the prediction names the measured winner."""
        return self.measured == self.predicted


def winner(best: dict[bool, float]) -> str:
    """The kind with more throughput per GPU; ``best`` by whether it is a split.

    >>> winner({True: 3.0, False: 2.0}), winner({}), winner({False: 1.0})
    ('split', 'neither', 'colocated')
    """
    if not best:
        return "neither"
    return "split" if best.get(True, 0.0) > best.get(False, 0.0) else "colocated"


def decisions(chart: Chart, tiers: Sequence[Tier]) -> list[Decision]:
    """Decisions of a chart with both kinds. The corpus has no TTFT, so a tier is its interactivity alone."""
    if len({c.split for c in chart}) < 2:
        return []
    found = []
    for tier in tiers:
        measured: dict[bool, float] = {}
        predicted: dict[bool, float] = {}
        for c in chart:
            if c.interactivity >= tier.min_tok_s_user:
                measured[c.split] = max(measured.get(c.split, 0.0), c.per_gpu)
            if c.predicted_interactivity >= tier.min_tok_s_user:
                predicted[c.split] = max(predicted.get(c.split, 0.0), c.predicted_per_gpu)
        if measured:
            gain = round(measured[True] / measured[False], 3) if len(measured) == 2 else None
            found.append(Decision(chart_name(chart), tier.name, winner(measured), winner(predicted), gain))
    return found


def chart_name(chart: Chart) -> str:
    """GPU, model and shape."""
    first = chart[0]
    return f"{first.gpu}/{first.model}/{first.shape[0]}x{first.shape[1]}"


# ---- the report ----------------------------------------------------------------------------------------------------


def score_charts(every: Sequence[Candidate]) -> dict[str, Any]:
    """Charts, points, rank, hits and losses."""
    found = charts(every)
    hits = frontier_points = 0
    ranks: list[float] = []
    deployed: list[float] = []
    asked: list[float] = []
    picked: list[Asked] = []
    for chart in found:
        measured = set(measured_frontier(chart))
        hits += len(measured & set(predicted_frontier(chart)))
        frontier_points += len(measured)
        rank = spearman([c.per_gpu for c in chart], [c.predicted_per_gpu for c in chart])
        ranks += [rank] if rank is not None else []
        deployed += deployed_lost_pct(chart)
        asked += asked_lost_pct(chart)
        picked += picked_by_prediction(chart)
    return {
        "charts": len(found),
        "points": sum(len(chart) for chart in found),
        "predicted_points": sum(c.is_prediction for chart in found for c in chart),
        "spearman_median": round(median(ranks), 4) if ranks else None,
        "frontier_points": frontier_points,
        "frontier_hit_pct": round(100.0 * hits / frontier_points, 1) if frontier_points else None,
        "throughput_lost_pct": percentiles(deployed),
        "asked_speed_lost_pct": percentiles(asked),
        "picked_by_prediction": {
            "throughput_lost_pct": percentiles([a.lost_pct for a in picked]),
            "slower_pct": percentiles([a.slower_pct for a in picked]),
        },
    }


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """Median and 90th percentile."""
    ascending = sorted(values)
    return {"p50": quantile(ascending, 0.5), "p90": quantile(ascending, 0.9)}
