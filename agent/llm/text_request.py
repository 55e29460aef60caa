"""A sentence to a typed request: the rules read names and numbers, a language model reads the rest and is checked.

What the text says is understood; what it leaves open and has a documented default is assumed and shown; what it leaves
open without a default, says in two ways, or what only the language model claims, becomes a question. Nothing a language
model answers can name a model, a GPU, a number or a unit that the text does not hold.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.llm.failures import LlmFailure
from agent.llm.forms import RequestForm
from agent.llm.mentions import Mention
from agent.llm.quantities import Quantity, Unit
from agent.llm.request_rules import Fact, Rules, read_rules
from agent.request import DEFAULT_CONCURRENCY, DEFAULT_ISL_TOKENS, DEFAULT_OSL_TOKENS
from levers.objectives import OBJECTIVES, SLO_METRICS
from predictor.errors import BadInput
from predictor.profiles.loader import engine_names, engine_profile, model_names, platform, platform_names

MAX_REQUEST = 4000  # characters
DEFAULT_OBJECTIVE = "output_tok_s_per_gpu"  # tokens for the money, as the command line has it
DEFAULTS: dict[str, tuple[Any, str]] = {
    "objective": (DEFAULT_OBJECTIVE, "no objective is named"),
    "isl": (DEFAULT_ISL_TOKENS, "no prompt length is named"),
    "osl": (DEFAULT_OSL_TOKENS, "no output length is named"),
    "concurrency": (DEFAULT_CONCURRENCY, "no load is named"),
}
COUNTS = {
    "isl": (Unit.TOKENS, Unit.BARE),
    "osl": (Unit.TOKENS, Unit.BARE),
    "concurrency": (Unit.CLIENTS, Unit.BARE),
    "budget": (Unit.TRIALS, Unit.BARE),
}
UNIT_FACTORS = {  # of the units a language model may name, to the product's own
    "ms": 1.0, "millisecond": 1.0, "milliseconds": 1.0, "s": 1e3, "sec": 1e3, "second": 1e3, "seconds": 1e3,
    "us": 1e-3, "min": 6e4, "minute": 6e4, "minutes": 6e4,
}  # fmt: skip

ReadForm = Callable[[str], RequestForm]  # raises LlmFailure


@dataclass(frozen=True, slots=True)
class Said:
    """One field of the request with the words or the reason it was taken from."""

    field: str
    value: Any
    why: str


@dataclass(frozen=True, slots=True)
class Question:
    """What has to be answered, and what ``--yes`` would take for an answer; None where nothing sensible can be."""

    field: str
    text: str
    proposal: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Reading:
    """What a text was understood to ask for."""

    fields: dict[str, Any] = field(default_factory=dict)
    understood: list[Said] = field(default_factory=list)
    assumed: list[Said] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    flag: tuple[str, str] | None = None  # why no language model took part

    @property
    def missing(self) -> list[str]:
        """Fields the text leaves open without a default."""
        return [question.field for question in self.questions if question.proposal is None]

    def as_json(self) -> dict[str, Any]:
        """As ``tune --json`` and the ledger show it."""

        def rows(items: Iterable[Said]) -> list[dict[str, Any]]:
            return [{"field": one.field, "value": one.value, "why": one.why} for one in items]

        return {
            "understood": rows(self.understood),
            "assumed": rows(self.assumed),
            "missing": self.missing,
            "questions": [{"field": one.field, "question": one.text} for one in self.questions],
            "notes": list(self.notes),
        }

    def take(self, name: str, value: Any, why: str) -> None:
        """Fill a field with what the text says."""
        self.fields[name] = value
        self.understood.append(Said(name, value, why))

    def assume(self, name: str, value: Any, why: str) -> None:
        """Fill a field with what the text does not say."""
        self.fields[name] = value
        self.assumed.append(Said(name, value, why))

    def ask(self, name: str, text: str, proposal: Mapping[str, Any] | None = None) -> None:
        """Leave a field open."""
        self.questions.append(Question(name, text, proposal))


class NeedsAnswer(BadInput):
    """The text leaves something open: the message holds the questions."""


def read_request(text: str, ask_llm: ReadForm | None = None) -> Reading:
    """Read a text. Without a language model, or if it fails, the rules alone read it, and a flag says so."""
    if not text.strip():
        raise BadInput("request '': say what to tune, such as 'Llama-3.1-8B on MI355X:8 with SGLang, TTFT under 1 s'")
    if len(text) > MAX_REQUEST:
        raise BadInput(f"request of {len(text)} characters: at most {MAX_REQUEST} are read; use --request FILE")
    reading, form = Reading(), RequestForm()
    if ask_llm is not None:
        try:
            form = ask_llm(text)
        except LlmFailure as failure:
            reading.flag = (failure.code, f"the request was read by rule alone: {failure.message}")
    rules = read_rules(text)
    _name(reading, "model", rules.names.models, form.model, model_names())
    _name(reading, "gpu", rules.names.gpus, form.gpu, platform_names())
    _engine(reading, rules, form)
    _cluster(reading, rules)
    _counts(reading, rules, form)
    _objective(reading, rules, form)
    _bounds(reading, rules, form)
    _levers(reading, rules)
    for doubt in dict.fromkeys(rules.doubts):
        reading.ask("text", doubt)
    if form.question.endswith("?"):
        reading.ask("text", form.question, {})
    return reading


def settle(reading: Reading, given: Mapping[str, Any], accept: bool) -> dict[str, Any]:
    """The request's fields: flags win over the text, ``accept`` takes what is proposed; open questions are an error."""
    fields = {**reading.fields, **given}
    for name, value in given.items():
        said = reading.fields.get(name)
        if said is not None and said != value:
            reading.notes.append(f"{name}: the option {value!r} was taken, not the text's {said!r}")
    still: list[Question] = []
    for question in reading.questions:
        if question.field in given:
            continue
        if accept and question.proposal is not None:
            for name, value in question.proposal.items():
                fields[name] = _joined(fields.get(name), value)
                reading.assumed.append(Said(name, value, f"accepted with --yes: {question.text}"))
        else:
            still.append(question)
    if still:
        raise NeedsAnswer(question_line(reading, still))
    return fields


