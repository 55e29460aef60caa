"""Residuals of scored corpus rows by kind of transfer, as the product names kinds.

Widths and layouts come from protocol P2 (one ladder a prompt length), other prompt lengths from P1 (one ladder), other
loads from P3, kernel models alone from both corpora's targets. A colocated row of another build than its anchor's, or
over four times outside its loads, is of no kind. Only clean rows.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from math import log
from pathlib import Path

from joblib import Parallel, delayed

from evals.amd_anchors import AnchorLayout, p3_ladders
from evals.amd_rows import load_rows
from evals.candidates import CorpusScore, Shape, amd_measured, amd_score, nvidia_measured, nvidia_score
from evals.conformal import Residual
from evals.nvidia_rows import LadderKey, assign, ladder_rows
from evals.nvidia_rows import load_rows as load_nvidia
from evals.p3 import p3_scored
from evals.scoring import Scored
from evals.simulated_rows import resimulated
from predictor.intervals import OTHER_ISL, OTHER_LOAD, SAME_WIDTH, SIMULATE, SPLIT, near, width_kind
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


def transfer_kind(scored: Scored, source: Layout, shapes: Iterable[Shape]) -> str | None:
    """Kind of one row carried from an anchor's layout and shapes; None where no kind describes it."""
    row = scored.labels["row"]
    if scored.labels["transfer"] == SPLIT:
        return SPLIT
    if not (scored.labels["same_build"] and scored.labels["in_4x"]):
        return None
    of_isl = [osl for isl, osl in shapes if near(isl, row.isl)]
    kind = width_kind(source, row.layout, bool(of_isl), any(near(osl, row.osl) for osl in of_isl))
    return SAME_WIDTH if kind == OTHER_LOAD else kind  # another campaign's run at the anchor's shape, not its ladder


def amd_residuals(score: CorpusScore) -> list[Residual]:
    """AMD targets of P1 or P2."""
    found: list[Residual] = []
    for scored in score.scored:
        anchor: AnchorLayout = scored.labels["anchor"]
        kind = transfer_kind(scored, anchor.layout, anchor.ladders)
        found += residuals_of(scored, kind) if kind else ()
    return found


def nvidia_residuals(score: CorpusScore, ladders: Collection[LadderKey]) -> list[Residual]:
    """NVIDIA targets of P1 or P2, from these ladders."""
    found: list[Residual] = []
    for scored in score.scored:
        anchor: LadderKey = scored.labels["anchor"]
        shapes = [key[3] for key in ladders if key[:3] == anchor[:3]]
        kind = transfer_kind(scored, anchor[2], shapes)
        found += residuals_of(scored, kind) if kind else ()
    return found


def nvidia_ladders(corpus: Path, protocol: str) -> set[LadderKey]:
    """Ladders that the protocol gives."""
    rows, lines = load_nvidia(corpus)
    return set(ladder_rows(assign(rows, lines, protocol)))


def all_of(scored: Iterable[Scored], kind: str) -> list[Residual]:
    """Residuals of rows that are all of one kind."""
    return [residual for one in scored for residual in residuals_of(one, kind)]


def amd_carried(corpus: Path) -> list[Residual]:
    """P2: the anchor's prompt length."""
    return [one for one in amd_residuals(amd_score(corpus)) if OTHER_ISL not in one.kind]


def amd_other_isl(corpus: Path) -> list[Residual]:
    """P1: other prompt lengths. Its other rows are P2's from a farther ladder."""
    return [one for one in amd_residuals(amd_score(corpus, "P1")) if OTHER_ISL in one.kind]


def amd_other_loads(corpus: Path) -> list[Residual]:
    """P3: other loads of a ladder."""
    return all_of(p3_scored(p3_ladders(load_rows(corpus)), Counter()), OTHER_LOAD)


def amd_simulated(corpus: Path) -> list[Residual]:
    """Kernel models alone, on P2's targets."""
    return all_of(resimulated(CorpusScore(amd_measured(corpus).scored, ())).scored, SIMULATE["amd"])


def nvidia_carried(corpus: Path) -> list[Residual]:
    """As :func:`amd_carried`."""
    found = nvidia_residuals(nvidia_score(corpus), nvidia_ladders(corpus, "P2"))
    return [one for one in found if OTHER_ISL not in one.kind]


def nvidia_other_isl(corpus: Path) -> list[Residual]:
    """As :func:`amd_other_isl`."""
    found = nvidia_residuals(nvidia_score(corpus, "P1"), nvidia_ladders(corpus, "P1"))
    return [one for one in found if OTHER_ISL in one.kind]


def nvidia_other_loads(corpus: Path) -> list[Residual]:
    """As :func:`amd_other_loads`."""
    return all_of(nvidia_score(corpus, "P3").scored, OTHER_LOAD)


def nvidia_simulated(corpus: Path) -> list[Residual]:
    """As :func:`amd_simulated`."""
    return all_of(resimulated(CorpusScore(nvidia_measured(corpus).scored, ())).scored, SIMULATE["nvidia"])


PARTS: tuple[Callable[[Path], list[Residual]], ...] = (
    nvidia_carried,
    nvidia_other_isl,
    nvidia_other_loads,
    nvidia_simulated,
    amd_carried,
    amd_other_isl,
    amd_other_loads,
    amd_simulated,
)


def every_residual(corpus: Path, jobs: int = 1) -> list[Residual]:
    """All kinds, the parts on as many processes as asked."""
    parts: list[list[Residual]] = Parallel(n_jobs=jobs)(delayed(part)(corpus) for part in PARTS)
    return [one for part in parts for one in part]
