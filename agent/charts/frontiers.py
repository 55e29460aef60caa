"""Throughput per GPU against interactivity: measured points filled, predicted open, tiers shaded, anchors ringed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.charts.figure import Axis, Band, Figure, Mark, Series
from agent.tiers import Tier

INTERACTIVITY = Axis("interactivity, tok/s/user", log=True)
PER_GPU = Axis("output tok/s per GPU", log=True)
COLUMNS = ("line", "tok/s/user", "tok/s/GPU", "TTFT ms", "clients", "deployment")


@dataclass(frozen=True, slots=True)
class Point:
    """One deployment on a chart. ``anchored_here``: an anchor was measured on this very layout."""

    tok_s_user: float
    tok_s_gpu: float
    name: str
    ttft_ms: float | None = None
    concurrency: int | None = None
    anchored_here: bool = False

    @property
    def note(self) -> str:
        """What a pointer that rests on the point is told."""
        clients = "" if self.concurrency is None else f"<br>{self.concurrency} clients"
        ttft = "" if self.ttft_ms is None else f", TTFT {self.ttft_ms:,.0f} ms"
        return f"{self.name}{clients}{ttft}<br>{self.tok_s_user:,.1f} tok/s/user, {self.tok_s_gpu:,.1f} tok/s/GPU"


def frontier_figure(
    key: str,
    title: str,
    lines: Mapping[str, Sequence[Point]],
    *,
    tiers: Sequence[Tier] = (),
    dominated: Sequence[Point] = (),
    measured: Sequence[Point] = (),
    shapes: Mapping[str, int] | None = None,
) -> Figure:
    """A chart of frontiers by name, each with its points in order of interactivity; the first is the first colour."""
    series = [_points("dominated, predicted", dominated, Mark.FAINT, 0, 0)] if dominated else []
    for number, (name, points) in enumerate(lines.items()):
        shape = number if shapes is None else shapes[name]
        series.append(_points(f"{name}, predicted", points, Mark.OPEN, number, shape, joined=True))
    if measured:
        series.append(_points("measured", measured, Mark.FILLED, MEASURED_COLOUR, 0))
    ringed = [one for points in (*lines.values(), dominated, measured) for one in points if one.anchored_here]
    if ringed:
        series.append(_points("at its anchor's layout", _distinct(ringed), Mark.ANCHOR, ANCHOR_COLOUR, 0))
    rows = [(name, *_cells(one)) for name, points in lines.items() for one in points]
    rows += [("measured", *_cells(one)) for one in measured]
    return Figure(
        key,
        title,
        _caption(lines, measured, dominated),
        INTERACTIVITY,
        PER_GPU,
        COLUMNS,
        tuple(rows),
        series=tuple(series),
        bands=tier_bands(tiers),
    )


MEASURED_COLOUR, ANCHOR_COLOUR = 7, 4


def tier_bands(tiers: Sequence[Tier]) -> tuple[Band, ...]:
    """Stretches of interactivity from each tier's least rate to the next one's, slowest first.

    >>> [(one.name, one.low, one.high) for one in tier_bands([Tier(name="b"), Tier(name="a", min_tok_s_user=70.0)])]
    [('b', 0.0, 70.0), ('a', 70.0, None)]
    """
    rising = sorted(tiers, key=lambda tier: tier.min_tok_s_user)
    ends = [*(tier.min_tok_s_user for tier in rising[1:]), None][: len(rising)]
    return tuple(Band(tier.name, tier.min_tok_s_user, end) for tier, end in zip(rising, ends, strict=True))


def _points(name: str, points: Sequence[Point], mark: Mark, colour: int, shape: int, joined: bool = False) -> Series:
    return Series(
        name,
        tuple(one.tok_s_user for one in points),
        tuple(one.tok_s_gpu for one in points),
        mark,
        colour,
        shape,
        joined,
        tuple(one.note for one in points),
    )


def _distinct(points: Iterable[Point]) -> list[Point]:
    return list({(one.tok_s_user, one.tok_s_gpu): one for one in points}.values())


def _cells(point: Point) -> tuple[object, ...]:
    return point.tok_s_user, point.tok_s_gpu, point.ttft_ms, point.concurrency, point.name


def _caption(lines: Mapping[str, Sequence[Point]], measured: Sequence[Point], dominated: Sequence[Point]) -> str:
    told = [
        f"{name}: from {points[0].tok_s_gpu:,.0f} tok/s/GPU at {points[0].tok_s_user:,.0f} tok/s/user "
        f"to {points[-1].tok_s_gpu:,.0f} at {points[-1].tok_s_user:,.0f}"
        for name, points in lines.items()
        if points
    ]
    also = [f"{len(measured)} measured points"] if measured else []
    also += [f"{len(dominated)} dominated points in the background"] if dominated else []
    return "; ".join((*told, *also)) + "."


def row_point(row: Mapping[str, Any], anchored_here: bool = False) -> Point:
    """A point of a sweep's file."""
    drafter = "" if row["drafter"] == "none" else f" {row['drafter']}-{row['depth']}"
    tier = f" host {row['host_kv_gb']:.0f} GB" if row.get("host_kv_gb") else ""
    name = f"{row['engine']} {row['weight']} kv {row['kv']} {row['label']}{drafter}{tier}"
    return Point(
        row["interactivity_tok_s_user"],
        row["output_tok_s_per_gpu"],
        name,
        row["ttft_ms"],
        row["concurrency"],
        anchored_here,
    )
