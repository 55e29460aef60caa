"""The whole search: seeds one lever at a time, then the language model, then the seed search with what is left.

The language model's part ends when its budget is used, when nothing improves, at a cap, on a failure or by its own
word. After a cap, a failure or an early end the deterministic search goes on with the budget that is left: where the
language model never answered, that is the seed search, trial by trial. Ctrl-C keeps what is known.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from agent.evaluate import Evaluator, refused
from agent.llm import failures
from agent.llm.detail import FULL, LADDER, Detail, fit
from agent.llm.failures import LlmFailure, TooLong
from agent.llm.guards import Redactor
from agent.llm.inputs import Inputs, compact
from agent.llm.investigate import NO_STEP, SMALLEST_ROOM, TRAJECTORY_SHARE, Outcome, StepPrompt, investigate
from agent.llm.lm import Backbone
from agent.llm.log import LLM_ORIGINS, PLANNER, SearchLog
from agent.llm.planner import NO_PLAN, Plan, make_plan
from agent.llm.program import call_options
from agent.llm.proposals import ToolArguments
from agent.llm.tools import Stop, Toolbox
from agent.search import Record, SearchResult, Trial, pricer, round_of
from ledger.record import NoteRecord, TrialRecord
from levers.search import Candidate, SeedSearch
from levers.space import as_json_value

MAX_ROUNDS = 3  # plans; a further one only after a round that found a new best
SEED_ORIGINS = ("baseline", "seed")
ENDS_SEARCH = ("budget", "no_improvement", "interrupted")  # after these nothing more is tried
MAX_OVERFLOWS = 4
SUMMARY_TOKENS = 2500  # of trajectory that a summary is made from
SHORTENED_WORDS = "prompts left out {}, to fit in the context window: INFERASIM_LLM_CONTEXT_TOKENS"

Note = Callable[[NoteRecord], None]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Known:
    """What an earlier, killed run of the same search had recorded."""

    trials: Sequence[TrialRecord] = ()
    notes: Sequence[NoteRecord] = ()


@dataclass(slots=True)
class AgentResult:
    """What the search found and how it ended."""

    result: SearchResult
    flags: list[tuple[str, str]] = field(default_factory=list)
    stop: Stop | None = None  # why the language model's part ended
    proposals: int = 0
    repeats: int = 0

    @property
    def interrupted(self) -> bool:
        """Whether an operator stopped it."""
        return self.stop is not None and self.stop.code == "interrupted"


@dataclass(slots=True)
class AgentSearch:
    """One search with a language model. ``backbone`` may be the failure that left us without one."""

    evaluator: Evaluator
    budget: int
    record: Record
    note: Note
    backbone: Backbone | LlmFailure
    program: Any
    redactor: Redactor
    guidance: str = ""
    jobs: int = 1
    progress: Callable[[Trial], None] | None = None
    say: Say = lambda text: None
    known: Known = field(default_factory=Known)
    _inputs: Inputs | None = None
    _cut: dict[str, list[str]] = field(default_factory=dict)  # what prompts of each stage leave out

    def run(self) -> AgentResult:
        """Search to the end."""
        plan = SeedSearch(self.evaluator.context, self.budget)
        log = SearchLog(self.evaluator, self.record, self.progress)
        outcome = AgentResult(log.result)
        used, asked_llm, skipped_recorded = 0, False, False
        try:
            with pricer(self.evaluator, self.jobs) as price:
                while not plan.done:
                    candidates = list(round_of(plan))
                    if not asked_llm and any(one.origin not in SEED_ORIGINS for one in candidates):
                        asked_llm = True
                        used += self._llm_part(plan, log, outcome, self.budget - used)
                        if outcome.stop is not None and outcome.stop.code in ENDS_SEARCH:
                            return outcome
                    used += _price_round(plan, log, candidates, price, self.budget - used)
                    if plan.skipped and not skipped_recorded:
                        skipped_recorded = True
                        for skipped in plan.skipped:
                            changes = {name: as_json_value(value) for name, value in skipped.changes}
                            log.add("seed", skipped.name, changes, refused(skipped.reasons))
            if not asked_llm:  # nothing was left to combine or to polish: the language model may still see more
                self._llm_part(plan, log, outcome, self.budget - used)
        except KeyboardInterrupt:
            self._end(outcome, log, Stop("interrupted", "stopped by the operator (Ctrl-C)"))
        return outcome

    # ---------------------------------------------------------------------------------------- the language model

    def _llm_part(self, plan: SeedSearch, log: SearchLog, outcome: AgentResult, budget: int) -> int:
        """Let the language model propose; returns how much of the budget it used."""
        if budget <= 0:
            return 0
        self._inputs = Inputs(self.evaluator, plan.base, self.redactor)
        toolbox = Toolbox(log, self._inputs, budget, self.note, self.redactor, self._sub_question)
        before = self._replay(toolbox)
        if before is not None:
            stop = before
        else:
            if isinstance(self.backbone, Backbone):
                outcome.flags += self.backbone.assumptions()
            try:
                stop = self._rounds(toolbox, log)
            except LlmFailure as failure:
                stop = Stop(failure.code, failure.message)
            except KeyboardInterrupt:
                stop = Stop("interrupted", "stopped by the operator (Ctrl-C)")
        outcome.proposals, outcome.repeats = toolbox.spent, toolbox.repeats
        self._end(outcome, log, stop, write=before is None)
        for setting, trial in toolbox.settings:
            judged = trial.judged
            plan.learn(setting, trial.name, judged.signed_score, judged.legal, judged.shortfall, origin=trial.origin)
        return toolbox.spent

    def _replay(self, toolbox: Toolbox) -> Stop | None:
        """Redo what an earlier run recorded; its end, if it had come to one."""
        for one in self.known.trials:
            if one.origin in LLM_ORIGINS:
                toolbox.replay(one)
        toolbox.notes += [str(one.facts.get("text", "")) for one in self.known.notes if one.kind == "scratchpad"]
        ends = [one for one in self.known.notes if one.kind == "llm_end"]
        return Stop(str(ends[-1].facts["code"]), str(ends[-1].facts["message"])) if ends else None

    def _rounds(self, toolbox: Toolbox, log: SearchLog) -> Stop:
        """Plan, try the plan, investigate; again while that finds something better."""
        if isinstance(self.backbone, LlmFailure):
            raise self.backbone
        backbone = self.backbone
        stop = Stop("finished", "the language model had no further proposal")
        for number in range(MAX_ROUNDS):
            best = log.best
            plan = self._plan(backbone, toolbox, log)
            self._try_plan(plan, toolbox)
            if toolbox.stop is not None:
                return toolbox.stop

            done = investigate(
                backbone.ask,
                self.program.investigation.react,
                toolbox,
                partial(self._step_prompt, backbone, toolbox, log, plan),
                backbone.free_tokens,
                backbone.text_tokens,
                self._step(log),
            )
            stop = done.stop
            self._summary(backbone, toolbox, done)
            if toolbox.stop is not None or log.best is best or number + 1 == MAX_ROUNDS:
                return stop
        return stop

    def _plan(self, backbone: Backbone, toolbox: Toolbox, log: SearchLog) -> Plan:
        """A plan; an unreadable one costs a second try and then goes missing, everything else ends the part."""
        room = backbone.free_tokens
        for attempt in range(MAX_OVERFLOWS):
            try:
                asked = self._fitted(
                    backbone, log, "planner", self.program.planner, lambda one: self._texts(toolbox, log, one), room
                )
                plan = make_plan(backbone.ask, self.program.planner, {**asked.options, **asked.inputs}, self.redactor)
            except LlmFailure as failure:
                if isinstance(failure, TooLong) or failure.code not in (failures.CONTEXT, failures.UNREADABLE):
                    raise
                self._write(log, "plan_failed", {"code": failure.code, "message": failure.message})
                if failure.code == failures.UNREADABLE and attempt > 0:
                    break
                if failure.code == failures.CONTEXT:
                    room = room * 2 // 3
                    if attempt + 1 == MAX_OVERFLOWS:
                        raise
                continue
            self._write(log, "plan", plan.as_json())
            self.say(f"plan: {plan.rationale}")
            toolbox.hypotheses = list(plan.hypotheses)
            return plan
        return NO_PLAN

    def _try_plan(self, plan: Plan, toolbox: Toolbox) -> None:
        """The planner's configurations, one at a time."""
        toolbox.origin = PLANNER
        for changes, hypothesis in plan.partials():
            if toolbox.stop is not None:
                break
            toolbox.evaluate(ToolArguments.model_validate({"changes": changes, "hypothesis": hypothesis}))
        toolbox.origin = LLM_ORIGINS[1]

    def _texts(self, toolbox: Toolbox, log: SearchLog, detail: Detail = FULL) -> dict[str, str]:
        """The five inputs, guidance and scratchpad, as JSON."""
        return {
            **toolbox.inputs.texts(log.result.trials, log.best, detail),
            "guidance": compact(self.redactor.text(self.guidance, detail.guidance)),
            "notes": compact(toolbox.notes[-detail.notes :] if detail.notes else []),
        }

    def _fitted(
        self,
        backbone: Backbone,
        log: SearchLog,
        stage: str,
        module: Any,
        inputs: Callable[[Detail], dict[str, str]],
        room: int,
    ) -> StepPrompt:
        """The fullest prompt of a stage that fits; what it leaves out is noted when it changes."""

        def build(detail: Detail) -> StepPrompt:
            texts, options = inputs(detail), call_options(module, detail)
            return StepPrompt(texts, options, backbone.prompt_tokens(module, texts, options))

        found = fit(build, lambda one: one.tokens, room)
        if found is None:
            raise TooLong(build(LADDER[-1]).tokens, room)
        prompt, detail = found
        if detail.cut() != self._cut.get(stage, []):
            self._cut[stage] = detail.cut()
            facts = {"stage": stage, "left_out": tuple(detail.cut()), "trials": detail.trials}
            self._write(log, "prompt_shortened", facts)
        return prompt

    def _step_prompt(self, backbone: Backbone, toolbox: Toolbox, log: SearchLog, plan: Plan, room: int) -> StepPrompt:
        """A step's prompt with room for the trajectory: a share of what is not fixed, or the least that will do."""
        react = self.program.investigation.react

        def inputs(detail: Detail) -> dict[str, str]:
            words = compact(plan.as_json(words=detail.plan))
            return {**self._texts(toolbox, log, detail), "plan": words, "trajectory": NO_STEP}

        blank = backbone.prompt_tokens(react, dict.fromkeys(react.signature.input_fields, ""), {})
        shared = room - max(SMALLEST_ROOM, int((room - blank) * TRAJECTORY_SHARE))
        try:
            found = self._fitted(backbone, log, "investigate", react, inputs, shared)
        except TooLong:
            found = self._fitted(backbone, log, "investigate", react, inputs, room - SMALLEST_ROOM)
        return replace(found, inputs={name: text for name, text in found.inputs.items() if name != "trajectory"})

    def _sub_question(self, question: str, context: str) -> str:
        if isinstance(self.backbone, LlmFailure) or self._inputs is None:
            raise LlmFailure(failures.NOT_CONFIGURED, "there is no language model to ask")
        backbone, asking, fixed = self.backbone, self.program.asking, self._inputs.fixed()
        briefs = [
            compact({name: fixed[name] for name in names}) for names in (("architecture", "cluster", "objective"), ())
        ]
        prompts = [{"question": compact(question), "context": context or brief} for brief in briefs]
        fitting = [one for one in prompts if backbone.prompt_tokens(asking, one, {}) <= backbone.free_tokens]
        stage = backbone.stage
        answer = backbone.ask("ask", asking, **(fitting or prompts[-1:])[0])
        backbone.stage = stage
        return str(answer.answer.root)

    def _step(self, log: SearchLog) -> Callable[[str, str, Mapping[str, Any], Mapping[str, Any]], None]:
        def on_step(thought: str, tool: str, arguments: Mapping[str, Any], observation: Mapping[str, Any]) -> None:
            facts = {"thought": thought, "tool": tool, "arguments": arguments, "status": observation.get("status")}
            facts |= {"error": observation["error"]} if "error" in observation else {}
            self._write(log, "step", {name: value for name, value in facts.items() if value not in (None, "", {})})
            if thought:
                self.say(thought)

        return on_step

    def _summary(self, backbone: Backbone, toolbox: Toolbox, done: Outcome) -> None:
        """What was learned, in the model's words; it decides nothing, so it may fail."""
        inputs, log, module = toolbox.inputs, toolbox.log, self.program.investigation.extract
        best = None if log.best is None else inputs.row(log.best)
        known = {
            "objective": compact(inputs.fixed()["objective"]),
            "best": compact(self.redactor.value(best)),
        }
        room = backbone.free_tokens - backbone.prompt_tokens(module, {**known, "trajectory": NO_STEP}, {})
        try:
            answer = backbone.ask(
                "summary", module, **known, trajectory=done.trajectory.text(min(SUMMARY_TOKENS, room))
            )
        except LlmFailure as failure:
            self._write(log, "summary_failed", {"code": failure.code, "message": failure.message})
            return
        words = {name: getattr(answer, name).root for name in ("summary", "worked", "follow_ups")}
        self._write(log, "summary", words)

    # ---------------------------------------------------------------------------------------------------- records

    def _write(self, log: SearchLog, kind: str, facts: Mapping[str, Any]) -> None:
        trials = log.result.trials
        after = trials[-1].index if trials else None
        self.note(NoteRecord(kind, self.redactor.value(facts), after_trial=after))

    def _end(self, outcome: AgentResult, log: SearchLog, stop: Stop, *, write: bool = True) -> None:
        """Note why the language model's part, or the search, ended, and flag what was not as planned."""
        outcome.stop = stop
        message = self.redactor.text(stop.message, 400)
        if write and stop.code != "interrupted":
            self._write(log, "llm_end", {"code": stop.code, "message": message, "best": _index(log)})
        elif write:
            self._write(log, "stop", {"code": stop.code, "message": message, "best": _index(log)})
        if stop.code.startswith(("llm_", "cap_")) or stop.code in ("no_proposals", "interrupted"):
            outcome.flags.append((stop.code, message))
        left_out = dict.fromkeys(words for cut in self._cut.values() for words in cut)
        if left_out:
            outcome.flags.append((failures.SHORTENED, SHORTENED_WORDS.format(", ".join(left_out))))
            self._cut.clear()


def _index(log: SearchLog) -> int | None:
    return None if log.best is None else log.best.index


def _price_round(
    plan: SeedSearch,
    log: SearchLog,
    candidates: list[Candidate],
    price: Callable[[list[Candidate]], list[Any]],
    left: int,
) -> int:
    """Price a round of the seed search; what the language model tried already is told and not priced again."""
    fresh = [one for one in candidates if log.find(one.deployment, one.workload) is None][: max(0, left)]
    verdicts = dict(zip((one.number for one in fresh), price(fresh), strict=True))
    plan.allow(left - len(fresh))  # before the last verdict, which makes the plan offer its next round
    for candidate in candidates:
        judged = verdicts.get(candidate.number)
        if judged is not None:
            log.add(candidate.origin, candidate.name, candidate.setting.as_json(), judged)
        else:
            before = log.find(candidate.deployment, candidate.workload)
            judged = refused(()) if before is None else before.judged
        plan.tell(candidate, judged.signed_score, judged.legal, judged.shortfall)
    return len(fresh)