def question_line(reading: Reading, questions: list[Question]) -> str:
    """Everything to answer, and what was understood, in one line."""
    asked = " ".join(f"({number}) {one.text}" for number, one in enumerate(questions, 1))
    known = "; ".join(f"{one.field} {_plain(one.value)}" for one in reading.understood) or "nothing"
    can = "; --yes accepts what is proposed" if all(one.proposal is not None for one in questions) else ""
    return f"please answer: {asked} [understood: {known}. Say it in the text or as an option{can}]"


def _joined(before: Any, value: Any) -> Any:
    """Bounds add up; anything else is replaced."""
    return (*before, *value) if isinstance(before, tuple) and isinstance(value, tuple) else value


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


# ---------------------------------------------------------------------------------------------------------- names


def _name(reading: Reading, kind: str, mentions: tuple[Mention, ...], claimed: str, legal: tuple[str, ...]) -> None:
    """One name the text holds exactly once; anything else is a question."""
    known = list(dict.fromkeys(one.name for one in mentions if one.name and not one.negated))
    strange = [one for one in mentions if one.name is None and not one.negated]
    choice = claimed if claimed in legal else None
    if strange:
        near = list(dict.fromkeys([*known, *(name for one in strange for name in one.near)]))
        proposal = {kind: near[0]} if len(near) == 1 else {kind: choice} if choice in near else None
        words = ", ".join(repr(one.raw) for one in strange)
        hint = f": is it {' or '.join(near)}?" if near else f"; known: {', '.join(legal)}"
        reading.ask(kind, f"{words} is no {kind} of the catalogue{hint}", proposal)
    elif len(known) > 1:
        proposal = {kind: choice} if choice in known else None
        reading.ask(kind, f"the text names {' and '.join(known)}: which {kind} is meant?", proposal)
    elif known:
        raw = next(one.raw for one in mentions if one.name == known[0] and not one.negated)
        reading.take(kind, known[0], raw)
        if choice is not None and choice != known[0]:
            reading.notes.append(f"the language model read {kind} {choice}; the text says {raw!r}")
    else:
        legal_names = ", ".join(legal)
        reading.ask(kind, f"which {kind}? The text names none; known: {legal_names}")


