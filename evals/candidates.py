"""Rows of the served-run corpora as configurations to choose from, in terms that both corpora share.

Targets come with a prediction; anchor rows take part with their measured value, as they would in a planner's hands.
Throughput is total tokens a second where it was recorded (AMD), else the proxy C·OSL/(TTFT + OSL·TPOT) (NVIDIA).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from evals import corpus_amd, corpus_nvidia
from evals.amd_anchors import assign as assign_amd
from evals.amd_anchors import campaign_anchors
from evals.amd_predict import solve_all as solve_amd
from evals.amd_rows import AmdRow
from evals.amd_rows import load_rows as load_amd
from evals.nvidia_predict import solve_all as solve_nvidia
from evals.nvidia_rows import NvidiaRow, ladder_rows
from evals.nvidia_rows import assign as assign_nvidia
from evals.nvidia_rows import load_rows as load_nvidia
from evals.scoring import Scored

Shape = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One configuration at one load: what it is, what was measured and what is predicted."""

    name: str
    gpu: str
    model: str
    engine: str
    precision: str
    spec: str
    shape: Shape
    clients: int
    layout: str
    gpus: int
    split: bool
    tpot_ms: float
    tok_s: float
    predicted_tpot_ms: float
    predicted_tok_s: float
    is_prediction: bool = True  # False: an anchor row, told as measured

    @property
    def interactivity(self) -> float:
        """Measured tokens a second of one user."""
        return 1e3 / self.tpot_ms

    @property
    def predicted_interactivity(self) -> float:
        """Predicted tokens a second of one user."""
        return 1e3 / self.predicted_tpot_ms

    @property
    def per_gpu(self) -> float:
        """Measured throughput per GPU."""
        return self.tok_s / self.gpus

    @property
    def predicted_per_gpu(self) -> float:
        """Predicted throughput per GPU."""
        return self.predicted_tok_s / self.gpus


@dataclass(frozen=True, slots=True)
class CorpusScore:
    """One corpus under one protocol: its scored targets and its anchor rows as they were measured."""

    scored: tuple[Scored, ...]
    anchors: tuple[Scored, ...]
    refused: dict[str, int] = field(default_factory=dict)  # targets the product would not price, by kind of refusal


def amd_score(corpus: Path, protocol: str = "P2") -> CorpusScore:
    """The AMD corpus: clean targets predicted from rule A2's anchors."""
    rows = load_amd(corpus)
    assignments = assign_amd(rows, protocol)
    refused: Counter[str] = Counter()
    scored = corpus_amd.score(assignments, solve_amd(campaign_anchors(rows, protocol)), refused)
    anchors = tuple(_as_measured_amd(a.row) for a in assignments if a.kind == "anchor" and not a.row.bad)
    return CorpusScore(tuple(scored), anchors, dict(refused))


def nvidia_score(corpus: Path, protocol: str = "P2") -> CorpusScore:
    """The NVIDIA corpus: clean colocated targets predicted from the protocol file's anchors."""
    rows, lines = load_nvidia(corpus)
    assignments = assign_nvidia(rows, lines, protocol)
    ladders = ladder_rows(assignments)
    refused: Counter[str] = Counter()
    scored = corpus_nvidia.score(assignments, solve_nvidia(ladders), refused)
    anchors = [row for ladder in ladders.values() for row in ladder if row.clean and not row.split]
    return CorpusScore(tuple(scored), tuple(_as_measured_nvidia(row) for row in anchors), dict(refused))


def amd_measured(corpus: Path, protocol: str = "P2") -> CorpusScore:
    """The AMD corpus' clean targets and anchor rows with nothing predicted: each stands for what it measured."""
    assignments = [a for a in assign_amd(load_amd(corpus), protocol) if not a.row.bad]
    targets = tuple(_as_measured_amd(a.row) for a in assignments if a.target)
    return CorpusScore(targets, tuple(_as_measured_amd(a.row) for a in assignments if a.kind == "anchor"))


