"""What every back end promises (see ``ledger/store.py``), on SQLite in a file and in memory, and on PostgreSQL."""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from ledger import (
    Conflict,
    InputFile,
    LedgerError,
    NoteRecord,
    SearchEnd,
    SearchRecord,
    TrialRecord,
    UnknownSearch,
    open_ledger,
)
from ledger.store import Ledger

Trials = tuple[TrialRecord, ...]
END = datetime(2026, 3, 1, 12, 5, tzinfo=UTC)


def test_what_is_read_equals_what_was_written(ledger: Ledger, search: SearchRecord, trials: Trials) -> None:
    search_id = ledger.create_search(search)
    for trial in trials:
        ledger.add_trial(search_id, trial)
    end = SearchEnd("done", END, best_index=0, summary={"why": "budget"}, costs={"wall_s": 1.5})
    ledger.finish_search(search_id, end)
    assert ledger.get_search(search_id).record == search
    assert ledger.get_search(search_id).end == end
    assert ledger.get_search(search_id).status == "done"
    assert ledger.trials(search_id) == trials
    assert ledger.trial(search_id, 1) == trials[1]
    assert ledger.trial_counts() == {search_id: (3, 1)}


def test_a_reopened_ledger_holds_the_same(lasting_url: str, search: SearchRecord, trials: Trials) -> None:
    with open_ledger(lasting_url) as first:
        search_id = first.create_search(search, [InputFile("prompt", "planner", "Plan.\r\n\t")])
        first.add_trial(search_id, trials[0])
    with open_ledger(lasting_url, create=False) as second:
        assert second.get_search(search_id).record == search
        assert second.trials(search_id) == trials[:1]
        second.add_trial(search_id, trials[1])
        assert second.trials(search_id) == trials[:2]


def test_trials_come_back_in_index_order(ledger: Ledger, search: SearchRecord, trials: Trials) -> None:
    search_id = ledger.create_search(search)
    for trial in reversed(trials):
        ledger.add_trial(search_id, trial)
    assert [trial.index for trial in ledger.trials(search_id)] == [0, 1, 2]


def test_a_trial_is_written_once(ledger: Ledger, search: SearchRecord, trials: Trials) -> None:
    search_id = ledger.create_search(search)
    ledger.add_trial(search_id, trials[0])
    with pytest.raises(Conflict, match=f"trial 0 of search {search_id} is recorded already"):
        ledger.add_trial(search_id, replace(trials[0], score=9.0))
    assert ledger.trials(search_id) == trials[:1]


def test_a_finished_search_takes_no_more_trials(ledger: Ledger, search: SearchRecord, trials: Trials) -> None:
    search_id = ledger.create_search(search)
    ledger.finish_search(search_id, SearchEnd("nothing_legal", END))
    with pytest.raises(Conflict, match="finished"):
        ledger.add_trial(search_id, trials[0])
    with pytest.raises(Conflict, match="finished"):
        ledger.finish_search(search_id, SearchEnd("done", END))
    assert ledger.add_note(search_id, NoteRecord("verification", {"tpot_ms": 7.5})) == 0


def test_the_best_trial_has_to_be_there(ledger: Ledger, search: SearchRecord) -> None:
    search_id = ledger.create_search(search)
    with pytest.raises(LedgerError, match="no trial 5"):
        ledger.finish_search(search_id, SearchEnd("done", END, best_index=5))
    assert ledger.get_search(search_id).status == "unfinished"


def test_unknown_search(ledger: Ledger, trials: Trials) -> None:
    for act in (
        lambda: ledger.get_search(1),
        lambda: ledger.trials(1),
        lambda: ledger.notes(1),
        lambda: ledger.resume_state(1),
        lambda: ledger.add_trial(1, trials[0]),
        lambda: ledger.add_note(1, NoteRecord("plan", {})),
        lambda: ledger.finish_search(1, SearchEnd("done", END)),
    ):
        with pytest.raises(UnknownSearch, match="no search 1; `inferasim ledger list`"):
            act()
    assert ledger.searches() == ()


def test_inputs_are_stored_once_per_content(ledger: Ledger, search: SearchRecord) -> None:
    card, prompt = InputFile("model_card", "llama", '{"hidden":4096}'), InputFile("prompt", "planner", "Plan: é")
    record = replace(search, model_card_sha256=card.sha256, prompt_sha256s={"planner": prompt.sha256})
    first = ledger.create_search(record, [card, prompt])
    second = ledger.create_search(record, [replace(card, name="a copy under another name")])
    assert ledger.inputs(first) == ledger.inputs(second) == (card, prompt)
    assert ledger.input(prompt.sha256) == prompt
    assert ledger.input("f" * 64) is None
    assert ledger.add_inputs([card]) == (card.sha256,)


