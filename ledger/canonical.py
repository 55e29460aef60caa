"""One text for one value: canonical JSON and content hashes.

Keys sorted, no spaces, floats by ``repr`` (the shortest text that reads back to the same double), ASCII only, so that
the same value has the same bytes in SQLite, in PostgreSQL and in an export. NaN and infinities are refused: a metric
that is not a finite number is not a metric.
"""

import json
import math
from collections.abc import Mapping
from hashlib import sha256

from ledger.errors import RecordRefused

JSON_VALUES = "a string, a finite number, true, false, null, a list or an object with string keys"
Json = str | int | float | bool | None | tuple["Json", ...] | Mapping[str, "Json"]


def frozen(value: object, where: str) -> Json:
    """Copy a JSON-like value: lists become tuples, keys are sorted, minus zero becomes zero.

    ``where`` names the value in the error. Raises RecordRefused for what JSON cannot hold, NaN and infinities included.

    >>> frozen({"b": [1, 2.5], "a": None}, "levers")
    {'a': None, 'b': (1, 2.5)}
    """
    match value:
        case None | bool():
            return value
        case str():
            return str(value)
        case int():
            return int(value)
        case float():
            return finite(value, where)
        case Mapping():
            for key in value:
                if not isinstance(key, str):
                    raise RecordRefused(f"{where}: key {key!r} is not a string")
            return {str(key): frozen(value[key], f"{where}.{key}") for key in sorted(value)}
        case list() | tuple():
            return tuple(frozen(item, f"{where}[{position}]") for position, item in enumerate(value))
    raise RecordRefused(f"{where}: {value!r} is a {type(value).__name__}; expected {JSON_VALUES}")


def finite(value: float, where: str) -> float:
    """A finite double; minus zero becomes zero, because SQLite does not keep the sign."""
    number = float(value)
    if not math.isfinite(number):
        raise RecordRefused(f"{where}: {number} is not a finite number; leave the metric out and record the reason")
    return number + 0.0


def dumps(value: Json) -> str:
    """Canonical JSON text.

    >>> dumps({"b": (1, 0.1), "a": "é"})
    '{"a":"\\\\u00e9","b":[1,0.1]}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def loads(text: str, where: str) -> Json:
    """Read canonical JSON back to the value that was written."""
    return frozen(json.loads(text), where)


def content_hash(text: str) -> str:
    """SHA-256 of a text in UTF-8, as 64 hex digits."""
    return sha256(text.encode("utf-8")).hexdigest()


def label(text: str, where: str) -> str:
    """A short text for a column of its own: what every database can hold (no NUL, valid Unicode)."""
    if "\x00" in text or not text.isprintable():
        raise RecordRefused(f"{where}: {text!r} holds characters that cannot be printed")
    return str(text)
