"""No prompt is ever longer than what is free in the context window, whoever counts its tokens."""

import math
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from agent.llm.detail import FULL, LADDER, Detail, fit
from agent.llm.inputs import shortened
from agent.llm.lm import Backbone
from agent.llm.session import open_session
from agent.llm.settings import LlmSettings
from agent.llm.tokens import BYTES_PER_TOKEN
from evals.scripted_llm import Policy, Reply, ScriptedLlm, Tokenizer, scripted_llm
from ledger import open_ledger
from tests.agent.llm.conftest import FINISH, SUMMARY, Json, Run, changes, plan, step

TUNE = (
    "tune", "--model", "Llama-3.1-8B", "--cluster", "MI355X:8", "--engine", "sglang", "--budget", "24", "--json",
    "--pin", "disagg=off", "--pin", "dcp=1", "--pin", "spec_method=none",
)  # fmt: skip


def by_bytes(bytes_per_token: float) -> Any:
    return lambda text: math.ceil(len(text.encode()) / bytes_per_token)


def by_characters(text: str) -> int:
    """As wasteful as a tokenizer gets: each digit, mark and space, and every second letter."""
    return len(re.findall(r"[^\W\d_]{1,2}|.", text, re.DOTALL))


SERVERS = ("llama.cpp", "vllm")
TOKENIZERS = [
    *(Tokenizer(by_bytes(rate)) for rate in (BYTES_PER_TOKEN, 2.3, 4.0)),  # the server does not count
    *(Tokenizer(split, offers) for split in (by_characters, by_bytes(1.0), by_bytes(3.3)) for offers in SERVERS),
]
TOOLS: list[Reply] = [
    step("read_legal"), step("read_history"), step("read_best"), step("read_budget"), step("read_notes"),
    step("read_legal", text="fusions"), step("ask", text="why? " * 90), step("write_note", text="wider is worse " * 30),
    step("evaluate", "x" * 390, changes=changes(tp=2, max_running=64)), step("evaluate", changes=changes(tp=3)),
    step("shell", text="no such tool"), "no JSON at all",
]  # fmt: skip


def policy(picks: list[int]) -> Policy:
    """A model that plans much, then uses the tools that were drawn, then ends."""
    left = list(picks)

    def answer(body: Mapping[str, Any]) -> Reply:
        asked = str(body["messages"][-1]["content"]).rpartition("Respond with")[2]
        if "`rationale`" in asked:
            many = [{"tp": tp, "max_running": running} for tp in (2, 4, 8) for running in (16, 32)]
            return plan(*many, hypotheses=["wider is faster " * 20] * 5)
        if "`next_tool_name`" in asked:
            return TOOLS[left.pop(0)] if left else FINISH
        return SUMMARY if "`summary`" in asked else {"answer": "because " * 40}

    return answer


