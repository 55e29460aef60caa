"""The planner: one call before any tool is used. Its configurations are then tried one by one, through the one door."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import json_repair
from dspy.utils.exceptions import AdapterParseError

from agent.llm.failures import LlmFailure
from agent.llm.forms import MAX_WORDS
from agent.llm.guards import Redactor
from agent.llm.proposals import Changes, Configurations, Hypotheses, Proposal

Ask = Callable[..., Any]  # stage, DSPy module, inputs → prediction; raises LlmFailure


@dataclass(frozen=True, slots=True)
class Plan:
    """What the planner wants to try, and why."""

    rationale: str
    hypotheses: tuple[str, ...]
    proposals: tuple[Proposal, ...]
    polish: str
    cut: bool = False  # the answer broke off, and this is what could be read of it

    def as_json(self, *, words: bool = True) -> dict[str, Any]:
        """As the ledger and the investigation loop see it; without words where room is short."""
        if not words:
            return {"hypotheses": list(self.hypotheses), "configurations": [one.partial() for one in self.proposals]}
        return {
            "rationale": self.rationale,
            "hypotheses": list(self.hypotheses),
            "configurations": [{"hypothesis": one.hypothesis, "changes": one.partial()} for one in self.proposals],
            "polish": self.polish,
            **({"cut": True} if self.cut else {}),
        }

    def partials(self) -> list[tuple[Changes, int]]:
        """Configurations with the number of their hypothesis, most promising first, repeats included."""
        return [(partial, one.hypothesis) for one in self.proposals if (partial := one.partial())]


NO_PLAN = Plan("", (), (), "")


def salvaged(answer: str, redactor: Redactor) -> Plan:
    """The configurations of an answer that broke off, as at a limit on its length; what is missing stays empty.

    >>> cut = '{"rationale": "r", "configurations": [{"changes": [{"lever": "tp", "value": "8"}]}, {"changes": [{"lev'
    >>> [one.partial() for one in salvaged(cut, Redactor()).proposals]
    [{'tp': 8}]
    """
    read = json_repair.loads(answer or "")
    if not isinstance(read, dict):
        return NO_PLAN
    hypotheses = Hypotheses.model_validate(read.get("hypotheses") or []).root
    return Plan(
        redactor.text(str(read.get("rationale", "")), MAX_WORDS),
        tuple(redactor.text(text, MAX_WORDS) for text in hypotheses),
        tuple(one for one in Configurations.model_validate(read.get("configurations") or []).root if one.partial()),
        "",
        cut=True,
    )


def make_plan(ask: Ask, planner: Any, inputs: Mapping[str, str], redactor: Redactor) -> Plan:
    """Ask for a plan; raises :class:`agent.llm.failures.LlmFailure`."""
    try:
        answer = ask("planner", planner, **inputs)
    except LlmFailure as failure:
        cause = failure.__cause__
        plan = salvaged(cause.lm_response, redactor) if isinstance(cause, AdapterParseError) else NO_PLAN
        if not plan.proposals:
            raise
        return plan
    return Plan(
        redactor.text(answer.rationale.root, MAX_WORDS),
        tuple(redactor.text(text, MAX_WORDS) for text in answer.hypotheses.root),
        tuple(answer.configurations.root),
        redactor.text(answer.polish.root, MAX_WORDS),
    )
