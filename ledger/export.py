"""Searches as files: JSON lines, CSV and Parquet.

JSON lines is the full record; key ``row`` names the kind of line: a ``search`` line, its ``trial`` lines in index
order, its ``note`` lines in the order written, and an ``end`` line if it ended. Keys are sorted and floats are written
by ``repr``, so the same ledger always exports to the same bytes. ``stable=True`` leaves out what names a run rather
than its result (search ids, times, costs): two runs of the same search then export to the same bytes.

CSV and Parquet are one flat table of trials, a column for each lever and metric.
"""

import csv
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ledger.canonical import Json, dumps
from ledger.errors import LedgerError
from ledger.record import StoredSearch

if TYPE_CHECKING:
    from ledger.store import Ledger

FORMATS = ("jsonl", "csv", "parquet")
PLAIN_COLUMNS = ("index", "origin", "hypothesis", "legal", "score", "mode", "anchor")
CODE_COLUMNS = ("reasons", "flags")
EXACT_INT = 2**53  # larger integers are not all doubles


def jsonl(ledger: "Ledger", search_ids: Iterable[int], *, stable: bool = False) -> Iterator[str]:
    """Canonical lines of the given searches, each ending in a newline."""
    for search_id in search_ids:
        search = ledger.get_search(search_id)
        yield _line("search", search.record.stable(), _search_run(search), stable)
        for trial in ledger.trials(search_id):
            run: dict[str, Json] = {"recorded_at": _iso(trial.recorded_at)}
            yield _line("trial", trial.stable(), {"search_id": search_id, **run}, stable)
        for note in ledger.notes(search_id):
            run = {"recorded_at": _iso(note.recorded_at), "costs": note.costs}
            yield _line("note", note.stable(), {"search_id": search_id, **run}, stable)
        if search.end is not None:
            run = {"finished_at": _iso(search.end.finished_at), "costs": search.end.costs}
            yield _line("end", search.end.stable(), {"search_id": search_id, **run}, stable)


def table(ledger: "Ledger", search_ids: Iterable[int], *, stable: bool = False) -> dict[str, list[Json]]:
    """Trials as columns: plain fields, reason and flag codes, ``lever.*`` and ``metric.*``; absent values are None."""
    found = [(search_id, trial) for search_id in search_ids for trial in ledger.trials(search_id)]
    trials = [trial for _, trial in found]
    columns: dict[str, list[Json]] = {}
    if not stable:
        columns["search_id"] = [search_id for search_id, _ in found]
    for name in PLAIN_COLUMNS:
        columns[name] = [getattr(trial, name) for trial in trials]
    for name in CODE_COLUMNS:
        columns[name] = [dumps(getattr(trial, name)) for trial in trials]
    columns["fusion_opportunities"] = [dumps(trial.fusion_opportunities) for trial in trials]
    if not stable:
        columns["recorded_at"] = [_iso(trial.recorded_at) for trial in trials]
    columns |= _keyed("lever", [trial.levers for trial in trials])
    columns |= _keyed("metric", [trial.metrics for trial in trials])
    return columns


def to_csv(columns: Mapping[str, list[Json]]) -> str:
    """Comma-separated text with a header; floats by ``repr``, lists as JSON, absent values empty."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in zip(*columns.values(), strict=True))
    return output.getvalue()


def to_parquet(columns: Mapping[str, list[Json]]) -> bytes:
    """Parquet bytes; a column whose values are of several kinds is JSON text."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise LedgerError("export to parquet needs pyarrow; pip install 'inferasim[parquet]'") from None
    typed = {name: pa.array(_uniform(values)) for name, values in columns.items()}
    output = io.BytesIO()
    pq.write_table(pa.table(typed), output)
    return output.getvalue()


def export(ledger: "Ledger", search_ids: Iterable[int], file_format: str, *, stable: bool = False) -> bytes:
    """The export as bytes, in one of :data:`FORMATS`."""
    if file_format == "jsonl":
        return "".join(jsonl(ledger, search_ids, stable=stable)).encode()
    if file_format == "csv":
        return to_csv(table(ledger, search_ids, stable=stable)).encode("utf-8", "backslashreplace")
    if file_format == "parquet":
        return to_parquet(table(ledger, search_ids, stable=stable))
    raise LedgerError(f"export format {file_format!r} is not known; legal: {', '.join(FORMATS)}")


def write_export(path: Path, content: bytes) -> None:
    """Put an export into a file, whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise LedgerError(f"export {path}: {error.strerror or error}; choose another path") from error


def _line(row: str, result: Mapping[str, Json], run: Mapping[str, Json], stable: bool) -> str:
    return dumps({"row": row, **result} if stable else {"row": row, **result, **run}) + "\n"


def _search_run(search: StoredSearch) -> dict[str, Json]:
    return {"search_id": search.search_id, "created_at": _iso(search.record.created_at)}


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="microseconds")


def _keyed(prefix: str, rows: list[Mapping[str, Json]]) -> dict[str, list[Json]]:
    names = sorted({name for row in rows for name in row})
    return {f"{prefix}.{name}": [row.get(name) for row in rows] for name in names}


def _cell(value: Json) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else dumps(value)


def _uniform(values: list[Json]) -> list[Json]:
    """Values of one Parquet type: as they are where all agree, else each as JSON text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and all(abs(value) <= EXACT_INT for value in values if isinstance(value, int)):
        return [float(value) if float in kinds and isinstance(value, int) else value for value in values]
    if kinds == {bool}:
        return values
    if kinds == {str}:
        return [
            value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else None for value in values
        ]
    return [None if value is None else dumps(value) for value in values]
