"""A sentence with a language model: it may fill gaps and propose, it can name nothing that the text does not hold."""

from pathlib import Path

import pytest

from agent.llm.failures import LlmFailure
from agent.llm.forms import BoundForm, RequestForm
from agent.llm.text_request import NeedsAnswer, read_request, settle
from evals.scripted_llm import Status
from ledger import open_ledger
from tests.agent.llm.conftest import FINISH, SUMMARY, Json, Run, plan, served

CLEAR = "Llama-3.1-8B on 8 MI355X with SGLang, TPOT under 10 ms"
OPEN = "Llama-3.1-8B on 8 MI355X with SGLang, latency under 2 s"


def reads(**fields: object) -> RequestForm:
    return RequestForm.model_validate(fields)


def test_the_text_wins_over_the_model_and_says_so() -> None:
    reading = read_request(CLEAR, lambda text: reads(model="Qwen3-32B", gpu="H100", engine="vLLM"))
    fields = settle(reading, {}, accept=False)
    assert (fields["model"], fields["cluster"], fields["engine"]) == ("Llama-3.1-8B", "MI355X:8", "SGLang")
    assert [note for note in reading.notes if "Qwen3-32B" in note]
    assert [note for note in reading.notes if "H100" in note]


def test_numbers_the_text_does_not_hold_are_left_out() -> None:
    reading = read_request(CLEAR, lambda text: reads(isl=8192, concurrency=7, budget=50))
    fields = settle(reading, {}, accept=True)
    assert (fields["isl"], fields["concurrency"]) == (1024, 64)
    assert "budget" not in fields
    assert sum("left out" in note for note in reading.notes) == 3


def test_a_number_the_rules_cannot_place_may_be_placed_by_the_model() -> None:
    text = "Llama-3.1-8B on 8 MI355X with SGLang, documents with 6000 tokens"
    reading = read_request(text, lambda text: reads(isl=6000))
    assert settle(reading, {}, accept=False)["isl"] == 6000
    with pytest.raises(NeedsAnswer, match="6000 tokens"):
        settle(read_request(text), {}, accept=True)


@pytest.mark.parametrize(
    ("bound", "proposed"),
    [
        ({"metric": "e2e_ms", "value": 2, "unit": "s"}, ("e2e_ms<=2000",)),
        ({"metric": "e2e_ms", "value": 2000, "unit": "ms"}, ("e2e_ms<=2000",)),
        ({"metric": "e2e_ms", "value": 2, "unit": "ms"}, None),  # a wrong unit
        ({"metric": "e2e_ms", "value": 3, "unit": "s"}, None),  # a wrong number
        ({"metric": "output_tok_s", "value": 2, "unit": "s"}, None),  # a metric of another kind
        ({"metric": "speed", "value": 2, "unit": "s"}, None),  # no metric
    ],
)
def test_the_models_bound_is_proposed_only_if_number_unit_and_metric_fit(bound: Json, proposed: object) -> None:
    reading = read_request(OPEN, lambda text: reads(bounds=[bound]))
    (question,) = reading.questions
    assert (question.proposal or {}).get("slos") == proposed
    if proposed:
        assert settle(reading, {}, accept=True)["slos"] == proposed
    with pytest.raises(NeedsAnswer):
        settle(reading, {}, accept=False)


def test_a_model_cannot_name_what_the_text_leaves_open() -> None:
    reading = read_request("the fastest one, please", lambda text: reads(model="Qwen3-32B", gpu="H100", engine="vLLM"))
    assert {question.field for question in reading.questions} >= {"model", "gpu", "engine"}
    with pytest.raises(NeedsAnswer):
        settle(reading, {}, accept=True)


def test_of_two_candidates_the_models_choice_is_a_proposal() -> None:
    text = "Llama-3.1-8B on H100:8 or H200:8 with vLLM"
    reading = read_request(text, lambda text: reads(gpu="H200"))
    assert reading.questions[0].proposal == {"gpu": "H200"}


def test_the_objective_in_other_words_is_assumed_and_shown() -> None:
    reading = read_request(CLEAR, lambda text: reads(objective="ttft_ms"))
    assert ("objective", "ttft_ms") in [(one.field, one.value) for one in reading.assumed]
    reading = read_request(CLEAR, lambda text: reads(objective="happiness"))
    assert reading.fields["objective"] == "output_tok_s_per_gpu"


def test_a_question_of_the_model_is_asked() -> None:
    with pytest.raises(NeedsAnswer, match="Which traffic"):
        settle(read_request(CLEAR, lambda text: reads(question="Which traffic do you expect?")), {}, accept=False)


