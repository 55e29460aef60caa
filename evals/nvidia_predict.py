"""Predict NVIDIA corpus rows from their anchors: TPOT and TTFT, as the harness reports them.

A recorded TTFT is the mean over ten requests a client, the start-up burst included; the schedule of the run says how
often each price counts in it (:mod:`predictor.anchors.schedule`).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log

from evals.nvidia_rows import LadderKey, NvidiaAssignment, NvidiaRow, Shape
from evals.recipes import Recipe, recipe
from evals.served import expected_token_ms, log_interpolate
from predictor.anchors.schedule import ClosedLoopRun, schedule
from predictor.anchors.solve import ServedPoint, SolvedLayout, mean_context, mean_prompt, price_mean, solve_ladders
from predictor.cards import ModelCard
from predictor.errors import DataUnavailable
from predictor.profiles.loader import model_card, platform
from predictor.step.curve import DecodeCurve
from predictor.step.model import PrefillCurve
from predictor.transfer import (
    KernelContext,
    TransferConstants,
    WidthLaw,
    default_constants,
    expert_slowness,
    move_decode,
    move_prefill,
    refine_decode,
)
from predictor.transfer.terms import step_terms
from predictor.types import Dtype, Layout, Precision

RECIPES = "nvidia_recipes.toml"
CARDS = {"Qwen3-235B-A22B-FP8": "Qwen3-235B-A22B", "Llama-3.1-8B-Instruct": "Llama-3.1-8B"}
ENGINES = {"trtllm": "tensorrt-llm"}
# Part of a request's host time that goes with width: at a light load it cannot be told from prompt work of small
# chunks, which does (set in the closed-form study of this corpus).
HOST_EXPONENT = 0.3
# How much of the anchor's own TTFT misfit at a load is carried: all of it at the same layout and shape; elsewhere the
# part that is not noise. Anchors are reproduced to 6.2% (median), repeated rows of one image differ by 3.7%:
# 1 − (3.7/6.2)².
RESIDUAL_SHARE_MOVED = 0.65
DOUBTFUL_TTFT_WEIGHT = 0.3  # of a ladder whose TTFT differs by answer length (flag ttft_shape_conflict)
MIN_CLEAN_LOADS = 3

LayoutKey = tuple[str, str, Layout]


@dataclass(frozen=True, slots=True)
class Means:
    """What the harness would report, ms."""

    tpot_ms: float
    ttft_ms: float


def recipe_of(row: NvidiaRow) -> Recipe:
    """Launch settings of a row."""
    return recipe(RECIPES, row.backend, row.system, row.model, row.precision, "none")


def card_of(row: NvidiaRow) -> ModelCard:
    """Model card of a row."""
    return model_card(CARDS.get(row.model, row.model))


def run_of(row: NvidiaRow) -> ClosedLoopRun:
    """How a row was driven. The gap-analysis harness sends fixed lengths and starts clients one by one."""
    known = recipe_of(row)
    return ClosedLoopRun(
        clients=row.clients,
        isl_tokens=row.isl,
        osl_tokens=row.osl,
        length_range_frac=1.0 if row.gap_analysis else 0.8,
        max_running=known.cap(False),
        token_budget=known.token_budget * row.layout.attn_dp,
        discipline=known.discipline,
        chunked=row.backend != "trtllm",
        poll_steps=known.poll(row.clients) if row.layout.attn_dp == 1 else 1,
        start="staggered" if row.gap_analysis else "burst",
    )


def formats(precision: str, kv: Dtype) -> Precision:
    """Number formats of a corpus precision label; int4 and fp4 are 4-bit weights."""
    weight = {"bf16": Dtype.BF16, "fp8": Dtype.FP8, "fp4": Dtype.FP4, "int4": Dtype.FP4}[precision]
    return Precision(weight=weight, linear=weight, expert=weight, kv=kv)


def side_of(row: NvidiaRow, layout: Layout, context_tokens: float) -> KernelContext:
    """Kernel context of a row at a layout."""
    return KernelContext(
        card=card_of(row),
        platform=platform(row.system.removesuffix("_sxm")),
        layout=layout,
        precision=formats(row.precision, recipe_of(row).kv),
        engine=ENGINES.get(row.backend, row.backend),
        context_tokens=context_tokens,
    )


def means_of(run: ClosedLoopRun, curve: DecodeCurve, prefill: PrefillCurve, host_ms: float) -> Means:
    """Price one run."""
    plan, isl = schedule(run), mean_prompt(run)
    return Means(price_mean(plan.tpot, curve, prefill, isl), price_mean(plan.ttft, curve, prefill, isl) + host_ms)


@dataclass(frozen=True, slots=True)
class SolvedAnchor:
    """One layout's ladders solved together, and the rows they were solved from."""

    rows: Mapping[Shape, tuple[NvidiaRow, ...]]
    solved: SolvedLayout
    slowness: float  # of expert reads, told by all ladders together

    def side(self, shape: Shape) -> KernelContext:
        """The anchor's side of a transfer at one of its shapes."""
        first = self.rows[shape][0]
        return side_of(first, first.layout, self.solved.curves[shape].context_tokens)


