"""A tuning run from a typed request to an answer: look up, search, record, report."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from agent.anchor_files import load_anchors
from agent.evaluate import Evaluator, fusion_json
from agent.launching import launch_json
from agent.predict_request import prediction_json
from agent.request import TuningRequest
from agent.search import Record, SearchResult, Trial, seed_search
from ledger import InputFile, NoteRecord, SearchEnd, SearchRecord, TrialRecord, open_ledger
from levers.catalog import LEVERS
from levers.context import SearchContext
from levers.objectives import objective
from predictor.anchors.schema import Anchor, all_fields
from predictor.cards import EngineProfile, ModelCard, Platform
from predictor.predict import Catalogue
from predictor.version import __version__

if TYPE_CHECKING:
    from ledger.store import Guard, Ledger


@dataclass(frozen=True, slots=True)
class Task:
    """One search as a planner gets it: what to search, where to record it, and what an earlier run had recorded."""

    evaluator: Evaluator
    budget: int
    record: Record
    note: Callable[[NoteRecord], None]
    known_trials: Sequence[TrialRecord]
    known_notes: Sequence[NoteRecord]
    jobs: int
    progress: Callable[[Trial], None] | None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a planner's search ended beside its trials: what was not as planned, facts and costs for the ledger."""

    flags: tuple[tuple[str, str], ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    costs: Mapping[str, Any] = field(default_factory=dict)
    interrupted: bool = False


class Planner(Protocol):
    """Who decides which settings to try. Whatever it proposes is judged by the evaluator and recorded."""

    name: str

    def facts(self) -> Mapping[str, Any]:
        """What of the planner decides the answer, for the ledger."""

    def prompts(self) -> tuple[InputFile, ...]:
        """Texts a language model reads, for the ledger."""

    def run(self, task: Task) -> tuple[SearchResult, Ended]:
        """Search."""


@dataclass(frozen=True, slots=True)
class SeedPlanner:
    """The deterministic seed search alone."""

    name: str = "seed"

    def facts(self) -> Mapping[str, Any]:
        """Nothing: it has no settings."""
        return {}

    def prompts(self) -> tuple[InputFile, ...]:
        """None."""
        return ()

    def run(self, task: Task) -> tuple[SearchResult, Ended]:
        """The seed search; every trial is re-derived, so what an earlier run recorded is not needed."""
        return seed_search(task.evaluator, task.budget, task.record, task.jobs, task.progress), Ended()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tuning run found and where it is recorded."""

    search_id: int
    ledger: str
    request: TuningRequest
    result: SearchResult
    resumed: int  # trials an earlier, killed run of this search had recorded
    wall_s: float
    context: SearchContext
    ended: Ended = field(default_factory=Ended)

    def as_json(self) -> dict[str, Any]:
        """The stable keys of ``tune --json``."""
        best = self.result.best
        return {
            "search_id": self.search_id,
            "ledger": self.ledger,
            "request": self.request.model_dump(mode="json"),
            "best": None if best is None else best_json(best, self.request, self.context),
            "trials": self.result.counts(),
            "reasons": self.result.reasons(),
            "fusion_opportunities": [] if best is None else [dict(fusion_json(one)) for one in best.judged.fusions],
            "flags": [{"code": code, "message": message} for code, message in self.ended.flags],
            "planner": {**self.ended.facts, **self.ended.costs},
            "resumed_trials": self.resumed,
            "wall_s": self.wall_s,
        }


def best_json(trial: Trial, request: TuningRequest, context: SearchContext) -> dict[str, Any]:
    """The best trial: levers, figures, score, origin, how it was predicted and how to launch it."""
    judged = trial.judged
    prediction, deployment, workload = judged.prediction, judged.deployment, judged.workload
    assert prediction is not None, "a legal trial was priced"
    assert deployment is not None
    assert workload is not None
    launch = launch_json(deployment, workload, context.card, context.platform, context.engine)
    return {
        "index": trial.index,
        "levers": dict(trial.levers),
        "objective": request.objective,
        "score": trial.judged.score,
        "origin": trial.origin,
        "name": trial.name,
        "metrics": trial.judged.metrics(),
        "prediction": prediction_json(prediction),
        "launch": launch["commands"],
        "benchmark": launch["benchmark"],
        "launch_notes": launch["notes"],
    }


def default_ledger() -> str:
    """``INFERASIM_LEDGER``, else a file in the user's data folder, which is made if it is not there."""
    named = os.environ.get("INFERASIM_LEDGER")
    if named:
        return named
    base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "inferasim"
    base.mkdir(parents=True, exist_ok=True)
    return str(base / "ledger.db")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that has proved sound, with all that its search needs and all that the ledger keeps of it."""

    request: TuningRequest
    evaluator: Evaluator
    planner: "Planner | SeedPlanner"
    record: SearchRecord
    files: tuple[InputFile, ...]


def prepare(request: TuningRequest, on_hand: Sequence[Anchor], planner: Planner | None = None) -> Prepared:
    """Look everything up that ``request`` names; nothing is recorded."""
    who = planner or SeedPlanner()
    slos = request.parsed_slos()
    goal = objective(request.objective)
    context = request.context(on_hand)
    usable = tuple(one for one in on_hand if one.signature.model == context.card.name)
    catalogue = Catalogue(context.card, context.platform, context.engine, usable)
    card = InputFile("model_card", context.card.name, record_text(context.card))
    files = (
        card,
        InputFile("platform", context.platform.name, record_text(context.platform)),
        InputFile("engine", context.engine.name, record_text(context.engine)),
        *(InputFile("anchor", one.name, anchor_text(one)) for one in usable),
    )
    prompts = who.prompts()
    record = SearchRecord(
        model=context.card.name,
        cluster=request.cluster,
        objective=request.objective,
        request={
            **request.model_dump(mode="json"),
            "engine_version": context.engine_version,
            "planner": {"name": who.name, **who.facts()} if who.facts() else who.name,
            "platform_sha256": files[1].sha256,
            "engine_sha256": files[2].sha256,
        },
        model_card_sha256=card.sha256,
        catalogue_sha256=catalogue_sha256(),
        code_version=__version__,
        created_at=datetime.now(UTC),
        anchor_sha256s=tuple(file.sha256 for file in files[3:]),
        prompt_sha256s={prompt.name: prompt.sha256 for prompt in prompts},
    )
    return Prepared(request, Evaluator(context, catalogue, goal, slos), who, record, (*files, *prompts))


def tune(
    request: TuningRequest,
    *,
    ledger_url: str | None = None,
    anchors: str | None = None,
    jobs: int = 1,
    progress: Callable[[Trial], None] | None = None,
    planner: Planner | None = None,
) -> Outcome:
    """Search what ``request`` asks for. Nothing is recorded before the whole request has proved sound."""
    prepared = prepare(request, load_anchors(anchors), planner)
    with open_ledger(ledger_url or default_ledger()) as book:
        found = book.unfinished(prepared.record)
        search_id = book.create_search(prepared.record, prepared.files) if found is None else found.search_id
        return search(prepared, book, search_id, jobs=jobs, progress=progress)


def search(
    prepared: Prepared,
    book: "Ledger",
    search_id: int,
    *,
    jobs: int = 1,
    progress: Callable[[Trial], None] | None = None,
    guard: "Guard | None" = None,
) -> Outcome:
    """Run a recorded search to its end; what an earlier run of it recorded is re-derived, not written again."""
    started = perf_counter()
    state = book.resume_state(search_id)
    known = frozenset(state.trials)

    def write(trial: TrialRecord) -> None:
        if trial.index not in known:
            book.add_trial(search_id, trial, guard)

    def note(one: NoteRecord) -> None:
        book.add_note(search_id, one, guard)

    budget = prepared.request.budget
    task = Task(prepared.evaluator, budget, write, note, tuple(state.trials.values()), state.notes, jobs, progress)
    result, ended = prepared.planner.run(task)
    wall_s = perf_counter() - started
    book.finish_search(
        search_id,
        SearchEnd(
            status="stopped" if ended.interrupted else "done" if result.best else "nothing_legal",
            finished_at=datetime.now(UTC),
            best_index=result.best.index if result.best else None,
            summary={"trials": result.counts(), "reasons": result.reasons(), **_end_facts(ended)},
            costs={"wall_s": wall_s, **ended.costs},
        ),
        guard,
    )
    context = prepared.evaluator.context
    return Outcome(search_id, book.label, prepared.request, result, len(known), wall_s, context, ended)


def _end_facts(ended: Ended) -> dict[str, Any]:
    """What a planner adds to the end of its search; nothing for the seed search."""
    flags = {"flags": [list(flag) for flag in ended.flags]} if ended.flags else {}
    return {**ended.facts, **flags}


def catalogue_sha256() -> str:
    """Identity of the lever catalogue: names, kinds, groups, what they set and their flags."""
    entries = [
        [one.number, one.name, one.kind, one.group, one.owner, one.field, [asdict(flag) for flag in one.flags]]
        for one in LEVERS
    ]
    return sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def record_text(record: ModelCard | Platform | EngineProfile) -> str:
    """A card, platform or profile as canonical JSON."""
    return json.dumps(asdict(record), sort_keys=True, separators=(",", ":"))


def anchor_text(anchor: Anchor) -> str:
    """The canonical text an anchor's content hash is taken of."""
    return json.dumps(all_fields(anchor), sort_keys=True, separators=(",", ":"))
