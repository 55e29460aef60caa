"""The tools, without a language model: whatever is called in whatever order, the guards hold."""

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from agent.evaluate import Evaluator, Judged
from agent.llm.guards import Redactor
from agent.llm.inputs import Inputs, compact
from agent.llm.log import SearchLog
from agent.llm.proposals import LEVER_NAMES, TOOL_NAMES, Configurations, Proposal, ToolArguments
from agent.llm.tools import Toolbox
from ledger import NoteRecord, SearchEnd, SearchRecord, TrialRecord, open_ledger
from ledger.export import export
from levers.baseline import baseline
from levers.build import search_context
from levers.catalog import BY_NAME, LEVERS
from levers.legality import illegal_reasons
from levers.legality.memory import memory_reasons
from levers.objectives import objective, parse_slo, violations
from levers.space import Setting, merge, normalised, to_deployment
from predictor.predict import Catalogue
from predictor.types import Deployment, Workload

BUDGET = 6
ROOT = Path(__file__).parents[3]


class Remembering(Evaluator):
    """The real evaluator; equal candidates are priced once over all examples, which changes no verdict."""

    def evaluate(self, deployment: Deployment, workload: Workload) -> Judged:
        return judged(deployment, workload)


@cache
def judged(deployment: Deployment, workload: Workload) -> Judged:
    return Evaluator.evaluate(evaluator(), deployment, workload)


@lru_cache(maxsize=1)
def evaluator() -> Evaluator:
    """A small real problem: dense model, one node, a bound, a pin."""
    load = Workload(isl_tokens=1024, osl_tokens=256, concurrency=32)
    context = search_context(
        model="Llama-3.1-8B", gpu="MI355X", engine="SGLang", workload=load, pins={"block_size": 64}
    )
    catalogue = Catalogue(context.card, context.platform, context.engine, ())
    return Remembering(context, catalogue, objective("output_tok_s_per_gpu"), (parse_slo("tpot_ms<=6"),))


@lru_cache(maxsize=1)
def base() -> Setting:
    return baseline(evaluator().context)


class Book:
    """What a toolbox records, in memory."""

    def __init__(self) -> None:
        self.trials: list[TrialRecord] = []
        self.notes: list[NoteRecord] = []

    def toolbox(self, budget: int = BUDGET, ask: Callable[[str, str], str] | None = None) -> Toolbox:
        redactor = Redactor((), {})
        log = SearchLog(evaluator(), self.trials.append)
        first = evaluator().evaluate(*to_deployment(base(), evaluator().context))
        log.add("baseline", "baseline", base().as_json(), first)
        inputs = Inputs(evaluator(), base(), redactor)
        return Toolbox(log, inputs, budget, self.notes.append, redactor, ask)


VALUES = st.one_of(
    st.sampled_from(
        [1, 2, 3, 4, 8, "8", "fp8", "fp4", "off", "on", None, True, 0, -1, 1.5, "mtp", "none", "nixl", 4096]
    ),
    st.sampled_from(
        [[], ["act_quant"], ["act_quant", "act_quant"], "act_quant+norm_quant", {"a": 1}, float("inf"), 10**400]
    ),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
)
LEVER = st.one_of(
    st.sampled_from(LEVER_NAMES), st.sampled_from(["width", "", "__class__", "tp ", "TP"]), st.text(max_size=6)
)
PARTIAL = st.one_of(
    st.dictionaries(LEVER, VALUES, max_size=4),
    st.lists(st.fixed_dictionaries({"lever": LEVER, "value": VALUES}), max_size=4),
    st.text(max_size=10),
)
SENSIBLE = st.fixed_dictionaries(  # mostly legal, and few enough that most are priced once
    {},
    optional={
        "tp": st.sampled_from([1, "2", 4, 8, 16]),
        "replicas": st.sampled_from([1, 2, 8]),
        "max_running": st.sampled_from([8, 64]),
        "graph_mode": st.sampled_from(["full", "none"]),
        "block_size": st.just(64),
    },
)
CALL = st.tuples(
    st.one_of(st.sampled_from(TOOL_NAMES), st.just("evaluate"), st.sampled_from(["shell", "", "evaluate "])),
    st.one_of(
        st.fixed_dictionaries({"changes": PARTIAL}, optional={"hypothesis": VALUES, "text": VALUES}),
        st.fixed_dictionaries({"text": st.one_of(LEVER, st.text(max_size=30))}),
        VALUES,
    ),
)