def usable(rows: Sequence[NvidiaRow]) -> tuple[NvidiaRow, ...]:
    """Clean rows of a ladder; all of them where cleaning leaves too few to hold a curve."""
    clean = tuple(row for row in rows if row.clean)
    return clean if len(clean) >= MIN_CLEAN_LOADS else tuple(rows)


def solve_anchor(rows: Mapping[Shape, Sequence[NvidiaRow]], constants: TransferConstants | None = None) -> SolvedAnchor:
    """Solve the ladders of one layout."""
    kept = {shape: usable(ladder) for shape, ladder in rows.items()}
    points = {s: [ServedPoint(run_of(r), r.tpot_ms, r.ttft_ms) for r in ladder] for s, ladder in kept.items()}
    first = next(iter(kept.values()))[0]
    known = constants or default_constants(platform(first.system.removesuffix("_sxm")))
    contexts = {shape: mean_context(ladder[0].run) for shape, ladder in points.items()}

    def added_cache_ms(short: Shape, long: Shape, batch: int) -> float:
        near, far = (side_of(first, first.layout, contexts[shape]) for shape in (short, long))
        return step_terms(far, batch, known).kv_ms - step_terms(near, batch, known).kv_ms

    doubtful = {
        s: DOUBTFUL_TTFT_WEIGHT for s, ladder in kept.items() if any("ttft_shape_conflict" in r.flags for r in ladder)
    }
    side = side_of(first, first.layout, next(iter(contexts.values())))
    solved = solve_ladders(points, added_cache_ms, doubtful, expected_token_ms(side))
    sweeps = [(curve, side_of(first, first.layout, curve.context_tokens)) for curve in solved.curves.values()]
    return SolvedAnchor(kept, solved, expert_slowness(sweeps, known))


@dataclass(frozen=True, slots=True)
class NvidiaPredictor:
    """Solved anchors of one protocol, by stack, build and layout."""

    anchors: Mapping[LayoutKey, SolvedAnchor]
    law: WidthLaw = "combined"
    constants: TransferConstants | None = None

    def predict(self, assignment: NvidiaAssignment) -> Means:
        """One colocated target."""
        if assignment.anchor is None:
            raise DataUnavailable(f"row {assignment.row.id} has no anchor")
        stack, build, layout, shape = assignment.anchor
        return self.move(self.anchors[(stack, build, layout)], shape, assignment.row)

    def move(self, anchor: SolvedAnchor, shape: Shape, row: NvidiaRow) -> Means:
        """Carry one ladder of an anchor to a row."""
        run = run_of(row)
        source = anchor.side(shape)
        constants = self.constants or default_constants(source.platform)
        target = replace(source, layout=row.layout, context_tokens=mean_context(run))
        solved = anchor.solved
        means = means_of(
            run,
            self._curve(anchor, shape, source, target, constants),
            move_prefill(solved.prefill, source, target, constants),
            solved.host_ms * (source.gpus / target.gpus) ** HOST_EXPONENT,
        )
        same = row.layout == source.layout and row.shape == shape
        share = 1.0 if same else RESIDUAL_SHARE_MOVED
        misfit = self.ttft_misfit(anchor, shape, source, constants, row.clients)
        return replace(means, ttft_ms=means.ttft_ms * misfit**share)

    def _curve(
        self,
        anchor: SolvedAnchor,
        shape: Shape,
        source: KernelContext,
        target: KernelContext,
        constants: TransferConstants,
    ) -> DecodeCurve:
        curve = anchor.solved.curves[shape]
        if source == target:
            return refine_decode(curve, source, constants, anchor.slowness)
        return move_decode(curve, source, target, self.law, constants, slowness=anchor.slowness)

    def ttft_misfit(
        self, anchor: SolvedAnchor, shape: Shape, source: KernelContext, constants: TransferConstants, clients: int
    ) -> float:
        """Measured over reproduced TTFT of the anchor's own ladder at a load, log-interpolated."""
        solved = anchor.solved
        curve = refine_decode(solved.curves[shape], source, constants, anchor.slowness)
        logs: dict[int, list[float]] = defaultdict(list)
        for row in anchor.rows[shape]:
            reproduced = means_of(run_of(row), curve, solved.prefill, solved.host_ms)
            logs[row.clients].append(log(row.ttft_ms / reproduced.ttft_ms))
        points = [(float(load), sum(values) / len(values)) for load, values in sorted(logs.items())]
        return exp(log_interpolate(points, clients))


def solve_all(
    ladders: Mapping[LadderKey, Sequence[NvidiaRow]],
    law: WidthLaw = "combined",
    constants: TransferConstants | None = None,
) -> NvidiaPredictor:
    """Solve the anchors of a protocol."""
    groups: dict[LayoutKey, dict[Shape, Sequence[NvidiaRow]]] = defaultdict(dict)
    for (stack, build, layout, shape), rows in ladders.items():
        groups[(stack, build, layout)][shape] = rows
    return NvidiaPredictor({key: solve_anchor(rows, constants) for key, rows in groups.items()}, law, constants)
