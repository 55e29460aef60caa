"""A language model made ready for one command: settings, redactor, backbone or the reason there is none, program.

Calls made before a search exists, to read its request, wait in ``pending`` until they can be noted in its ledger.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.llm import failures
from agent.llm.failures import LlmFailure
from agent.llm.forms import RequestForm
from agent.llm.guards import Redactor
from agent.llm.inputs import compact
from agent.llm.lm import Backbone, public_facts, secrets_of
from agent.llm.program import Program, load_program
from agent.llm.settings import HOW_TO_CONFIGURE, LlmSettings, load_settings
from agent.llm.tools import Toolbox
from agent.llm.usage import CallRecord
from ledger.record import InputFile, NoteRecord


@dataclass(slots=True)
class Session:
    """Everything a command needs of a language model."""

    settings: LlmSettings
    redactor: Redactor
    program: Program
    backbone: Backbone | LlmFailure
    pending: list[CallRecord] = field(default_factory=list)

    def facts(self) -> Mapping[str, Any]:
        """What decides an answer, for the ledger."""
        return public_facts(self.settings, self.redactor)

    def prompts(self) -> tuple[InputFile, ...]:
        """What the model is told, for the ledger."""
        return self.program.prompts()

    def read_form(self, text: str) -> RequestForm:
        """A request as the language model reads it; raises LlmFailure."""
        if isinstance(self.backbone, LlmFailure):
            raise self.backbone
        answer = self.backbone.ask("request", self.program.request, text=compact(self.redactor.text(text)))
        form: RequestForm = answer.reading
        return form

    def usage(self) -> dict[str, Any] | None:
        """What was asked and what it cost; None without a model."""
        return None if isinstance(self.backbone, LlmFailure) else self.backbone.usage.as_json()


def open_session(settings: LlmSettings | None = None) -> Session:
    """Make a language model ready. No model is no error here: the search goes without and says so."""
    chosen = load_settings() if settings is None else settings
    redactor = Redactor(secrets_of(chosen))
    program = Program(TOOL_TEXTS)
    if chosen.program:
        load_program(chosen.program, program)
    missing = LlmFailure(failures.NOT_CONFIGURED, f"no language model is set: {HOW_TO_CONFIGURE}")
    session = Session(chosen, redactor, program, missing)
    if chosen.configured:
        try:
            session.backbone = Backbone(chosen, redactor, session.pending.append)
        except LlmFailure as failure:
            session.backbone = failure
    return session


def call_note(record: CallRecord, after_trial: int | None) -> NoteRecord:
    """One call as the ledger keeps it: what it was for and how it went are facts, tokens, money and time are costs."""
    return NoteRecord(
        kind="llm_call",
        facts={
            "stage": record.stage,
            "outcome": record.outcome,
            "attempts": record.attempts,
            **({"detail": record.detail} if record.detail else {}),
        },
        costs={
            "prompt_tokens": record.prompt_tokens,
            "completion_tokens": record.completion_tokens,
            "cost_usd": record.cost_usd,
            "latency_ms": record.latency_ms,
        },
        after_trial=after_trial,
    )


TOOL_TEXTS = {
    name: (getattr(Toolbox, name).__doc__ or "").strip()
    for name in (
        "evaluate",
        "read_history",
        "read_best",
        "read_legal",
        "read_budget",
        "write_note",
        "read_notes",
        "ask",
    )
}
