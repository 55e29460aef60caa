"""From parsed data to a frozen record: every field's type and range checked, errors name file, field and expectation.

Plain dataclasses and this module cost a tenth of the start-up time of a validation library, which matters because every
command reads a few profiles and anchors. A range is written beside the type: ``Annotated[float, (">", 0)]``.
"""

import sys
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from enum import StrEnum
from functools import lru_cache
from operator import ge, gt
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from predictor.errors import BadFile, BadInput

Record = TypeVar("Record")

# What ``Annotated[..., (relation, least)]`` asks of a value, and how a fault says so.
BOUNDS: Mapping[str, tuple[Callable[[Any, Any], bool], str]] = {
    ">": (gt, "a number greater than {}"),
    ">=": (ge, "a number of at least {}"),
    "length >=": (lambda value, least: len(value) >= least, "at least {} of them"),
}


def decode(record: type[Record], data: object, where: str, joint: str = ": ") -> Record:
    """Build ``record`` from parsed data; ``where`` (file, or file and field) begins every error message.

    ``joint`` stands between ``where`` and a field: a dot where ``where`` ends in a field itself.

    Raises BadFile for an unknown or missing key, a value of the wrong type, or one out of range.
    """
    if not isinstance(data, Mapping):
        raise BadFile(f"{where}: expected a table, got {_short(data)}")
    hints, required = _shape(cast(Hashable, record))
    for key in data:
        if key not in hints:
            near = get_close_matches(str(key), hints, n=1)
            raise BadFile(f"{where}: unknown field {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    absent = sorted(required - data.keys())
    if absent:
        raise BadFile(f"{where}: missing field {absent[0]!r}, expected {_name(hints[absent[0]])}")
    values = {key: _value(hints[key], value, f"{where}{joint}{key}") for key, value in data.items()}
    try:
        return record(**values)
    except BadFile:
        raise
    except BadInput as error:
        raise BadFile(f"{where}: {error}") from None


@lru_cache(maxsize=64)
def _shape(record: Any) -> tuple[dict[str, Any], frozenset[str]]:
    required = {f.name for f in fields(record) if f.default is MISSING and f.default_factory is MISSING}
    return get_type_hints(record, include_extras=True), frozenset(required)


def _value(kind: Any, value: object, where: str) -> Any:
    origin = get_origin(kind)
    if origin is Annotated:
        plain, *bounds = get_args(kind)
        return _bounded(_value(plain, value, where), bounds, where)
    if origin in (Union, UnionType):
        inner = [option for option in get_args(kind) if option is not NoneType]
        return None if value is None else _value(inner[0], value, where)
    if origin is Literal:
        return _checked(value in get_args(kind), value, where, f"one of {', '.join(map(str, get_args(kind)))}")
    if origin is tuple:
        return _tuple(get_args(kind), value, where)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise BadFile(f"{where}: expected a table, got {_short(value)}")
        return {str(key): _value(get_args(kind)[1], item, f"{where}.{key}") for key, item in value.items()}
    if is_dataclass(kind) and isinstance(kind, type):
        return value if isinstance(value, kind) else decode(kind, value, where, ".")
    return _scalar(kind, value, where)


def _bounded(value: Any, bounds: list[tuple[str, float]], where: str) -> Any:
    """The value, within every bound; None has no range."""
    for relation, least in bounds if value is not None else ():
        holds, expected = BOUNDS[relation]
        _checked(holds(value, least), value, where, expected.format(least))
    return value


def _tuple(kinds: tuple[Any, ...], value: object, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise BadFile(f"{where}: expected a list, got {_short(value)}")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_value(kinds[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if len(value) != len(kinds):
        raise BadFile(f"{where}: expected {len(kinds)} values, got {len(value)}")
    return tuple(_value(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(kinds, value, strict=True)))


def _scalar(kind: Any, value: object, where: str) -> Any:
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        fits = abs(value) <= sys.float_info.max  # false for NaN, and for an integer past every double
        return float(_checked(fits, value, where, "a finite number"))
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(_checked(value in list(kind), value, where, f"one of {', '.join(kind)}"))
    if kind is str and isinstance(value, str):
        return _checked(_storable(value), value, where, "text that UTF-8 and a database can hold")
    if kind is bool and isinstance(value, bool):
        return value
    raise BadFile(f"{where}: expected {_name(kind)}, got {_short(value)}")


def _storable(text: str) -> bool:
    """Whether text has no NUL, which PostgreSQL refuses, and no half of a surrogate pair, which UTF-8 does."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _checked(condition: bool, value: object, where: str, expected: str) -> Any:
    if not condition:
        raise BadFile(f"{where}: expected {expected}, got {_short(value)}")
    return value


def _name(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    if kind in names:
        return names[kind]
    return "a list" if get_origin(kind) is tuple else "a table" if is_dataclass(kind) else str(kind)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