def test_searches_are_found_by_model_and_by_input(ledger: Ledger, search: SearchRecord) -> None:
    other = replace(search, model="Qwen3-32B")
    ids = [ledger.create_search(record) for record in (search, other, search)]
    assert [found.search_id for found in ledger.searches()] == ids == sorted(set(ids))
    assert [found.search_id for found in ledger.searches(model="Qwen3-32B")] == ids[1:2]
    assert [found.search_id for found in ledger.searches(input_sha256=search.input_sha256)] == [ids[0], ids[2]]


def test_a_killed_search_is_found_by_its_input_and_resumes(
    ledger: Ledger, search: SearchRecord, trials: Trials
) -> None:
    assert ledger.unfinished(search) is None
    finished, killed = ledger.create_search(search), ledger.create_search(search)
    ledger.finish_search(finished, SearchEnd("done", END))
    for trial in (trials[0], trials[2]):
        ledger.add_trial(killed, trial)
    ledger.add_note(killed, NoteRecord("plan", {"rationale": "small TP"}, {"tokens": 812}, after_trial=0))
    found = ledger.unfinished(replace(search, created_at=search.created_at + timedelta(hours=1)))
    assert found is not None
    assert found.search_id == killed
    state = ledger.resume_state(killed)
    assert state.search.record == search
    assert state.trials == {0: trials[0], 2: trials[2]}
    assert state.first_missing == 1
    assert state.notes == ledger.notes(killed)


def test_notes_keep_their_order(ledger: Ledger, search: SearchRecord) -> None:
    search_id = ledger.create_search(search)
    notes = tuple(NoteRecord("scratchpad", {"text": f"note {number}"}) for number in range(4))
    assert [ledger.add_note(search_id, note) for note in notes] == [0, 1, 2, 3]
    assert ledger.notes(search_id) == notes


def test_times_are_utc(ledger: Ledger, search: SearchRecord) -> None:
    paris = datetime(2026, 7, 1, 14, 0, tzinfo=timezone(timedelta(hours=2)))
    search_id = ledger.create_search(replace(search, created_at=paris))
    assert ledger.get_search(search_id).record.created_at.isoformat() == "2026-07-01T12:00:00+00:00"


def test_writers_of_several_searches_and_readers_at_once(lasting_url: str, search: SearchRecord) -> None:
    """Four ledgers write forty trials each while two read: nothing is lost, and no reader sees a gap."""
    failures: list[BaseException] = []
    written: dict[int, int] = {}
    done = threading.Event()
    with open_ledger(lasting_url) as shared:
        watched = shared.create_search(search)

    def write() -> None:
        with open_ledger(lasting_url) as mine:
            search_id = mine.create_search(search)
            for index in range(40):
                mine.add_trial(search_id, TrialRecord(index, {"tp": index}, "seed", True, {"x": index / 7}))
            written[search_id] = len(mine.trials(search_id))

    def read() -> None:
        with open_ledger(lasting_url, create=False, write=False) as mine:
            while not done.is_set():
                for search_id in mine.trial_counts():
                    indices = [trial.index for trial in mine.trials(search_id)]
                    assert indices == list(range(len(indices)))
                assert mine.get_search(watched).record == search

    def guarded(act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - carried to the main thread
            failures.append(error)

    writers = [threading.Thread(target=guarded, args=(write,)) for _ in range(4)]
    readers = [threading.Thread(target=guarded, args=(read,)) for _ in range(2)]
    for thread in (*readers, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    for thread in readers:
        thread.join()
    assert failures == []
    assert sorted(written.values()) == [40, 40, 40, 40]


def test_two_writers_of_one_search_conflict_and_never_mix(lasting_url: str, search: SearchRecord) -> None:
    """Each index is written by exactly one of them; the other is told."""
    with open_ledger(lasting_url) as first:
        search_id = first.create_search(search)
    outcomes: list[tuple[str, int, bool]] = []

    def write(name: str) -> None:
        with open_ledger(lasting_url) as mine:
            for index in range(25):
                try:
                    mine.add_trial(search_id, TrialRecord(index, {}, name, True))
                    outcomes.append((name, index, True))
                except Conflict:
                    outcomes.append((name, index, False))

    threads = [threading.Thread(target=write, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 50
    with open_ledger(lasting_url) as reader:
        assert [(trial.origin, trial.index, True) for trial in reader.trials(search_id)] == sorted(
            (outcome for outcome in outcomes if outcome[2]), key=lambda outcome: outcome[1]
        )
