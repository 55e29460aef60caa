"""Questions people ask of a ledger: which searches are there, what was refused and why, what changed from A to B."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ledger.canonical import Json, dumps
from ledger.record import StoredSearch, TrialRecord

if TYPE_CHECKING:
    from ledger.store import Ledger

ABSENT = "(absent)"  # shown where one side has no such field


@dataclass(frozen=True, slots=True)
class SearchSummary:
    """One line of the list of searches."""

    search_id: int
    created_at: datetime
    model: str
    cluster: str
    objective: str
    status: str
    trials: int
    legal: int
    best: TrialRecord | None


@dataclass(frozen=True, slots=True)
class Change:
    """One field that differs; :data:`ABSENT` where a side lacks it."""

    field: str
    before: Json
    after: Json


@dataclass(frozen=True, slots=True)
class TrialChange:
    """A lever setting both searches tried with another outcome."""

    levers: Mapping[str, Json]
    index_a: int
    index_b: int
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class SearchDiff:
    """What differs between two searches: inputs first, since they say why, then trials, then the best."""

    search_a: int
    search_b: int
    inputs: tuple[Change, ...]
    only_a: tuple[TrialRecord, ...]
    only_b: tuple[TrialRecord, ...]
    changed: tuple[TrialChange, ...]
    unchanged: int
    best_a: TrialRecord | None
    best_b: TrialRecord | None
    best_levers: tuple[Change, ...]
    best_metrics: tuple[Change, ...]

    @property
    def same(self) -> bool:
        """Whether both searches had one input and one result."""
        return not (self.inputs or self.only_a or self.only_b or self.changed or self.best_levers)


def list_searches(ledger: "Ledger", *, model: str | None = None) -> tuple[SearchSummary, ...]:
    """Every search with its counts and best trial, oldest first."""
    counts = ledger.trial_counts()
    return tuple(
        _summary(ledger, search, *counts.get(search.search_id, (0, 0))) for search in ledger.searches(model=model)
    )


def best_trial(ledger: "Ledger", search: StoredSearch) -> TrialRecord | None:
    """The trial a finished search named as its best."""
    if search.end is None or search.end.best_index is None:
        return None
    return ledger.trial(search.search_id, search.end.best_index)


def reason_counts(trials: Sequence[TrialRecord]) -> dict[str, int]:
    """Reason code to how many trials it refused, most frequent first, then by code."""
    counts = Counter(code for trial in trials for code in {code for code, _ in trial.reasons})
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def diff(ledger: "Ledger", search_a: int, search_b: int) -> SearchDiff:
    """Compare two searches; trials are the same trial when their lever settings are."""
    stored_a, stored_b = ledger.get_search(search_a), ledger.get_search(search_b)
    by_key_a, by_key_b = _by_setting(ledger.trials(search_a)), _by_setting(ledger.trials(search_b))
    both = [(by_key_a[key], by_key_b[key]) for key in by_key_a if key in by_key_b]
    changed = [_trial_change(before, after) for before, after in both]
    best_a, best_b = best_trial(ledger, stored_a), best_trial(ledger, stored_b)
    return SearchDiff(
        search_a=search_a,
        search_b=search_b,
        inputs=changes(stored_a.record.stable(), stored_b.record.stable()),
        only_a=tuple(trial for key, trial in by_key_a.items() if key not in by_key_b),
        only_b=tuple(trial for key, trial in by_key_b.items() if key not in by_key_a),
        changed=tuple(change for change in changed if change.changes),
        unchanged=sum(not change.changes for change in changed),
        best_a=best_a,
        best_b=best_b,
        best_levers=changes(best_a.levers if best_a else {}, best_b.levers if best_b else {}),
        best_metrics=changes(best_a.metrics if best_a else {}, best_b.metrics if best_b else {}),
    )


def changes(before: Mapping[str, Json], after: Mapping[str, Json], prefix: str = "") -> tuple[Change, ...]:
    """Fields that differ between two JSON objects, nested ones by dotted path, in sorted order.

    >>> [(c.field, c.before, c.after) for c in changes({"tp": 4, "pins": {"ep": 1}}, {"tp": 8, "pins": {"ep": 1}})]
    [('tp', 4, 8)]
    """
    found: list[Change] = []
    for name in sorted({*before, *after}):
        old, new = before.get(name, ABSENT), after.get(name, ABSENT)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found.extend(changes(old, new, f"{prefix}{name}."))
        elif dumps(old) != dumps(new):  # by text: 1, 1.0 and true are three values
            found.append(Change(f"{prefix}{name}", old, new))
    return tuple(found)


def _summary(ledger: "Ledger", search: StoredSearch, trials: int, legal: int) -> SearchSummary:
    record = search.record
    best = best_trial(ledger, search)
    return SearchSummary(
        search.search_id,
        record.created_at,
        record.model,
        record.cluster,
        record.objective,
        search.status,
        trials,
        legal,
        best,
    )


def _by_setting(trials: Sequence[TrialRecord]) -> dict[tuple[str, int], TrialRecord]:
    """Trials by lever setting and by how often the same search had tried it before."""
    seen: Counter[str] = Counter()
    result: dict[tuple[str, int], TrialRecord] = {}
    for trial in trials:
        key = dumps(trial.levers)
        result[key, seen[key]] = trial
        seen[key] += 1
    return result


def _trial_change(before: TrialRecord, after: TrialRecord) -> TrialChange:
    skipped = {"index", "levers", "origin", "hypothesis"}  # who proposed it, and when, is no outcome
    old = {name: value for name, value in before.stable().items() if name not in skipped}
    new = {name: value for name, value in after.stable().items() if name not in skipped}
    return TrialChange(before.levers, before.index, after.index, changes(old, new))