def longest(llm: ScriptedLlm, tokenizer: Tokenizer) -> int:
    """Tokens of the longest prompt with the answer it asked for."""
    answers = [int(body.get("max_tokens") or body["max_completion_tokens"]) for body in llm.requests]
    prompts = [tokenizer.prompt(body["messages"]) for body in llm.requests]
    return max((prompt + answer for prompt, answer in zip(prompts, answers, strict=True)), default=0)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tokenizer=st.sampled_from(TOKENIZERS),
    letters=st.integers(7_000, 30_000),
    answer=st.integers(20, 900),
    picks=st.lists(st.integers(0, len(TOOLS) - 1), max_size=14),
    guidance=st.one_of(st.text(max_size=1500), st.just("Breite zuerst, bitte – größere Stapel später. " * 30)),
)
def test_no_prompt_is_longer_than_what_is_free(
    tokenizer: Tokenizer, letters: int, answer: int, picks: list[int], guidance: str, run: Run
) -> None:
    context = tokenizer.tokens("tp=8, " * (letters // 6)) + answer
    with scripted_llm(policy(picks), tokenizer) as llm:
        words = ("--guidance", guidance.replace("\x00", "")) if guidance.strip("\x00") else ()
        done = run(*TUNE, *words, "--ledger", ":memory:", llm=llm, context_tokens=context, max_tokens=answer)
    assert done.code == 0, done.stderr
    assert done.answer["best"]
    codes = [flag["code"] for flag in done.answer["flags"]]
    assert longest(llm, tokenizer) <= context
    assert llm.requests or codes == ["llm_context_exceeded"]
    event(f"{'sent' if llm.requests else 'not sent'}, {'shortened' if 'llm_prompt_shortened' in codes else 'whole'}")


def played(run: Run, path: Path, context: int, tokenizer: Tokenizer | None = None) -> tuple[Json, ScriptedLlm]:
    with scripted_llm(policy([8, 1, 3]), tokenizer) as llm:
        done = run(*TUNE, "--ledger", str(path), llm=llm, context_tokens=context, max_tokens=400)
    assert done.code == 0, done.stderr
    return done.answer, llm


def test_what_a_prompt_leaves_out_is_said_to_the_model_in_the_ledger_and_in_a_flag(run: Run, tmp_path: Path) -> None:
    path, tokenizer = tmp_path / "l.db", Tokenizer(by_bytes(3.0), "llama.cpp")
    answer, llm = played(run, path, 3400, tokenizer)
    assert llm.requests
    (flag,) = answer["flags"]
    assert flag["code"] == "llm_prompt_shortened"
    assert "the levers that have but one value" in flag["message"]
    assert "INFERASIM_LLM_CONTEXT_TOKENS" in flag["message"]
    assert "levers that cannot be changed" in llm.prompts()[0]
    assert "older trials" in llm.prompts()[0]
    with open_ledger(str(path), create=False, write=False) as book:
        notes = [one for one in book.notes(1) if one.kind == "prompt_shortened"]
    assert [one.facts["stage"] for one in notes] == ["planner", "investigate"]
    assert "the levers that have but one value" in notes[0].facts["left_out"]  # type: ignore[operator]
    story = run("ledger", "show", "1", "--story", "--ledger", str(path)).stdout
    assert "the planner prompt left out the trials' figures beside the score" in story


def test_where_all_fits_nothing_is_left_out(run: Run, tmp_path: Path) -> None:
    answer, llm = played(run, tmp_path / "l.db", 32_768)
    assert answer["flags"] == []
    assert "left_out" not in llm.prompts()[0]


def test_what_cannot_fit_at_all_is_not_sent_and_leaves_the_seed_search(run: Run, tmp_path: Path) -> None:
    answer, llm = played(run, tmp_path / "l.db", 900)
    assert llm.requests == []
    (flag,) = answer["flags"]
    assert flag["code"] == "llm_context_exceeded"
    for words in ("was not sent", "675 are free", "INFERASIM_LLM_CONTEXT_TOKENS", "INFERASIM_LLM_MAX_TOKENS"):
        assert words in flag["message"]
    seeds = run(*TUNE, "--seed-only", "--ledger", str(tmp_path / "seed.db")).answer
    assert answer["best"] == seeds["best"]


@pytest.mark.parametrize("offers", SERVERS)
def test_a_server_that_counts_is_believed_and_tells_its_window(offers: str) -> None:
    with scripted_llm([], Tokenizer(by_characters, offers, 5000)) as llm:
        for set_by_hand, expected in ((None, 5000), (9000, 5000), (3000, 3000)):
            chosen = LlmSettings(model="openai/own", api_base=llm.url, context_tokens=set_by_hand)
            backbone = open_session(chosen).backbone
            assert isinstance(backbone, Backbone)
            assert backbone.context_tokens == expected
            assert offers.partition(".")[0] in backbone.counted_by.lower()
            assert backbone.text_tokens("ab 12") == 4
            assert backbone.assumptions() == []


def test_who_counts_where_no_server_does() -> None:
    with scripted_llm([]) as llm:
        for model, source in (("openai/gpt-4o", "LiteLLM's tokenizer"), ("openai/own", "bytes")):
            backbone = open_session(LlmSettings(model=model, api_base=llm.url)).backbone
            assert isinstance(backbone, Backbone)
            assert backbone.counted_by == source
            assert backbone.text_tokens("a" * 90) in (12, 50)  # 8 letters a token, or 1.8 bytes


def test_usage_that_servers_report_makes_the_count_stricter_and_never_laxer() -> None:
    with scripted_llm([]) as llm:
        backbone = open_session(LlmSettings(model="openai/own", api_base=llm.url)).backbone
    assert isinstance(backbone, Backbone)
    counter, sent = backbone._counter, [("user", "x" * 1800)]
    plain = counter.prompt(sent)
    counter.learn(sent, 500)  # packs better than feared
    assert counter.prompt(sent) == plain
    counter.learn([("user", "x" * 50)], 49)  # too short to tell
    assert counter.prompt(sent) == plain
    counter.learn(sent, 1500)
    assert counter.prompt(sent) == pytest.approx(1500, abs=1)


def test_an_answer_takes_at_most_a_quarter_of_the_window() -> None:
    with scripted_llm([]) as llm:
        small = LlmSettings(model="openai/own", api_base=llm.url, context_tokens=4096, max_tokens=4096)
        backbone = open_session(small).backbone
    assert isinstance(backbone, Backbone)
    assert (backbone.answer_tokens, backbone.free_tokens) == (1024, 3072)


@given(st.integers(0, 3000), st.lists(st.integers(0, 200), min_size=len(LADDER), max_size=len(LADDER)))
def test_the_fullest_rung_that_fits_is_taken(room: int, steps: list[int]) -> None:
    sizes = {detail: 50 + sum(steps[place:]) for place, detail in enumerate(LADDER)}
    found = fit(lambda detail: detail, lambda detail: sizes[detail], room)
    fitting = [detail for detail in LADDER if sizes[detail] <= room]
    assert (found and sizes[found[1]]) == (sizes[fitting[0]] if fitting else None)


def test_each_rung_keeps_what_the_one_before_left_out() -> None:
    assert FULL.cut() == []
    for before, after in pairwise(LADDER):
        assert set(before.cut()) <= set(after.cut())
        assert after.trials <= before.trials


def test_shortened_legal_sets_say_what_is_missing() -> None:
    levers = {"open": {"tp": [1, 2, 4, 8, 16], "n": {"values": [1, 2, 3], "range": [1, 9]}}, "fixed": {"pp": 1}}
    assert shortened(levers, FULL) == levers
    short = shortened(levers, Detail(values=2, fixed_levers=False))
    assert short["open"] == {"tp": [1, 16], "n": {"values": [1, 3], "range": [1, 9]}}
    assert short["left_out"] == "1 levers that cannot be changed; values of tp, n: read_legal with a lever's name tells"
