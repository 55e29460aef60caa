"""Anchors of the AMD served-run corpus by rule A2, and how a row differs from its anchor.

Nothing here looks at a prediction. A *campaign* is a run of configuration ids of one stack without a gap above 40 (ids
grow with first appearance, so a gap means another engine build). Each campaign has one anchor layout: the narrowest
plain TP that has a ladder of four loads at one shape, else the narrowest EP-only one, else the narrowest with attention
DP.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import log

from evals.amd_rows import AmdRow, Shape
from predictor.types import Layout

BUILD_GAP = 40  # configuration ids further apart are another build (headroom of the corpus: drift starts there)
MIN_LADDER_LOADS = 4
LOAD_RANGE = 4.0  # "within 4x of the anchor's loads"


@dataclass(frozen=True, slots=True)
class AnchorLayout:
    """The one anchor of a campaign: a layout and its ladders by shape."""

    stack: str
    campaign: int
    layout: Layout
    ladders: dict[Shape, tuple[AmdRow, ...]]

    @property
    def ids(self) -> tuple[int, ...]:
        """Configuration ids it was measured under."""
        return tuple(sorted({row.config_id for rows in self.ladders.values() for row in rows}))


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a row is under one protocol."""

    row: AmdRow
    kind: str  # "anchor", a kind of transfer, or "uncovered: reason"
    anchor: AnchorLayout | None = None
    shape: Shape | None = None  # of the anchor's ladder
    id_gap: int = 0
    in_4x: bool = False

    @property
    def target(self) -> bool:
        """Whether the row is predicted."""
        return self.anchor is not None and self.kind != "anchor"

    @property
    def scored(self) -> bool:
        """Whether the row is a clean target."""
        return self.target and not self.row.bad

    @property
    def same_build(self) -> bool:
        """Whether the anchor is of the row's own build period."""
        return self.id_gap <= BUILD_GAP


def campaigns(rows: Iterable[AmdRow]) -> dict[tuple[str, int], int]:
    """Campaign number of each (stack, configuration id)."""
    by_stack: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        by_stack[row.stack].add(row.config_id)
    numbers: dict[tuple[str, int], int] = {}
    for stack, ids in by_stack.items():
        number, last = 0, None
        for config_id in sorted(ids):
            number += int(last is not None and config_id - last > BUILD_GAP)
            numbers[(stack, config_id)], last = number, config_id
    return numbers


def layout_order(layout: Layout) -> tuple[int, int, int]:
    """Plain TP before EP only before attention DP, then the narrowest."""
    family = 2 if layout.attn_dp > 1 else 1 if layout.ep > 1 else 0
    return (family, layout.gpus, layout.ep)


def campaign_anchors(rows: Sequence[AmdRow], protocol: str) -> list[AnchorLayout]:
    """Anchors of every campaign under ``P1`` (one ladder) or ``P2`` (one ladder a prompt length)."""
    numbers = campaigns(rows)
    pools: dict[tuple[str, int], dict[Layout, dict[Shape, list[AmdRow]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for row in rows:
        if not row.disagg and not row.extra:
            pools[(row.stack, numbers[(row.stack, row.config_id)])][row.layout][row.shape].append(row)
    anchors = []
    for (stack, campaign), layouts in sorted(pools.items()):
        full = {
            layout: {s: rows for s, rows in shapes.items() if len({r.clients for r in rows}) >= MIN_LADDER_LOADS}
            for layout, shapes in layouts.items()
        }
        candidates = [layout for layout, shapes in full.items() if shapes]
        if candidates:
            layout = min(candidates, key=layout_order)
            kept = _ladders_of(full[layout], protocol)
            anchors.append(AnchorLayout(stack, campaign, layout, kept))
    return anchors


def _ladders_of(shapes: dict[Shape, list[AmdRow]], protocol: str) -> dict[Shape, tuple[AmdRow, ...]]:
    order = sorted(shapes, key=lambda shape: (-len(shapes[shape]), shape))
    if protocol == "P1":
        order = order[:1]
    chosen: dict[int, Shape] = {}
    for shape in order:
        chosen.setdefault(shape[0], shape)
    return {shape: tuple(sorted(shapes[shape], key=lambda row: row.clients)) for shape in chosen.values()}


def kind_of(row: AmdRow, anchor: AnchorLayout) -> str:
    """Kind of transfer from the anchor to the row."""
    layout, source = row.layout, anchor.layout
    if row.disagg:
        return "disaggregated"
    if layout == source:
        if row.isl not in {isl for isl, _ in anchor.ladders}:
            return "other ISL"
        return "other OSL" if row.shape not in anchor.ladders else "anchor's shape again"
    if layout.attn_dp > 1 or source.attn_dp > 1:
        return "attention DP"
    if layout.ep > 1 or source.ep > 1:
        return "EP"
    return f"TPx{layout.tp // source.tp}" if layout.tp > source.tp else "TP narrower"


def assign(rows: Sequence[AmdRow], protocol: str) -> list[Assignment]:
    """Kind and anchor of every row under rule A2 and protocol P1 or P2; extra rows are never anchors."""
    anchors = campaign_anchors(rows, protocol)
    by_stack: dict[str, list[AnchorLayout]] = defaultdict(list)
    for anchor in anchors:
        by_stack[anchor.stack].append(anchor)
    anchor_rows = {row.index for anchor in anchors for ladder in anchor.ladders.values() for row in ladder}
    numbers = campaigns([row for row in rows if not row.extra])
    colocated = {row.stack for row in rows if not row.disagg and not row.extra}
    result = []
    for row in rows:
        choices = by_stack.get(row.stack)
        if not choices:
            reason = "no ladder of 4 loads" if row.stack in colocated else "no colocated rows in stack"
            result.append(Assignment(row, f"uncovered: {reason}"))
            continue
        campaign = numbers.get((row.stack, row.config_id))
        anchor = min(choices, key=lambda a: (a.campaign != campaign, _gap(row, a), a.campaign))
        shape = min(anchor.ladders, key=lambda s: (abs(log(s[0] / row.isl)), abs(log(s[1] / row.osl)), s))
        loads = [other.clients for other in anchor.ladders[shape]]
        load = row.replica_clients
        inside = min(loads) / LOAD_RANGE <= load <= max(loads) * LOAD_RANGE
        kind = "anchor" if row.index in anchor_rows else kind_of(row, anchor)
        result.append(Assignment(row, kind, anchor, shape, _gap(row, anchor), inside))
    return result


def _gap(row: AmdRow, anchor: AnchorLayout) -> int:
    return min(abs(row.config_id - config_id) for config_id in anchor.ids)


@dataclass(frozen=True, slots=True)
class LadderRows:
    """One measured ladder under P3: three of its loads are given, the others are targets."""

    given: tuple[AmdRow, ...]
    targets: tuple[AmdRow, ...] = field(default=())


def p3_ladders(rows: Sequence[AmdRow]) -> list[LadderRows]:
    """Every clean colocated ladder of four loads: its lightest, middle and heaviest are given."""
    ladders: dict[object, list[AmdRow]] = defaultdict(list)
    for row in rows:
        if not row.disagg and not row.bad:
            ladders[row.ladder].append(row)
    result = []
    for ladder in ladders.values():
        ordered = sorted(ladder, key=lambda row: row.clients)
        if len(ordered) < MIN_LADDER_LOADS:
            continue
        kept = {0, len(ordered) // 2, len(ordered) - 1}
        given = tuple(row for i, row in enumerate(ordered) if i in kept)
        result.append(LadderRows(given, tuple(row for i, row in enumerate(ordered) if i not in kept)))
    return result
