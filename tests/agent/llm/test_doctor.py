"""``inferasim doctor`` finds what is wrong and says how to mend it; ``ledger show --story`` tells a search."""

from pathlib import Path

import pytest

from agent.llm.program import Program, load_program, save_program
from agent.llm.session import TOOL_TEXTS, open_session
from agent.llm.settings import LlmSettings, load_settings
from evals.scripted_llm import Late, Reply, Status
from predictor.errors import BadInput
from prompts import load
from tests.agent.llm.conftest import FINISH, SUMMARY, Json, Run, changes, plan, served, step

READY = {"answer": "ready"}


def statuses(answer: Json) -> dict[str, str]:
    return {check["name"]: check["status"] for check in answer["checks"]}


def test_a_healthy_machine(run: Run, tmp_path: Path) -> None:
    with served([READY]) as llm:
        done = run("doctor", "--json", "--model", "Llama-3.1-8B", "--ledger", str(tmp_path / "l.db"), llm=llm)
    assert done.code == 0, done.stdout
    assert statuses(done.answer) == dict.fromkeys(("catalogue", "anchors", "ledger", "language model"), "ok")
    assert "price unknown" in done.answer["checks"][-1]["message"]
    assert "context 32768 tokens, counted by bytes" in done.answer["checks"][-1]["message"]


def test_without_a_model_or_anchor_it_is_off_and_says_what_to_do(run: Run, tmp_path: Path) -> None:
    done = run("doctor", "--json", "--model", "Kimi-K3", "--ledger", str(tmp_path / "l.db"))
    assert done.code == 0
    found = {check["name"]: check for check in done.answer["checks"]}
    assert (found["anchors"]["status"], found["language model"]["status"]) == ("off", "off")
    assert "anchors import" in found["anchors"]["fix"]
    assert "INFERASIM_LLM_MODEL" in found["language model"]["fix"]


SICK: dict[str, tuple[list[Reply], str]] = {
    "a wrong key": ([Status(401)], "INFERASIM_LLM_API_KEY"),
    "a server error": ([Status(500)] * 2, "INFERASIM_LLM_API_BASE"),
    "too slow": ([Late(5, "x")] * 2, "INFERASIM_LLM_TIMEOUT_S"),
    "no JSON": (["hello"], "INFERASIM_LLM_RESPONSE_SCHEMA"),
    "refused": ([Status(400)] * 2, "model's name"),
}


@pytest.mark.parametrize("case", SICK)
def test_each_failure_of_the_model_has_its_remedy(case: str, run: Run, tmp_path: Path) -> None:
    replies, remedy = SICK[case]
    timeout_s = 0.3 if case == "too slow" else 20
    with served(replies) as llm:
        done = run("doctor", "--json", "--ledger", str(tmp_path / "l.db"), llm=llm, timeout_s=timeout_s, attempts=2)
    assert done.code == 3
    check = done.answer["checks"][-1]
    assert check["status"] == "failed"
    assert remedy in check["fix"]


def test_other_faults_are_named(run: Run, tmp_path: Path) -> None:
    cache = tmp_path / ".cache" / "inferasim" / "anchors"
    cache.mkdir(parents=True)
    (cache / "broken.json").write_text("{")
    done = run("doctor", "--json", "--offline", "--model", "Lama", "--ledger", str(tmp_path / "no" / "l.db"))
    assert done.code == 3
    failed = {check["name"]: check["message"] for check in done.answer["checks"] if check["status"] == "failed"}
    assert set(failed) == {"catalogue", "anchors", "ledger"}
    assert "broken.json" in failed["anchors"]
    people = run("doctor", "--offline", "--ledger", str(tmp_path / "l.db"))
    assert "broken.json" in people.stdout


def test_the_story_of_a_search(run: Run, tmp_path: Path) -> None:
    path = str(tmp_path / "l.db")
    text = "DeepSeek-R1 on 8 MI355X with SGLang, 20 trials"
    replies: list[Reply] = [
        {"reading": {}},
        plan({"tp": 8, "spec_method": "mtp", "spec_depth": 2}, hypotheses=["drafts fill idle steps"]),
        step("evaluate", "one deeper", changes=changes(tp=8, spec_method="mtp", spec_depth=3)),
        step("evaluate", changes=changes(tp=8, spec_method="mtp", spec_depth=3)),
        step("write_note", text="depth helps up to 3"),
        FINISH,
        SUMMARY,
        plan(),
        FINISH,
        SUMMARY,
    ]
    with served(replies) as llm:
        assert run("tune", text, "--json", "--ledger", path, llm=llm).code == 0
    story = run("ledger", "show", "1", "--story", "--ledger", path).stdout
    told = (
        f"asked in words: {text}", "The baseline scored", "hypothesis 1: drafts fill idle steps",
        "then: vary the draft depth",
        "tried spec_depth=2 spec_method=mtp tp=8 [drafts fill idle steps]", "because: one deeper",
        "repeated trial", "learned: depth helps up to 3", "summary: speculation pays", "It stopped after",
        "The best is trial", "The language model was asked 10 times",
    )  # fmt: skip
    places = [story.index(words) for words in told]
    assert places == sorted(places)
    lines = run("ledger", "show", "1", "--story", "--json", "--ledger", path).answer["story"]
    assert "\n".join(lines) + "\n" == story


def test_settings_come_from_a_file_then_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "llm.toml"
    file.write_text('model = "openai/a"\nmax_calls = 7\n')
    environment = {"INFERASIM_LLM_CONFIG": str(file), "INFERASIM_LLM_MODEL": "openai/b", "HOME": str(tmp_path)}
    assert load_settings(environment).model == "openai/b"
    assert load_settings(environment).max_calls == 7
    assert load_settings({"HOME": str(tmp_path)}) == LlmSettings()


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"INFERASIM_LLM_MODEL": "gpt"}, "INFERASIM_LLM_MODEL"),
        ({"INFERASIM_LLM_TIMEOUT_S": "soon"}, "timeout_s 'soon'"),
        ({"INFERASIM_LLM_CONFIG": "/no/such/file"}, "/no/such/file"),
    ],
)
def test_a_bad_setting_names_itself(environment: dict[str, str], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        load_settings(environment)


def test_a_program_can_be_saved_loaded_and_is_recorded_by_what_it_says(tmp_path: Path) -> None:
    path = str(tmp_path / "program.json")
    program = Program(TOOL_TEXTS)
    program.planner.signature = program.planner.signature.with_instructions("Plan well.")
    program.planner.demos = [{"rationale": "r"}]
    save_program(path, program)
    session = open_session(LlmSettings(program=path))
    prompts = {prompt.name: prompt for prompt in session.prompts()}
    assert prompts["planner"].text == "Plan well."
    assert prompts["planner"].sha256 != load("planner").sha256
    assert "rationale" in prompts["demonstrations"].text
    fresh = Program(TOOL_TEXTS)
    load_program(path, fresh)
    assert fresh.dump_state(json_mode=True) == program.dump_state(json_mode=True)


@pytest.mark.parametrize("content", ["", "[]", '{"planner": 1}', "{}"])
def test_a_file_that_is_no_program_is_bad_input(content: str, tmp_path: Path) -> None:
    path = tmp_path / "program.json"
    path.write_text(content)
    with pytest.raises(BadInput, match=r"program\.json"):
        open_session(LlmSettings(program=str(path)))
