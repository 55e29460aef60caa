"""A search told as a person would read it: what was asked, what was tried and why, what was learned, why it stopped."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from levers.lever import show
from levers.objectives import Direction, objective

if TYPE_CHECKING:
    from ledger.record import NoteRecord, StoredSearch, TrialRecord

MAX_TRIED = 12  # seeds of one kind told one by one
LLM_ORIGINS = ("planner", "investigator")


def tell(search: "StoredSearch", trials: Sequence["TrialRecord"], notes: Sequence["NoteRecord"]) -> list[str]:
    """The story, one paragraph or list item a line; an empty line between sections."""
    base = trials[0] if trials else None
    lines = [
        *_asked(search, notes),
        "",
        *_seeds(trials, base, search.record.objective),
        *_model(trials, notes, base),
        *_rest(trials, base),
        "",
        *_end(search, trials, notes, base),
    ]
    return lines


def _asked(search: "StoredSearch", notes: Sequence["NoteRecord"]) -> Iterator[str]:
    request = search.record.request
    yield f"Search {search.search_id}: {search.record.objective} of {search.record.model} on {search.record.cluster}"
    bounds = ", ".join(str(one) for one in _items(request.get("slos"))) or "no bound"
    pins = ", ".join(str(one) for one in _items(request.get("pins"))) or "nothing pinned"
    yield (
        f"  {request.get('engine')} {request.get('engine_version')}; {bounds}; {pins}; {request.get('isl')} tokens in, "
        f"{request.get('osl')} out, {request.get('concurrency')} clients; budget {request.get('budget')}"
    )
    for note in notes:
        if note.kind == "request":
            yield f"  asked in words: {note.facts['text']}"
            for kind in ("understood", "assumed"):
                said = [f"{one['field']} {_plain(one['value'])}" for one in _rows(note.facts.get(kind))]
                if said:
                    yield f"  {kind}: {'; '.join(said)}"
    if request.get("guidance"):
        yield f"  guidance: {request['guidance']}"


def _seeds(trials: Sequence["TrialRecord"], base: "TrialRecord | None", goal: str) -> Iterator[str]:
    seeds = [one for one in trials if one.origin == "seed"]
    if base is None:
        yield "Nothing was tried."
        return
    yield f"The baseline scored {_score(base)}."
    if not seeds:
        return
    legal = [one for one in seeds if one.legal and one.score is not None]
    yield f"One lever at a time: {len(seeds)} seeds, {len(legal)} legal."
    helped = [one for one in legal if _better(one, base, goal)]
    for one in helped[:MAX_TRIED]:
        yield f"  {one.hypothesis}: {_score(one)}"
    if not helped:
        yield "  none was better than the baseline"


def _model(trials: Sequence["TrialRecord"], notes: Sequence["NoteRecord"], base: "TrialRecord | None") -> Iterator[str]:
    """The language model's part: notes and proposals in the order they came."""
    events: list[tuple[int, int, int, Any]] = [
        (-1 if note.after_trial is None else note.after_trial, 1, position, note) for position, note in enumerate(notes)
    ]
    events += [(one.index, 0, 0, one) for one in trials if one.origin in LLM_ORIGINS]
    said_header = False
    for _, is_note, _, event in sorted(events, key=lambda item: item[:3]):
        lines = list(_note(event)) if is_note else [_proposal(event, base)]
        if lines and not said_header:
            said_header = True
            yield ""
            yield "The language model:"
        yield from lines