PLACES = (str(ROOT), f"{Path.home()}/", sys.prefix, ".py", "site-packages")  # of this machine, not of the search
GOOD_CALL = st.tuples(st.just("evaluate"), st.fixed_dictionaries({"changes": SENSIBLE}))
CALLS = st.lists(st.one_of(GOOD_CALL, CALL), min_size=2, max_size=10)


def arguments(value: Any) -> ToolArguments:
    return ToolArguments.model_validate(value)


@settings(max_examples=1000)
@given(CALLS)
def test_no_sequence_of_calls_prices_the_illegal_passes_the_budget_or_corrupts_the_ledger(
    calls: list[tuple[str, Any]],
) -> None:
    book = Book()
    toolbox = book.toolbox()
    for name, value in calls:
        said = compact(toolbox.call(name, arguments(value)))
        said.encode("utf-8")
        assert "Traceback" not in said
        assert not any(place in said for place in PLACES)
    check_book(book, toolbox)
    event(f"priced: {sum(one.score is not None for one in book.trials[1:])}")


def check_book(book: Book, toolbox: Toolbox) -> None:
    """The guards, told from what was recorded alone."""
    context, slos = evaluator().context, evaluator().slos
    proposed = book.trials[1:]
    assert len(proposed) == toolbox.spent <= BUDGET
    assert [one.index for one in book.trials] == list(range(len(book.trials)))
    seen = set()
    for one in proposed:
        assert one.legal or one.reasons
        if one.score is None and not one.legal and set(one.levers) != {lever.name for lever in LEVERS}:
            assert merge(one.levers, base(), context).setting is None
            continue
        setting = Setting(tuple(normalised(lever.name, _plain(one.levers[lever.name])) for lever in LEVERS))
        deployment, workload = to_deployment(setting, context)
        assert (deployment, workload) not in seen
        seen.add((deployment, workload))
        refused = [
            lever.name for lever in LEVERS if lever.refuse(context, setting[lever.name]) and _set(one, lever.name)
        ]
        assert refused == []
        if illegal_reasons(deployment, workload, context):
            assert not one.legal
            assert one.score is None
            assert not one.metrics
        if one.legal:
            again = evaluator().evaluate(deployment, workload)
            assert again.prediction is not None
            assert not violations(again.prediction, slos)
            assert not memory_reasons(again.prediction.memory, workload.isl_tokens + workload.osl_tokens)
            assert one.score == again.score
            assert setting["block_size"] == 64
            assert setting["concurrency"] == 32
    best = toolbox.log.best
    legal = [one.score for one in book.trials if one.legal and one.score is not None]
    assert (best.judged.score if best else None) == (max(legal) if legal else None)


def _set(one: TrialRecord, lever: str) -> bool:
    """Whether the proposal gave the lever a value of its own."""
    return _plain(one.levers[lever]) != base().as_json()[lever]


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


@settings(max_examples=15)
@given(st.lists(CALLS, min_size=1, max_size=3))
def test_a_real_ledger_holds_every_call_whole(sequences: list[list[tuple[str, Any]]]) -> None:
    with open_ledger(":memory:") as ledger:
        for calls in sequences:
            record = SearchRecord("m", "c", "o", {}, "0" * 64, "0" * 64, "1", datetime.now(UTC))
            search_id = ledger.create_search(record)
            book = Book()
            toolbox = book.toolbox()
            for name, value in calls:
                toolbox.call(name, arguments(value))
            for trial in book.trials:
                ledger.add_trial(search_id, trial)
            for note in book.notes:
                ledger.add_note(search_id, note)
            best = toolbox.log.best
            ledger.finish_search(search_id, SearchEnd("done", datetime.now(UTC), best.index if best else None))
            assert ledger.trials(search_id) == tuple(book.trials)
            assert ledger.notes(search_id) == tuple(book.notes)
        for line in export(ledger, [one.search_id for one in ledger.searches()], "jsonl").splitlines():
            json.loads(line)


def call(toolbox: Toolbox, name: str, **values: object) -> dict[str, Any]:
    return toolbox.call(name, arguments(values))


