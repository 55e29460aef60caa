"""The planner: one call before any tool is used. Its configurations are then tried one by one, through the one door."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agent.llm.forms import MAX_WORDS
from agent.llm.guards import Redactor
from agent.llm.proposals import Changes, Proposal

Ask = Callable[..., Any]  # stage, DSPy module, inputs → prediction; raises LlmFailure


@dataclass(frozen=True, slots=True)
class Plan:
    """What the planner wants to try, and why."""

    rationale: str
    hypotheses: tuple[str, ...]
    proposals: tuple[Proposal, ...]
    polish: str

    def as_json(self) -> dict[str, Any]:
        """As the ledger and the investigation loop see it."""
        return {
            "rationale": self.rationale,
            "hypotheses": list(self.hypotheses),
            "configurations": [{"hypothesis": one.hypothesis, "changes": one.partial()} for one in self.proposals],
            "polish": self.polish,
        }

    def partials(self) -> list[tuple[Changes, int]]:
        """Configurations with the number of their hypothesis, most promising first, without repetition."""
        seen: list[Changes] = []
        found: list[tuple[Changes, int]] = []
        for one in self.proposals:
            partial = one.partial()
            if partial and partial not in seen:
                seen.append(partial)
                found.append((partial, one.hypothesis))
        return found


NO_PLAN = Plan("", (), (), "")


def make_plan(ask: Ask, planner: Any, inputs: Mapping[str, str], redactor: Redactor) -> Plan:
    """Ask for a plan; raises :class:`agent.llm.failures.LlmFailure`."""
    answer = ask("planner", planner, **inputs)
    return Plan(
        redactor.text(answer.rationale.root, MAX_WORDS),
        tuple(redactor.text(text, MAX_WORDS) for text in answer.hypotheses.root),
        tuple(answer.configurations.root),
        redactor.text(answer.polish.root, MAX_WORDS),
    )
