"""Records to rows and back; the only place that knows both."""

from datetime import datetime
from typing import cast

from ledger.canonical import Json, dumps, loads
from ledger.record import InputFile, JsonObject, NoteRecord, SearchEnd, SearchRecord, StoredSearch, TrialRecord
from ledger.tables import EndRow, InputRow, NoteRow, SearchRow, TrialRow

Values = dict[str, object]  # one row to insert, by column


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="microseconds")


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _object(text: str, where: str) -> JsonObject:
    return cast(JsonObject, loads(text, where))


def _pairs(text: str, where: str) -> tuple[tuple[str, str], ...]:
    return cast(tuple[tuple[str, str], ...], loads(text, where))


def input_values(file: InputFile) -> Values:
    """Columns of one input."""
    return {"sha256": file.sha256, "kind": file.kind, "name": file.name, "text": file.text}


def input_record(row: InputRow) -> InputFile:
    """One input as it was stored."""
    return InputFile(row.kind, row.name, row.text)


def search_values(record: SearchRecord) -> Values:
    """Columns of one search, its id apart."""
    return {
        "input_sha256": record.input_sha256,
        "model": record.model,
        "cluster": record.cluster,
        "objective": record.objective,
        "request_json": dumps(record.request),
        "model_card_sha256": record.model_card_sha256,
        "catalogue_sha256": record.catalogue_sha256,
        "anchor_sha256s_json": dumps(record.anchor_sha256s),
        "prompt_sha256s_json": dumps(dict(record.prompt_sha256s)),
        "code_version": record.code_version,
        "seed_json": dumps(record.seed),
        "created_at": _time(record.created_at),
    }


def search_record(row: SearchRow) -> SearchRecord:
    """The input of a search as it was stored."""
    where = f"search {row.id}"
    return SearchRecord(
        model=row.model,
        cluster=row.cluster,
        objective=row.objective,
        request=_object(row.request_json, where),
        model_card_sha256=row.model_card_sha256,
        catalogue_sha256=row.catalogue_sha256,
        anchor_sha256s=cast(tuple[str, ...], loads(row.anchor_sha256s_json, where)),
        prompt_sha256s=cast(dict[str, str], loads(row.prompt_sha256s_json, where)),
        code_version=row.code_version,
        seed=cast(int, loads(row.seed_json, where)),
        created_at=datetime.fromisoformat(row.created_at),
    )


def trial_values(search_id: int, trial: TrialRecord) -> Values:
    """Columns of one trial."""
    reasons: Json = trial.reasons
    flags: Json = trial.flags
    return {
        "search_id": search_id,
        "trial_index": trial.index,
        "origin": trial.origin,
        "hypothesis_json": dumps(trial.hypothesis),
        "legal": int(trial.legal),
        "score": trial.score,
        "mode": trial.mode,
        "anchor": trial.anchor,
        "levers_json": dumps(trial.levers),
        "metrics_json": dumps(dict(trial.metrics)),
        "reasons_json": dumps(reasons),
        "flags_json": dumps(flags),
        "fusion_opportunities_json": dumps(trial.fusion_opportunities),
        "recorded_at": _time(trial.recorded_at),
    }


def trial_record(row: TrialRow) -> TrialRecord:
    """One trial as it was stored."""
    where = f"search {row.search_id}, trial {row.trial_index}"
    return TrialRecord(
        index=row.trial_index,
        levers=_object(row.levers_json, where),
        origin=row.origin,
        hypothesis=cast(str, loads(row.hypothesis_json, where)),
        legal=bool(row.legal),
        score=row.score,
        metrics=cast(dict[str, float], loads(row.metrics_json, where)),
        reasons=_pairs(row.reasons_json, where),
        flags=_pairs(row.flags_json, where),
        fusion_opportunities=cast(tuple[JsonObject, ...], loads(row.fusion_opportunities_json, where)),
        mode=row.mode,
        anchor=row.anchor,
        recorded_at=_moment(row.recorded_at),
    )


def note_values(search_id: int, position: int, note: NoteRecord) -> Values:
    """Columns of one note."""
    return {
        "search_id": search_id,
        "position": position,
        "kind": note.kind,
        "after_trial": note.after_trial,
        "facts_json": dumps(note.facts),
        "costs_json": dumps(note.costs),
        "recorded_at": _time(note.recorded_at),
    }


def note_record(row: NoteRow) -> NoteRecord:
    """One note as it was stored."""
    where = f"search {row.search_id}, note {row.position}"
    return NoteRecord(
        kind=row.kind,
        facts=_object(row.facts_json, where),
        costs=_object(row.costs_json, where),
        after_trial=row.after_trial,
        recorded_at=_moment(row.recorded_at),
    )


def end_values(search_id: int, end: SearchEnd) -> Values:
    """Columns of one end."""
    return {
        "search_id": search_id,
        "status": end.status,
        "best_index": end.best_index,
        "summary_json": dumps(end.summary),
        "costs_json": dumps(end.costs),
        "finished_at": _time(end.finished_at),
    }


def end_record(row: EndRow) -> SearchEnd:
    """One end as it was stored."""
    where = f"search {row.search_id}, end"
    return SearchEnd(
        status=row.status,
        finished_at=datetime.fromisoformat(row.finished_at),
        best_index=row.best_index,
        summary=_object(row.summary_json, where),
        costs=_object(row.costs_json, where),
    )


def stored_search(row: SearchRow, end: EndRow | None) -> StoredSearch:
    """A search with its id and its end."""
    assert row.id is not None
    return StoredSearch(row.id, search_record(row), end_record(end) if end else None)