def test_a_repeat_is_answered_from_the_ledger_and_costs_nothing() -> None:
    book = Book()
    toolbox = book.toolbox()
    first = call(toolbox, "evaluate", changes={"tp": 2})
    again = call(toolbox, "evaluate", changes=[{"lever": "tp", "value": "2"}])
    assert (first["status"], again["status"], again["trial"]) == ("evaluated", "repeat", first["trial"])
    assert again["score"] == first["score"]
    assert toolbox.spent == 1
    assert call(toolbox, "evaluate", changes={"tp": 1})["trial"] == 0  # the baseline by another name
    refused = call(toolbox, "evaluate", changes={"tp": 3})
    assert refused["legal"] is False
    assert call(toolbox, "evaluate", changes={"tp": 3})["status"] == "repeat"
    assert toolbox.spent == 2
    assert [note.kind for note in book.notes] == ["repeat"] * 3


def test_a_refusal_says_what_is_legal() -> None:
    toolbox = Book().toolbox(budget=60)
    assert "1, 2, 4, 8" in str(call(toolbox, "evaluate", changes={"tp": 3})["why_not"])
    assert "pinned" in str(call(toolbox, "evaluate", changes={"block_size": 16})["why_not"])
    assert "pinned" in str(call(toolbox, "evaluate", changes={"concurrency": 1})["why_not"])
    assert "not known" in str(call(toolbox, "evaluate", changes={"width": 3})["why_not"])
    assert "over the bound of 6" in str(call(toolbox, "evaluate", changes={"graph_mode": "none"})["why_not"])
    assert call(toolbox, "evaluate", changes={})["error"]


def test_the_budget_is_an_answer_and_then_the_end() -> None:
    toolbox = Book().toolbox(budget=2)
    assert call(toolbox, "evaluate", changes={"graph_mode": "none"})["budget_left"] == 1
    assert call(toolbox, "read_budget") == {"budget": 2, "left": 1, "since_best": 1, "stops_after": 1}
    call(toolbox, "evaluate", changes={"tp": 4})
    assert toolbox.stop is not None
    assert call(toolbox, "evaluate", changes={"tp": 8})["status"] == "stopped"
    assert toolbox.spent == 2


def test_the_other_tools_answer() -> None:
    asked: list[str] = []

    def answer(question: str, context: str) -> str:
        asked.append(question)
        return "because"

    book = Book()
    toolbox = book.toolbox(ask=answer)
    call(toolbox, "evaluate", changes={"tp": 2}, hypothesis=1)
    assert call(toolbox, "read_history")["newest"][-1]["set"] == {"tp": 2}
    assert call(toolbox, "read_best")["best"]["legal"]
    assert call(toolbox, "read_legal", text="tp")["legal"] == [1, 2, 4, 8]
    assert call(toolbox, "read_legal")["cluster"]["gpu"] == "MI355X"
    assert "error" in call(toolbox, "read_legal", text="width")
    assert call(toolbox, "write_note", text="wider is worse")["status"] == "noted"
    assert call(toolbox, "read_notes") == {"notes": ["wider is worse"]}
    assert call(toolbox, "ask", text="why?") == {"answer": "because"}
    assert asked == ["why?"]
    assert "tools" in call(toolbox, "shell")
    assert [note.kind for note in book.notes] == ["scratchpad", "question"]


def test_a_note_is_asked_for_after_five_evaluations() -> None:
    toolbox = Book().toolbox(budget=60)
    answers = [call(toolbox, "evaluate", changes={"max_running": number}) for number in range(1, 7)]
    assert ["reminder" in answer for answer in answers] == [False] * 4 + [True] * 2


SHAPES: list[Any] = [
    {"changes": [{"lever": "tp", "value": "2"}]}, {"changes": {"tp": 2}}, {"tp": 2}, '{"tp": 2}', [{"tp": 2}],
    {"partial": {"tp": "2"}}, {"config": '{"tp": 2}'}, {"configuration": [["x"], {"lever": "tp", "value": 2.0}]},
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_partial_configuration_may_come_in_many_shapes(shape: Any) -> None:
    assert Proposal.model_validate(shape).partial() == {"tp": 2}
    assert ToolArguments.model_validate(shape).partial() == {"tp": 2}
    assert [one.partial() for one in Configurations.model_validate([shape]).root] == [{"tp": 2}]


def test_a_plan_is_bounded() -> None:
    plan = Configurations.model_validate([{"tp": 2 ** (number % 4)} for number in range(50)])
    assert len(plan.root) == 8
    assert len(Proposal.model_validate({name: 1 for name in BY_NAME}).changes) <= 8
