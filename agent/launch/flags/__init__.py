"""What each engine's command line takes, as data, and a check of a command against it.

An engine's own parser is the better judge where it can be had (``evals/launch_check.py`` asks vLLM's and SGLang's);
these tables stand in for it everywhere else, and refuse a value the release does not know before anybody waits for a
server to fail.
"""

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
ENGINE_FILES = {"vLLM": "vllm", "SGLang": "sglang", "ATOM": "atom", "TensorRT-LLM": "trtllm"}


@dataclass(frozen=True, slots=True)
class FlagTable:
    """Flags of one program. ``versions`` are its releases, oldest first; empty where releases do not differ."""

    name: str
    prefix: tuple[str, ...]
    positional: int
    flags: Mapping[str, Mapping[str, Any]]
    versions: tuple[str, ...] = ()
    yaml: Mapping[str, Sequence[str]] | None = None

    def has(self, flag: str, version: str) -> bool:
        """Whether a release takes the flag."""
        return flag in self.flags and self._within(self.flags[flag], version)

    def choices(self, flag: str, version: str) -> tuple[str, ...]:
        """Values of a choice flag in a release; ``only`` names those that not every release has."""
        spec = self.flags[flag]
        only = spec.get("only", {})
        return tuple(value for value in spec["choices"] if self._within(only.get(value, {}), version))

    def _within(self, bounds: Mapping[str, Any], version: str) -> bool:
        first, last = self._order(bounds.get("since", "")), self._order(bounds.get("until", ""), last=True)
        return first <= self._order(version) <= last

    def _order(self, version: str, *, last: bool = False) -> int:
        """Position among the releases; an unnamed one is the first, or the last."""
        if version in self.versions:
            return self.versions.index(version)
        return len(self.versions) if last else 0


@lru_cache(maxsize=16)
def engine_table(engine: str) -> FlagTable:
    """Flags of an engine's server."""
    data = tomllib.loads((_HERE / f"{ENGINE_FILES[engine]}.toml").read_text(encoding="utf-8"))
    return FlagTable(
        name=engine,
        prefix=tuple(data["prefix"]),
        positional=data["positional"],
        flags=data["flags"],
        versions=tuple(data["versions"]),
        yaml=data.get("yaml"),
    )


@lru_cache(maxsize=16)
def program_table(name: str) -> FlagTable:
    """Flags of a router or of the benchmark client."""
    data = tomllib.loads((_HERE / "routers.toml").read_text(encoding="utf-8"))[name]
    return FlagTable(name, tuple(data["prefix"]), 0, data["flags"])


def problems(table: FlagTable, argv: Sequence[str], version: str = "") -> tuple[str, ...]:
    """What the program would not accept in a command; empty where it would take all of it.

    >>> problems(program_table("atomesh"), ("atomesh", "launch", "--policy", "random", "--port", "many"))
    ("--port: 'many' is not an integer",)
    """
    found: list[str] = []
    rest = list(argv[len(table.prefix) :])
    if tuple(argv[: len(table.prefix)]) != table.prefix:
        return (f"does not start with {' '.join(table.prefix)}",)
    for _ in range(table.positional):
        if not rest or rest[0].startswith("-"):
            found.append("misses its positional argument")
            break
        rest.pop(0)
    seen: set[str] = set()
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("-"):
            found.append(f"{flag!r} belongs to no flag")
            continue
        values = [rest.pop(0) for _ in range(_values_of(table, flag, rest))]
        found += _flag_problems(table, flag, values, version)
        repeatable = table.flags.get(flag, {}).get("type") == "list"
        if flag in seen and not repeatable:
            found.append(f"{flag}: given twice")
        seen.add(flag)
    return tuple(found)


def _values_of(table: FlagTable, flag: str, rest: list[str]) -> int:
    kind = table.flags.get(flag, {}).get("type")
    if kind == "switch":
        return 0
    count = 0
    while count < len(rest) and not rest[count].startswith("--") and (kind == "list" or count == 0):
        count += 1
    return count


def _flag_problems(table: FlagTable, flag: str, values: list[str], version: str) -> list[str]:
    if not table.has(flag, version):
        return [f"{flag}: {table.name} {version} has no such flag".replace("  ", " ")]
    spec = table.flags[flag]
    kind = spec["type"]
    if kind == "switch":
        return []
    if not values:
        return [f"{flag}: misses its value"]
    if kind == "choice":
        legal = table.choices(flag, version)
        return [] if values[0] in legal else [f"{flag}: {values[0]!r} is not one of {', '.join(legal)}"]
    return _CHECKS.get(kind, _nothing)(flag, values[0], spec)


def _nothing(flag: str, value: str, spec: Mapping[str, Any]) -> list[str]:
    return []


def _number(convert: type[int] | type[float], what: str) -> Callable[[str, str, Mapping[str, Any]], list[str]]:
    def check(flag: str, value: str, spec: Mapping[str, Any]) -> list[str]:
        try:
            convert(value)
        except ValueError:
            return [f"{flag}: {value!r} is not {what}"]
        return []

    return check


def _json(flag: str, value: str, spec: Mapping[str, Any]) -> list[str]:
    try:
        data = json.loads(value)
    except json.JSONDecodeError as error:
        return [f"{flag}: not JSON: {error}"]
    if not isinstance(data, dict):
        return []
    unknown = sorted(set(data) - set(spec["keys"]))
    return [f"{flag}: unknown keys {', '.join(unknown)}"] if unknown else []


_CHECKS = {"int": _number(int, "an integer"), "float": _number(float, "a number"), "json": _json}
