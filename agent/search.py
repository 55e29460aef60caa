"""The deterministic seed search: asks the seed planner, prices through the one door, records every trial.

Rounds are decided before they are priced, so serial and parallel runs give the same trials in the same order. A search
that was killed is resumed by running it again: what the ledger already holds is re-derived, not repeated in it.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from agent.evaluate import Evaluator, Judged, fusion_json, refused
from ledger.record import TrialRecord
from levers.search import Candidate, SeedSearch
from levers.space import as_json_value

Record = Callable[[TrialRecord], None]


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate with its verdict, in the order of the search."""

    index: int
    origin: str
    name: str
    levers: Mapping[str, Any]  # the whole setting; of a seed that is no setting at all, what it would have changed
    judged: Judged
    hypothesis: str = ""  # what a language model wanted to learn from it

    def record(self) -> TrialRecord:
        """As the ledger stores it."""
        judged, prediction = self.judged, self.judged.prediction
        return TrialRecord(
            index=self.index,
            levers=self.levers,
            origin=self.origin,
            legal=judged.legal,
            metrics=judged.metrics(),
            score=judged.score,
            reasons=tuple((reason.code, reason.message) for reason in judged.reasons),
            fusion_opportunities=tuple(fusion_json(fusion) for fusion in judged.fusions),
            flags=tuple((flag.code, flag.message) for flag in prediction.flags) if prediction else (),
            mode=str(prediction.mode) if prediction else None,
            anchor=prediction.anchor if prediction else None,
            hypothesis=self.hypothesis or self.name,
        )


@dataclass(slots=True)
class SearchResult:
    """All trials in order and the best legal one."""

    trials: list[Trial]
    best: Trial | None

    def counts(self) -> dict[str, int]:
        """Scored, legal and rejected trials."""
        legal = sum(trial.judged.legal for trial in self.trials)
        scored = sum(trial.judged.score is not None for trial in self.trials)
        return {"scored": scored, "legal": legal, "rejected": len(self.trials) - legal}

    def reasons(self) -> dict[str, int]:
        """How often each reason code refused a trial, most frequent first."""
        counts: dict[str, int] = {}
        for trial in self.trials:
            for code in dict.fromkeys(reason.code for reason in trial.judged.reasons):
                counts[code] = counts.get(code, 0) + 1
        return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def seed_search(
    evaluator: Evaluator, budget: int, record: Record, jobs: int = 1, progress: Callable[[Trial], None] | None = None
) -> SearchResult:
    """Run the seed planner to its end or its budget. ``record`` is called once a trial, in order."""
    plan = SeedSearch(evaluator.context, budget)
    result = SearchResult([], None)

    def add(origin: str, name: str, levers: Mapping[str, Any], judged: Judged) -> None:
        trial = Trial(len(result.trials), origin, name, levers, judged)
        result.trials.append(trial)
        if judged.legal and (result.best is None or better(judged, result.best.judged)):
            result.best = trial
        record(trial.record())
        if progress is not None:
            progress(trial)

    skipped_recorded = False
    with pricer(evaluator, jobs) as price:
        while not plan.done:
            candidates = list(round_of(plan))
            for candidate, judged in zip(candidates, price(candidates), strict=True):
                add(candidate.origin, candidate.name, candidate.setting.as_json(), judged)
                plan.tell(candidate, judged.signed_score, judged.legal, judged.shortfall)
            if plan.skipped and not skipped_recorded:
                skipped_recorded = True
                for skipped in plan.skipped:
                    changes = {name: as_json_value(value) for name, value in skipped.changes}
                    add("seed", skipped.name, changes, refused(skipped.reasons))
    return result


def better(judged: Judged, best: Judged) -> bool:
    """Strictly better in the objective; the earlier trial keeps a tie."""
    return _rank(judged) > _rank(best)


def _rank(judged: Judged) -> float:
    return -math.inf if judged.signed_score is None else judged.signed_score


def round_of(plan: SeedSearch) -> Iterator[Candidate]:
    """The candidates of the planner's current round."""
    while (candidate := plan.ask()) is not None:
        yield candidate


Price = Callable[[list[Candidate]], list[Judged]]


@contextmanager
def pricer(evaluator: Evaluator, jobs: int) -> Iterator[Price]:
    """Price a round in this process, or on ``jobs`` workers that are kept over the whole search."""
    if jobs == 1:
        yield lambda round_: [evaluator.evaluate(one.deployment, one.workload) for one in round_]
        return
    from joblib import Parallel, delayed

    with Parallel(n_jobs=jobs, batch_size="auto") as pool:
        yield lambda round_: list(pool(delayed(evaluator.evaluate)(one.deployment, one.workload) for one in round_))
