"""The deterministic search: seeds, a greedy combination of those that helped, then a polish round.

:class:`SeedSearch` prices nothing. It is asked for candidates and told their scores. It works in rounds: all candidates
of a round are decided before any of them is scored, so that serial and parallel evaluation give the same trials in the
same order. Structure is checked before a candidate is offered; memory and latency are judged by whoever prices.
"""

import math
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, islice, product

from levers.baseline import Fits, baseline
from levers.catalog import LEVERS
from levers.context import LeverValue, SearchContext
from levers.legality import illegal_reasons
from levers.lever import show
from levers.seeds import Changes, Seed, Skipped, legal_or_skipped
from levers.space import Setting, canonical, merge, to_deployment, with_followers
from predictor.types import Deployment, Workload

# levers that mean something only together are moved together
BLOCKS: dict[str, tuple[str, ...]] = {
    "layout": ("tp", "ep", "attn_dp", "pp", "dcp", "replicas"),
    "pools": ("disagg", "prefill_tp", "prefill_ep", "prefill_attn_dp", "prefill_replicas"),
    "precision": ("weight_dtype", "linear_dtype", "expert_dtype"),
    "speculation": ("spec_method", "spec_depth"),
    "arrivals": ("arrival_process", "request_rate"),
}
BLOCK_OF = {name: block for block, names in BLOCKS.items() for name in names}
SEED_SHARE = 0.5  # of the budget, at most
JOINT = {2: 24, 3: 6}  # blocks moved at once when no single one helps -> how many of the most telling take part
KEPT_VALUES = 4  # of each block then
MOVED_TOGETHER = 4  # levers of a block changed at once, at most
LOOKED_AT = 400  # settings a round looks at, new or not
ROUND = 24  # candidates a polish round asks for at once, at most


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


Offer = tuple[str, str | Changes, Setting]  # origin, name or changes, setting
Round = list[Candidate]
Plan = Generator[Round, list[Result], None]


