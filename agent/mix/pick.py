"""The planner's rule (paper §4.1): who qualifies for a tier, which one is picked, and who is on the short list.

A candidate qualifies if it meets the tier's interactivity and its predicted TTFT is at most half the limit, which
covers the error of predicted TTFT. Of those within 5% of the best throughput per GPU, the one with most headroom is
picked.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.pareto.frontier import X, Y
from agent.tiers import Tier

Row = Mapping[str, Any]

TTFT_SHARE = 0.5  # of the limit: predicted TTFT may be that far off (paper §4.1, §5.6)
NEAR_BEST = 0.95  # of the best throughput per GPU (paper §4.1)
SHORT_LIST = 5  # paper §5.11


@dataclass(frozen=True, slots=True)
class Miss:
    """The candidate nearest to a tier that nothing meets, and by how much it misses."""

    row: Row
    shortfall: float
    misses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """One model and tier: the pick, its short list, or the nearest miss."""

    model: str
    tier: Tier
    qualified: int
    pick: Row | None
    shortlist: tuple[Row, ...]
    nearest: Miss | None

    @property
    def headroom(self) -> float | None:
        """Factor by which the pick clears the nearer limit; None without a pick or without limits."""
        found = None if self.pick is None else headroom(self.pick, self.tier)
        return None if found is None or found == float("inf") else found


def family(row: Row) -> Hashable:
    """What the short list shows once: the same layout at another load is not another choice."""
    return row["engine"], row["weight"], row["kv"], row["label"], row["drafter"]


def headroom(row: Row, tier: Tier) -> float:
    """The nearer limit's factor, against half the TTFT limit."""
    return tier.headroom(row[X], row["ttft_ms"], TTFT_SHARE)


def qualifies(row: Row, tier: Tier) -> bool:
    """Interactivity met, and predicted TTFT at most half the limit."""
    return tier.meets(row[X], row["ttft_ms"], TTFT_SHARE)


@dataclass(slots=True)
class Filler:
    """One slot in the making: takes candidates one at a time and keeps only those that may still matter."""

    model: str
    tier: Tier
    distinct: Callable[[Row], Hashable] = family
    _qualified: int = 0
    _near: list[Row] = field(default_factory=list)  # within 5% of the best so far
    _best_of: dict[Hashable, Row] = field(default_factory=dict)  # the best of each choice
    _closest: Row | None = None  # of those that do not qualify

    def add(self, row: Row) -> None:
        """Consider a candidate."""
        if not qualifies(row, self.tier):
            if self._closest is None or _miss_key(row, self.tier) < _miss_key(self._closest, self.tier):
                self._closest = row
            return
        self._qualified += 1
        choice = self.distinct(row)
        if choice not in self._best_of or _by_throughput(row) < _by_throughput(self._best_of[choice]):
            self._best_of[choice] = row
        best = max((one[Y] for one in self._near), default=0.0)
        if row[Y] >= NEAR_BEST * best:
            floor = NEAR_BEST * max(best, row[Y])
            self._near = [one for one in (*self._near, row) if one[Y] >= floor]

    def slot(self) -> Slot:
        """The decision on what was seen."""
        if not self._near:
            nearest = None if self._closest is None else nearest_miss(self._closest, self.tier)
            return Slot(self.model, self.tier, 0, None, (), nearest)
        pick = max(self._near, key=lambda row: (headroom(row, self.tier), row[Y], -row["i"]))
        others = sorted((row for key, row in self._best_of.items() if key != self.distinct(pick)), key=_by_throughput)
        return Slot(self.model, self.tier, self._qualified, pick, (pick, *others[: SHORT_LIST - 1]), None)


def fill(model: str, tier: Tier, rows: Iterable[Row], distinct: Callable[[Row], Hashable] = family) -> Slot:
    """Decide one slot from the model's candidates, in whatever order they come."""
    filler = Filler(model, tier, distinct)
    for row in rows:
        filler.add(row)
    return filler.slot()


def _by_throughput(row: Row) -> tuple[float, int]:
    """Sorts the best first; of equals the lower number."""
    return -row[Y], row["i"]


def _miss_key(row: Row, tier: Tier) -> tuple[float, float, int]:
    """Sorts the nearest miss first; of equals the cheaper one."""
    return tier.shortfall(row[X], row["ttft_ms"], TTFT_SHARE), *_by_throughput(row)


def nearest_miss(row: Row, tier: Tier) -> Miss:
    """A candidate as a miss, with every limit it misses in words."""
    return Miss(row, tier.shortfall(row[X], row["ttft_ms"], TTFT_SHARE), tuple(told_misses(row, tier)))


def told_misses(row: Row, tier: Tier) -> list[str]:
    """Each missed limit in words."""
    said: list[str] = []
    if row[X] < tier.min_tok_s_user:
        said.append(f"interactivity {row[X]:.4g} of {tier.min_tok_s_user:g} tok/s/user")
    limit = tier.ttft_limit_ms(TTFT_SHARE)
    if row["ttft_ms"] > limit:
        said.append(f"TTFT {row['ttft_ms']:,.0f} ms against {limit:,.0f} (half of {tier.max_ttft_ms:,.0f})")
    return said
