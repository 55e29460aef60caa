"""A wider TP from two narrower widths of the same stack and build, both handed to the product as anchors."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from evals.facade import predicted
from evals.nvidia_predict import anchor_of, case_of
from evals.nvidia_rows import NvidiaRow, Shape, proxy_tok_s
from evals.scoring import Scored, answered, summary
from inferasim import Anchor, Prediction
from predictor.transfer import WidthLaw
from predictor.types import Layout

MIN_LOADS = 4


def two_widths(rows: Sequence[NvidiaRow], law: WidthLaw) -> dict[str, Any]:
    """Score every clean plain-TP row whose stack and build have ladders at two narrower widths of its shape."""
    groups: dict[tuple[str, str], dict[Layout, dict[Shape, list[NvidiaRow]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for row in rows:
        plain = row.layout.ep == 1 and row.layout.attn_dp == 1
        if row.use and row.clean and not row.split and plain:
            groups[(row.stack, row.build)][row.layout][row.shape].append(row)
    scored: list[Scored] = []
    refused: Counter[str] = Counter()
    for (stack, build), layouts in groups.items():
        ladders = {
            layout: {s: ladder for s, ladder in shapes.items() if len({r.clients for r in ladder}) >= MIN_LOADS}
            for layout, shapes in layouts.items()
        }
        anchors = {
            layout: anchor_of(f"{stack}#{build}#{layout.label()}", shapes)
            for layout, shapes in ladders.items()
            if shapes
        }
        for layout, shapes in layouts.items():
            near, far = Layout(tp=layout.tp // 2), Layout(tp=layout.tp // 4)
            if layout.tp < 4 or near not in anchors or far not in anchors:
                continue
            for shape, targets in shapes.items():
                if shape not in ladders[near] or shape not in ladders[far]:
                    continue
                scored += _answered(targets, anchors[near], anchors[far], law, refused)
    return {**summary(scored), "refused": dict(refused)}


def _answered(
    targets: Sequence[NvidiaRow], near: Anchor, far: Anchor, law: WidthLaw, refused: Counter[str]
) -> list[Scored]:
    return answered(
        targets,
        lambda row: _scored(row, predicted(case_of(row), near, law, (far,))),
        lambda row: f"row {row.id} from two widths",
        refused,
    )


def _scored(row: NvidiaRow, told: Prediction) -> Scored:
    return Scored(
        _values(row, row.ttft_ms, row.tpot_ms), _values(row, told.ttft_ms.mean, told.tpot_ms.mean), {"row": row}
    )


def _values(row: NvidiaRow, ttft_ms: float, tpot_ms: float) -> dict[str, float]:
    return {"tpot": tpot_ms, "throughput_proxy": proxy_tok_s(row.clients, row.osl, ttft_ms, tpot_ms)}