class SeedSearch:
    """Ask for candidates, tell their scores; deterministic in what was told, whatever the order.

    ``ask`` returns None while a round still waits for scores and when the search is over; ``done`` tells them apart.
    """

    def __init__(self, context: SearchContext, budget: int, fits: Fits | None = None) -> None:
        self.context = context
        self.budget = budget
        self.base = baseline(context, fits)
        self._values = {lever.name: lever.values(context) for lever in LEVERS}
        self.skipped: list[Skipped] = []
        self.best: Result | None = None
        self.done = False
        self._asked: dict[tuple[Deployment, Workload], Candidate] = {}
        self._seen: set[Setting] = set()  # offered before, asked or not
        self._results: dict[int, Result] = {}
        self._queue: Round = []
        self._open: Round = []  # candidates of the current round, in order
        self._plan = self._rounds()
        self._advance(None)

    def ask(self) -> Candidate | None:
        """The next candidate of the round, or None."""
        return self._queue.pop(0) if self._queue else None

    def tell(self, candidate: Candidate, score: float | None, legal: bool, shortfall: float = math.inf) -> None:
        """Score a candidate: larger is better. An illegal one may say how far it is from legal."""
        value = -math.inf if score is None else score
        result = Result(candidate, legal and score is not None, value, 0.0 if legal else shortfall)
        self._results[candidate.number] = result
        if not self._queue and all(asked.number in self._results for asked in self._open):
            self._advance([self._results[asked.number] for asked in self._open])

    def allow(self, more: int) -> None:
        """Offer at most ``more`` further candidates, whatever the budget was."""
        self.budget = len(self._asked) + max(0, more)

    def learn(
        self, setting: Setting, name: str, score: float | None, legal: bool, shortfall: float = math.inf, *, origin: str
    ) -> None:
        """Take in a setting somebody else proposed and scored: it is not offered again, and may become the best."""
        launched = to_deployment(setting, self.context)
        self._seen.add(setting)
        if launched in self._asked:
            return
        candidate = Candidate(len(self._asked), origin, name, setting, *launched)
        self._asked[launched] = candidate
        value = -math.inf if score is None else score
        result = Result(candidate, legal and score is not None, value, 0.0 if legal else shortfall)
        self._results[candidate.number] = result
        if self.best is None or result.rank > self.best.rank:
            self.best = result

    def _advance(self, told: list[Result] | None) -> None:
        """Send the finished round to the plan and queue the next one that has anything to ask."""
        for result in told or ():
            if self.best is None or result.rank > self.best.rank:
                self.best = result
        try:
            self._open = next(self._plan) if told is None else self._plan.send(told)
        except StopIteration:
            self._open, self.done = [], True
        self._queue = list(self._open)

    def _offer(self, origin: str, label: str | Changes, setting: Setting) -> Candidate | None:
        """A candidate that is new, within the budget and legal in structure; None otherwise."""
        if setting in self._seen or len(self._asked) >= self.budget:
            return None
        self._seen.add(setting)
        launched = to_deployment(setting, self.context)
        if launched in self._asked or illegal_reasons(*launched, self.context):
            return None
        candidate = Candidate(len(self._asked), origin, label_text(label), setting, *launched)
        self._asked[launched] = candidate
        return candidate

    def _round(self, offers: Iterable[Offer], limit: int = ROUND) -> Round:
        """The first new candidates among the offers; a round looks at no more than ``LOOKED_AT`` of them."""
        taken: Round = []
        if len(self._asked) >= self.budget:
            return taken  # nothing can be taken: do not walk the neighbourhood
        for offer in islice(offers, LOOKED_AT):
            if len(taken) >= limit:
                break
            candidate = self._offer(*offer)
            if candidate:
                taken.append(candidate)
        return taken

    def _rounds(self) -> Plan:
        yield from self._ask_all([("baseline", "baseline", self.base)])
        seeds = self._seeds()
        yield from self._ask_all([("seed", seed.name, seed.setting) for seed in seeds])
        yield from self._combine(seeds)
        yield from self._polish()

    def _ask_all(self, offers: list[Offer]) -> Plan:
        taken = self._round(offers, len(offers))
        if taken:
            yield taken

    def _seeds(self) -> list[Seed]:
        """As many values a lever as the seeds' share of the budget allows, in the list's order."""
        share = max(1, int(self.budget * SEED_SHARE))
        seeds: list[Seed] = []
        for per_lever in (None, 4, 3, 2, 1):
            found = list(legal_or_skipped(self.context, self.base, per_lever))
            seeds = [seed for seed in found if isinstance(seed, Seed)]
            if per_lever is None:
                self.skipped = [seed for seed in found if isinstance(seed, Skipped)]
            if len(seeds) <= share:
                break
        return seeds[:share]

    def _told(self, setting: Setting) -> Result | None:
        candidate = self._asked.get(to_deployment(setting, self.context))
        return self._results.get(candidate.number) if candidate else None

    def _combine(self, seeds: list[Seed]) -> Plan:
        """Start from the best; each round tries every other helpful block on it and keeps the best that still helps."""
        start = self._told(self.base)
        if start is None or self.best is None:
            return
        scored = [(result, seed) for seed in seeds if (result := self._told(seed.setting))]
        helped = sorted(
            (pair for pair in scored if pair[0].rank > start.rank), key=lambda pair: pair[0].rank, reverse=True
        )
        waiting: dict[frozenset[str], Seed] = {}
        for _, seed in helped:
            waiting.setdefault(blocks_of(name for name, _ in seed.changes), seed)
        while waiting:
            top = self.best
            offers = [
                ("combine", f"{top.candidate.name} + {seed.name}", self._on(top, seed)) for seed in waiting.values()
            ]
            taken = self._round(offers, len(offers))
            if not taken:
                return
            results = yield taken
            better = {result.candidate.name for result in results if result.rank > top.rank}
            if not better:
                return
            waiting = {
                blocks: seed
                for blocks, seed in waiting.items()
                if f"{top.candidate.name} + {seed.name}" in better
                and self.best.candidate.name != f"{top.candidate.name} + {seed.name}"
            }

    def _on(self, top: Result, seed: Seed) -> Setting:
        """The seed's changes on another setting; companions of the seed come along."""
        merged = merge(dict(seed.changes), top.candidate.setting, self.context)
        return merged.setting or seed.setting

    def _polish(self) -> Plan:
        """Vary one block at a time around the best until none helps, then the best values of two and three together."""
        while self.best is not None:
            top = self.best
            yield from self._descend()
            for size in JOINT:
                yield from self._joint(size)
                if self.best.rank > top.rank:
                    break
            if self.best.rank == top.rank:
                return

    def _descend(self) -> Plan:
        """One block after another, the most telling first, as long as a whole pass improves the best."""
        improved = True
        while improved and self.best is not None:
            improved = False
            for block in self._by_effect():
                top = self.best
                taken = self._round(polished(self._neighbours(top.candidate.setting, block)))
                if taken:
                    yield taken
                improved = improved or self.best.rank > top.rank

    def _joint(self, size: int) -> Plan:
        """The best values seen of ``size`` blocks at once, for every choice of blocks, until one improves the best."""
        assert self.best is not None
        top = self.best
        values = {block: self._best_values(block) for block in self._by_effect()}
        telling = [block for block in values if values[block]][: JOINT[size]]
        for blocks in combinations(telling, size):
            taken = self._round(polished(self._together(top.candidate.setting, [values[block] for block in blocks])))
            if taken:
                yield taken
            if self.best.rank > top.rank:
                return

    def _together(self, setting: Setting, values: list[list[Changes]]) -> Iterator[tuple[Changes, Setting]]:
        """The setting with one of each block's values."""
        for chosen in product(*values):
            changes = {name: value for part in chosen for name, value in part.items()}
            yield changes, canonical(with_followers(changes, setting, self.context), self.context)

    def _best_values(self, block: str) -> list[Changes]:
        """What results set a block to, other than the best result does, in the order of their ranks."""
        assert self.best is not None
        names = BLOCKS.get(block, (block,))
        ranked = sorted(self._results.values(), key=lambda result: result.rank, reverse=True)
        held = tuple(self.best.candidate.setting[name] for name in names)
        found: dict[tuple[LeverValue, ...], None] = {}
        for result in ranked:
            value = tuple(result.candidate.setting[name] for name in names)
            if value != held:
                found.setdefault(value)
            if len(found) == KEPT_VALUES:
                break
        return [dict(zip(names, value, strict=True)) for value in found]

    def _by_effect(self) -> list[str]:
        """Blocks by how much their seeds moved the score, largest first; untouched ones last, in catalogue order."""
        start = self._results[0]
        effect = {BLOCK_OF.get(lever.name, lever.name): 0.0 for lever in LEVERS}
        for result in self._results.values():
            changed = blocks_of(result.candidate.setting.differences(self.base))
            moved = (
                abs(result.score - start.score) if math.isfinite(result.score) and math.isfinite(start.score) else 0.0
            )
            for block in changed:
                effect[block] = max(effect[block], moved / len(changed))
        return sorted(effect, key=lambda block: -effect[block])

    def _neighbours(self, setting: Setting, block: str) -> Iterator[tuple[Changes, Setting]]:
        """Settings that differ in one block only, those with fewer changed levers first, lazily."""
        values = {name: self._values[name] for name in BLOCKS.get(block, (block,))}
        others = {name: [value for value in values[name] if value != setting[name]] for name in values}
        for size in range(1, MOVED_TOGETHER + 1):
            for names in combinations(others, size):
                for chosen in product(*(others[name] for name in names)):
                    changes = dict(zip(names, chosen, strict=True))
                    yield changes, canonical(with_followers(changes, setting, self.context), self.context)


def polished(neighbours: Iterable[tuple[Changes, Setting]]) -> Iterator[Offer]:
    """Offers of a polish round."""
    return (("polish", changes, setting) for changes, setting in neighbours)


def label_text(label: str | Changes) -> str:
    """A name, or changes as a person writes them.

    >>> label_text({"tp": 8, "spec_method": "mtp"})
    'tp=8 spec_method=mtp'
    """
    return label if isinstance(label, str) else " ".join(f"{name}={show(value)}" for name, value in label.items())


def blocks_of(names: Iterable[str]) -> frozenset[str]:
    """The blocks that hold the levers."""
    return frozenset(BLOCK_OF.get(name, name) for name in names)
