"""80% prediction intervals, split-conformal by kind of transfer.

A kind's half-width ``q`` is the 80% quantile (with the finite-sample correction) of ``|ln(measured / predicted)|`` over
public served runs whose prediction was carried in that way; the interval is ``[x·e^-q, x·e^q]``. Widths are data
(``profiles/intervals.toml``, made by ``python -m evals.intervals``), kinds without enough stacks have none, and what no
kind describes is told with its reason. Only means of a closed loop were calibrated.
"""

import tomllib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

from predictor.anchors.schema import Anchor
from predictor.anchors.select import CONTEXT_FACTOR, Selection
from predictor.cards import Platform
from predictor.errors import BadFile
from predictor.profiles.decode import decode
from predictor.types import Arrival, Deployment, Intervals, Layout, Workload

_DATA = Path(__file__).parent / "profiles" / "intervals.toml"

Metric = Literal["tpot", "ttft", "throughput"]

# Kernel models are fed by other sources on each vendor's GPUs.
SIMULATE = {"amd": "simulate, AMD", "nvidia": "simulate, NVIDIA"}
SPLIT = "disaggregated"
SAME_WIDTH, OTHER_LOAD, OTHER_ISL = "same width", "other load", "other ISL"
EXPERT_PARALLEL, ATTENTION_DP, NARROWER = "EP", "attention DP", "TP narrower"
# Flags of an anchor's choice that put a colocated target outside of what was calibrated.
OUTSIDE = ("kernel_set_differs", "other_build", "build_unknown", "load_outside", "scaled_from_one_run")
SPLIT_OUTSIDE = ("kernel_set_differs", "scaled_from_one_run")  # splits were calibrated over other builds and loads
MIN_POINTS = 3  # of an anchor's sweep: the sparsest ladder calibrated
MAX_ISL_RATIO = 8.0  # between the anchor's prompts and the target's: 1024 and 8192 tokens


@dataclass(frozen=True, slots=True)
class KindWidths:
    """Half-widths of one kind as factors e^q, None where a metric was not recorded; and what they rest on."""

    name: str
    rows: int
    stacks: int
    tpot: float | None = None
    ttft: float | None = None
    throughput: float | None = None

    def factor(self, metric: Metric) -> float | None:
        """The factor of one metric."""
        return {"tpot": self.tpot, "ttft": self.ttft, "throughput": self.throughput}[metric]


@dataclass(frozen=True, slots=True)
class WidthTable:
    """The data file: where its figures come from, how they are made again, and the kinds."""

    source: str
    command: str
    share: float
    kind: tuple[KindWidths, ...] = field(default=())

    def of(self, name: str) -> KindWidths | None:
        """Widths of a kind; None where it was not calibrated."""
        return next((kind for kind in self.kind if kind.name == name), None)