def nvidia_measured(corpus: Path, protocol: str = "P2") -> CorpusScore:
    """The NVIDIA corpus' clean colocated targets and anchor rows with nothing predicted."""
    assignments = [a for a in assign_nvidia(*load_nvidia(corpus), protocol) if a.row.clean and not a.row.split]
    targets = tuple(_as_measured_nvidia(a.row) for a in assignments if a.target)
    anchors = tuple(_as_measured_nvidia(a.row) for a in assignments if a.kind == "anchor" and a.anchor is not None)
    return CorpusScore(targets, anchors)


def _as_measured_amd(row: AmdRow) -> Scored:
    values = {"tpot": row.tpot_ms, "total_tok_s_per_gpu": row.total_tok_s_per_gpu}
    return Scored(values, values, {"transfer": "anchor", "row": row})


def _as_measured_nvidia(row: NvidiaRow) -> Scored:
    values = {"tpot": row.tpot_ms, "ttft": row.ttft_ms, "throughput_proxy": row.proxy}
    return Scored(values, values, {"transfer": "anchor", "row": row})


def amd_candidate(scored: Scored, is_prediction: bool) -> Candidate:
    """An AMD row; its recorded throughput is per GPU."""
    row: AmdRow = scored.labels["row"]
    return Candidate(
        name=f"row {row.index}",
        gpu=row.gpu,
        model=row.model,
        engine=row.engine,
        precision=row.precision,
        spec=row.spec,
        shape=row.shape,
        clients=row.clients,
        layout=layout_name(row),
        gpus=row.gpus,
        split=row.disagg,
        tpot_ms=row.tpot_ms,
        tok_s=row.total_tok_s_per_gpu * row.gpus,
        predicted_tpot_ms=scored.predicted["tpot"],
        predicted_tok_s=scored.predicted["total_tok_s_per_gpu"] * row.gpus,
        is_prediction=is_prediction,
    )


def layout_name(row: AmdRow) -> str:
    """Layout of a row; both pools of a split."""
    if not row.disagg:
        return row.layout.label()
    return f"{row.prefill_workers}P {row.prefill_layout.label()} + {row.decode_workers}D {row.layout.label()}"


def nvidia_candidate(scored: Scored, is_prediction: bool) -> Candidate:
    """An NVIDIA row."""
    row: NvidiaRow = scored.labels["row"]
    return Candidate(
        name=row.id,
        gpu=row.system,
        model=row.model,
        engine=row.backend,
        precision=row.precision,
        spec="none",
        shape=row.shape,
        clients=row.clients,
        layout=row.layout.label(),
        gpus=row.gpus,
        split=row.split,
        tpot_ms=row.tpot_ms,
        tok_s=row.proxy,
        predicted_tpot_ms=scored.predicted["tpot"],
        predicted_tok_s=scored.predicted["throughput_proxy"],
        is_prediction=is_prediction,
    )


def candidates(score: CorpusScore, of: Callable[[Scored, bool], Candidate]) -> list[Candidate]:
    """Targets as predicted, and anchors as measured."""
    return [of(s, True) for s in score.scored] + [of(s, False) for s in score.anchors]


def one_stack(candidate: Candidate) -> Hashable:
    """Choices that share GPU, engine, model, precision and speculation: an anchor of one serves all."""
    c = candidate
    return (c.gpu, c.engine, c.model, c.precision, c.spec, c.shape, c.clients)


def any_engine(candidate: Candidate) -> Hashable:
    """Choices over engines and speculation for one GPU, model and precision."""
    c = candidate
    return (c.gpu, c.model, c.precision, c.shape, c.clients)


def grouped(every: Iterable[Candidate], key: Callable[[Candidate], Hashable]) -> list[list[Candidate]]:
    """Sets that share a key, in the order in which they first come."""
    sets: dict[Hashable, list[Candidate]] = defaultdict(list)
    for candidate in every:
        sets[key(candidate)].append(candidate)
    return list(sets.values())


def choice_sets(every: Sequence[Candidate], key: Callable[[Candidate], Hashable]) -> list[list[Candidate]]:
    """Sets with a choice: at least two candidates, one of them predicted."""
    return [group for group in grouped(every, key) if len(group) > 1 and any(c.is_prediction for c in group)]
