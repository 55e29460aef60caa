"""What a picture shows: axes, series, bars, spans and bands of plain numbers, with a caption and a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import log


class Mark(StrEnum):
    """How the points of a series are drawn. Measured points are filled and predicted ones open, everywhere."""

    FILLED = "filled"
    OPEN = "open"
    FAINT = "faint"  # background: dominated points, guides
    LINE = "line"  # a curve without points
    STEPS = "steps"  # a value that holds until the next point
    GUIDE = "guide"  # a dotted reference line
    ANCHOR = "anchor"  # a ring around what was measured to predict from


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: its label with the unit, and whether it is logarithmic."""

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None

    def share(self, begin: float, end: float, low: float, high: float) -> float:
        """Width of a stretch as a share of the axis from ``low`` to ``high``.

        >>> Axis("x").share(2.0, 4.0, 0.0, 10.0), Axis("x", log=True).share(10.0, 100.0, 1.0, 100.0)
        (0.2, 0.5)
        """
        return log(end / begin) / log(high / low) if self.log else (end - begin) / (high - low)


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one kind. ``colour`` and ``shape`` number the palette's entries; ``joined`` draws a line through."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    mark: Mark
    colour: int = 0
    shape: int = 0
    joined: bool = False
    notes: tuple[str, ...] = ()  # one a point, for a pointer that rests on it

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y) or len(self.notes) not in (0, len(self.x)):
            raise ValueError(f"series {self.name!r}: {len(self.x)} x, {len(self.y)} y, {len(self.notes)} notes")


@dataclass(frozen=True, slots=True)
class Bar:
    """One part of every stacked bar: a value for each of the figure's categories."""

    name: str
    values: tuple[float, ...]
    colour: int


@dataclass(frozen=True, slots=True)
class Span:
    """Stretches of time on lanes, all of one kind: (lane, from, to)."""

    name: str
    pieces: tuple[tuple[int, float, float], ...]
    colour: int


@dataclass(frozen=True, slots=True)
class Band:
    """A shaded stretch of the x axis, such as a latency tier's."""

    name: str
    low: float
    high: float | None  # None: to the end of the axis


@dataclass(frozen=True, slots=True)
class Figure:
    """One picture. ``key`` names its file and its place on a page; ``caption`` tells it to who cannot see it."""

    key: str
    title: str
    caption: str
    x: Axis
    y: Axis
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]  # the same figures as a table
    series: tuple[Series, ...] = ()
    bars: tuple[Bar, ...] = ()
    spans: tuple[Span, ...] = ()
    bands: tuple[Band, ...] = ()
    categories: tuple[str, ...] = ()  # of bars and lanes, top first
    limit: float | None = None  # a line that bars must not pass
    limit_name: str = ""

    @property
    def lying(self) -> bool:
        """Whether it shows bars or lanes, one beneath the other."""
        return bool(self.bars or self.spans)


def finite_range(values: Sequence[float]) -> tuple[float, float] | None:
    """Smallest and largest of some values, None without any.

    >>> finite_range([3.0, 1.0, 2.0])
    (1.0, 3.0)
    """
    return (min(values), max(values)) if values else None


def cell(value: object) -> str:
    """A value as a reader sees it.

    >>> cell(12345.6), cell(0.12345), cell(None), cell(7)
    ('12,346', '0.1234', '', '7')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "" if value is None else str(value)
