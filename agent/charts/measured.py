"""Measured points for a chart, from a CSV file with named columns.

Needed: ``model``, ``isl``, ``osl``, ``concurrency``, ``output_tok_s_per_gpu`` and either ``interactivity_tok_s_user``
or ``tpot_ms``. A row may add ``ttft_ms``, ``name``, and any of ``engine``, ``weight``, ``kv``, ``label``, ``drafter``,
``depth`` as a sweep's file writes them: with these it is held against the one predicted point that has them all.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.charts.accuracy import Pair
from agent.charts.frontiers import Point
from predictor.errors import BadFile, BadInput

IDENTITY = ("engine", "weight", "kv", "label", "drafter", "depth")


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured deployment. ``identity`` holds what the file says of it, in a sweep's own words."""

    model: str
    isl_tokens: int
    osl_tokens: int
    concurrency: int
    tok_s_user: float
    tok_s_gpu: float
    ttft_ms: float | None
    name: str
    identity: Mapping[str, str]

    @property
    def point(self) -> Point:
        """As a chart shows it."""
        return Point(self.tok_s_user, self.tok_s_gpu, self.name, self.ttft_ms, self.concurrency)

    def matches(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of a sweep is the same deployment under the same load, as far as the file tells."""
        where = (row["model"], row["isl"], row["osl"], row["concurrency"])
        return where == (self.model, self.isl_tokens, self.osl_tokens, self.concurrency) and all(
            str(row[name]) == value for name, value in self.identity.items()
        )


def read_measured(path: Path) -> tuple[Measured, ...]:
    """Rows of a measured file; a fault names the file, the line and the column."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return tuple(_row(fields, f"{path}:{number}") for number, fields in enumerate(csv.DictReader(file), 2))
    except OSError as error:
        raise BadInput(f"measured {str(path)!r}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise BadFile(f"{path}: not UTF-8 text (byte {error.start})") from None


def _row(fields: Mapping[str, str | None], where: str) -> Measured:
    def text(name: str) -> str:
        found = fields.get(name)
        if not found:
            raise BadFile(f"{where}: column {name!r} is missing or empty")
        return found

    def number(name: str) -> float:
        try:
            value = float(text(name))
        except ValueError:
            raise BadFile(f"{where}: {name} {fields[name]!r} is no number") from None
        if not 0.0 < value < float("inf"):
            raise BadFile(f"{where}: {name} {value} must be above zero")
        return value

    def count(name: str) -> int:
        value = number(name)
        if value != int(value):
            raise BadFile(f"{where}: {name} {value} must be a whole number")
        return int(value)

    told = fields.get("interactivity_tok_s_user")
    tok_s_user = number("interactivity_tok_s_user") if told else 1000.0 / number("tpot_ms")
    identity = {name: str(fields[name]) for name in IDENTITY if fields.get(name)}
    return Measured(
        model=text("model"),
        isl_tokens=count("isl"),
        osl_tokens=count("osl"),
        concurrency=count("concurrency"),
        tok_s_user=tok_s_user,
        tok_s_gpu=number("output_tok_s_per_gpu"),
        ttft_ms=number("ttft_ms") if fields.get("ttft_ms") else None,
        name=fields.get("name") or " ".join(identity.values()) or where.rsplit("/", 1)[-1],
        identity=identity,
    )


METRICS = (
    ("tok_s_gpu", "output_tok_s_per_gpu", "output tok/s per GPU"),
    ("tok_s_user", "interactivity_tok_s_user", "interactivity, tok/s/user"),
    ("ttft_ms", "ttft_ms", "TTFT, ms"),
)


def pairs(measured: Sequence[Measured], rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, list[Pair]]]:
    """By metric and model, every measured row that one predicted point alone matches."""
    wanted = [one for one in measured if one.identity]
    found: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        for number, one in enumerate(wanted):
            if one.matches(row):
                found.setdefault(number, []).append(row)
    result: dict[str, dict[str, list[Pair]]] = {}
    for number, matches in sorted(found.items()):
        one = wanted[number]
        if len(matches) > 1:  # the file leaves open which deployment it was
            continue
        for field, column, label in METRICS:
            value = getattr(one, field)
            if value is not None:
                pair = Pair(value, matches[0][column], f"{one.name}, {one.concurrency} clients")
                result.setdefault(label, {}).setdefault(one.model, []).append(pair)
    return result
