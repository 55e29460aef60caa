"""Prompts keep to the context window with everything in them, and begin as the one before did as long as they can."""

import json
from itertools import pairwise

import dspy
from hypothesis import given
from hypothesis import strategies as st

from agent.llm.investigate import SMALLEST_ROOM, STEPS_SHOWN, Trajectory
from agent.llm.program import CONTEXT_NAMES, Program, overhead_bytes
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


def test_the_overhead_is_the_prompt_beside_its_inputs_demonstrations_included() -> None:
    program = Program(TOOL_TEXTS)
    plain = overhead_bytes(program.planner)
    inputs = dict.fromkeys(program.planner.signature.input_fields, "x" * 50)
    sent = dspy.JSONAdapter().format(program.planner.signature, [], inputs)
    assert plain == sum(len(one["content"]) for one in sent) - 50 * len(inputs)
    program.planner.demos = [{**inputs, "rationale": "y" * 300}]
    assert overhead_bytes(program.planner) > plain + 300 + 50 * len(inputs)


@given(st.lists(st.integers(0, 700), max_size=50), st.integers(0, 5000), st.booleans())
def test_a_trajectory_keeps_its_newest_steps_its_room_and_its_beginning(
    lengths: list[int], room: int, halved: bool
) -> None:
    trajectory = Trajectory()
    cuts = 0
    before = trajectory.text(room)
    for number, length in enumerate(lengths):
        trajectory.add("t" * length, "read_best", {}, {"number": number})
        if halved and number == 20:
            trajectory.halve()
            before = trajectory.text(room)
        text = trajectory.text(room)
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        assert [one["observation"]["number"] for one in lines] == list(range(trajectory.first, number + 1))
        assert len(text.encode()) <= max(room, SMALLEST_ROOM)
        assert len(lines) <= STEPS_SHOWN
        cuts += not text.startswith(before) and before != "(no step yet)"
        before = text
    assert cuts <= 1 + sum(lengths) // 150 + len(lengths) * 60 // 250 + len(lengths) // (STEPS_SHOWN // 2)