def _note(note: "NoteRecord") -> Iterator[str]:
    facts = note.facts
    match note.kind:
        case "plan":
            yield f"  plan: {facts['rationale']}"
            for number, text in enumerate(_items(facts.get("hypotheses")), 1):
                yield f"    hypothesis {number}: {text}"
            if facts.get("polish"):
                yield f"    then: {facts['polish']}"
        case "plan_failed":
            yield f"  no plan: {facts['message']}"
        case "prompt_shortened" if facts.get("left_out"):
            yield f"  the {facts['stage']} prompt left out {', '.join(_items(facts['left_out']))}, to fit"
        case "scratchpad":
            yield f"  learned: {facts['text']}"
        case "step" if facts.get("tool") == "evaluate" and facts.get("thought"):
            yield f"    because: {facts['thought']}"
        case "step" if facts.get("error"):
            yield f"  a step went wrong: {facts['error']}"
        case "repeat":
            yield f"  repeated trial {facts['trial']}, answered from the ledger: {_changes(facts['set'])}"
        case "question":
            yield f"  asked: {facts['question']}"
            yield f"    answer: {facts['answer']}"
        case "summary":
            yield f"  summary: {facts['summary']}"
            yield f"    worked: {facts['worked']}"
            yield f"    next: {facts['follow_ups']}"
        case "llm_end":
            yield f"  it ended: {facts['message']}"


def _proposal(trial: "TrialRecord", base: "TrialRecord | None") -> str:
    what = _changes(trial.levers if base is None else _different(trial.levers, base.levers))
    why = f" [{trial.hypothesis}]" if trial.hypothesis and trial.hypothesis != what else ""
    return f"  tried {what}{why}: {_score(trial)}"


def _rest(trials: Sequence["TrialRecord"], base: "TrialRecord | None") -> Iterator[str]:
    rest = [one for one in trials if one.origin in ("combine", "polish")]
    if not rest or base is None:
        return
    legal = [one for one in rest if one.legal and one.score is not None]
    yield ""
    yield f"Combining and polishing: {len(rest)} trials, {len(legal)} legal."


def _end(
    search: "StoredSearch", trials: Sequence["TrialRecord"], notes: Sequence["NoteRecord"], base: "TrialRecord | None"
) -> Iterator[str]:
    end = search.end
    if end is None:
        yield "It was not finished: run it again and it goes on."
        return
    stops = [str(note.facts["message"]) for note in notes if note.kind == "stop"]
    why = (
        stops[-1]
        if stops
        else {"done": "the plan was worked through", "nothing_legal": "nothing was legal"}.get(end.status, end.status)
    )
    yield f"It stopped after {len(trials)} trials: {why}."
    for flag in _items(end.summary.get("flags")):
        code, message = _items(flag)
        yield f"  flag {code}: {message}"
    if end.best_index is None or base is None:
        yield "There is no legal deployment; the reasons are counted in `inferasim ledger show`."
        return
    best = trials[end.best_index]
    what = _changes(_different(best.levers, base.levers)) or "the baseline itself"
    yield f"The best is trial {best.index}, by {best.origin}: {what}: {_score(best)} (baseline {_score(base)})."
    calls = [note for note in notes if note.kind == "llm_call"]
    if calls:
        tokens = sum(
            int(_number(note.costs.get(name))) for note in calls for name in ("prompt_tokens", "completion_tokens")
        )
        costs = [note.costs.get("cost_usd") for note in calls]
        money = "price unknown" if None in costs else f"${sum(_number(cost) for cost in costs):.4f}"
        yield f"The language model was asked {len(calls)} times: {tokens:,} tokens, {money}."


def _better(one: "TrialRecord", base: "TrialRecord", goal: str) -> bool:
    """Better than the baseline in the search's objective; than an illegal one, whatever is legal."""
    if not base.legal or base.score is None or one.score is None:
        return one.legal
    return one.score > base.score if objective(goal).direction is Direction.MAX else one.score < base.score


def _different(levers: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in levers.items() if name not in base or base[name] != value}


def _changes(levers: Any) -> str:
    if not isinstance(levers, Mapping):
        return str(levers)
    return " ".join(f"{name}={show(value)}" for name, value in levers.items())


def _score(trial: "TrialRecord") -> str:
    if trial.legal and trial.score is not None:
        return f"{trial.score:,.4g}"
    return "refused, " + "; ".join(message for _, message in trial.reasons)


def _items(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else ()


def _rows(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in _items(value) if isinstance(one, Mapping)]


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
