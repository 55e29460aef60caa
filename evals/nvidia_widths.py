"""A wider TP from two narrower widths of the same stack and build: the fixed part solved from both.

The law is the product's own: :mod:`predictor.transfer.sibling`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from evals.nvidia_predict import SolvedAnchor, means_of, run_of, solve_anchor
from evals.nvidia_rows import NvidiaRow, Shape, proxy_tok_s
from evals.scoring import Scored, summary
from predictor.anchors.solve import mean_context
from predictor.step.curve import DecodeCurve
from predictor.transfer import WidthLaw, default_constants, move_prefill
from predictor.transfer.sibling import move_decode_measured
from predictor.types import Layout

MIN_LOADS = 4


def two_widths(rows: Sequence[NvidiaRow], law: WidthLaw) -> dict[str, Any]:
    """Score every clean plain-TP row whose stack and build have ladders at two narrower widths of its prompt length."""
    groups: dict[tuple[str, str], dict[Layout, dict[Shape, list[NvidiaRow]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for row in rows:
        plain = row.layout.ep == 1 and row.layout.attn_dp == 1
        if row.use and row.clean and not row.split and plain:
            groups[(row.stack, row.build)][row.layout][row.shape].append(row)
    scored = []
    for layouts in groups.values():
        ladders = {
            layout: {s: ladder for s, ladder in shapes.items() if len({r.clients for r in ladder}) >= MIN_LOADS}
            for layout, shapes in layouts.items()
        }
        solved = {layout: solve_anchor(shapes) for layout, shapes in ladders.items() if shapes}
        for layout, shapes in layouts.items():
            near, far = solved.get(Layout(tp=layout.tp // 2)), solved.get(Layout(tp=layout.tp // 4))
            if near is None or far is None or layout.tp < 4:
                continue
            for shape, targets in shapes.items():
                if shape in near.rows and shape in far.rows:
                    curve = corrected(far, near, shape, targets[0], law)
                    scored += [_scored(row, near, shape, curve) for row in targets]
    return summary(scored)


def corrected(far: SolvedAnchor, near: SolvedAnchor, shape: Shape, target: NvidiaRow, law: WidthLaw) -> DecodeCurve:
    """The nearer ladder moved to the target, times the law's error between the two measured widths."""
    source = near.side(shape)
    return move_decode_measured(
        near.solved.curves[shape],
        source,
        replace(source, layout=target.layout),
        far.solved.curves[shape],
        far.side(shape),
        law,
        default_constants(source.platform),
        (near.slowness, far.slowness),
    )


def _scored(row: NvidiaRow, near: SolvedAnchor, shape: Shape, curve: DecodeCurve) -> Scored:
    run = run_of(row)
    source = near.side(shape)
    target = replace(source, layout=row.layout, context_tokens=mean_context(run))
    prefill = move_prefill(near.solved.prefill, source, target)
    means = means_of(run, curve, prefill, near.solved.host_ms)
    return Scored(_values(row, row.ttft_ms, row.tpot_ms), _values(row, means.ttft_ms, means.tpot_ms), {"row": row})


def _values(row: NvidiaRow, ttft_ms: float, tpot_ms: float) -> Mapping[str, float]:
    return {"tpot": tpot_ms, "throughput_proxy": proxy_tok_s(row.clients, row.osl, ttft_ms, tpot_ms)}
