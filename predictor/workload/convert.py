"""Other writers' traces as records of :mod:`predictor.workload.trace`.

Each converter takes text (lines or chunks) and yields :class:`Document` objects for a :class:`TraceReader`, with the
line they came from, so that its errors still point into the file that was given::

    TraceReader(CONVERTERS["bailian"](open_trace(path)))

What a format cannot say in our fields is a fault of that record, never a silent guess.
"""

import csv
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from predictor.errors import BadFile, unknown_name
from predictor.workload.json_stream import Document, Fault, documents
from predictor.workload.weka import weka

Converter = Callable[[Iterable[str]], Iterator[Document]]

_MS_PER_S = 1000
_FIRST_LINE = 1


def mooncake(text: Iterable[str]) -> Iterator[Document]:
    """Our own records: Mooncake rows, plain, extended or compact."""
    return documents(text)


def mooncake_delta(text: Iterable[str]) -> Iterator[Document]:
    """Dynamo's delta rows: a later row of a session lists only what it adds, in ``hash_ids`` and ``input_length``."""
    sessions: dict[str, tuple[str, int, int]] = {}  # session -> last request, its prompt tokens, its blocks
    for number, document in enumerate(documents(text)):
        row = document.value
        if not isinstance(row, dict) or "session_id" not in row:
            yield document
            continue
        session, ids = str(row["session_id"]), row.get("hash_ids") or []
        request_id = str(row.get("request_id", f"{session}#{number}"))
        last, tokens, blocks = sessions.get(session, (None, 0, 0))
        added = row.get("input_length")
        whole = row | {"request_id": request_id}
        if last is not None and isinstance(added, int):
            whole |= {"input_length": tokens + added, "prefix_from": last, "prefix_blocks": blocks}
        sessions[session] = (request_id, tokens + (added if isinstance(added, int) else 0), blocks + len(ids))
        yield Document(document.line, whole)


def dynamo_agentic(text: Iterable[str]) -> Iterator[Document]:
    """Dynamo agentic replay rows: v1 (``wait_for``, ``delay``, ``tool_wait_ms``) and v2 (a header, ``dependencies``).

    v2 dependencies on dispatch, or with delays that differ, have no equal here and are faults of their record.
    """
    scope = "global"
    for document in documents(text):
        row = document.value
        if not isinstance(row, dict):
            yield document
        elif "hash_id_scope" in row and "input_length" not in row:
            scope = str(row["hash_id_scope"])
        elif "dependencies" in row or "play_id" in row:
            yield _dynamo_v2(document, row, scope)
        elif "tool_wait_ms" in row:
            delay = (row.get("delay") or 0) + (row["tool_wait_ms"] or 0)
            yield Document(document.line, {**row, "delay": delay})
        else:
            yield document


def _dynamo_v2(document: Document, row: dict[str, Any], scope: str) -> Document:
    dependencies = row.get("dependencies") or []
    if any(dependency.get("trigger", "completion") != "completion" for dependency in dependencies):
        return _unsupported(document, "a dependency on dispatch; only completion can be waited on")
    delays = {dependency.get("delay_ms") or 0 for dependency in dependencies}
    if len(delays) > 1:
        return _unsupported(document, f"dependencies with different delays {sorted(delays)}")
    play = row.get("play_id")
    record = dict(row)
    if "not_before_ms" in row:
        record["timestamp"] = row["not_before_ms"]
    if dependencies:
        record |= {"wait_on": [d["request_id"] for d in dependencies], "think_time": delays.pop()}
    if play is not None:
        record |= {"session_id": row.get("session_id", play), "parent_session_id": play}
        if scope == "local" and isinstance(row.get("hash_ids"), list):
            record["hash_ids"] = [f"{play}/{block_id}" for block_id in row["hash_ids"]]
    return Document(document.line, record)


def _unsupported(document: Document, what: str) -> Document:
    return Document(document.line, document.value, f"unsupported: {what}", Fault.UNSUPPORTED)


