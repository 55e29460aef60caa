"""Typed access to the fields of one trace record, and what can be wrong with it."""

import math
import sys
from enum import StrEnum
from typing import Any


class BadRecord(StrEnum):
    """What can be wrong with a record; the keys of ``TraceReader.skipped``."""

    NOT_JSON = "not_json"
    TRUNCATED = "truncated"
    NOT_AN_OBJECT = "not_an_object"
    MISSING_FIELD = "missing_field"
    WRONG_TYPE = "wrong_type"
    NOT_FINITE = "not_finite"
    UNSUPPORTED = "unsupported"
    NON_POSITIVE_LENGTH = "non_positive_length"
    NEGATIVE_TIME = "negative_time"
    CONFLICTING_FIELDS = "conflicting_fields"
    DUPLICATE_ID = "duplicate_id"
    DANGLING_REFERENCE = "dangling_reference"
    CYCLE = "cycle"
    FOLLOWS_SKIPPED = "follows_skipped"
    PREFIX_TOO_LONG = "prefix_too_long"
    CHAIN_VIOLATION = "chain_violation"
    BLOCK_COUNT = "block_count"


class Bad(Exception):
    """A record that cannot be used."""

    def __init__(self, kind: BadRecord, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Record:
    """Typed access to the fields of one record, by name and aliases."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def _value(self, *names: str) -> tuple[str, Any]:
        found, value = names[0], None
        for name in names:
            other = self._fields.get(name)
            if other is None:
                continue
            if value is not None and other != value:
                raise Bad(BadRecord.CONFLICTING_FIELDS, f"{found!r} and {name!r} differ")
            found, value = name, other
        return found, value

    def text(self, *names: str) -> str | None:
        """A name: text or an integer."""
        name, value = self._value(*names)
        return None if value is None else _text(name, value)

    def texts(self, *names: str) -> tuple[str, ...]:
        """One name or a list of them."""
        name, value = self._value(*names)
        if value is None:
            return ()
        return tuple(_text(name, item) for item in (value if isinstance(value, list) else [value]))

    def number(self, *names: str) -> float | int | None:
        name, value = self._value(*names)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Bad(BadRecord.WRONG_TYPE, f"{name!r} is a number, found {value!r}")
        if abs(value) > sys.float_info.max or not math.isfinite(value):  # an integer may be past every double
            raise Bad(BadRecord.NOT_FINITE, f"{name!r} is {value!r}")
        return value

    def time(self, *names: str) -> float | None:
        """A time in ms, not negative."""
        value = self.number(*names)
        if value is not None and value < 0:
            raise Bad(BadRecord.NEGATIVE_TIME, f"{names[0]!r} is {value!r}")
        return value

    def count(self, name: str) -> int | None:
        """A whole number, not negative."""
        value = self.number(name)
        if value is not None and (value < 0 or value != int(value)):
            raise Bad(BadRecord.WRONG_TYPE, f"{name!r} is a count, found {value!r}")
        return None if value is None else int(value)

    def length(self, *names: str, least: int = 1) -> int:
        """A number of tokens. Recorded answers can be empty, prompts cannot."""
        value = self.number(*names)
        if value is None:
            raise Bad(BadRecord.MISSING_FIELD, f"{names[0]!r} is missing")
        if value != int(value):
            raise Bad(BadRecord.WRONG_TYPE, f"{names[0]!r} is a whole number of tokens, found {value!r}")
        if value < least:
            raise Bad(BadRecord.NON_POSITIVE_LENGTH, f"{names[0]!r} is {value!r}: at least {least}")
        return int(value)

    def ids(self, name: str) -> list[int | str] | None:
        """Block ids: integers of any size, or text."""
        value = self._fields.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not set(map(type, value)) <= {int, str}:
            raise Bad(BadRecord.WRONG_TYPE, f"{name!r} is a list of integers or strings")
        return value


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Bad(BadRecord.WRONG_TYPE, f"{name!r} is a name, found {value!r}")
    return str(value)
