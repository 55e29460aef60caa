"""Residuals of scored corpus rows by kind of transfer, as the product names kinds.

Widths and layouts come from protocol P2 (one ladder a prompt length), other prompt lengths from P1 (one ladder), other
loads from P3, kernel models alone from both corpora's targets. A colocated row of another build than its anchor's, or
over four times outside its loads, is of no kind. Only clean rows.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import log
from pathlib import Path

from evals import corpus_amd, corpus_nvidia
from evals.amd_predict import solve_all as solve_amd
from evals.amd_rows import AmdRow, Assignment, LadderRows, Shape, campaign_anchors, p3_ladders
from evals.amd_rows import assign as assign_amd
from evals.amd_rows import load_rows as load_amd
from evals.candidates import CorpusScore, amd_score, nvidia_score
from evals.conformal import Residual
from evals.nvidia_predict import solve_all as solve_nvidia
from evals.nvidia_rows import LadderKey, NvidiaAssignment, ladder_rows
from evals.nvidia_rows import assign as assign_nvidia
from evals.nvidia_rows import load_rows as load_nvidia
from evals.p3 import _score_group
from evals.scoring import Scored
from evals.simulated_rows import resimulated
from predictor.intervals import OTHER_LOAD, SAME_WIDTH, SIMULATE, SPLIT, near, width_kind
from predictor.types import Layout

# Metrics of a scored row by the product's name. Interactivity is 1000/TPOT, so it has TPOT's residual.
METRICS = {
    "tpot": "tpot",
    "ttft": "ttft",
    "total_tok_s_per_gpu": "throughput",
    "throughput_proxy": "throughput",
}


def residuals_of(scored: Scored, kind: str) -> Iterator[Residual]:
    """Every metric that was measured and predicted."""
    row = scored.labels["row"]
    for name, metric in METRICS.items():
        if name in scored.measured and name in scored.predicted:
            yield Residual(row.stack, kind, metric, abs(log(scored.measured[name] / scored.predicted[name])))


def transfer_kind(
    scored: Scored, source: Layout, shapes: Iterable[tuple[int, int]], same_build: bool, in_4x: bool
) -> str | None:
    """Kind of one row carried from an anchor's layout and shapes; None where no kind describes it."""
    row = scored.labels["row"]
    if scored.labels["transfer"] == SPLIT:
        return SPLIT
    if not (same_build and in_4x):
        return None
    of_isl = [osl for isl, osl in shapes if near(isl, row.isl)]
    kind = width_kind(source, row.layout, bool(of_isl), any(near(osl, row.osl) for osl in of_isl))
    return SAME_WIDTH if kind == OTHER_LOAD else kind  # another campaign's run at the anchor's shape, not its ladder


def amd_residuals(corpus: Path, protocol: str) -> list[Residual]:
    """AMD targets of P1 or P2."""
    rows = load_amd(corpus)
    assignments = [a for a in assign_amd(rows, protocol) if a.target and not a.row.bad]
    scored = corpus_amd.score(assignments, solve_amd(campaign_anchors(rows, protocol)))
    return [r for s, a in zip(scored, assignments, strict=True) for r in _amd_row(s, a)]


def _amd_row(scored: Scored, a: Assignment) -> Iterator[Residual]:
    if a.anchor is not None:
        kind = transfer_kind(scored, a.anchor.layout, a.anchor.ladders, a.same_build, a.in_4x)
        yield from residuals_of(scored, kind) if kind else ()


def nvidia_residuals(corpus: Path, protocol: str) -> list[Residual]:
    """NVIDIA targets of P1, P2 or P3."""
    rows, lines = load_nvidia(corpus)
    assignments = assign_nvidia(rows, lines, protocol)
    ladders = ladder_rows(assignments)
    targets = [a for a in assignments if a.target and a.row.clean and not a.row.split]
    scored = corpus_nvidia.score(targets, solve_nvidia(ladders))
    if protocol == "P3":
        return [r for s in scored for r in residuals_of(s, OTHER_LOAD)]
    return [r for s, a in zip(scored, targets, strict=True) for r in _nvidia_row(s, a, list(ladders))]


def _nvidia_row(scored: Scored, a: NvidiaAssignment, ladders: Sequence[LadderKey]) -> Iterator[Residual]:
    if a.anchor is not None:
        shapes = [key[3] for key in ladders if key[:3] == a.anchor[:3]]
        kind = transfer_kind(scored, a.anchor[2], shapes, a.same_build, a.in_4x)
        yield from residuals_of(scored, kind) if kind else ()


def amd_other_loads(rows: Sequence[AmdRow]) -> list[Scored]:
    """AMD targets of P3: ladders of one configuration are solved together."""
    groups: dict[object, dict[Shape, LadderRows]] = defaultdict(dict)
    for ladder in p3_ladders(rows):
        first = ladder.given[0]
        groups[(first.stack, first.config_id, first.layout)][first.shape] = ladder
    return [scored for group in groups.values() for scored in _score_group(group)]


def simulate_residuals(score: CorpusScore, vendor: str) -> list[Residual]:
    """A corpus' targets from kernel models alone."""
    simulated = resimulated(CorpusScore(score.scored, ())).score.scored
    return [r for s in simulated for r in residuals_of(s, SIMULATE[vendor])]


def every_residual(corpus: Path) -> list[Residual]:
    """All kinds. P1 gives other prompt lengths only: its other rows are P2's from a farther ladder."""
    by_isl = [r for r in (*amd_residuals(corpus, "P1"), *nvidia_residuals(corpus, "P1")) if "other ISL" in r.kind]
    carried = [r for r in (*amd_residuals(corpus, "P2"), *nvidia_residuals(corpus, "P2")) if "other ISL" not in r.kind]
    loads = [r for s in amd_other_loads(load_amd(corpus)) for r in residuals_of(s, OTHER_LOAD)]
    return [
        *carried,
        *by_isl,
        *loads,
        *nvidia_residuals(corpus, "P3"),
        *simulate_residuals(amd_score(corpus), "amd"),
        *simulate_residuals(nvidia_score(corpus), "nvidia"),
    ]
