"""Lists and comparisons of searches."""

from dataclasses import replace

from ledger import SearchEnd, SearchRecord, TrialRecord
from ledger.queries import ABSENT, Change, changes, diff, list_searches, reason_counts
from ledger.store import Ledger

Trials = tuple[TrialRecord, ...]


def run(ledger: Ledger, search: SearchRecord, trials: Trials, best: int | None) -> int:
    search_id = ledger.create_search(search)
    for trial in trials:
        ledger.add_trial(search_id, trial)
    ledger.finish_search(search_id, SearchEnd("done", search.created_at, best))
    return search_id


def test_the_list_of_searches(ledger: Ledger, search: SearchRecord, trials: Trials) -> None:
    done = run(ledger, search, trials, 0)
    killed = ledger.create_search(replace(search, model="Qwen3-32B"))
    first, second = list_searches(ledger)
    assert (first.search_id, first.status, first.trials, first.legal, first.best) == (done, "done", 3, 1, trials[0])
    assert (second.search_id, second.status, second.trials, second.best) == (killed, "unfinished", 0, None)
    assert [found.search_id for found in list_searches(ledger, model="Qwen3-32B")] == [killed]


def test_reasons_are_counted_once_a_trial(trials: Trials) -> None:
    twice = replace(trials[1], index=3, reasons=(("gpus", "a"), ("gpus", "b")))
    assert reason_counts((*trials, twice)) == {"gpus": 2, "slo": 1, "tp_divides_heads": 1}


def test_a_search_does_not_differ_from_its_repetition(ledger: Ledger, search: SearchRecord, trials: Trials) -> None:
    found = diff(ledger, run(ledger, search, trials, 0), run(ledger, search, trials, 0))
    assert found.same
    assert found.unchanged == 3
    assert found.best_metrics == ()


def test_a_difference_says_what_changed_and_why(ledger: Ledger, search: SearchRecord, trials: Trials) -> None:
    """Another anchor and a tighter SLO: one trial priced anew, one setting dropped, one added, another best."""
    before = run(ledger, search, trials, 0)
    other_input = replace(search, anchor_sha256s=("e" * 64,), request={**search.request, "slo": ["tpot_ms<=5"]})
    repriced = replace(trials[0], origin="planner", metrics={**trials[0].metrics, "tpot_ms": 6.5}, mode="simulate")
    added = TrialRecord(5, {"tp": 8}, "seed:tp", True, {"tpot_ms": 4.0}, 3.0)
    after = run(ledger, other_input, (repriced, trials[1], added), 5)
    found = diff(ledger, before, after)
    assert not found.same
    assert found.inputs == (
        Change("anchor_sha256s", ("c" * 64, "0" * 64), ("e" * 64,)),
        Change("request.slo", ("tpot_ms<=10",), ("tpot_ms<=5",)),
    )
    assert found.only_a == (trials[2],)
    assert found.only_b == (added,)
    assert [(change.index_a, change.index_b) for change in found.changed] == [(0, 0)]
    assert found.changed[0].changes == (Change("metrics.tpot_ms", 7.25, 6.5), Change("mode", "anchored", "simulate"))
    assert found.unchanged == 1
    assert Change("tp", 4, 8) in found.best_levers
    assert Change("kv_mem_fraction", 0.9, ABSENT) in found.best_levers
    assert Change("tpot_ms", 7.25, 4.0) in found.best_metrics


def test_a_repeated_setting_is_compared_try_by_try(ledger: Ledger, search: SearchRecord) -> None:
    once = (TrialRecord(0, {"tp": 1}, "seed", True),)
    twice = (*once, TrialRecord(1, {"tp": 1}, "planner", True))
    found = diff(ledger, run(ledger, search, once, None), run(ledger, search, twice, None))
    assert (found.only_a, found.only_b, found.unchanged) == ((), twice[1:], 1)


def test_one_and_one_point_zero_are_two_values() -> None:
    assert changes({"a": 1, "b": True}, {"a": 1.0, "b": True}) == (Change("a", 1, 1.0),)
    assert changes({}, {"a": {"b": None}}) == (Change("a", ABSENT, {"b": None}),)
