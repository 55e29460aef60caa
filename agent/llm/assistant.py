"""The language model as a planner of :func:`agent.tune.tune`: what is recorded of it, and its search."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agent.llm.drive import AgentSearch, Known
from agent.llm.lm import Backbone
from agent.llm.session import Session, call_note
from agent.llm.text_request import Reading
from agent.search import SearchResult
from agent.tune import Ended, Task
from ledger.record import InputFile, NoteRecord


@dataclass(slots=True)
class LlmPlanner:
    """Seeds, then a language model, then the seed search with what is left; see :mod:`agent.llm.drive`."""

    session: Session
    guidance: str = ""
    text: str = ""  # the request in words, where it came so
    reading: Reading | None = None
    say: Callable[[str], None] = lambda text: None
    name: str = "llm"

    def facts(self) -> Mapping[str, Any]:
        """What decides the answer."""
        return self.session.facts()

    def prompts(self) -> tuple[InputFile, ...]:
        """What the model is told."""
        return self.session.prompts()

    def run(self, task: Task) -> tuple[SearchResult, Ended]:
        """The search."""
        session = self.session
        written: list[int] = []

        def note(record: NoteRecord) -> None:
            task.note(record)

        def record_trial(trial: Any) -> None:
            written.append(trial.index)
            task.record(trial)

        def heard(call: Any) -> None:
            note(call_note(call, written[-1] if written else None))

        self._note_request(task)
        for call in session.pending:
            heard(call)
        session.pending.clear()
        if isinstance(session.backbone, Backbone):
            session.backbone.on_call = heard
        search = AgentSearch(
            evaluator=task.evaluator,
            budget=task.budget,
            record=record_trial,
            note=note,
            backbone=session.backbone,
            program=session.program,
            redactor=session.redactor,
            guidance=self.guidance,
            jobs=task.jobs,
            progress=task.progress,
            say=self.say,
            known=Known(task.known_trials, task.known_notes),
        )
        found = search.run()
        flags = list(found.flags)
        if self.reading is not None and self.reading.flag is not None:
            flags.insert(0, self.reading.flag)
        stop = None if found.stop is None else {"code": found.stop.code, "message": found.stop.message}
        facts = {"stop": session.redactor.value(stop), "proposals": found.proposals, "repeats": found.repeats}
        usage = session.usage()
        return found.result, Ended(
            flags=tuple(dict.fromkeys(flags)),
            facts=facts,
            costs={} if usage is None else {"llm": usage},
            interrupted=found.interrupted,
        )

    def _note_request(self, task: Task) -> None:
        """The words a request came in and how they were read, once a search."""
        if self.reading is None or any(one.kind == "request" for one in task.known_notes):
            return
        facts = {"text": self.session.redactor.text(self.text), **self.session.redactor.value(self.reading.as_json())}
        task.note(NoteRecord("request", facts))
