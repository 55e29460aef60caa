"""The DSPy program: planner, investigation step, summary, sub-question and request reader, built from the prompt files.

The whole program can be saved and loaded, so that an optimiser's demonstrations and instructions are one file
(``prompts/compiled/``); the ledger holds what the model was told, by hash.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dspy

from agent.llm.detail import Detail
from agent.llm.forms import RequestForm, with_names
from agent.llm.inputs import FIXED_NAMES
from agent.llm.proposals import FINISH, Configurations, Hypotheses, ToolArguments, ToolName, Words
from ledger.record import InputFile
from levers.objectives import OBJECTIVES
from predictor.errors import BadFile
from predictor.profiles.loader import engine_names, model_names, platform_names
from prompts import load

# What changes least comes first: a provider reuses the longest beginning that a prompt shares with an earlier one.
CONTEXT_NAMES = (*FIXED_NAMES, "guidance", "trials", "notes")
BRIEF = ("planner", "investigate")  # prompts that have a short form; a compiled program's own words have none
DESCRIPTION = re.compile(r"^(- \w+\([^)\n]*\)): [^\n]+$", re.MULTILINE)  # of a line of :func:`tool_lines`
ARGUMENTS = {  # what each tool takes of next_tool_args
    "evaluate": {"changes": {"type": "array"}, "hypothesis": {"type": "integer"}},
    "read_legal": {"text": {"type": "string"}},
    "write_note": {"text": {"type": "string"}},
    "ask": {"text": {"type": "string"}},
}


def signature(prompt: str, inputs: tuple[str, ...], outputs: Mapping[str, Any]) -> Any:
    """A DSPy signature: instructions from a prompt file, text inputs, typed outputs."""
    fields: dict[str, tuple[Any, Any]] = {name: (str, dspy.InputField()) for name in inputs}
    fields |= {name: (kind, dspy.OutputField()) for name, kind in outputs.items()}
    return dspy.Signature(fields, load(prompt).text)


class Investigation(dspy.ReAct):  # type: ignore[misc]  # DSPy has no types
    """DSPy's ReAct over the tools, with bounded typed steps. Its loop is :func:`agent.llm.investigate.investigate`."""

    react: Any

    def __init__(self, tools: Mapping[str, str]) -> None:
        described = [
            dspy.Tool(func=_not_here, name=name, desc=" ".join(text.split()), args=ARGUMENTS.get(name, {}))
            for name, text in tools.items()
        ]
        super().__init__(signature("investigate", (*CONTEXT_NAMES, "plan"), {"summary": str}), tools=described)
        step = self.react.signature.with_instructions(f"{load('investigate').text}\n\n{tool_lines(tools)}")
        for name, kind in (("next_thought", Words), ("next_tool_name", ToolName), ("next_tool_args", ToolArguments)):
            step = step.with_updated_fields(name, type_=kind)
        self.react = dspy.Predict(step)
        outcome = {"summary": Words, "worked": Words, "follow_ups": Words}
        self.extract = dspy.Predict(signature("summary", ("objective", "best", "trajectory"), outcome))


def tool_lines(tools: Mapping[str, str]) -> str:
    """The tools as the model is told of them: name, what it takes, what it does."""
    rows = {name: (", ".join(ARGUMENTS.get(name, ())), " ".join(text.split())) for name, text in tools.items()}
    rows[FINISH] = ("", "End the investigation.")
    return "\n".join(["Tools:", *(f"- {name}({takes}): {text}" for name, (takes, text) in rows.items())])


def _not_here() -> None:
    """Tools are called by name through the toolbox, which never raises; DSPy only describes them."""
    raise NotImplementedError


class Program(dspy.Module):  # type: ignore[misc]  # DSPy has no types
    """Everything a language model does for the agent."""

    def __init__(self, tools: Mapping[str, str]) -> None:
        super().__init__()
        plan = {"rationale": Words, "hypotheses": Hypotheses, "configurations": Configurations, "polish": Words}
        self.planner = dspy.Predict(signature("planner", CONTEXT_NAMES, plan))
        self.investigation = Investigation(tools)
        self.asking = dspy.Predict(signature("ask", ("question", "context"), {"answer": Words}))
        self.request = dspy.Predict(signature("request", ("text",), {"reading": request_form()}))

    def prompts(self) -> tuple[InputFile, ...]:
        """What the model is told, as it is told, for the ledger: instructions, and demonstrations where there are."""
        stages = {
            "planner": self.planner,
            "investigate": self.investigation.react,
            "summary": self.investigation.extract,
            "ask": self.asking,
            "request": self.request,
        }
        files = [InputFile("prompt", name, stage.signature.instructions) for name, stage in stages.items()]
        files += [
            InputFile("prompt", f"{name}_brief", load(f"{name}_brief").text)
            for name in BRIEF
            if stages[name].signature.instructions.startswith(load(name).text)
        ]
        demos = {name: stage.dump_state(json_mode=True)["demos"] for name, stage in stages.items() if stage.demos}
        if demos:
            files.append(InputFile("prompt", "demonstrations", json.dumps(demos, sort_keys=True)))
        return tuple(files)


def call_options(predictor: Any, detail: Detail) -> dict[str, Any]:
    """What of a predictor's own prompt a call leaves out: instructions, tools' descriptions, demonstrations."""
    options: dict[str, Any] = {}
    said = shorter = predictor.signature.instructions
    if not detail.tools:
        shorter = DESCRIPTION.sub(r"\1", said)
    if not detail.instructions:
        shorter = next((load(f"{name}_brief").text for name in BRIEF if said.startswith(load(name).text)), shorter)
    if shorter != said:
        options["signature"] = predictor.signature.with_instructions(shorter)
    if not detail.demonstrations:
        options["demos"] = []
    return options


def request_form() -> type[RequestForm]:
    """The request form with the catalogues' names in its schema."""
    names = {
        "model": model_names(),
        "gpu": platform_names(),
        "engine": engine_names(),
        "objective": tuple(one.name for one in OBJECTIVES),
    }
    return with_names(RequestForm, names)


def load_program(path: str, program: Program) -> None:
    """Load a saved program's state: instructions and demonstrations."""
    try:
        program.load_state(json.loads(Path(path).read_bytes()))
    except OSError as error:
        raise BadFile(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadFile(f"{path}: no saved program of this version ({type(error).__name__})") from None


def save_program(path: str, program: Program) -> None:
    """Save a program's state as JSON."""
    state = program.dump_state(json_mode=True)
    Path(path).write_text(json.dumps(state, indent=1, sort_keys=True) + "\n", encoding="utf-8")
