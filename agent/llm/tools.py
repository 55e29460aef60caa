"""The eight tools of the investigation loop. A tool answers with data, never raises for what can be expected, and shows
no paths, no traces and no secrets. Only ``evaluate`` spends budget, and only through the one door.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.llm.detail import NOTES_SHOWN
from agent.llm.failures import CapReached, LlmFailure
from agent.llm.guards import Redactor
from agent.llm.inputs import Inputs, legal_values, outcome, rounded
from agent.llm.log import LLM_ORIGINS, SearchLog
from agent.llm.proposals import LEVER_NAMES, Changes, ToolArguments, plain_value
from agent.search import Trial
from ledger.record import NoteRecord, TrialRecord
from levers.catalog import BY_NAME
from levers.lever import show
from levers.space import POSITION, Setting, normalised

STALE_SHARE = 0.7  # of the budget without a new best ends the search (paper App. J)
NOTE_EVERY = 5  # evaluations; the loop is reminded then
NOTE_LENGTH = 500  # characters
HISTORY_SHOWN = 12  # trials one look at the history shows

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stop:
    """Why the language model's part, or the search, ended."""

    code: str
    message: str


@dataclass(slots=True)
class Toolbox:
    """The tools of one search and the budget they share."""

    log: SearchLog
    inputs: Inputs
    budget: int  # proposals the language model may still make
    note: Callable[[NoteRecord], None]
    redactor: Redactor
    ask_llm: Callable[[str, str], str] | None = None  # question and context to an answer
    origin: str = LLM_ORIGINS[1]
    hypotheses: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    spent: int = 0
    since_best: int = 0
    since_note: int = 0
    repeats: int = 0
    settings: list[tuple[Setting, Trial]] = field(default_factory=list)  # proposals that were settings
    stop: Stop | None = None
    failure: LlmFailure | None = None

    @property
    def stale_limit(self) -> int:
        """Proposals in a row without a new best that end the search."""
        return max(1, math.ceil(STALE_SHARE * self.budget))

    @property
    def left(self) -> int:
        """Proposals that may still be made."""
        return max(0, self.budget - self.spent)

    def tools(self) -> dict[str, Callable[[ToolArguments], Answer]]:
        """The eight tools by name."""
        return {
            "evaluate": self.evaluate,
            "read_history": self.read_history,
            "read_best": self.read_best,
            "read_legal": self.read_legal,
            "read_budget": self.read_budget,
            "write_note": self.write_note,
            "read_notes": self.read_notes,
            "ask": self.ask,
        }

    def call(self, name: str, arguments: ToolArguments) -> Answer:
        """Use a tool by name; a name that is none is answered with the names that are."""
        tool = self.tools().get(name)
        if tool is None:
            return {"error": f"there is no tool {self.redactor.text(name, 60)!r}", "tools": list(self.tools())}
        return tool(arguments)

    def evaluate(self, arguments: ToolArguments) -> Answer:
        """Price one partial configuration: `changes` lists the levers that differ from the baseline, `hypothesis` is
        the number of the hypothesis it tests. Costs one of the budget; a repeat is answered from the ledger, free.
        """
        if self.stop is not None:
            return {"status": "stopped", "why": self.stop.message}
        if self.left == 0:
            self._end("budget", f"the budget of {self.budget} proposals is used")
            return {"status": "stopped", "why": "the budget is used"}
        partial = self._clean(arguments.partial())
        if not partial:
            return {"error": "name at least one lever to change in `changes`", "levers": "see read_legal"}
        before = self.log.known(partial, self.inputs.base)
        if before is not None:
            return self._repeat(partial, before)
        return self._try(partial, arguments.hypothesis)

    def _clean(self, partial: Changes) -> Changes:
        return {
            self.redactor.text(lever, 60): self.redactor.value(plain_value(lever, value), 120)
            for lever, value in partial.items()
            if lever
        }

    def _repeat(self, partial: Changes, before: Trial) -> Answer:
        self.repeats += 1
        self._write("repeat", {"set": partial, "trial": before.index, "why": f"tried before as trial {before.index}"})
        return {
            "status": "repeat",
            "trial": before.index,
            **outcome(before.judged),
            "cost": 0,
            "budget_left": self.left,
        }

    def _try(self, partial: Changes, hypothesis: int) -> Answer:
        best = self.log.best
        claim = self.hypotheses[hypothesis - 1] if 1 <= hypothesis <= len(self.hypotheses) else ""
        name = " ".join(f"{lever}={show(_shown(value))}" for lever, value in partial.items())
        trial, setting = self.log.propose(self.origin, name, partial, self.inputs.base, claim)
        self._count(trial, setting, improved=self.log.best is not best)
        answer = {"status": "evaluated", "trial": trial.index, **self.redactor.value(outcome(trial.judged), 300)}
        if self.log.best is trial:
            answer["new_best"] = True
        elif self.log.best is not None:
            answer["best_score"] = rounded(self.log.best.judged.score)
        answer["budget_left"] = self.left
        if self.since_note >= NOTE_EVERY:
            answer["reminder"] = "write one note about what was learned"
        return answer

    def _count(self, trial: Trial, setting: Setting | None, *, improved: bool) -> None:
        self.spent += 1
        self.since_note += 1
        self.since_best = 0 if improved else self.since_best + 1
        if setting is not None:
            self.settings.append((setting, trial))
        if self.left == 0:
            self._end("budget", f"the budget of {self.budget} proposals is used")
        elif self.since_best >= self.stale_limit:
            self._end("no_improvement", f"no new best in {self.since_best} proposals, {STALE_SHARE:.0%} of the budget")

    def replay(self, record: TrialRecord) -> None:
        """Redo a proposal that an earlier, killed run of this search recorded."""
        self.origin = record.origin
        levers = {name: list(value) if isinstance(value, tuple) else value for name, value in record.levers.items()}
        best = self.log.best
        name = record.hypothesis
        if set(levers) == set(POSITION):
            setting = Setting(tuple(normalised(lever, levers[lever]) for lever in POSITION))
            changed = setting.differences(self.inputs.base)
            label = " ".join(f"{lever}={show(value)}" for lever, value in changed.items())
            trial = self.log.replay(record.origin, label, setting, name)
            self._count(trial, setting, improved=self.log.best is not best)
        else:
            label = " ".join(f"{lever}={show(_shown(value))}" for lever, value in levers.items())
            trial, _ = self.log.propose(record.origin, label, levers, self.inputs.base, name)
            self._count(trial, None, improved=False)

    def read_history(self, arguments: ToolArguments) -> Answer:
        """The newest trials, with what each changed, its score and why it was refused."""
        trials = self.log.result.trials
        return self._safe({"tried": len(trials), "newest": [self.inputs.row(one) for one in trials[-HISTORY_SHOWN:]]})

    def read_best(self, arguments: ToolArguments) -> Answer:
        """The best legal configuration so far and its figures."""
        best = self.log.best
        return {"best": None} if best is None else self._safe({"best": self.inputs.row(best)})

    def read_legal(self, arguments: ToolArguments) -> Answer:
        """Legal values: `text` names a lever, which is explained; without it all open levers, architecture, cluster and
        objective are shown."""
        context = self.log.evaluator.context
        name = arguments.text or next(iter(arguments.partial()), "")
        if not name:
            return self._safe({**self.inputs.fixed()})
        if name not in BY_NAME:
            return {"error": f"there is no lever {self.redactor.text(name, 60)!r}", "levers": list(LEVER_NAMES)}
        lever = BY_NAME[name]
        sets = legal_values(context)
        left_out = [{"value": show(value), "why": reason.message} for value, reason in lever.left_out(context)[:8]]
        legal = sets["open"].get(name, sets["fixed"].get(name))
        return self._safe({"lever": name, "what": lever.what, "legal": legal, "not_legal": left_out})

    def read_budget(self, arguments: ToolArguments) -> Answer:
        """Proposals left, and how many more without a new best end the search."""
        return {
            "budget": self.budget,
            "left": self.left,
            "since_best": self.since_best,
            "stops_after": max(0, self.stale_limit - self.since_best),
        }

    def write_note(self, arguments: ToolArguments) -> Answer:
        """Write `text` to the scratchpad: what helped, what did not, what to try next."""
        text = self.redactor.text(arguments.text, NOTE_LENGTH).strip()
        if not text:
            return {"error": "put the note into `text`"}
        self.notes.append(text)
        self.since_note = 0
        self._write("scratchpad", {"text": text})
        return {"status": "noted", "notes": len(self.notes)}

    def read_notes(self, arguments: ToolArguments) -> Answer:
        """The scratchpad's newest notes."""
        return {"notes": self.notes[-NOTES_SHOWN:]}

    def ask(self, arguments: ToolArguments) -> Answer:
        """Ask `text`, one question about serving engines, of the same model in a fresh context."""
        question = self.redactor.text(arguments.text, NOTE_LENGTH).strip()
        if not question:
            return {"error": "put the question into `text`"}
        if self.ask_llm is None:
            return {"error": "no model to ask"}
        try:
            answer = self.redactor.text(self.ask_llm(question, ""), 2 * NOTE_LENGTH)
        except CapReached as cap:
            self.failure = cap
            return {"status": "stopped", "why": cap.message}
        except LlmFailure as failure:
            return {"error": f"no answer: {failure.code}"}
        self._write("question", {"question": question, "answer": answer})
        return {"answer": answer}

    def _safe(self, value: Answer) -> Answer:
        safe: Answer = self.redactor.value(value, 400)
        return safe

    def _end(self, code: str, message: str) -> None:
        self.stop = self.stop or Stop(code, message)

    def _write(self, kind: str, facts: Mapping[str, Any]) -> None:
        trials = self.log.result.trials
        self.note(NoteRecord(kind, facts, after_trial=trials[-1].index if trials else None))


def _shown(value: Any) -> Any:
    """A JSON value as :func:`levers.lever.show` takes it."""
    return tuple(map(str, value)) if isinstance(value, list) else value
