"""What the ledger stores: plain frozen values, handed in by the search.

Codes, names and levers are strings and numbers here, so that the ledger knows neither levers nor predictor.
Construction checks and normalises (lists become tuples, keys sorted): a record read back equals the record written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from ledger.canonical import Json, content_hash, dumps, finite, frozen, label
from ledger.errors import RecordRefused

JsonObject = Mapping[str, Json]

STATUSES = (
    "done",  # the plan or the budget was worked through
    "nothing_legal",  # done, and no trial was legal: a result
    "stopped",  # ended early on request
    "failed",  # a dependency failed; the summary says which
)


def _object(value: Mapping[str, object], where: str) -> JsonObject:
    result = frozen(value, where)
    assert isinstance(result, Mapping)
    return result


def _objects(values: tuple[Mapping[str, object], ...], where: str) -> tuple[JsonObject, ...]:
    return tuple(_object(value, f"{where}[{position}]") for position, value in enumerate(values))


def _pairs(values: tuple[tuple[str, str], ...], where: str) -> tuple[tuple[str, str], ...]:
    pairs = tuple((str(code), str(message)) for code, message in values)
    if any(not code for code, _ in pairs):
        raise RecordRefused(f"{where}: every entry needs a code and a message, got {values!r}")
    return pairs


def _utc(moment: datetime, where: str) -> datetime:
    if moment.tzinfo is None:
        raise RecordRefused(f"{where}: {moment.isoformat()} has no time zone; the ledger stores UTC")
    return moment.astimezone(UTC)


def _hash(text: str, where: str) -> str:
    if len(text) != 64 or set(text) - set("0123456789abcdef"):
        raise RecordRefused(f"{where}: {text!r} is not a SHA-256 in hex")
    return str(text)


@dataclass(frozen=True, slots=True)
class InputFile:
    """One input by content: a model card, a platform, an anchor, a catalogue or a prompt, stored once per content."""

    kind: str  # model_card, platform, anchor, catalogue, prompt, trace
    name: str
    text: str

    def __post_init__(self) -> None:
        label(self.kind, "input.kind")
        label(self.name, "input.name")
        if "\x00" in self.text:
            raise RecordRefused(f"input {self.name!r}: text holds a NUL character")

    @property
    def sha256(self) -> str:
        """Content hash: of the text alone, so a renamed file is the same input."""
        return content_hash(self.text)


@dataclass(frozen=True, slots=True)
class SearchRecord:
    """The whole input of a search: with the inputs its hashes name, it can be run again.

    ``request`` is the typed request (engine, SLO, pins, workload, budget, guidance, …) as JSON. Hashes are SHA-256 of
    the content; anchors in the order they were offered, prompts by name.
    """

    model: str
    cluster: str
    objective: str
    request: JsonObject
    model_card_sha256: str
    catalogue_sha256: str
    code_version: str
    created_at: datetime
    anchor_sha256s: tuple[str, ...] = ()
    prompt_sha256s: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        put = object.__setattr__  # the dataclass is frozen; this is construction
        for name in ("model", "cluster", "objective", "code_version"):
            put(self, name, label(getattr(self, name), f"search.{name}"))
        put(self, "request", _object(self.request, "search.request"))
        put(self, "created_at", _utc(self.created_at, "search.created_at"))
        put(self, "anchor_sha256s", tuple(_hash(text, "search.anchor_sha256s") for text in self.anchor_sha256s))
        prompts = {str(name): _hash(self.prompt_sha256s[name], "search.prompt_sha256s") for name in self.prompt_sha256s}
        put(self, "prompt_sha256s", dict(sorted(prompts.items())))
        _hash(self.model_card_sha256, "search.model_card_sha256")
        _hash(self.catalogue_sha256, "search.catalogue_sha256")

    def stable(self) -> dict[str, Json]:
        """Everything that decides the result, and nothing that names the run or its time."""
        return {
            "model": self.model,
            "cluster": self.cluster,
            "objective": self.objective,
            "request": self.request,
            "model_card_sha256": self.model_card_sha256,
            "catalogue_sha256": self.catalogue_sha256,
            "anchor_sha256s": self.anchor_sha256s,
            "prompt_sha256s": dict(self.prompt_sha256s),
            "code_version": self.code_version,
            "seed": self.seed,
        }

    @property
    def input_sha256(self) -> str:
        """Content hash of the whole input: two searches with the same one must end alike."""
        return content_hash(dumps(self.stable()))


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One lever setting that was tried: what it gave, or why it was refused.

    ``origin`` says who proposed it: the seed's name, ``planner``, ``investigator`` or ``operator``; ``hypothesis`` is
    what it was to test. ``metrics`` are finite doubles by name; a metric that a trial does not yield is left out, never
    NaN. ``score`` is None where nothing was priced. ``reasons`` and ``flags`` are (code, sentence) pairs.
    """

    index: int
    levers: JsonObject
    origin: str
    legal: bool
    metrics: Mapping[str, float] = field(default_factory=dict)
    score: float | None = None
    reasons: tuple[tuple[str, str], ...] = ()
    fusion_opportunities: tuple[JsonObject, ...] = ()
    flags: tuple[tuple[str, str], ...] = ()
    mode: str | None = None
    anchor: str | None = None
    hypothesis: str = ""
    recorded_at: datetime | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        if isinstance(self.index, bool) or not isinstance(self.index, int) or not 0 <= self.index < 2**31:
            raise RecordRefused(f"trial.index: {self.index!r} is not a count from zero")
        where = f"trial {self.index}"
        put(self, "levers", _object(self.levers, f"{where}: levers"))
        put(self, "origin", label(self.origin, f"{where}: origin"))
        metrics = {str(name): finite(self.metrics[name], f"{where}: metric {name}") for name in sorted(self.metrics)}
        put(self, "metrics", metrics)
        put(self, "score", None if self.score is None else finite(self.score, f"{where}: score"))
        put(self, "reasons", _pairs(self.reasons, f"{where}: reasons"))
        put(self, "flags", _pairs(self.flags, f"{where}: flags"))
        put(self, "fusion_opportunities", _objects(self.fusion_opportunities, f"{where}: fusion_opportunities"))
        for name in ("mode", "anchor"):
            text = getattr(self, name)
            put(self, name, None if text is None else label(text, f"{where}: {name}"))
        if self.recorded_at is not None:
            put(self, "recorded_at", _utc(self.recorded_at, f"{where}: recorded_at"))
        if not self.legal and not self.reasons:
            raise RecordRefused(f"{where}: is not legal and gives no reason")

    def stable(self) -> dict[str, Json]:
        """The trial without the time it was written."""
        return {
            "index": self.index,
            "levers": self.levers,
            "origin": self.origin,
            "hypothesis": self.hypothesis,
            "legal": self.legal,
            "score": self.score,
            "metrics": dict(self.metrics),
            "reasons": self.reasons,
            "flags": self.flags,
            "fusion_opportunities": self.fusion_opportunities,
            "mode": self.mode,
            "anchor": self.anchor,
        }

    def untimed(self) -> "TrialRecord":
        """The same trial without its time, to compare two runs."""
        return replace(self, recorded_at=None)


