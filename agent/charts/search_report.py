"""The report of a search in the ledger: its answer, every trial on one chart, and why the best beats the baseline."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.charts.accuracy import Pair, accuracy_figure
from agent.charts.deployments import deployment_figures, shown
from agent.charts.document import Block, Commands, Document, Facts, Section, Table, Text
from agent.charts.frontiers import Point, frontier_figure
from agent.explain import explain
from agent.explain.sides import Side
from agent.launching import launch_json
from agent.pareto.frontier import Frontier, X, Y
from agent.recorded import RecordedTrial, recorded_trial
from levers.lever import show
from levers.space import normalised
from predictor.errors import BadInput
from predictor.predict import Catalogue

if TYPE_CHECKING:
    from ledger.record import NoteRecord, TrialRecord
    from ledger.store import Ledger

BASELINE, BEST = "baseline", "best"


@dataclass(frozen=True, slots=True)
class _Search:
    """What the ledger holds of one search."""

    search_id: int
    objective: str
    trials: Sequence["TrialRecord"]
    notes: Sequence["NoteRecord"]
    best: RecordedTrial | None
    baseline: RecordedTrial | None


def search_document(book: "Ledger", search_id: int) -> Document:
    """The whole report. The best trial and the baseline are priced again for their steps, memory and latencies."""
    stored = book.get_search(search_id)
    trials = book.trials(search_id)
    if not any(one.legal for one in trials):
        raise BadInput(f"search {search_id}: no trial was legal, so there is nothing to draw; see `ledger show`")
    search = _Search(
        search_id,
        stored.record.objective,
        trials,
        book.notes(search_id),
        None if stored.end is None or stored.end.best_index is None else recorded_trial(book, search_id, None),
        _baseline(book, search_id, trials),
    )
    request = stored.record.request
    bounds = ", ".join(map(str, _items(request.get("slos")))) or "no bound"
    sections = [_trials_section(search)]
    if search.best is not None:
        sections = [_answer_section(search.best), *sections, *_compared(search, search.best)]
    measured = _measured_section(search)
    if measured is not None:
        sections.append(measured)
    return Document(
        f"{stored.record.model} on {stored.record.cluster}",
        f"search {search_id}: {search.objective} with {request.get('engine')}; {bounds}; {request.get('isl')} tokens "
        f"in, {request.get('osl')} out, {request.get('concurrency')} clients",
        _answer(search),
        tuple(sections),
        _flags(search),
    )


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def _baseline(book: "Ledger", search_id: int, trials: Sequence["TrialRecord"]) -> RecordedTrial | None:
    """The first trial, where it was a whole setting."""
    first = next((one for one in trials if one.origin == "baseline" and one.metrics), None)
    return None if first is None else recorded_trial(book, search_id, first.index)


def _answer(search: _Search) -> tuple[tuple[str, str], ...]:
    legal = sum(one.legal for one in search.trials)
    counted = (("trials", f"{len(search.trials)}"), ("legal", f"{legal}"))
    if search.best is None:
        return counted
    metrics = search.best.trial.metrics
    told = (("output tok/s/GPU", Y), ("tok/s/user", X), ("TTFT, ms", "ttft_ms"), ("TPOT, ms", "tpot_ms"))
    return (*((name, f"{metrics[key]:,.4g}") for name, key in told if key in metrics), *counted)


def _answer_section(best: RecordedTrial) -> Section:
    """What to deploy."""
    context = best.context
    launch = launch_json(best.deployment, best.workload, context.card, context.platform, context.engine)
    levers = tuple(
        (name, show(normalised(name, value)))
        for name, value in best.trial.levers.items()
        if value not in ("auto", None)
    )
    return Section(
        "answer",
        "What to deploy",
        (
            Commands("Launch", tuple(launch["commands"])),
            Commands("Check it", (launch["benchmark"],)),
            Facts(f"Levers of trial {best.name}", levers),
        ),
    )


def _trials_section(search: _Search) -> Section:
    """Every priced trial, the legal ones in front, and why others were refused."""
    priced = [one for one in search.trials if X in one.metrics and Y in one.metrics]
    legal = [_row(one) for one in priced if one.legal]
    frontier = Frontier()
    for row in legal:
        frontier.add(row)
    kept = {row["i"] for row in frontier.rows}
    lines = {"frontier of legal trials": [_point(search, row["trial"]) for row in frontier.rows]}
    for name, found in ((BEST, search.best), (BASELINE, search.baseline)):
        if found is not None:
            lines[name] = [_point(search, found.trial)]
    others = [_point(search, one) for one in priced if one.legal and one.index not in kept]
    refused = [_point(search, one) for one in priced if not one.legal]
    blocks: list[Block] = [
        frontier_figure("trials", "Every trial", lines, dominated=[*others, *refused]),
    ]
    reasons: dict[str, tuple[int, str]] = {}
    for one in search.trials:
        for code, sentence in one.reasons[:1]:
            count, first = reasons.get(code, (0, sentence))
            reasons[code] = (count + 1, first)
    if reasons:
        ordered = sorted(reasons.items(), key=lambda pair: (-pair[1][0], pair[0]))
        rows = tuple((code, count, sentence) for code, (count, sentence) in ordered)
        blocks.append(Table("Why trials were refused", ("reason", "trials", "the first one"), rows))
    return Section("trials", "What was tried", tuple(blocks))


def _row(trial: "TrialRecord") -> dict[str, Any]:
    return {X: trial.metrics[X], Y: trial.metrics[Y], "i": trial.index, "trial": trial}


def _point(search: _Search, trial: "TrialRecord") -> Point:
    verdict = "" if trial.legal else f", refused: {trial.reasons[0][0] if trial.reasons else 'unknown'}"
    return Point(
        trial.metrics[X],
        trial.metrics[Y],
        f"trial {search.search_id}:{trial.index}, {trial.origin}{verdict}",
        trial.metrics.get("ttft_ms"),
    )


def _compared(search: _Search, best: RecordedTrial) -> list[Section]:
    """The best beside the baseline: figures of both, and the terms that decide."""
    found = {BEST: best} if search.baseline is None or search.baseline.name == best.name else {
        BEST: best, BASELINE: search.baseline
    }  # fmt: skip
    priced = {name: shown(one.deployment, one.workload, _catalogue(one)) for name, one in found.items()}
    sections = [Section("inside", "Inside the best", deployment_figures("best", priced, BEST))]
    if len(found) == 2:
        sections.append(_why(_side(best), _side(found[BASELINE])))
    return sections


def _why(best: Side, baseline: Side) -> Section:
    answer = explain(best, baseline)
    metric = answer["metric"]
    terms = tuple((row["label"], row["a"], row["b"], row["difference"]) for row in answer["terms"][metric])
    causes = tuple((one["label"], one["sentence"], one["mechanism"], one["reference"]) for one in answer["causes"][:5])
    changes = tuple(
        (one["label"], one["before"], one["after"], one["difference"], one["mechanism"], one["reference"])
        for one in answer["changes"]
    )
    blocks: list[Block] = [Table(f"{metric} by term", ("term", BEST, BASELINE, "difference"), terms)]
    if causes:
        blocks.append(Table("What decides", ("term", "what", "mechanism", "reference"), causes))
    if changes:
        columns = ("change", "before", "after", "gives", "mechanism", "reference")
        blocks.append(Table("From the baseline to the best, one change at a time", columns, changes))
    return Section("why", "Why it beats the baseline", tuple(blocks))


def _catalogue(trial: RecordedTrial) -> Catalogue:
    context = trial.context
    return Catalogue(context.card, context.platform, context.engine, trial.anchors)


def _side(trial: RecordedTrial) -> Side:
    return Side(trial.name, trial.deployment, trial.workload, _catalogue(trial), trial.request.objective)


def _measured_section(search: _Search) -> Section | None:
    """Predicted against measured, from the verifications recorded with the search."""
    found: dict[str, list[Pair]] = {}
    for note in search.notes:
        if note.kind != "verification":
            continue
        compared = note.facts.get("compared")
        for metric, one in compared.items() if isinstance(compared, dict) else ():
            assert isinstance(one, dict)
            name = f"trial {search.search_id}:{note.after_trial}"
            found.setdefault(metric, []).append(Pair(float(one["measured"]), float(one["predicted"]), name))
    blocks: list[Block] = []
    for metric, pairs in found.items():
        positive = [pair for pair in pairs if pair.measured > 0.0 and pair.predicted > 0.0]
        if positive:
            blocks.append(accuracy_figure(f"measured-{metric}", metric, {"verified": positive}))
        if len(positive) < len(pairs):
            blocks.append(Text(f"{metric}: {len(pairs) - len(positive)} figures of 0 have no place on this chart."))
    return Section("measured", "Predicted against measured", tuple(blocks)) if blocks else None


def _flags(search: _Search) -> tuple[str, ...]:
    return () if search.best is None else tuple(dict.fromkeys(sentence for _, sentence in search.best.trial.flags))
