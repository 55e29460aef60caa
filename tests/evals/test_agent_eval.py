"""The agent's tasks: an optimum that only levers moved together reach, which the seeds miss and the loop finds."""

import json
from pathlib import Path

import pytest

from agent.llm.program import Program, save_program
from agent.llm.session import TOOL_TEXTS
from evals.agent import main, run_task
from evals.agent_tasks import TASKS, combinations, evaluator, reference
from levers.baseline import baseline
from levers.space import merge, to_deployment

CHEAP = {task.name: task for task in TASKS if task.name in ("pools", "whole-answer")}


@pytest.mark.parametrize("name", CHEAP)
def test_the_loop_reaches_what_the_seeds_miss_at_the_same_budget(name: str, tmp_path: Path) -> None:
    path = str(tmp_path / "program.json")
    program = Program(TOOL_TEXTS)
    program.planner.signature = program.planner.signature.with_instructions("Plan the search.")
    save_program(path, program)  # a compiled program takes the prompts' place
    row = run_task(CHEAP[name], "scripted", path)
    assert row["agent_regret_pct"] == pytest.approx(0, abs=1e-9)  # hand-offs of equal worth differ in the last bit
    assert row["seed_only_regret_pct"] > 5
    assert row["agent_best_by"] in ("planner", "investigator")
    assert row["agent_flags"] == []


@pytest.mark.parametrize("name", CHEAP)
def test_the_optimum_moves_several_levers_and_none_of_them_alone_gets_there(name: str) -> None:
    task = CHEAP[name]
    judge = evaluator(task)
    truth = reference(task, judge)
    assert truth.best is not None
    assert truth.points == len(list(combinations(task, judge)))
    assert len(truth.changes) >= 2
    for lever, value in truth.changes.items():
        merged = merge({lever: value}, baseline(judge.context), judge.context)
        if merged.setting is None:
            continue  # not even legal alone
        alone = judge.evaluate(*to_deployment(merged.setting, judge.context))
        assert not alone.legal or alone.score != truth.best.score


def test_the_tasks_differ_in_model_objective_or_bound() -> None:
    asked = {(one.request.model, one.request.cluster, one.request.objective, one.request.slos) for one in TASKS}
    assert len(asked) == len(TASKS) == 5


def test_the_eval_prints_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "--task", "whole-answer"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    answer = json.loads(line)
    assert {"tasks", "seed_only_regret_pct", "agent_regret_pct", "llm_calls", "tokens"} <= set(answer)
    assert answer["tasks"] == ["whole-answer"]
    assert answer["llm_calls"] > 0
