"""Rows of the NVIDIA served-run corpus: ``systems/silicon_sample.csv`` of the package ``aiconfigurator-core``.

Measured values come from the package; corrected widths, builds, flags, kinds and anchors from the public protocol file
``nvidia_protocol_rows.csv``, one line a row. Rows of an extra file are cleaned and placed by the same rules, and are
never anchors. A *build* is the container image (or version) plus the export the row came in.
"""

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import isqrt, log
from pathlib import Path

from evals.corpus import CorpusAbsent
from predictor.types import Layout

PROTOCOL_FILE = "measured/nvidia_protocol_rows.csv"
RIVAL_FILE = "peers/aiconfigurator_0.12_predictions.csv"
PACKAGE = "aiconfigurator_core"
LOAD_RANGE = 4.0
# Flags that keep a row out of the clean set, and those that keep only its TTFT out.
UNCLEAN = {"conflict", "hidden_spec", "spec_suspect", "queue_bound", "ttft_spike"}

Shape = tuple[int, int]
LadderKey = tuple[str, str, Layout, Shape]  # stack, build, layout, shape


@dataclass(frozen=True, slots=True)
class NvidiaRow:
    """One measured configuration at one load."""

    index: int
    id: str
    split: bool
    system: str
    backend: str
    model: str
    precision: str
    isl: int
    osl: int
    clients: int
    layout: Layout
    gpus: int
    stack: str
    build: str
    flags: tuple[str, ...]
    use: bool
    ttft_ms: float
    tpot_ms: float
    extra: bool = False

    @property
    def shape(self) -> Shape:
        """Nominal prompt and answer lengths."""
        return (self.isl, self.osl)

    @property
    def clean(self) -> bool:
        """Whether the row counts in the clean set."""
        return self.use and not UNCLEAN & set(self.flags)

    @property
    def ladder(self) -> LadderKey:
        """Rows that differ in load only."""
        return (self.stack, self.build, self.layout, self.shape)

    @property
    def gap_analysis(self) -> bool:
        """Whether the run came from the gap-analysis harness, which starts clients one by one."""
        return self.build.endswith("+gap-analysis")

    @property
    def proxy(self) -> float:
        """Output tokens a second of all clients, C·OSL/(TTFT + OSL·TPOT): the corpus has no throughput."""
        return proxy_tok_s(self.clients, self.osl, self.ttft_ms, self.tpot_ms)


def proxy_tok_s(clients: int, osl: int, ttft_ms: float, tpot_ms: float) -> float:
    """Throughput proxy of a closed loop."""
    return clients * osl / (ttft_ms + osl * tpot_ms) * 1e3


@dataclass(frozen=True, slots=True)
class NvidiaAssignment:
    """What a row is under one protocol."""

    row: NvidiaRow
    kind: str
    anchor: LadderKey | None
    same_build: bool
    in_4x: bool

    @property
    def target(self) -> bool:
        """Whether the row is predicted."""
        return self.anchor is not None and self.kind != "anchor"

    @property
    def scored(self) -> bool:
        """Whether the row is a clean colocated target."""
        return self.target and self.row.clean and not self.row.split


