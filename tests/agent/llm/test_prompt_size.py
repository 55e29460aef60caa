"""Prompts keep to the context window with everything in them, and begin as the one before did as long as they can."""

import json
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from agent.llm.detail import FULL
from agent.llm.investigate import CUT, LEFT_OUT, NO_STEP, STEPS_SHOWN, Trajectory
from agent.llm.program import CONTEXT_NAMES, Program, call_options
from agent.llm.session import TOOL_TEXTS
from tests.agent.llm.conftest import FINISH, SUMMARY, Run, changes, plan, served, step

TUNE = ("tune", "--model", "Llama-3.1-8B", "--cluster", "MI355X:8", "--engine", "sglang", "--budget", "24", "--json")


def test_what_stays_the_same_over_a_search_stands_before_what_changes() -> None:
    program = Program(TOOL_TEXTS)
    fixed = ["architecture", "cluster", "levers", "objective", "guidance"]
    assert list(CONTEXT_NAMES) == [*fixed, "trials", "notes"]
    assert list(program.planner.signature.input_fields) == [*CONTEXT_NAMES]
    assert list(program.investigation.react.signature.input_fields) == [*CONTEXT_NAMES, "plan", "trajectory"]


def test_steps_of_a_search_only_append_to_the_prompt(run: Run, tmp_path: object) -> None:
    tries = [step("evaluate", changes=changes(tp=tp, max_running=64)) for tp in (2, 4, 8)]
    with served([plan({"tp": 2}), *tries, FINISH, SUMMARY, plan(), FINISH, SUMMARY]) as llm:
        assert run(*TUNE, "--ledger", f"{tmp_path}/l.db", llm=llm).code == 0
        asked = [one["messages"] for one in llm.requests[1:4]]
    texts = [[message["content"].split("\n\nRespond with")[0] for message in one] for one in asked]
    for before, after in pairwise(texts):
        assert after[:-1] == before[:-1]
        assert after[-1].startswith(before[-1].removesuffix("(no step yet)"))


def test_the_tools_are_listed_and_can_be_told_in_short() -> None:
    react = Program(TOOL_TEXTS).investigation.react
    told = react.signature.instructions
    assert [line.split("(")[0] for line in told.splitlines() if line.startswith("- ")] == [
        f"- {name}" for name in (*TOOL_TEXTS, "finish")
    ]
    assert call_options(react, FULL) == {}
    short = call_options(react, replace(FULL, tools=False))["signature"].instructions
    assert short.startswith(told.partition("Tools:")[0])
    assert short.splitlines()[-9:-7] == ["- evaluate(changes, hypothesis)", "- read_history()"]
    assert "Price one partial" in told
    assert "Price one partial" not in short


@given(st.lists(st.integers(0, 700), max_size=50), st.integers(60, 5000), st.booleans())
def test_a_trajectory_keeps_its_newest_steps_its_room_and_its_beginning(
    lengths: list[int], room: int, halved: bool
) -> None:
    trajectory = Trajectory(len)
    cuts = shortened = 0
    before = trajectory.text(room)
    for number, length in enumerate(lengths):
        trajectory.add("t" * length, "read_best", {}, {"number": number})
        if halved and number == 20:
            trajectory.halve()
            before = trajectory.text(room)
        text = trajectory.text(room)
        lines = [json.loads(line) for line in text.splitlines() if line[0] in '{"']
        whole = [one["observation"]["number"] for one in lines if isinstance(one, dict)]
        shortened += any(isinstance(one, str) for one in lines)
        assert whole == [place for place in range(trajectory.first, number + 1) if not cut(trajectory, place)]
        assert len(text) <= max(room, len(LEFT_OUT) + 4)
        assert len(lines) <= STEPS_SHOWN
        cuts += not text.startswith(before) and before != NO_STEP
        before = text
    assert cuts <= 1 + shortened + sum(lengths) // 150 + len(lengths) * 60 // 250 + len(lengths) // (STEPS_SHOWN // 2)


def cut(trajectory: Trajectory, place: int) -> bool:
    return trajectory.lines[place].startswith('"')


def test_a_step_that_is_too_long_alone_keeps_its_beginning() -> None:
    trajectory = Trajectory(len)
    trajectory.add("look", "read_legal", {}, {"legal": ["x" * 5000]})
    text = trajectory.text(400)
    assert '"thought":"look"' in json.loads(text)
    assert text.endswith(f'{CUT}"')
    assert 100 < len(text) <= 400