@lru_cache(maxsize=1)
def calibrated_widths() -> WidthTable:
    """The bundled widths; raises BadFile where the file is not as expected."""
    try:
        data = tomllib.loads(_DATA.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadFile(f"{_DATA}: not readable as TOML: {error}") from None
    return decode(WidthTable, data, str(_DATA))


@dataclass(frozen=True, slots=True)
class Transfer:
    """How a prediction was carried: the kind, or why no kind describes it."""

    kind: str = ""
    outside: str = ""


def width_kind(source: Layout, target: Layout, same_isl: bool, same_osl: bool) -> str:
    """Kind of a colocated transfer within one build and four times the anchor's loads.

    >>> width_kind(Layout(tp=4), Layout(tp=8), same_isl=True, same_osl=True)
    'TPx2'
    >>> width_kind(Layout(tp=4), Layout(tp=8, ep=8), same_isl=False, same_osl=True)
    'EP, other ISL'
    """
    if source == target:
        return OTHER_ISL if not same_isl else OTHER_LOAD if same_osl else SAME_WIDTH
    if source.attn_dp > 1 or target.attn_dp > 1:
        kind = ATTENTION_DP
    elif source.ep > 1 or target.ep > 1:
        kind = EXPERT_PARALLEL
    else:
        kind = f"TPx{target.tp // source.tp}" if target.tp > source.tp else NARROWER
    return kind if same_isl else f"{kind}, {OTHER_ISL}"


def near(one: float, other: float) -> bool:
    """Whether two lengths count as the same."""
    return max(one, other) <= CONTEXT_FACTOR * min(one, other)


def transfer_of(
    selection: Selection | None, deployment: Deployment, workload: Workload, platform: Platform
) -> Transfer:
    """Kind of one prediction, or the first thing that none of the calibrated runs had."""
    reason = _workload_outside(workload) or _layout_outside(deployment)
    if reason:
        return Transfer(outside=reason)
    if selection is None:
        return Transfer(SIMULATE[platform.vendor])
    anchor = selection.anchor
    reason = _anchor_outside(anchor, deployment, workload) or _flag_outside(selection, deployment)
    if reason:
        return Transfer(outside=reason)
    if deployment.prefill is not None:
        return Transfer(SPLIT)
    sweep = anchor.sweep_for(workload.isl_tokens)
    same_isl = near(sweep.prompt_tokens, workload.isl_tokens)
    same_osl = near(sweep.output_tokens, workload.osl_tokens)
    return Transfer(width_kind(anchor.signature.layout, deployment.layout, same_isl, same_osl))


def _workload_outside(workload: Workload) -> str:
    if workload.arrival is not Arrival.CLOSED:
        return f"{workload.arrival} arrivals; calibrated on closed loops"
    if workload.prefix_hit_frac:
        return "a cached share of the prompt; calibrated without a prefix cache"
    return ""


def _layout_outside(deployment: Deployment) -> str:
    if deployment.layout.pp > 1:
        return "pipeline stages; calibrated on one stage"
    if deployment.layout.dcp > 1:
        return "decode context parallelism; calibrated without"
    return ""


def _anchor_outside(anchor: Anchor, deployment: Deployment, workload: Workload) -> str:
    signature = anchor.signature
    speculation = deployment.speculation
    if speculation.active and (signature.spec_method, signature.spec_depth) != (speculation.method, speculation.depth):
        return f"drafts {speculation.depth} deep from an anchor with {signature.spec_depth}; calibrated at equal depth"
    sweep = anchor.sweep_for(workload.isl_tokens)
    if len(sweep.points) < MIN_POINTS:
        return f"an anchor of {len(sweep.points)} batch sizes; calibrated with at least {MIN_POINTS}"
    ratio = max(sweep.prompt_tokens, workload.isl_tokens) / min(sweep.prompt_tokens, workload.isl_tokens)
    if ratio > MAX_ISL_RATIO:
        return f"prompts {ratio:.0f} times the anchor's; calibrated up to {MAX_ISL_RATIO:.0f} times"
    return ""


def _flag_outside(selection: Selection, deployment: Deployment) -> str:
    codes = SPLIT_OUTSIDE if deployment.prefill is not None else OUTSIDE
    return next((flag.message for flag in selection.flags if flag.code in codes), "")


def intervals(transfer: Transfer, means: dict[str, tuple[Metric, float]], table: WidthTable) -> Intervals:
    """Bounds of each mean by its metric's width."""
    if transfer.outside:
        return Intervals(outside=transfer.outside)
    widths = table.of(transfer.kind)
    if widths is None:
        return Intervals(kind=transfer.kind, outside=f"kind {transfer.kind!r} was measured on too few stacks")
    bounds = {}
    for name, (metric, value) in means.items():
        factor = widths.factor(metric)
        if factor is not None:
            bounds[name] = (value / factor, value * factor)
    return Intervals(transfer.kind, bounds, rows=widths.rows, stacks=widths.stacks)