def silicon_file() -> Path:
    """Path of the package's table of measured runs."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise CorpusAbsent(f"package aiconfigurator-core is not installed: pip install --no-deps {PACKAGE}==0.12.0")
    return Path(spec.origin).parent / "systems" / "silicon_sample.csv"


def layout_of(tp: int, ep: int, dp: int) -> Layout:
    """Layout from corrected widths; attention DP spreads requests over ``dp`` ranks of the same GPUs."""
    gpus = max(tp * dp, ep)
    return Layout(tp=gpus, ep=ep, attn_dp=dp)


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def load_rows(corpus: Path) -> tuple[list[NvidiaRow], list[dict[str, str]]]:
    """Corpus rows that can be placed, and the protocol lines of all."""
    lines = _read(corpus / PROTOCOL_FILE)
    rows = []
    for index, (line, raw) in enumerate(zip(lines, _read(silicon_file()), strict=True)):
        if line["id"] != raw["id"]:
            raise CorpusAbsent(f"protocol line {index} is of {line['id']}, the package's row of {raw['id']}")
        if not line["tp"]:
            continue
        rows.append(_row(index, line, raw))
    return rows, lines


def _int(text: str) -> int:
    return int(float(text or 0))


def _row(index: int, line: Mapping[str, str], raw: Mapping[str, str]) -> NvidiaRow:
    return NvidiaRow(
        index=index,
        id=line["id"],
        split=line["mode"] == "disagg",
        system=line["system"],
        backend=line["backend"],
        model=line["model"],
        precision=line["precision"],
        isl=_int(line["isl"]),
        osl=_int(line["osl"]),
        clients=_int(line["concurrency"]),
        layout=layout_of(_int(line["tp"]), _int(line["ep"]), _int(line["dp"])),
        gpus=_int(line["gpus"]),
        stack=line["stack"],
        build=line["build"],
        flags=tuple(flag for flag in line["flags"].split(";") if flag),
        use=line["use"] == "1",
        ttft_ms=float(raw["silicon_ttft_ms"]),
        tpot_ms=float(raw["silicon_tpot_ms"]),
    )


_ANCHOR_LAYOUT = re.compile(r"tp(\d+)ep(\d+)dpa(\d+)")


def parse_anchor(text: str) -> LadderKey:
    """Ladder named in the protocol file."""
    stack, build, widths, shape = text.split("|")
    match = _ANCHOR_LAYOUT.fullmatch(widths)
    if match is None:
        raise CorpusAbsent(f"anchor {text!r} has no layout")
    tp, ep, dp = (int(group) for group in match.groups())
    isl, osl = (int(part) for part in shape.split("x"))
    return (stack, build, layout_of(tp, ep, max(1, dp)), (isl, osl))


def assign(rows: Sequence[NvidiaRow], lines: Sequence[Mapping[str, str]], protocol: str) -> list[NvidiaAssignment]:
    """Kinds and anchors of the protocol file; rows out of use are left out."""
    result = []
    for row in rows:
        line = lines[row.index]
        if not row.use:
            continue
        anchor = parse_anchor(line[f"anchor_{protocol}"]) if line[f"anchor_{protocol}"] else None
        result.append(
            NvidiaAssignment(
                row,
                line[f"kind_{protocol}"],
                anchor,
                line[f"same_build_{protocol}"] == "1",
                line[f"in_4x_{protocol}"] == "1",
            )
        )
    return result


def ladder_rows(assignments: Iterable[NvidiaAssignment]) -> dict[LadderKey, list[NvidiaRow]]:
    """Anchor rows by ladder, lightest first."""
    ladders: dict[LadderKey, list[NvidiaRow]] = defaultdict(list)
    for a in assignments:
        if a.kind == "anchor" and a.anchor is not None:
            ladders[a.row.ladder].append(a.row)
    for rows in ladders.values():
        rows.sort(key=lambda row: row.clients)
    return dict(ladders)


def flag_counts(lines: Iterable[Mapping[str, str]]) -> dict[str, int]:
    """Rows each cleaning flag caught."""
    return dict(Counter(flag for line in lines for flag in line["flags"].split(";") if flag))


# ---- rows of an extra file -----------------------------------------------------------------------------------------


def corrected_widths(raw: Mapping[str, str]) -> tuple[int, int, int]:
    """TP, EP and attention DP of a colocated row of the package's format.

    ``repaired``: TP recorded as EP²; ``repaired_square``: TP = DP = √EP. Both are TP = EP without attention DP.
    """
    tp, dp, ep = (max(1, _int(raw[name])) for name in ("tp_size", "attention_dp_size", "moe_ep_size"))
    root = isqrt(ep)
    if ep > 1 and tp == ep * ep and raw["attention_dp_size"]:
        return ep, ep, 1
    if ep > 1 and dp == ep * ep:
        return 1, ep, ep
    if tp == dp and tp > 1 and root * root == ep and root == tp:
        return tp, tp, 1
    return tp, ep, dp


def build_of(raw: Mapping[str, str]) -> str:
    """Image or version, and the export the row came in."""
    source = raw["silicon_data_source"]
    version = raw["backend_version"].strip()
    if "aic-auto-gap-analysis" in source:
        return f"{version or 'none'}+gap-analysis"
    if "gap-analysis" in source:
        return f"{version or 'none'}+gap-analysis-2"
    date = re.search(r"(?:db-dump/|source_file=)(\d{4}-\d\d-\d\d)", source)
    export = f"{'dump' if source.startswith('db-dump') else 'export'}-{date.group(1) if date else 'unknown'}"
    image = re.search(r"([\w.#-]+(?:[/#][\w.-]+)+):([\w.+-]+)\s*$", source.strip())
    if image is None:
        return f"{version or 'none'}+{export}"
    return f"{_image_name(image.group(1))}:{image.group(2)}+{export}"


def _image_name(repository: str) -> str:
    name = repository.replace("#", "/")
    if "ai-dynamo/tensorrtllm" in name:
        return "dynamo-trtllm"
    if "tensorrt-llm" in name:
        return "trtllm"
    if name.startswith("lmsysorg/"):
        return "sglang"
    return "vllm" if name.startswith("vllm/") else name


def kind_of(row: NvidiaRow, anchor: LadderKey, shapes: Iterable[Shape]) -> str:
    """Kind of transfer from an anchor's layout and shapes to a row."""
    _, _, source, _ = anchor
    known = list(shapes)
    if row.split:
        return "disaggregated"
    if row.layout == source:
        if row.isl not in {isl for isl, _ in known}:
            return "other ISL"
        return "other OSL" if row.shape not in known else "anchor's shape again"
    if row.layout.attn_dp > 1 or source.attn_dp > 1:
        return "attention DP"
    if row.layout.ep > 1 or source.ep > 1:
        return "EP"
    return f"TPx{row.layout.tp // source.tp}" if row.layout.tp > source.tp else "TP narrower"


