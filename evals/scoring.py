"""Errors, breakdowns, pairs and frontiers, the same for every corpus."""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any, TypeVar

from predictor.errors import InferaSimError

Target = TypeVar("Target")

DECISIVE = 1.03  # a pair counts when its measured values differ by more than 3%
WITHIN = 0.20

# Metrics of a scored row, and the key of their median error.
METRICS = ("tpot", "ttft", "total_tok_s_per_gpu", "interactivity", "throughput_proxy")


@dataclass(frozen=True, slots=True)
class Scored:
    """One target: measured and predicted values by metric, and labels to break down by."""

    measured: Mapping[str, float]
    predicted: Mapping[str, float]
    labels: dict[str, Any]

    def ape(self, metric: str) -> float:
        """Absolute percentage error of a metric."""
        return abs(self.predicted[metric] / self.measured[metric] - 1.0) * 100.0


def answered(
    targets: Iterable[Target],
    answer: Callable[[Target], Scored],
    name: Callable[[Target], str],
    refused: Counter[str] | None = None,
) -> list[Scored]:
    """Every target that the product prices. What it refuses is told on stderr and counted by the kind of refusal."""
    scored = []
    for target in targets:
        try:
            scored.append(answer(target))
        except InferaSimError as error:
            print(f"{name(target)}: {error}", file=sys.stderr)
            if refused is not None:
                refused[type(error).__name__] += 1
    return scored


def median_ape(rows: Iterable[Scored], metric: str) -> float | None:
    """Median absolute percentage error in percent; None without rows."""
    errors = [row.ape(metric) for row in rows if metric in row.measured and metric in row.predicted]
    return round(median(errors), 2) if errors else None


def within_20(rows: Sequence[Scored], metric: str) -> float | None:
    """Share of rows within 20%, in percent."""
    errors = [row.ape(metric) for row in rows if metric in row.measured and metric in row.predicted]
    return round(100.0 * sum(error <= 100 * WITHIN for error in errors) / len(errors), 1) if errors else None


def summary(rows: Sequence[Scored]) -> dict[str, Any]:
    """The keys every group of rows is reported under."""
    result: dict[str, Any] = {"n": len(rows)}
    for metric in METRICS:
        value = median_ape(rows, metric)
        if value is not None:
            result[f"{metric}_median_ape_pct"] = value
    result["within_20_pct"] = {m: w for m in METRICS if (w := within_20(rows, m)) is not None}
    return result


def breakdown(rows: Iterable[Scored], label: str) -> list[dict[str, Any]]:
    """Summaries by one label, largest group first."""
    groups: dict[str, list[Scored]] = defaultdict(list)
    for row in rows:
        groups[str(row.labels[label])].append(row)
    return [
        {label: name, **summary(group)} for name, group in sorted(groups.items(), key=lambda kv: (-len(kv[1]), kv[0]))
    ]


def quantile(ascending: Sequence[float], share: float) -> float | None:
    """Linear interpolation between order statistics; None without values.

    >>> quantile([0.0, 1.0, 2.0, 10.0], 0.5)
    1.5
    """
    if not ascending:
        return None
    at = share * (len(ascending) - 1)
    low = int(at)
    high = min(low + 1, len(ascending) - 1)
    return round(ascending[low] + (at - low) * (ascending[high] - ascending[low]), 2)


# ---- choices -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Option:
    """One deployment in a choice set: what was measured, what is predicted, and its GPUs."""

    measured: float
    predicted: float
    gpus: int
    name: str = ""
    is_prediction: bool = True  # False: an anchor row that takes part with its measured value


@dataclass(frozen=True, slots=True)
class PairScore:
    """Pairs compared and how many were right (ties half)."""

    pairs: int
    right: float

    @property
    def acc_pct(self) -> float | None:
        """Accuracy in percent; None without pairs."""
        return round(100.0 * self.right / self.pairs, 1) if self.pairs else None


def pair_score(
    sets: Iterable[Sequence[Option]],
    keep: Callable[[Option, Option], bool] = lambda a, b: True,
    by: Callable[[Option], float] = lambda option: option.predicted,
) -> PairScore:
    """Order of decisive pairs by any value of an option."""
    pairs, right = 0, 0.0
    for options in sets:
        for a, b in combinations(options, 2):
            high, low = max(a.measured, b.measured), min(a.measured, b.measured)
            told = a.is_prediction or b.is_prediction  # two anchor rows tell nothing
            if high <= DECISIVE * low or not told or not keep(a, b):
                continue
            pairs += 1
            mine = by(a) - by(b)
            right += 0.5 if mine == 0.0 else float((mine > 0.0) == (a.measured > b.measured))
    return PairScore(pairs, right)


def frontier(points: Sequence[tuple[float, float]]) -> set[int]:
    """Indices of points that no other point beats in both coordinates (higher is better)."""
    return {
        i
        for i, (x, y) in enumerate(points)
        if not any((a >= x and b >= y) and (a > x or b > y) for j, (a, b) in enumerate(points) if j != i)
    }


def spearman(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Rank correlation; None with fewer than three points or no spread."""
    if len(xs) < 3:
        return None
    a, b = _ranks(xs), _ranks(ys)
    mean = (len(a) + 1) / 2
    top = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    spread = (sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b)) ** 0.5
    return top / spread if spread else None


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=lambda i: values[i])
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for position in range(start, end + 1):
            ranks[order[position]] = (start + end) / 2 + 1
        start = end + 1
    return ranks
