"""A report before it is a page or a text: sections of figures, tables, facts and commands, in reading order."""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.charts.figure import Figure


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of plain values under named columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with their values."""

    title: str
    pairs: tuple[tuple[str, object], ...]


@dataclass(frozen=True, slots=True)
class Commands:
    """Lines to copy."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str


Block = Figure | Table | Facts | Commands | Text


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a heading; ``key`` is its place on the page."""

    key: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A whole report: what it is about in one line, the answer in a few facts, and the sections."""

    title: str
    subtitle: str
    answer: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...] = ()

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Every figure, in reading order."""
        return tuple(block for section in self.sections for block in section.blocks if isinstance(block, Figure))


def numeric(rows: Sequence[Sequence[object]], column: int) -> bool:
    """Whether a column holds numbers alone, to set it to the right."""
    values = [row[column] for row in rows if row[column] is not None]
    return bool(values) and all(isinstance(value, int | float) for value in values)
