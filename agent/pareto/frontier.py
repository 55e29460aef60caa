"""The frontier of throughput per GPU against interactivity, tiers read off it, and whether splitting pays.

A point is dominated where another serves users at least as fast and a GPU at least as well, and one of them better; of
equals the one with the lower number stays. The result does not depend on the order in which points come.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.tiers import Tier

Row = Mapping[str, Any]  # a priced point as it lies in the sweep's file

X, Y = "interactivity_tok_s_user", "output_tok_s_per_gpu"
# Below this gain a verdict is a tie: the paper calls 1.02x one, and repeated runs differ by about as much.
TIE_SHARE = 0.02


@dataclass(slots=True)
class Frontier:
    """Non-dominated points, kept in order of interactivity; add points in any order."""

    _keys: list[tuple[float, int]] = field(default_factory=list)  # ascending in x, and so descending in y
    _rows: list[Row] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Keep the row if nothing dominates it, and drop what it dominates."""
        x, y, number = row[X], row[Y], row["i"]
        at = bisect_left(self._keys, (x, -1))
        if at < len(self._rows):
            right = self._rows[at]  # the slowest point that is at least as fast
            equal = right[X] == x and right[Y] == y
            if (right["i"] < number) if equal else (right[Y] >= y):
                return
        first = at
        while first > 0 and self._rows[first - 1][Y] <= y:
            first -= 1
        last = at
        while last < len(self._rows) and self._rows[last][X] == x and self._rows[last][Y] <= y:
            last += 1
        self._rows[first:last] = [row]
        self._keys[first:last] = [(x, number)]

    @property
    def rows(self) -> tuple[Row, ...]:
        """Slowest for users, and cheapest, first."""
        return tuple(self._rows)


@dataclass(slots=True)
class Best:
    """The row with most throughput per GPU; of equals the one with the lower number."""

    row: Row | None = None

    def add(self, row: Row) -> None:
        """Compare with the best so far."""
        if self.row is None or (row[Y], -row["i"]) > (self.row[Y], -self.row["i"]):
            self.row = row


KINDS = ("colocated", "split")


def kind_of(row: Row) -> str:
    """``split`` or ``colocated``."""
    return "split" if row["split"] else "colocated"


SeriesKey = tuple[str, str, str]  # engine, weight format, drafter


@dataclass(slots=True)
class Chart:
    """One model under one kind of traffic: its frontier, one for each line, and the best of each tier and kind."""

    model: str
    isl_tokens: int
    osl_tokens: int
    tiers: Sequence[Tier]
    trace: str = ""  # the trace's file, whose usual lengths those above are
    points: int = 0
    whole: Frontier = field(default_factory=Frontier)
    series: dict[SeriesKey, Frontier] = field(default_factory=dict)
    kinds: dict[tuple[str, bool], Frontier] = field(default_factory=dict)  # kind, whether it drafts
    best: dict[tuple[str, str, bool], Best] = field(default_factory=dict)  # tier, kind, whether it drafts

    @property
    def traffic(self) -> str:
        """What is served, for people."""
        return self.trace or f"{self.isl_tokens} in, {self.osl_tokens} out"

    def add(self, row: Row) -> None:
        """Take a priced point."""
        self.points += 1
        self.whole.add(row)
        key = (row["engine"], row["weight"], row["drafter"])
        self.series.setdefault(key, Frontier()).add(row)
        self.kinds.setdefault((kind_of(row), row["drafter"] != "none"), Frontier()).add(row)
        for tier in self.tiers:
            if tier.meets(row[X], row["ttft_ms"]):
                self.best.setdefault((tier.name, kind_of(row), row["drafter"] != "none"), Best()).add(row)

    def kinds_in_order(self) -> dict[str, Frontier]:
        """Frontiers of colocated and split deployments, without and with drafters, by name; empty ones left out."""
        names = {
            (kind, drafts): f"{kind}{', drafting' if drafts else ''}" for kind in KINDS for drafts in (False, True)
        }
        return {name: self.kinds[key] for key, name in names.items() if key in self.kinds}

    def tier_rows(self, tier: str, kind: str | None = None, drafting: bool | None = None) -> Row | None:
        """The best row of a tier, over kinds and drafters unless they are named."""
        best = Best()
        for (name, its_kind, drafts), found in self.best.items():
            wanted = name == tier and kind in (None, its_kind) and drafting in (None, drafts)
            if wanted and found.row is not None:
                best.add(found.row)
        return best.row


ChartKey = tuple[str, int, int, str]  # model, prompt and output tokens, trace


def chart_key(row: Row) -> ChartKey:
    """The chart on which a row belongs."""
    return row["model"], row["isl"], row["osl"], row["trace"]


def charts(rows: Iterable[Row], tiers: Sequence[Tier]) -> tuple[Chart, ...]:
    """Priced points as one chart a model and kind of traffic, in the order of their numbers."""
    found: dict[ChartKey, Chart] = {}
    first: dict[ChartKey, int] = {}
    for row in rows:
        key = model, isl, osl, trace = chart_key(row)
        if key not in found:
            found[key] = Chart(model, isl, osl, tiers, trace)
        found[key].add(row)
        first[key] = min(first.get(key, row["i"]), row["i"])
    return tuple(found[key] for key in sorted(found, key=lambda key: first[key]))


def verdict(colocated: Row | None, split: Row | None) -> dict[str, Any]:
    """Which kind serves a tier with more throughput per GPU; ``gain`` is split over colocated.

    >>> verdict({Y: 100.0, "i": 0}, {Y: 150.0, "i": 1})
    {'verdict': 'split', 'gain': 1.5}
    >>> verdict(None, None)
    {'verdict': 'neither', 'gain': None}
    """
    if colocated is None or split is None:
        only = "neither" if colocated is split else "only split" if colocated is None else "only colocated"
        return {"verdict": only, "gain": None}
    gain = split[Y] / colocated[Y]
    name = "split" if gain > 1.0 + TIE_SHARE else "colocated" if gain < 1.0 / (1.0 + TIE_SHARE) else "tie"
    return {"verdict": name, "gain": gain}


def chart_json(chart: Chart) -> dict[str, Any]:
    """A chart as plain JSON: frontiers as rows, tiers with their best and their verdicts."""
    return {
        "model": chart.model,
        "isl": chart.isl_tokens,
        "osl": chart.osl_tokens,
        "trace": chart.trace,
        "points": chart.points,
        "frontier": list(chart.whole.rows),
        "series": [
            {"engine": engine, "weight": weight, "drafter": drafter, "frontier": [row["i"] for row in line.rows]}
            for (engine, weight, drafter), line in sorted(chart.series.items())
        ],
        "tiers": [_tier_json(chart, tier) for tier in chart.tiers],
    }


def _tier_json(chart: Chart, tier: Tier) -> dict[str, Any]:
    """The best of a tier; the verdict is told without drafters too, whose acceptance depends on the traffic."""
    kinds = {kind: chart.tier_rows(tier.name, kind) for kind in KINDS}
    plain = {kind: chart.tier_rows(tier.name, kind, drafting=False) for kind in kinds}
    return {
        "tier": tier.name,
        "min_tok_s_user": tier.min_tok_s_user,
        "max_ttft_ms": tier.max_ttft_ms,
        "best": chart.tier_rows(tier.name),
        **kinds,
        **verdict(kinds["colocated"], kinds["split"]),
        "without_drafters": {**plain, **verdict(plain["colocated"], plain["split"])},
    }
