"""Split-conformal widths from residuals, by kind, and their coverage on stacks that were not used.

A residual is ``|ln(measured / predicted)|``. With n of them the 80% width is the ``ceil(0.8·(n+1))``-th smallest, which
covers a further exchangeable row with chance of at least 80% (Vovk; Lei et al. 2018). Rows of one stack are alike, so
the check leaves whole stacks out.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp
from statistics import median

SHARE = 0.8
# A kind needs stacks on both sides of a split, and one stack's habits must not be its width.
MIN_STACKS = 6


@dataclass(frozen=True, slots=True)
class Residual:
    """One metric of one scored row."""

    stack: str
    kind: str
    metric: str
    size: float  # |ln(measured / predicted)|


Key = tuple[str, str]  # kind, metric
Widths = Mapping[Key, float]


def conformal_quantile(sizes: Iterable[float], share: float = SHARE) -> float:
    """The width that covers a further row with at least this chance; infinite where there are too few.

    >>> conformal_quantile([0.1, 0.2, 0.3, 0.4])
    0.4
    >>> conformal_quantile([0.1, 0.2, 0.3])
    inf
    """
    ascending = sorted(sizes)
    rank = ceil(share * (len(ascending) + 1) - 1e-9)
    return ascending[rank - 1] if rank <= len(ascending) else float("inf")


def widths(residuals: Iterable[Residual]) -> dict[Key, float]:
    """Width of each kind and metric; those with too few rows are left out."""
    sizes: dict[Key, list[float]] = defaultdict(list)
    for one in residuals:
        sizes[one.kind, one.metric].append(one.size)
    found = {key: conformal_quantile(values) for key, values in sizes.items()}
    return {key: width for key, width in found.items() if width < float("inf")}


def enough_stacks(residuals: Iterable[Residual], least: int = MIN_STACKS) -> set[Key]:
    """Kinds and metrics measured on enough stacks."""
    stacks: dict[Key, set[str]] = defaultdict(set)
    for one in residuals:
        stacks[one.kind, one.metric].add(one.stack)
    return {key for key, names in stacks.items() if len(names) >= least}


def halves(residuals: Sequence[Residual], seed: int | None = None) -> tuple[list[Residual], list[Residual]]:
    """Two halves of the stacks: every second by name, or shuffled by a seed."""
    stacks = sorted({one.stack for one in residuals})
    if seed is not None:
        random.Random(seed).shuffle(stacks)
    first = set(stacks[::2])
    return [r for r in residuals if r.stack in first], [r for r in residuals if r.stack not in first]


@dataclass(frozen=True, slots=True)
class Check:
    """One row held against a width that its own stack had no part in."""

    residual: Residual
    width: float

    @property
    def inside(self) -> bool:
        """Whether the interval held."""
        return self.residual.size <= self.width


def check(known: Widths, others: Iterable[Residual]) -> list[Check]:
    """Rows of other stacks against calibrated widths; kinds without a width are left out."""
    return [Check(one, known[one.kind, one.metric]) for one in others if (one.kind, one.metric) in known]


def check_both_ways(residuals: Sequence[Residual], seed: int | None = None) -> list[Check]:
    """Each half of the stacks against the widths of the other."""
    first, second = halves(residuals, seed)
    return [*check(widths(first), second), *check(widths(second), first)]


def coverage_pct(checks: Sequence[Check]) -> float | None:
    """Share of rows inside, in percent; None without rows."""
    return round(100.0 * sum(one.inside for one in checks) / len(checks), 1) if checks else None


def median_width_pct(checks: Sequence[Check]) -> float | None:
    """Median over rows of the whole interval, upper minus lower bound in percent of the prediction."""
    return round(median(100.0 * (exp(one.width) - exp(-one.width)) for one in checks), 1) if checks else None