def test_a_model_that_fails_leaves_the_rules_reading_with_a_flag() -> None:
    def fail(text: str) -> RequestForm:
        raise LlmFailure("llm_timeout", "no answer")

    reading = read_request(CLEAR, fail)
    assert reading.flag == ("llm_timeout", "the request was read by rule alone: no answer")
    assert settle(reading, {}, accept=False)["slos"] == ("tpot_ms<=10",)


FORMS: list[object] = [
    {}, {"model": None, "bounds": None, "isl": "8,192", "nodes": "two"}, {"bounds": [1, "x", {"value": "nan"}] * 9},
    {"isl": 1e400, "osl": True, "question": ["a", {"b": 1}]}, {"bounds": {"metric": "ttft_ms", "relation": "≥"}},
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_any_form_is_readable(form: object) -> None:
    read = RequestForm.model_validate(form)
    assert len(read.bounds) <= 4
    assert all(isinstance(bound, BoundForm) for bound in read.bounds)
    read_request(CLEAR, lambda text: read)


ANSWER = {"reading": {"model": "Llama-3.1-8B", "gpu": "MI355X", "gpus_per_node": 8, "engine": "SGLang"}}


def test_the_command_reads_searches_and_records_the_words(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with served([ANSWER, plan({"tp": 3}), FINISH, SUMMARY]) as llm:
        done = run("tune", CLEAR, "--budget", "12", "--json", "--ledger", str(path), llm=llm)
    assert done.code == 0, done.stderr
    assert "understood: model Llama-3.1-8B" in done.stderr
    assert "assumed: isl 1024" in done.stderr
    assert done.answer["reading"]["missing"] == []
    assert done.answer["planner"]["llm"]["calls"] == 4
    with open_ledger(str(path), create=False, write=False) as book:
        notes = book.notes(1)
    assert notes[0].kind == "request"
    assert notes[0].facts["text"] == CLEAR
    assert next(one.facts["stage"] for one in notes if one.kind == "llm_call") == "request"


def test_an_open_text_exits_2_with_the_question_and_writes_nothing(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with served([ANSWER]) as llm:
        done = run("tune", OPEN, "--json", "--ledger", str(path), llm=llm)
    assert done.code == 2
    assert done.stdout == ""
    assert "what is '2 s'?" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not path.exists()


def test_a_broken_model_still_reads_and_searches(run: Run, tmp_path: Path) -> None:
    with served([Status(401)] * 9) as llm:
        done = run("tune", CLEAR, "--budget", "12", "--json", "--ledger", str(tmp_path / "l.db"), llm=llm)
    assert done.code == 0, done.stderr
    assert [flag["code"] for flag in done.answer["flags"]] == ["llm_auth", "llm_auth"]
    assert done.answer["best"]


FILES = {  # the same request in both forms
    "r.toml": 'model = "Llama-3.1-8B"\ncluster = "MI355X:8"\nengine = "sglang"\nslos = ["tpot_ms<=10"]\nbudget = 12\n',
    "r.json": '{"model": "Llama-3.1-8B", "cluster": "MI355X:8", "engine": "sglang", "slos": ["tpot_ms<=10"],'
    ' "budget": 12}',
}


@pytest.mark.parametrize("name", FILES)
def test_words_file_and_options_give_the_same_search(name: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FILES[name])
    common = ("--seed-only", "--json", "--ledger", str(tmp_path / "l.db"))
    by_file = run("tune", "--request", str(tmp_path / name), *common)
    by_words = run("tune", f"{CLEAR}, 12 trials", *common)
    options = ("--model", "Llama-3.1-8B", "--cluster", "MI355X:8", "--engine", "sglang", "--slo", "tpot_ms<=10")
    by_options = run("tune", *options, "--budget", "12", *common)
    for done in (by_file, by_words, by_options):
        assert done.code == 0, done.stderr
    best = [done.answer["best"] for done in (by_file, by_words, by_options)]
    assert best[0] == best[1] == best[2]


BAD_FILES = {
    "no file": (None, "cannot be read"),
    "no TOML": ("model = ", "not readable as TOML"),
    "an unknown field": ('modle = "x"', "modle"),
    "a wrong type": ('model = "Llama-3.1-8B"\ncluster = "MI355X:8"\nengine = "sglang"\nisl = "many"', "isl"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_one_line_and_exit_2(case: str, run: Run, tmp_path: Path) -> None:
    content, said = BAD_FILES[case]
    path = tmp_path / "r.toml"
    if content is not None:
        path.write_text(content)
    done = run("tune", "--request", str(path), "--seed-only", "--json")
    assert (done.code, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
