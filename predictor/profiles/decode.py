"""From parsed TOML to a frozen record: every field's type checked, errors name file, field and expectation.

Plain dataclasses and this module cost a tenth of the start-up time of a validation library, which matters because every
command reads a few profiles.
"""

from collections.abc import Hashable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from enum import StrEnum
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from predictor.errors import BadFile, BadInput

Record = TypeVar("Record")


def decode(record: type[Record], data: object, where: str) -> Record:
    """Build ``record`` from parsed data; ``where`` (file, or file and field) begins every error message.

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
    values = {key: _value(hints[key], value, f"{where}: {key}") for key, value in data.items()}
    try:
        return record(**values)
    except BadFile:
        raise
    except BadInput as error:
        raise BadFile(f"{where}: {error}") from None


@lru_cache(maxsize=64)
def _shape(record: Any) -> tuple[dict[str, Any], frozenset[str]]:
    required = {f.name for f in fields(record) if f.default is MISSING and f.default_factory is MISSING}
    return get_type_hints(record), frozenset(required)


def _value(kind: Any, value: object, where: str) -> Any:
    origin = get_origin(kind)
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
        return decode(kind, value, where)
    return _scalar(kind, value, where)


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
        return _checked(abs(value) < float("inf"), float(value), where, "a finite number")
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(_checked(value in list(kind), value, where, f"one of {', '.join(kind)}"))
    if kind in (str, bool) and isinstance(value, kind):
        return value
    raise BadFile(f"{where}: expected {_name(kind)}, got {_short(value)}")


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
