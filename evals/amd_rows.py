"""Rows of the AMD served-run corpus: loading, and cleaning by named rules that look at measured neighbours at most.

A *stack* is GPU, engine family, model, precision and speculation. Anchors are :mod:`evals.amd_anchors`.
"""

import csv
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path

from predictor.types import Layout

CORPUS_FILE = "measured/inferencex_2026_07_amd.csv"
FAMILY = {"vllm-disagg": "vllm", "mori-sglang": "sglang", "atom-disagg": "atom", "mooncake-atom": "atom"}
GPUS_PER_NODE = 8
# Running caps that explain a low Little's ratio: SGLang with speculation, ATOM.
SGLANG_SPEC_CAP, ATOM_CAP = 48, 512

Shape = tuple[int, int]


@dataclass(frozen=True, slots=True)
class AmdRow:
    """One measured configuration at one load."""

    index: int
    config_id: int
    gpu: str
    framework: str
    model: str
    precision: str
    spec: str
    disagg: bool
    layout: Layout  # of the decode pool in a split
    prefill_layout: Layout
    decode_workers: int
    prefill_workers: int
    gpus: int
    isl: int
    osl: int
    clients: int
    tpot_ms: float
    total_tok_s_per_gpu: float
    littles_ratio: float
    flags: tuple[str, ...] = ()
    extra: bool = False

    @property
    def engine(self) -> str:
        """Engine family."""
        return FAMILY.get(self.framework, self.framework)

    @property
    def stack(self) -> str:
        """Identity of the kernel set, layout apart."""
        return "/".join((self.gpu, self.engine, self.model, self.precision, self.spec))

    @property
    def shape(self) -> Shape:
        """Nominal prompt and answer lengths."""
        return (self.isl, self.osl)

    @property
    def bad(self) -> bool:
        """Whether a cleaning rule drops the row."""
        return bool(DROPPING & set(self.flags))

    @property
    def replica_clients(self) -> float:
        """Clients per decode replica."""
        return self.clients / self.decode_workers

    @property
    def ladder(self) -> tuple[str, int, Layout, bool, int, Shape]:
        """Rows that differ in load only."""
        return (self.stack, self.config_id, self.layout, self.disagg, self.gpus, self.shape)


def layout_of(tp: int, ep: int, attention_dp: bool) -> Layout:
    """Layout of one worker: attention DP spreads whole requests over all its GPUs; EP above TP widens the worker."""
    gpus = max(tp, ep)
    return Layout(tp=gpus, ep=ep, attn_dp=gpus if attention_dp else 1)


def worker_gpus(tp: int, ep: int, workers: int) -> int:
    """GPUs of a pool: rows written TP1 with EP8 or EP16 hold 8 or 16 GPUs a worker."""
    return max(tp, ep) * workers


def _flag(text: str) -> bool:
    return text.strip() in {"1", "True", "true"}


def _row(index: int, raw: dict[str, str], extra: bool) -> AmdRow:
    number: Callable[[str], int] = lambda name: int(float(raw[name] or 0))  # noqa: E731
    disagg = _flag(raw["disagg"])
    layout = layout_of(number("decode_tp"), number("decode_ep"), _flag(raw["decode_dp_attention"]))
    prefill = layout_of(number("prefill_tp"), number("prefill_ep"), _flag(raw["prefill_dp_attention"]))
    gpus = layout.gpus
    decode_workers, prefill_workers = max(1, number("decode_num_workers")), max(1, number("prefill_num_workers"))
    if disagg:
        decode = worker_gpus(number("decode_tp"), number("decode_ep"), decode_workers)
        pool = worker_gpus(number("prefill_tp"), number("prefill_ep"), prefill_workers)
        # Whole nodes are counted when more prefill GPUs are recorded than its workers hold.
        recorded = number("num_prefill_gpu")
        gpus = recorded + _round_up(decode, GPUS_PER_NODE) if recorded > pool else pool + decode
    else:
        decode_workers = prefill_workers = 1
    isl, osl, clients = number("isl"), number("osl"), number("conc")
    tpot, rate = float(raw["tpot_ms_median"]), float(raw["total_tput_tok_s_gpu"])
    return AmdRow(
        index=index,
        config_id=number("config_id"),
        gpu=raw["hardware"],
        framework=raw["framework"],
        model=raw["model"],
        precision=raw["precision"],
        spec=raw["spec_method"] or "none",
        disagg=disagg,
        layout=layout,
        prefill_layout=prefill,
        decode_workers=decode_workers,
        prefill_workers=prefill_workers,
        gpus=gpus,
        isl=isl,
        osl=osl,
        clients=clients,
        tpot_ms=tpot,
        total_tok_s_per_gpu=rate,
        littles_ratio=rate * gpus * osl * tpot / 1e3 / (clients * (isl + osl)),
        extra=extra,
    )


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def load_rows(corpus: Path, extra: Path | None = None) -> list[AmdRow]:
    """All rows of the corpus and of the extra file, cleaning flags set; file order kept."""
    rows = [_row(i, raw, False) for i, raw in enumerate(_read(corpus / CORPUS_FILE))]
    if extra:
        rows += [_row(len(rows) + i, raw, True) for i, raw in enumerate(_read(extra))]
    return flag_rows(rows)


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# ---- cleaning ------------------------------------------------------------------------------------------------------

