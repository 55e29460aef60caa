"""A search with a language model over real HTTP: whatever it does, the answer is legal and priced and says why."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent.llm import tools
from agent.llm.program import CONTEXT_NAMES
from agent.llm.proposals import LEVER_NAMES, TOOL_NAMES
from evals.scripted_llm import OVERFLOW, Cut, Drip, Late, Reply, Status
from ledger import open_ledger
from ledger.record import NoteRecord, TrialRecord
from levers.catalog import LEVERS
from prompts import load
from tests.agent.llm.conftest import FINISH, SUMMARY, Json, Run, changes, plan, served, step

TUNE = (
    "tune", "--model", "DeepSeek-R1", "--cluster", "MI355X:8", "--engine", "sglang", "--slo", "tpot_ms<=40",
    "--budget", "40", "--json",
)  # fmt: skip
GOOD = {"attn_dp": 4, "max_running": 64, "spec_method": "mtp", "spec_depth": 3}  # better than every seed
AGAIN = [plan(), FINISH, SUMMARY]  # the round after one that found a new best
FULL = [
    plan(GOOD, {"tp": 8, "ep": 8, "attn_dp": 8}, {"tp": 3}),
    step("evaluate", changes=changes(tp=8, spec_method="mtp", spec_depth=4), hypothesis=1),
    step("evaluate", changes=changes(tp=8, spec_method="mtp", spec_depth=4), hypothesis=1),
    step("write_note", text="depth 4 against depth 3"),
    FINISH,
    SUMMARY,
    *AGAIN,
]


def seed_only(run: Run, tmp_path: Path, *more: str) -> Json:
    done = run(*TUNE, "--seed-only", "--ledger", str(tmp_path / "seed.db"), *more)
    assert done.code == 0, done.stderr
    return done.answer


def recorded(path: Path) -> tuple[tuple[TrialRecord, ...], tuple[NoteRecord, ...]]:
    with open_ledger(str(path), create=False, write=False) as book:
        assert book.get_search(1).status in ("done", "stopped")
        return book.trials(1), book.notes(1)


def check(answer: Json, path: Path) -> tuple[tuple[TrialRecord, ...], tuple[NoteRecord, ...]]:
    """What holds for every search: a legal priced best from the ledger, reasons for the rest, the budget kept."""
    trials, notes = recorded(path)
    best = trials[answer["best"]["index"]]
    assert best.legal
    assert best.mode
    assert best.score == answer["best"]["score"] == max(one.score for one in trials if one.legal and one.score)
    assert all(one.reasons for one in trials if not one.legal)
    assert [one.index for one in trials] == list(range(len(trials)))
    assert len([one for one in trials if tried(one)]) <= 40
    return trials, notes


def tried(one: TrialRecord) -> bool:
    """Whether the trial spent budget: anything but a seed that is illegal by its structure."""
    return one.origin != "seed" or len(one.levers) == len(LEVERS)


def flags(answer: Json) -> list[str]:
    return [flag["code"] for flag in answer["flags"]]


def test_a_full_search(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with served(FULL) as llm:
        done = run(*TUNE, "--guidance", "prefer speculation", "--ledger", str(path), llm=llm)
    assert done.code == 0, done.stderr
    answer = done.answer
    trials, notes = check(answer, path)
    assert flags(answer) == []
    assert answer["planner"]["stop"]["code"] == "finished"
    proposals, repeats = answer["planner"]["proposals"], answer["planner"]["repeats"]
    assert proposals + repeats == 5
    assert repeats >= 1  # the model repeats one itself; the seeds may have tried others
    assert answer["planner"]["llm"]["calls"] == len(FULL) == len(llm.requests)
    planned = [one for one in trials if one.origin == "planner"]
    assert [one.levers["spec_depth"] for one in planned[:1]] == [3]
    assert planned[0].hypothesis == "deeper drafts pay off"
    assert [code for code, _ in planned[-1].reasons] == ["out_of_set"]
    kinds = [one.kind for one in notes]
    assert kinds.count("llm_call") == len(FULL)
    assert {"plan", "step", "repeat", "scratchpad", "summary", "llm_end"} <= set(kinds)
    repeat = next(one for one in notes if one.kind == "repeat")
    assert "tried before as trial" in str(repeat.facts["why"])
    call = next(one for one in notes if one.kind == "llm_call")
    assert (call.costs["prompt_tokens"], call.costs["completion_tokens"]) == (100, 20)
    assert call.costs["latency_ms"]  # type: ignore[truthy-bool]


def test_what_the_model_is_told_is_in_the_ledger_by_hash(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with served(FULL) as llm:
        run(*TUNE, "--ledger", str(path), llm=llm)
    with open_ledger(str(path), create=False, write=False) as book:
        record = book.get_search(1).record
        assert record.prompt_sha256s["planner"] == load("planner").sha256
        stored = book.input(record.prompt_sha256s["investigate"])
        assert stored is not None
        assert load("investigate").text in stored.text
        assert all(name in stored.text for name in ("evaluate", "read_legal", "finish"))


def test_the_planner_gets_exactly_the_five_inputs_with_guidance_and_notes(run: Run, tmp_path: Path) -> None:
    with served(FULL) as llm:
        run(*TUNE, "--guidance", "prefer speculation", "--ledger", str(tmp_path / "l.db"), llm=llm)
    user = llm.requests[0]["messages"][-1]["content"]
    parts = dict(part.split(" ## ]]\n", 1) for part in user.split("[[ ## ")[1:])
    assert list(parts) == ["architecture", "cluster", "levers", "objective", "guidance", "trials", "notes"]
    inputs = {name: json.loads(text.strip().split("\n\nRespond")[0]) for name, text in parts.items()}
    assert inputs["architecture"]["moe"]["experts"] == 256
    assert inputs["cluster"]["gpus_per_node"] == 8
    assert inputs["levers"]["open"]["tp"] == [1, 2, 4, 8]
    assert inputs["levers"]["fixed"]["concurrency"] == 64
    assert inputs["objective"]["direction"] == "max"
    assert inputs["objective"]["bounds"] == ["tpot_ms<=40"]
    assert 0 < len(inputs["trials"]["recent"]) <= 40
    assert inputs["guidance"] == "prefer speculation"
    missing = [word for words in TRADE_OFFS.values() for word in words if word not in llm.prompts()[0]]
    assert missing == []


TRADE_OFFS = {  # paper App. J, planner prompt
    "latency against throughput": ("batch", "concurrency", "request_rate"),
    "KV capacity": ("kv_dtype", "memory fraction", "block size"),
    "prefill cost": ("chunk size", "token budget"),
    "MoE communication": ("expert parallelism", "DeepEP", "load balancing"),
    "disaggregation": ("Disaggregation",),
    "the kernel options": ("Kernel options",),
}


def test_the_prompts_name_only_levers_that_exist_and_every_tool() -> None:
    text = load("planner").text + load("investigate").text
    named = set(re.findall(r"`([a-z][a-z0-9_]*)`", text))
    other = {*CONTEXT_NAMES, *TOOL_NAMES, "finish", "plan", "trajectory", "next_thought", "changes", *PLAN, *SHAPES}
    assert named - other <= set(LEVER_NAMES)
    assert {"prefill_tp", "prefill_replicas"} <= set(LEVER_NAMES)  # `prefill_*`


PLAN = ("rationale", "hypotheses", "configurations", "polish")
SHAPES = ("open", "values", "range", "any_of", "fixed", "bounds", "set", "score", "why_not", "fusions_worth_it")


# Name → replies, the flag expected (or none), and whether the language model's own proposals are recorded.
TROUBLE: dict[str, tuple[list[Reply], str | None, bool]] = {
    "malformed JSON of a step": ([plan(GOOD), "no JSON at all", '{"next_thought": "x"', *FULL[1:]], None, True),
    "malformed JSON throughout": ([plan(GOOD), *["no JSON"] * 9], "llm_unreadable", True),
    "malformed plan": (["no JSON", "nor this", *FULL[1:]], None, True),
    "a plan that breaks off": ([json.dumps(plan(GOOD, {"tp": 8, "ep": 8}))[:-60], *FULL[1:]], None, True),
    "giving up before any proposal": ([plan(), *[FINISH] * 3, SUMMARY], "no_proposals", False),
    "an unknown tool": ([plan(GOOD), step("run_shell", text="rm -rf /"), FINISH, SUMMARY, *AGAIN], None, True),
    "values outside the legal sets": (
        [plan({"tp": 3}, {"kv_dtype": "int1"}, {"width": 9}, {"tp": "8; drop table"}), *[FINISH, SUMMARY] * 2],
        None,
        True,
    ),
    "429, then an answer": ([Status(429), *FULL], None, True),
    "429 for ever": ([Status(429)] * 9, "llm_rate_limited", False),
    "a wrong key": ([Status(401)] * 9, "llm_auth", False),
    "a hang": ([Late(30, "never")] * 9, "llm_timeout", False),
    "a server that drips": ([Drip(0.1)] * 9, "llm_timeout", False),
    "a disconnect in the middle": ([plan(GOOD), step("read_best"), *[Cut()] * 9], "llm_server_error", True),
    "a context overflow, then an answer": ([plan(GOOD), OVERFLOW, OVERFLOW, *FULL[1:]], None, True),
    "a context that never fits": ([OVERFLOW] * 20, "llm_context_exceeded", False),
    "nothing but words": ([plan(), *[step("read_best")] * 10, SUMMARY], "no_proposals", False),
    "silence": ([""] * 20, "llm_unreadable", False),
}


@pytest.mark.parametrize("case", TROUBLE)
def test_trouble_ends_in_a_legal_priced_best_and_the_right_flags(case: str, run: Run, tmp_path: Path) -> None:
    replies, flag, proposes = TROUBLE[case]
    path = tmp_path / "l.db"
    timeout_s = 0.6 if flag == "llm_timeout" else 20  # a busy machine must not make a time-out of the other cases
    with served(replies) as llm:
        done = run(*TUNE, "--ledger", str(path), llm=llm, timeout_s=timeout_s, attempts=2)
    assert done.code == 0, done.stderr
    assert "Traceback" not in done.stderr
    answer = done.answer
    trials, _ = check(answer, path)
    assert flags(answer) == ([flag] if flag else []), answer["flags"]
    assert any(one.origin == "planner" or one.origin == "investigator" for one in trials) is proposes


def test_a_model_that_never_answers_leaves_the_seed_search_trial_by_trial(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with served([Status(500)] * 9) as llm:
        done = run(*TUNE, "--ledger", str(path), llm=llm, attempts=1)
    seed_only(run, tmp_path)
    assert flags(done.answer) == ["llm_server_error"]
    assert recorded(path)[0] == tuple(one.untimed() for one in recorded(tmp_path / "seed.db")[0])


def test_without_a_model_the_answer_is_the_seed_searchs_with_a_flag(run: Run, tmp_path: Path) -> None:
    done = run(*TUNE, "--ledger", str(tmp_path / "l.db"))
    assert done.code == 0
    assert flags(done.answer) == ["llm_not_configured"]
    assert "INFERASIM_LLM_MODEL" in done.answer["flags"][0]["message"]
    assert done.answer["best"] == seed_only(run, tmp_path)["best"]


def proposals(body: Mapping[str, Any]) -> Reply:
    """A model that proposes something new and bad at every step."""
    text = str(body["messages"][-1]["content"])
    if "`rationale`" in text:
        return plan()
    if "`next_tool_name`" in text:
        number = text.count('"tool":"evaluate"')
        return step("evaluate", changes=changes(max_running=1 + number, token_budget=512))
    return SUMMARY


def test_no_new_best_for_70_percent_of_the_budget_ends_the_search(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with served(proposals) as llm:
        done = run(*TUNE, "--ledger", str(path), llm=llm)
    answer = done.answer
    trials, _ = check(answer, path)
    seeds = sum(one.origin in ("baseline", "seed") and tried(one) for one in trials)
    proposed = [one for one in trials if one.origin == "investigator"]
    assert answer["planner"]["stop"]["code"] == "no_improvement"
    assert len(proposed) == -(-7 * (40 - seeds) // 10)
    assert trials[-1] is proposed[-1]  # nothing more was tried


def test_the_budget_ends_the_search(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "STALE_SHARE", 2.0)
    path = tmp_path / "l.db"
    with served(proposals) as llm:
        done = run(*TUNE, "--ledger", str(path), llm=llm)
    trials, _ = check(done.answer, path)
    assert done.answer["planner"]["stop"]["code"] == "budget"
    assert len([one for one in trials if tried(one)]) == 40


CAPS = {
    "calls": ({"max_calls": 3}, "cap_llm_calls"),
    "tokens": ({"max_total_tokens": 9_000, "max_tokens": 500}, "cap_llm_tokens"),
    "money": (
        {"max_cost_usd": 0.001, "usd_per_m_input": 0.1, "usd_per_m_output": 0.1, "max_tokens": 500},
        "cap_llm_cost",
    ),
}


@pytest.mark.parametrize("case", CAPS)
def test_caps_are_kept_and_the_deterministic_search_goes_on(case: str, run: Run, tmp_path: Path) -> None:
    settings, flag = CAPS[case]
    path = tmp_path / "l.db"
    with served(proposals) as llm:
        done = run(*TUNE, "--ledger", str(path), llm=llm, **settings)
    trials, _ = check(done.answer, path)
    assert flags(done.answer) == [flag]
    usage = done.answer["planner"]["llm"]
    assert usage["calls"] == len(llm.requests) <= 3 or case != "calls"
    assert usage["prompt_tokens"] + usage["completion_tokens"] <= 9_000
    assert (usage["cost_usd"] or 0) <= 0.001
    assert any(one.origin in ("combine", "polish") for one in trials)


def test_the_wall_clock_cap_ends_a_slow_model(run: Run, tmp_path: Path) -> None:
    with served([plan(GOOD), *[Late(0.4, step("read_best"))] * 20]) as llm:
        done = run(*TUNE, "--ledger", str(tmp_path / "l.db"), llm=llm, max_wall_s=0.6, attempts=2)
    assert flags(done.answer)[0] in ("cap_llm_wall_time", "llm_timeout")
    assert done.answer["best"]


def test_ctrl_c_keeps_what_is_known_and_prints_the_best(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: object, arguments: object) -> Json:
        raise KeyboardInterrupt

    monkeypatch.setattr(tools.Toolbox, "read_budget", interrupted)
    path = tmp_path / "l.db"
    with served([plan(GOOD), step("read_budget"), *FULL[1:]]) as llm:
        done = run(*TUNE, "--ledger", str(path), llm=llm)
    assert done.code == 130
    check(done.answer, path)
    assert flags(done.answer) == ["interrupted"]
    with open_ledger(str(path), create=False, write=False) as book:
        search = book.get_search(1)
        assert search.status == "stopped"
        assert search.end is not None
        assert search.end.best_index == done.answer["best"]["index"]


def test_a_search_killed_in_the_models_part_goes_on_where_it_was(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, killed = tmp_path / "whole.db", tmp_path / "killed.db"
    with served(FULL) as llm:
        run(*TUNE, "--ledger", str(whole), llm=llm)

    def die(self: object, arguments: object) -> Json:
        raise MemoryError("killed")

    with served(FULL) as llm, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tools.Toolbox, "write_note", die)
        assert run(*TUNE, "--ledger", str(killed), llm=llm).code == 3
    with open_ledger(str(killed), create=False, write=False) as book:
        left = book.trials(1)
        assert book.get_search(1).status == "unfinished"
    with served([plan(), FINISH, SUMMARY]) as llm:
        again = run(*TUNE, "--ledger", str(killed), llm=llm).answer
    assert again["resumed_trials"] == len(left)
    assert [one.untimed() for one in recorded(killed)[0]] == [one.untimed() for one in recorded(whole)[0]]
