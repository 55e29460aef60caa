"""Reading numbers out of other people's JSON: a fault names file, field, what stands there and what was expected."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from predictor.anchors.import_formats.run import Fact, Latency
from predictor.errors import BadFile

Json = Mapping[str, Any]


def load_json(text: str, origin: str) -> object:
    """One JSON document; a file that stops in the middle is said to be cut off."""
    try:
        value: object = json.loads(text, parse_constant=lambda word: _not_a_number(word, origin))
    except json.JSONDecodeError as error:
        raise BadFile(f"{origin}: {_fault(text, error)}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists in lists without end
        raise BadFile(f"{origin}: not readable as JSON ({error})") from None
    return value


def load_jsonl(text: str, origin: str) -> list[tuple[str, object]]:
    """One JSON document a line, with where each stands."""
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            rows.append((f"{origin} line {number}", load_json(line, f"{origin} line {number}")))
    return rows


def _not_a_number(word: str, origin: str) -> float:
    raise BadFile(f"{origin}: holds {word}, which is no measurement: some request failed or a metric had no samples")


def _fault(text: str, error: json.JSONDecodeError) -> str:
    if error.pos >= len(text.rstrip()) - 1 or "Unterminated" in error.msg:
        return (
            f"ends in the middle of a value after {len(text)} characters (line {error.lineno}): "
            "the file is cut off, write it again or drop its last line"
        )
    return f"line {error.lineno} column {error.colno}: not JSON ({error.msg})"


def number(row: Json, key: str, origin: str, *, unit: str = "", zero: bool = False) -> float | None:
    """A finite number above zero (or at least zero), None where the key is absent or null."""
    value = row.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadFile(f"{origin}: {key} is {short(value)}, expected a number{f' of {unit}' if unit else ''}")
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        least = "at least 0" if zero else "above 0"
        raise BadFile(f"{origin}: {key} is {value}, expected a finite number {least}{f' of {unit}' if unit else ''}")
    return float(value)


def required(row: Json, key: str, origin: str, *, unit: str = "") -> float:
    """As :func:`number`, and it must be there."""
    value = number(row, key, origin, unit=unit)
    if value is None:
        raise BadFile(f"{origin}: field {key} is missing")
    return value


def whole(row: Json, key: str, origin: str, *, zero: bool = False) -> int | None:
    """A whole number."""
    value = number(row, key, origin, zero=zero)
    if value is None:
        return None
    if value != int(value):
        raise BadFile(f"{origin}: {key} is {value}, expected a whole number")
    return int(value)


def numbers(row: Json, key: str, origin: str) -> list[float] | None:
    """A list of finite numbers of at least zero, None where absent."""
    values = row.get(key)
    if values is None:
        return None
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise BadFile(f"{origin}: {key} is {short(values)}, expected a list of numbers")
    return [number({f"{key}[{i}]": v}, f"{key}[{i}]", origin, zero=True) or 0.0 for i, v in enumerate(values)]


def latency(row: Json, origin: str, names: Mapping[str, str], factor: float = 1.0) -> Latency:
    """A latency from the keys that hold its statistics: ``{"mean": key, "p50": key, …}``; ms = value · factor."""
    read = {
        statistic: value * factor
        for statistic, key in names.items()
        if (value := number(row, key, origin, zero=True)) is not None
    }
    return Latency(**read)


def named_latency(row: Json, origin: str, metric: str, suffix: str = "_ms", factor: float = 1.0) -> Latency:
    """The four statistics as ``mean_ttft_ms``, ``median_ttft_ms``, ``p90_…``, ``p99_…``."""
    words = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}
    return latency(row, origin, {stat: f"{word}_{metric}{suffix}" for stat, word in words.items()}, factor)


def facts(pairs: Iterable[tuple[str, object]]) -> dict[str, Fact]:
    """Only what is stated: None, empty text and anything but plain values are left out."""
    return {name: value for name, value in pairs if isinstance(value, str | int | float | bool) and value != ""}


def short(value: object) -> str:
    """A value as it may stand in a one-line message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