DROPPING = {"mixed_builds", "spike", "pathological", "failed_run", "collapsed"}

Ladder = Sequence[AmdRow]


def running_cap(row: AmdRow) -> int | None:
    """Cap on running requests that the engine sets by itself."""
    if row.engine == "sglang" and row.spec != "none":
        return SGLANG_SPEC_CAP
    return ATOM_CAP if row.engine == "atom" else None


def _capped(row: AmdRow) -> bool:
    cap = running_cap(row)
    if row.disagg or cap is None or row.clients <= cap:
        return False
    # Ratio = cap / clients when the cap binds.
    return abs(row.littles_ratio * row.clients / cap - 1.0) < 0.1


def mixed_builds(row: AmdRow, ladder: Ladder, shapes: Ladder) -> bool:
    """Little's ratio above 1.06: median TPOT and median throughput come from different builds."""
    return row.littles_ratio > 1.06


def spike(row: AmdRow, ladder: Ladder, shapes: Ladder) -> bool:
    """TPOT above 1.35 times the log interpolation of both neighbours."""
    position = ladder.index(row)
    if not 0 < position < len(ladder) - 1:
        return False
    left, right = ladder[position - 1], ladder[position + 1]
    share = log(row.clients / left.clients) / log(right.clients / left.clients)
    if (
        not row.disagg and right.littles_ratio < 0.85
    ):  # its batch is limited, so its TPOT says nothing of a heavier load
        return False
    return row.tpot_ms > 1.35 * exp((1 - share) * log(left.tpot_ms) + share * log(right.tpot_ms))


def pathological(row: AmdRow, ladder: Ladder, shapes: Ladder) -> bool:
    """TPOT above 400 ms below 256 clients."""
    return row.tpot_ms > 400.0 and row.clients < 256


def failed_run(row: AmdRow, ladder: Ladder, shapes: Ladder) -> bool:
    """Little's ratio under 0.3 of a colocated run that no cap explains."""
    return not row.disagg and row.littles_ratio < 0.3 and not _capped(row)


def collapsed(row: AmdRow, ladder: Ladder, shapes: Ladder) -> bool:
    """Throughput falls by 40% as clients grow."""
    position = ladder.index(row)
    return position > 0 and row.total_tok_s_per_gpu < 0.6 * ladder[position - 1].total_tok_s_per_gpu


def shape_mix(row: AmdRow, ladder: Ladder, shapes: Ladder) -> bool:
    """Shapes of one configuration differ by over 1.5 times at its lightest load: one of them is an old build."""
    lightest = min(other.clients for other in shapes)
    if lightest >= 64:  # stalls and cache reads tell shapes apart from there on
        return False
    values = [other.tpot_ms for other in shapes if other.clients == lightest]
    return len(values) > 1 and max(values) / min(values) > 1.5


def capped_seqs(row: AmdRow, ladder: Ladder, shapes: Ladder) -> bool:
    """Valid: the engine runs no more than its cap."""
    return _capped(row)


def queue_bound(row: AmdRow, ladder: Ladder, shapes: Ladder) -> bool:
    """Valid: Little's ratio under 0.85 of a colocated run without a known cap; the KV pool is full."""
    return not row.disagg and 0.3 <= row.littles_ratio < 0.85 and not _capped(row)


def drops(row: AmdRow, ladder: Ladder, shapes: Ladder) -> bool:
    """Valid: TPOT is over 8% under that of the next lighter load."""
    position = ladder.index(row)
    return position > 0 and row.tpot_ms < 0.92 * ladder[position - 1].tpot_ms


RULES: tuple[Callable[[AmdRow, Ladder, Ladder], bool], ...] = (
    mixed_builds,
    spike,
    pathological,
    failed_run,
    collapsed,
    shape_mix,
    capped_seqs,
    queue_bound,
    drops,
)


def flag_rows(rows: Sequence[AmdRow]) -> list[AmdRow]:
    """Rows with the names of the rules that caught them."""
    ladders: dict[object, list[AmdRow]] = defaultdict(list)
    configs: dict[object, list[AmdRow]] = defaultdict(list)
    for row in rows:
        ladders[row.ladder].append(row)
        configs[(row.stack, row.config_id)].append(row)
    for ladder in ladders.values():
        ladder.sort(key=lambda row: row.clients)
    flagged = []
    for row in rows:
        ladder, shapes = ladders[row.ladder], configs[(row.stack, row.config_id)]
        flagged.append(replace(row, flags=tuple(rule.__name__ for rule in RULES if rule(row, ladder, shapes))))
    return flagged


def cleaning_counts(rows: Iterable[AmdRow]) -> dict[str, int]:
    """Rows that each rule caught."""
    counts = Counter(flag for row in rows for flag in row.flags)
    return {rule.__name__: counts[rule.__name__] for rule in RULES}