def _engine(reading: Reading, rules: Rules, form: RequestForm) -> None:
    """The engine; where none is named, one that runs on the GPU is proposed."""
    if any(not one.negated for one in rules.names.engines):
        _name(reading, "engine", rules.names.engines, form.engine, engine_names())
        _single(reading, rules, "engine_version")
        return
    gpu = reading.fields.get("gpu")
    ruled_out = {one.name for one in rules.names.engines}
    fits = [
        name
        for name in sorted(engine_names(), key=lambda name: name != "vLLM")
        if name not in ruled_out and (gpu is None or platform(gpu).vendor in engine_profile(name).vendors)
    ]
    proposal = {"engine": fits[0]} if fits and gpu else None
    shown = f" Proposed: {fits[0]}." if proposal else ""
    reading.ask("engine", f"which engine: {', '.join(fits)}?{shown}", proposal)


def _cluster(reading: Reading, rules: Rules) -> None:
    """GPU, GPUs a node and nodes as one cluster; where no count is named, a whole node is proposed."""
    gpu = reading.fields.pop("gpu", None)
    per_node, nodes = rules.values("gpus_per_node"), rules.values("nodes")
    if len(per_node) > 1 or len(nodes) > 1:
        words = rules.raw("gpus_per_node") or rules.raw("nodes")
        reading.ask("cluster", f"how many GPUs? The text says {words}; write GPU:N or GPU:NxNODES")
        return
    if gpu is None or any("GPUs" in doubt for doubt in rules.doubts):
        return  # asked already
    usual = platform(gpu).gpus_per_node
    if not per_node:
        cluster = _cluster_text(gpu, usual, nodes[0] if nodes else 1)
        reading.ask("cluster", f"how many {gpu}? Proposed: {cluster}, whole nodes.", {"cluster": cluster})
        return
    reading.understood = [one for one in reading.understood if one.field != "gpu"]  # the cluster says it
    reading.take("cluster", _cluster_text(gpu, per_node[0], nodes[0] if nodes else 1), rules.raw("gpus_per_node"))


def _cluster_text(gpu: str, per_node: int, nodes: int) -> str:
    return f"{gpu}:{per_node}" + (f"x{nodes}" if nodes > 1 else "")


# -------------------------------------------------------------------------------------------------------- numbers


def _single(reading: Reading, rules: Rules, name: str) -> bool:
    """Take a field the rules read once; ask where they read it twice."""
    values = rules.values(name)
    if len(values) > 1:
        said = " and ".join(map(str, values))
        reading.ask(name, f"{name}: the text says {said}; which one?")
    elif values:
        reading.take(name, values[0], rules.raw(name))
    return bool(values)


def _counts(reading: Reading, rules: Rules, form: RequestForm) -> None:
    """Lengths, load and budget: by rule; else as the language model placed a number that the text holds."""
    claims = {"isl": form.isl, "osl": form.osl, "concurrency": form.concurrency, "budget": form.budget}
    for name, claimed in claims.items():
        if _single(reading, rules, name) or not claimed:
            continue
        held = _held(rules, claimed, COUNTS[name])
        if held is None:
            reading.notes.append(f"the language model read {name} {claimed}, which the text does not say: left out")
        else:
            rules.loose = [one for one in rules.loose if one is not held]
            reading.take(name, claimed, f"{held.raw} (the language model's reading)")
    if _single(reading, rules, "request_rate"):
        reading.take("arrival", "poisson", rules.raw("request_rate"))
    _single(reading, rules, "prefix_hit")
    for name in ("isl", "osl", "concurrency"):
        asked = any(question.field == name for question in reading.questions)
        if name not in reading.fields and not asked:
            reading.assume(name, *DEFAULTS[name])