def assign_extra(
    extra: Sequence[NvidiaRow], ladders: Mapping[LadderKey, Sequence[NvidiaRow]]
) -> list[NvidiaAssignment]:
    """Place extra rows on the corpus' anchors: the same build, else the same image, else the latest build."""
    by_stack: dict[str, list[LadderKey]] = defaultdict(list)
    for key in ladders:
        by_stack[key[0]].append(key)
    result = []
    for row in extra:
        choices = by_stack.get(row.stack, [])
        if not choices:
            result.append(NvidiaAssignment(row, "uncovered: no ladder in the stack", None, False, False))
            continue
        image = row.build.split("+")[0]

        def order(key: LadderKey, row: NvidiaRow = row, image: str = image) -> tuple[object, ...]:
            build = key[1]
            near = 0 if build == row.build else 1 if build.split("+")[0] == image and image != "none" else 2
            return (near, abs(log(key[3][0] / row.isl)), abs(log(key[3][1] / row.osl)), key[1], key[2].gpus)

        anchor = min(choices, key=order)
        shapes = [key[3] for key in choices if key[1:3] == anchor[1:3]]
        loads = [other.clients for other in ladders[anchor]]
        inside = min(loads) / LOAD_RANGE <= row.clients <= max(loads) * LOAD_RANGE
        same = anchor[1].split("+")[0] == image
        result.append(NvidiaAssignment(row, kind_of(row, anchor, shapes), anchor, same, inside))
    return result


def load_extra(path: Path, known: Sequence[NvidiaRow], first_index: int) -> list[NvidiaRow]:
    """Rows of the package's format; models named as the corpus names the same checkpoints."""
    own = {row.id: row.model for row in known}
    models = {_checkpoint(raw): own[raw["id"]] for raw in _read(silicon_file()) if raw["id"] in own}
    rows = []
    for offset, raw in enumerate(_read(path)):
        split = raw["mode"] == "disagg"
        tp, ep, dp = corrected_widths(raw) if not split else _split_widths(raw)
        model = models.get(_checkpoint(raw), raw["model_path"].split("/")[-1])
        stack = "/".join((raw["system"], raw["backend"], model, raw["precision"]))
        clients = re.search(r"silicon_concurrency=(\d+)", raw["silicon_data_source"])
        layout = layout_of(tp, ep, dp)
        rows.append(
            NvidiaRow(
                index=first_index + offset,
                id=raw["id"],
                split=split,
                system=raw["system"],
                backend=raw["backend"],
                model=model,
                precision=raw["precision"],
                isl=_int(raw["isl"]),
                osl=_int(raw["osl"]),
                clients=int(clients.group(1)) if clients else _int(raw["batch_size"]) * dp,
                layout=layout,
                gpus=layout.gpus,
                stack=stack,
                build=build_of(raw),
                flags=(),
                use=True,
                ttft_ms=float(raw["silicon_ttft_ms"]),
                tpot_ms=float(raw["silicon_tpot_ms"]),
                extra=True,
            )
        )
    return rows


def _split_widths(raw: Mapping[str, str]) -> tuple[int, int, int]:
    tp, dp, ep = (
        max(1, _int(raw[name])) for name in ("decode_tp_size", "decode_attention_dp_size", "decode_moe_ep_size")
    )
    return tp, ep, dp


def _checkpoint(raw: Mapping[str, str]) -> str:
    return raw["model_path"].split("/")[-1].lower()