def bailian(text: Iterable[str]) -> Iterator[Document]:
    """Qwen-Bailian rows: seconds, complete prompts in blocks of 16 tokens whose ids hash the block alone.

    Ids are re-keyed by (re-keyed predecessor, id): equal text behind different prefixes is not a hit. Turns come at
    their recorded times; the recording does not say when answers ended, so no turn waits for its parent.
    """
    chained: dict[tuple[int, int | str], int] = {}
    for document in documents(text):
        row = document.value
        if not isinstance(row, dict) or not isinstance(row.get("hash_ids"), list):
            yield document
            continue
        before, ids = -1, []
        for block_id in row["hash_ids"]:
            before = chained.setdefault((before, block_id), len(chained))
            ids.append(before)
        record = {"request_id": row.get("chat_id"), "hash_ids": ids}
        record |= {key: row[key] for key in ("input_length", "output_length") if key in row}
        if isinstance(row.get("timestamp"), int | float):
            record["timestamp"] = row["timestamp"] * _MS_PER_S
        yield Document(document.line, record)


def azure(text: Iterable[str]) -> Iterator[Document]:
    """Azure LLM inference CSV: TIMESTAMP, ContextTokens, GeneratedTokens; times become ms after the first row."""
    start_ms: float | None = None
    for line, row in _csv_rows(text, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")):
        try:
            at_ms = _timestamp_ms(row["TIMESTAMP"])
            lengths = {"input_length": int(row["ContextTokens"]), "output_length": int(row["GeneratedTokens"])}
        except ValueError as bad:
            yield Document(line, row, fault=f"not a row of numbers: {bad}")
            continue
        start_ms = at_ms if start_ms is None else start_ms
        yield Document(line, {"timestamp": at_ms - start_ms, **lengths})


def lengths(text: Iterable[str]) -> Iterator[Document]:
    """CSV of input_length and output_length, without times or ids."""
    for line, row in _csv_rows(text, ("input_length", "output_length")):
        try:
            yield Document(line, {key: int(row[key]) for key in ("input_length", "output_length")})
        except ValueError as bad:
            yield Document(line, row, fault=f"not a row of numbers: {bad}")


CONVERTERS: dict[str, Converter] = {
    "mooncake": mooncake,
    "mooncake-delta": mooncake_delta,
    "dynamo-agentic": dynamo_agentic,
    "weka": weka,
    "bailian": bailian,
    "azure": azure,
    "lengths": lengths,
}


def converter(name: str) -> Converter:
    """A converter by name.

    >>> converter("lengths").__name__
    'lengths'
    """
    if name not in CONVERTERS:
        raise unknown_name("trace format", name, CONVERTERS)
    return CONVERTERS[name]


def _csv_rows(text: Iterable[str], columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(text)
    missing = [column for column in columns if column not in (reader.fieldnames or ())]
    if missing:
        raise BadFile(f"line {_FIRST_LINE}: the header lacks {', '.join(missing)}; expected {', '.join(columns)}")
    for row in reader:
        yield reader.line_num, {key: value or "" for key, value in row.items() if key is not None}


def _timestamp_ms(text: str) -> float:
    """Milliseconds of ``YYYY-MM-DD hh:mm:ss.fraction`` since a fixed day; microseconds and below are kept.

    >>> _timestamp_ms("2023-11-17 00:00:01.5") - _timestamp_ms("2023-11-16 23:59:59.25")
    2250.0
    """
    day, _, clock = text.partition(" ")
    year, month, date = (int(part) for part in day.split("-"))
    hours, minutes, seconds = clock.split(":")
    return ((_day_number(year, month, date) * 24 + int(hours)) * 60 + int(minutes)) * 60_000.0 + float(seconds) * 1000.0


def _day_number(year: int, month: int, day: int) -> int:
    """Days of the Gregorian calendar, counted from March so that leap days end a year.

    >>> _day_number(2024, 3, 1) - _day_number(2024, 2, 28), _day_number(2023, 3, 1) - _day_number(2023, 2, 28)
    (2, 1)
    """
    years = year - (month < 3)
    return 365 * years + years // 4 - years // 100 + years // 400 + (153 * ((month - 3) % 12) + 2) // 5 + day
