"""What a search has asked and been told: candidates, results, the best so far, and what is never asked."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from levers.baseline import Fits
from levers.catalog import LEVERS
from levers.context import LeverValue, SearchContext
from levers.legality import illegal_reasons, memory_fits
from levers.lever import show
from levers.neighbours import BLOCK_OF, Changes, block_value, blocks_of
from levers.reasons import Reason
from levers.space import Setting, to_deployment
from predictor.types import Deployment, Workload

LOOKED_AT = 400  # settings a round looks at, new or not
ROUND = 24  # candidates a round asks for, at most, where nothing else limits it
Launched = tuple[Deployment, Workload]
Offer = tuple[str, str | Changes, Setting]  # origin, name or changes, setting


@dataclass(frozen=True, slots=True)
class Candidate:
    """One setting to price: its number in the search, where it came from, and what it launches."""

    number: int
    origin: str  # baseline, seed, combine, polish
    name: str
    setting: Setting
    deployment: Deployment
    workload: Workload


@dataclass(frozen=True, slots=True)
class Result:
    """What a candidate was told: larger is better in every field."""

    candidate: Candidate
    legal: bool
    score: float  # signed so that larger is better; -inf where there is none
    shortfall: float  # how far from legal, 0 when legal

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Legal first, then nearer to legal, then the better score."""
        return self.legal, -self.shortfall, self.score


@dataclass(slots=True)
class Board:
    """State of one search. ``fits`` judges memory before a candidate is asked."""

    context: SearchContext
    budget: int
    base: Setting
    fits: Fits | None = None
    best: Result | None = None
    values: dict[str, tuple[LeverValue, ...]] = field(default_factory=dict)  # by lever, what may still be tried
    results: dict[int, Result] = field(default_factory=dict)
    asked: dict[Launched, Candidate] = field(default_factory=dict)
    _refusals: dict[Launched, tuple[Reason, ...]] = field(default_factory=dict)
    _offered: dict[Setting, Candidate | None] = field(default_factory=dict)
    _moved: dict[int, frozenset[str]] = field(default_factory=dict)  # by result, the blocks it moved from the baseline

    def __post_init__(self) -> None:
        self.values = {lever.name: lever.values(self.context) for lever in LEVERS}

    def refuse(self, deployment: Deployment, workload: Workload) -> tuple[Reason, ...]:
        """Why a deployment is never asked: its structure, or its memory; found once for each."""
        launched = deployment, workload
        if launched not in self._refusals:
            fits = self.fits or partial(memory_fits, context=self.context)
            reasons = illegal_reasons(deployment, workload, self.context) or fits(deployment, workload)
            self._refusals[launched] = reasons
        return self._refusals[launched]

    def round(self, offers: Iterable[Offer], limit: int = ROUND) -> tuple[list[Candidate], list[Result]]:
        """New candidates among the offers, and results of those asked before; neither once the budget is used."""
        new: list[Candidate] = []
        known: list[Result] = []
        if len(self.asked) >= self.budget:
            return new, known  # nothing can be taken: do not walk the neighbourhood
        for origin, label, setting in islice(offers, LOOKED_AT):
            if len(new) >= limit or len(self.asked) >= self.budget:
                break
            if setting in self._offered:
                known += self._known(self._offered[setting])
                continue
            launched = to_deployment(setting, self.context)
            candidate = self.asked.get(launched)
            known += self._known(candidate)
            if candidate is None and not self.refuse(*launched):
                candidate = Candidate(len(self.asked), origin, label_text(label), setting, *launched)
                self.asked[launched] = candidate
                new.append(candidate)
            self._offered[setting] = candidate
        return new, known

    def enter(self, origin: str, name: str, setting: Setting) -> Candidate | None:
        """Note a setting that somebody else proposed; None where its deployment was asked before."""
        launched = to_deployment(setting, self.context)
        candidate = None
        if launched not in self.asked:
            candidate = Candidate(len(self.asked), origin, name, setting, *launched)
            self.asked[launched] = candidate
        self._offered[setting] = self.asked[launched]
        return candidate

    def _known(self, candidate: Candidate | None) -> list[Result]:
        result = self.results.get(candidate.number) if candidate else None
        return [result] if result else []

    def told(self, results: Iterable[Result]) -> None:
        """Take a finished round, in the order it was asked; the earlier of equals stays best."""
        for result in results:
            if self.best is None or result.rank > self.best.rank:
                self.best = result

    def result_of(self, setting: Setting) -> Result | None:
        """What a setting was told, if it was asked."""
        candidate = self.asked.get(to_deployment(setting, self.context))
        return self.results.get(candidate.number) if candidate else None

    def ranked(self) -> list[Result]:
        """Results, best first; the earlier of equals first."""
        in_order = (self.results[number] for number in sorted(self.results))
        return sorted(in_order, key=lambda result: result.rank, reverse=True)

    def by_effect(self) -> list[str]:
        """Blocks with a choice, by how much results that moved them differ from the baseline's, largest first."""
        start = self.results[0]
        effect = {BLOCK_OF.get(name, name): 0.0 for name, values in self.values.items() if len(values) > 1}
        for number, result in self.results.items():
            if number not in self._moved:
                self._moved[number] = blocks_of(result.candidate.setting.differences(self.base))
            changed = self._moved[number] & effect.keys()
            if math.isfinite(result.score) and math.isfinite(start.score):
                for block in changed:
                    effect[block] = max(effect[block], abs(result.score - start.score) / len(changed))
        return sorted(effect, key=lambda block: -effect[block])

    def best_with_other(self, block: str, count: int) -> list[Result]:
        """The best result of each of the ``count`` best values of a block that the best result does not have."""
        assert self.best is not None
        held = block_value(self.best.candidate.setting, block)
        found: dict[tuple[LeverValue, ...], Result] = {}
        for result in self.ranked():
            value = block_value(result.candidate.setting, block)
            if value != held:
                found.setdefault(value, result)
            if len(found) == count:
                break
        return list(found.values())


def label_text(label: str | Changes) -> str:
    """A name, or changes as a person writes them.

    >>> label_text({"tp": 8, "spec_method": "mtp"})
    'tp=8 spec_method=mtp'
    """
    return label if isinstance(label, str) else " ".join(f"{name}={show(value)}" for name, value in label.items())