@dataclass(frozen=True, slots=True)
class NoteRecord:
    """Something a search did or learned besides its trials: a plan, an LLM call, a scratchpad note, a verification.

    ``facts`` are what the story tells; ``costs`` (seconds, tokens, money) differ from run to run and stay out of stable
    exports.
    """

    kind: str  # plan, llm_call, scratchpad, stop, verification, ...
    facts: JsonObject
    costs: JsonObject = field(default_factory=dict)
    after_trial: int | None = None  # the newest trial when it was written
    recorded_at: datetime | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "kind", label(self.kind, "note.kind"))
        put(self, "facts", _object(self.facts, f"note {self.kind}: facts"))
        put(self, "costs", _object(self.costs, f"note {self.kind}: costs"))
        if self.recorded_at is not None:
            put(self, "recorded_at", _utc(self.recorded_at, f"note {self.kind}: recorded_at"))

    def stable(self) -> dict[str, Json]:
        """The note without costs and time."""
        return {"kind": self.kind, "after_trial": self.after_trial, "facts": self.facts}


@dataclass(frozen=True, slots=True)
class SearchEnd:
    """How a search ended. A search without one is running, or was killed and can be resumed."""

    status: str
    finished_at: datetime
    best_index: int | None = None
    summary: JsonObject = field(default_factory=dict)  # facts that the same input always gives
    costs: JsonObject = field(default_factory=dict)  # wall time, tokens, money

    def __post_init__(self) -> None:
        put = object.__setattr__
        if self.status not in STATUSES:
            raise RecordRefused(f"end.status: {self.status!r}; legal: {', '.join(STATUSES)}")
        put(self, "finished_at", _utc(self.finished_at, "end.finished_at"))
        put(self, "summary", _object(self.summary, "end.summary"))
        put(self, "costs", _object(self.costs, "end.costs"))

    def stable(self) -> dict[str, Json]:
        """The end without costs and time."""
        return {"status": self.status, "best_index": self.best_index, "summary": self.summary}


@dataclass(frozen=True, slots=True)
class StoredSearch:
    """A search as it lies in the ledger: its id, its input, and its end if it has one."""

    search_id: int
    record: SearchRecord
    end: SearchEnd | None

    @property
    def status(self) -> str:
        """``unfinished`` until an end is written."""
        return self.end.status if self.end else "unfinished"