def _held(rules: Rules, value: float, units: tuple[Unit, ...]) -> Quantity | None:
    """A number of the text that nothing else claims and that has this value and a fitting unit."""
    free = [*rules.loose, *(one for one in rules.quantities if one.unit is Unit.BARE)]
    return next((one for one in free if one.unit in units and abs(one.value - value) < 1e-9), None)


def _objective(reading: Reading, rules: Rules, form: RequestForm) -> None:
    named = list(dict.fromkeys(fact.value for fact in rules.objectives))
    legal = [one.name for one in OBJECTIVES]
    if len(named) > 1:
        words = " and ".join(repr(fact.raw) for fact in rules.objectives)
        proposal = {"objective": form.objective} if form.objective in named else None
        reading.ask("objective", f"{words} are two objectives ({', '.join(named)}): which one decides?", proposal)
    elif named:
        reading.take("objective", named[0], rules.objectives[0].raw)
    elif form.objective in legal:
        reading.assume("objective", form.objective, "the language model's reading")
    else:
        reading.assume("objective", *DEFAULTS["objective"])


def _bounds(reading: Reading, rules: Rules, form: RequestForm) -> None:
    """Bounds read by rule; a number no rule could place is asked about, with the language model's reading proposed."""
    by_side: dict[tuple[str, bool], list[str]] = {}
    for bound in rules.bounds:
        by_side.setdefault((bound.metric, bound.upper), []).append(bound.slo)
    for (metric, _), slos in by_side.items():
        if len(set(slos)) > 1:
            reading.ask("slos", f"{metric} is bounded twice, {' and '.join(slos)}: which one holds?")
    if rules.bounds:
        distinct = tuple(dict.fromkeys(bound.slo for bound in rules.bounds))
        reading.take("slos", distinct, ", ".join(bound.raw for bound in rules.bounds))
    for one in rules.loose:
        claimed = _claimed_bound(form, one)
        if claimed:
            reading.ask("slos", f"what does {one.raw!r} bound? Proposed: {claimed}.", {"slos": (claimed,)})
        elif one.unit is Unit.MONEY:
            reading.ask("slos", f"{one.raw!r}: money cannot be bounded; bound gpus or tok/s per GPU instead?", {})
        else:
            reading.ask("slos", f"what is {one.raw!r}? Name its metric, such as TTFT, TPOT or E2E, or leave it out")


def _claimed_bound(form: RequestForm, one: Quantity) -> str | None:
    """The language model's bound on this quantity, if its value, unit and metric fit."""
    for claim in form.bounds:
        timed = claim.metric.rpartition("_ms")[1] == "_ms"
        if claim.metric not in SLO_METRICS or timed is not (one.unit is Unit.TIME_MS):
            continue
        factor = UNIT_FACTORS.get(claim.unit.lower()) if timed else 1.0
        if factor is not None and abs(claim.value * factor - one.value) < 1e-9 * max(1.0, one.value):
            return f"{claim.metric}{claim.relation}{one.value:g}"
    return None


def _levers(reading: Reading, rules: Rules) -> None:
    """Pins and openings, which come from the text's own words alone."""
    pins: dict[str, list[Fact]] = {}
    for fact in rules.facts:
        if fact.field.startswith("pin:"):
            pins.setdefault(fact.field.removeprefix("pin:"), []).append(fact)
    kept: list[str] = []
    for lever, facts in pins.items():
        values = list(dict.fromkeys(fact.value for fact in facts))
        if len(values) > 1:
            reading.ask("pins", f"{lever} is fixed to {' and to '.join(values)}: which one?")
        else:
            kept.append(f"{lever}={values[0]}")
    if kept:
        reading.take("pins", tuple(kept), ", ".join(facts[0].raw for facts in pins.values()))
    if rules.values("free"):
        reading.take("free", tuple(rules.values("free")), rules.raw("free"))
