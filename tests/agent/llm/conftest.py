"""A scripted language model behind real HTTP, and commands run in this process against it."""

import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.cli.main import main
from evals.scripted_llm import Policy, Reply, ScriptedLlm, scripted_llm

Json = dict[str, Any]


@dataclass
class Done:
    """What a command left behind."""

    code: int
    stdout: str
    stderr: str

    @property
    def answer(self) -> Json:
        """The one JSON object on stdout."""
        assert len(self.stdout.splitlines()) == 1, (self.stdout, self.stderr)
        value: Json = json.loads(self.stdout)
        return value


Run = Callable[..., Done]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a command with a home of its own; keywords are settings of the language model."""

    def run_(*arguments: str, llm: ScriptedLlm | None = None, **settings: object) -> Done:
        out, err = io.StringIO(), io.StringIO()
        code = 0
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            for name in [name for name in os.environ if name.startswith(("INFERASIM", "XDG", "OPENAI"))]:
                patch.delenv(name)
            patch.setenv("HOME", str(tmp_path))
            base: dict[str, object] = {}
            if llm is not None:
                base = {"model": "openai/scripted", "api_base": llm.url, "context_tokens": 32_768}
                base |= {"retry_wait_s": 0.01, "timeout_s": 20}
            for name, value in {**base, **settings}.items():
                patch.setenv(f"INFERASIM_LLM_{name.upper()}", str(value))
            try:
                main(list(arguments))
            except SystemExit as leaving:
                code = int(leaving.code or 0)
        return Done(code, out.getvalue(), err.getvalue())

    return run_


@contextmanager
def served(policy: Policy | Sequence[Reply]) -> Iterator[ScriptedLlm]:
    """A scripted model for one block."""
    with scripted_llm(policy) as llm:
        yield llm


def step(tool: str, thought: str = "go on", **arguments: object) -> Json:
    """One step of the investigation loop."""
    return {"next_thought": thought, "next_tool_name": tool, "next_tool_args": arguments}


def changes(**levers: object) -> list[Json]:
    """A partial configuration as the schema has it."""
    return [{"lever": name, "value": str(value)} for name, value in levers.items()]


def plan(*configurations: Mapping[str, object], hypotheses: Sequence[str] = ("deeper drafts pay off",)) -> Json:
    """A planner's answer."""
    return {
        "rationale": "combine what helped",
        "hypotheses": list(hypotheses),
        "configurations": [{"hypothesis": 1, "changes": changes(**one)} for one in configurations],
        "polish": "vary the draft depth",
    }


SUMMARY = {"summary": "speculation pays", "worked": "spec_method", "follow_ups": "measure it"}
FINISH = step("finish", "nothing left to try")
