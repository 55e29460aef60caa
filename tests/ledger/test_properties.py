"""Random interleavings of writes, reads and reopenings, against a model in memory."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule, run_state_machine_as_test

from ledger import Conflict, NoteRecord, SearchEnd, SearchRecord, TrialRecord, open_ledger
from ledger.export import jsonl

finite_floats = st.floats(allow_nan=False, allow_infinity=False)
labels = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=8)
scalars = st.none() | st.booleans() | st.integers() | finite_floats | st.text(max_size=8)
objects = st.dictionaries(st.text(max_size=6), scalars | st.lists(scalars, max_size=3), max_size=5)
pairs = st.lists(st.tuples(labels, st.text(max_size=12)), max_size=3).map(tuple)
moments = st.datetimes(timezones=st.just(UTC))


@st.composite
def trial_records(draw: st.DrawFn) -> TrialRecord:
    reasons = draw(pairs)
    return TrialRecord(
        index=draw(st.integers(0, 12)),
        levers=draw(objects),
        origin=draw(labels),
        legal=draw(st.booleans()) or not reasons,
        metrics=draw(st.dictionaries(st.text(max_size=6), finite_floats, max_size=6)),
        score=draw(st.none() | finite_floats),
        reasons=reasons,
        fusion_opportunities=tuple(draw(st.lists(objects, max_size=2))),
        flags=draw(pairs),
        mode=draw(st.none() | labels),
        anchor=draw(st.none() | labels),
        hypothesis=draw(st.text(max_size=12)),
        recorded_at=draw(st.none() | moments),
    )


@st.composite
def search_records(draw: st.DrawFn) -> SearchRecord:
    sha256s = st.integers(0, 2**256 - 1).map("{:064x}".format)
    return SearchRecord(
        model=draw(labels),
        cluster=draw(labels),
        objective=draw(labels),
        request=draw(objects),
        model_card_sha256=draw(sha256s),
        catalogue_sha256=draw(sha256s),
        code_version=draw(labels),
        created_at=draw(moments),
        anchor_sha256s=tuple(draw(st.lists(sha256s, max_size=2))),
        prompt_sha256s=draw(st.dictionaries(labels, sha256s, max_size=2)),
        seed=draw(st.integers()),
    )


def machine(make_url: Callable[[], str]) -> type[RuleBasedStateMachine]:
    class LedgerMachine(RuleBasedStateMachine):
        """A ledger beside a dictionary that must agree with it."""

        ids = Bundle("ids")

        def __init__(self) -> None:
            super().__init__()
            self.url = make_url()
            self.ledger = open_ledger(self.url)
            self.searches: dict[int, SearchRecord] = {}
            self.trials: dict[int, dict[int, TrialRecord]] = {}
            self.notes: dict[int, list[NoteRecord]] = {}
            self.ends: dict[int, SearchEnd] = {}

        @rule(target=ids, record=search_records())
        def create(self, record: SearchRecord) -> Any:
            if len(self.searches) == 3:
                return multiple()
            search_id = self.ledger.create_search(record)
            assert search_id not in self.searches
            self.searches[search_id] = record
            self.trials[search_id] = {}
            self.notes[search_id] = []
            return search_id

        @rule(search_id=ids, trial=trial_records())
        def add_trial(self, search_id: int, trial: TrialRecord) -> None:
            if search_id in self.ends or trial.index in self.trials[search_id]:
                with pytest.raises(Conflict):
                    self.ledger.add_trial(search_id, trial)
                return
            self.ledger.add_trial(search_id, trial)
            self.trials[search_id][trial.index] = trial

        @rule(search_id=ids, facts=objects, costs=objects, after=st.none() | st.integers(0, 12))
        def add_note(self, search_id: int, facts: Any, costs: Any, after: int | None) -> None:
            note = NoteRecord("scratchpad", facts, costs, after)
            assert self.ledger.add_note(search_id, note) == len(self.notes[search_id])
            self.notes[search_id].append(note)

        @rule(search_id=ids, when=moments, summary=objects)
        def finish(self, search_id: int, when: datetime, summary: Any) -> None:
            if search_id in self.ends:
                return
            end = SearchEnd("done", when, min(self.trials[search_id], default=None), summary)
            self.ledger.finish_search(search_id, end)
            self.ends[search_id] = end

        @rule()
        def reopen(self) -> None:
            before = list(jsonl(self.ledger, self.searches))
            self.ledger.close()
            self.ledger = open_ledger(self.url, create=False)
            assert list(jsonl(self.ledger, self.searches)) == before

        @invariant()
        def agrees(self) -> None:
            for search_id, record in self.searches.items():
                stored = self.ledger.get_search(search_id)
                assert (stored.record, stored.end) == (record, self.ends.get(search_id))
                expected = self.trials[search_id]
                assert self.ledger.trials(search_id) == tuple(expected[index] for index in sorted(expected))
                assert self.ledger.notes(search_id) == tuple(self.notes[search_id])

        def teardown(self) -> None:
            self.ledger.close()

    return LedgerMachine


def run(make_url: Callable[[], str], examples: int) -> None:
    run_state_machine_as_test(
        machine(make_url),
        settings=settings(
            max_examples=examples, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_random_interleavings_on_sqlite() -> None:
    with TemporaryDirectory() as folder:
        numbers = iter(range(10**6))
        run(lambda: str(Path(folder) / f"{next(numbers)}.db"), examples=30)


def test_random_interleavings_on_postgresql(new_database: Callable[[], str]) -> None:
    run(new_database, examples=6)
