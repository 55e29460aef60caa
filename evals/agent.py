"""The agent against the seed search at equal budget, on fixed tasks with a known optimum.

``--backend scripted`` puts a scripted expert behind a real HTTP server; ``--backend settings`` asks the language model
of the ``INFERASIM_LLM_…`` settings. ``--program FILE`` loads a saved DSPy program, so that prompts can be compared;
``--save FILE`` writes the program in use, as a start for an optimiser or for a change by hand, and runs nothing.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agent.evaluate import Evaluator
from agent.llm.drive import AgentSearch
from agent.llm.failures import LlmFailure
from agent.llm.program import save_program
from agent.llm.session import Session, open_session
from agent.llm.settings import LlmSettings, load_settings
from agent.search import seed_search
from evals.agent_tasks import TASKS, TuningTask, evaluator, reference, regret_pct
from evals.scripted_expert import expert
from evals.scripted_llm import scripted_llm
from ledger.record import NoteRecord, TrialRecord


@contextmanager
def session(backend: str, program: str | None) -> Iterator[Session]:
    """A language model for one task."""
    if backend == "settings":
        yield open_session(load_settings().model_copy(update={"program": program}))
        return
    with scripted_llm(expert()) as llm:
        yield open_session(LlmSettings(model="openai/expert", api_base=llm.url, context_tokens=32_768, program=program))


def run_task(task: TuningTask, backend: str, program: str | None) -> dict[str, Any]:
    """Both searches at the task's budget, and the optimum."""
    judge = evaluator(task)
    truth = reference(task, judge)
    assert truth.best is not None, f"task {task.name} has no legal deployment"
    seeds = seed_search(judge, task.budget, _forget_trial)
    with session(backend, program) as llm:
        found, tokens, calls = play(judge, task, llm)
    return {
        "task": task.name,
        "why": task.why,
        "budget": task.budget,
        "points": truth.points,
        "optimum": truth.best.score,
        "optimum_changes": {name: str(value) for name, value in truth.changes.items()},
        "seed_only_regret_pct": regret_pct(seeds.best.judged if seeds.best else None, truth.best),
        "agent_regret_pct": regret_pct(found.result.best.judged if found.result.best else None, truth.best),
        "agent_best_by": None if found.result.best is None else found.result.best.origin,
        "agent_proposals": found.proposals,
        "agent_flags": [code for code, _ in found.flags],
        "llm_calls": calls,
        "tokens": tokens,
    }


def play(judge: Evaluator, task: TuningTask, llm: Session) -> tuple[Any, int, int]:
    """The agent's search on one task, with the tokens and calls it took."""
    search = AgentSearch(
        evaluator=judge,
        budget=task.budget,
        record=_forget_trial,
        note=_forget_note,
        backbone=llm.backbone,
        program=llm.program,
        redactor=llm.redactor,
    )
    found = search.run()
    if isinstance(llm.backbone, LlmFailure):
        return found, 0, 0
    return found, llm.backbone.usage.tokens, llm.backbone.usage.calls


def _forget_trial(trial: TrialRecord) -> None:
    """Nothing is kept: the result holds the trials."""


def _forget_note(note: NoteRecord) -> None:
    """Nothing is kept."""


def main(arguments: list[str] | None = None) -> int:
    """Print the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--backend", choices=("scripted", "settings"), default="scripted")
    parser.add_argument("--program", help="a saved DSPy program")
    parser.add_argument("--task", action="append", choices=[task.name for task in TASKS], help="only these")
    parser.add_argument("--save", metavar="FILE", help="write the program in use and end")
    options = parser.parse_args(arguments)
    if options.save:
        save_program(options.save, open_session(LlmSettings(program=options.program)).program)
        return 0
    wanted = [task for task in TASKS if not options.task or task.name in options.task]
    rows = []
    for task in wanted:
        rows.append(run_task(task, options.backend, options.program))
        row = rows[-1]
        print(
            f"{task.name}: seed-only {_shown(row['seed_only_regret_pct'])}, agent {_shown(row['agent_regret_pct'])}, "
            f"{row['llm_calls']} calls",
            file=sys.stderr,
        )
    answer = {
        "tasks": [row["task"] for row in rows],
        "seed_only_regret_pct": [row["seed_only_regret_pct"] for row in rows],
        "agent_regret_pct": [row["agent_regret_pct"] for row in rows],
        "llm_calls": sum(row["llm_calls"] for row in rows),
        "tokens": sum(row["tokens"] for row in rows),
        "rows": rows,
    }
    if options.json:
        print(json.dumps(answer))
    else:
        for row in rows:
            print(json.dumps(row, indent=1))
    return 0


def _shown(regret: float | None) -> str:
    return "found nothing legal" if regret is None else f"{regret:.2f}% from the optimum"


if __name__ == "__main__":
    sys.exit(main())
