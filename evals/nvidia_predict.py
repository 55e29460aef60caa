"""Predict NVIDIA corpus rows from their anchors: TPOT and TTFT, as the harness reports them.

A recorded TTFT is the mean over ten requests a client, the start-up burst included; the schedule of the run says how
often each price counts in it (:mod:`predictor.anchors.schedule`).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evals.facade import Case, SolvedSteps, artefact, closed_loop, predicted
from evals.nvidia_rows import LadderKey, NvidiaAssignment, NvidiaRow, Shape
from evals.recipes import NO_CAP, Recipe, recipe
from inferasim import Anchor, Deployment, Prediction, SchedulerSettings
from predictor.anchors.residual import MeasuredRun
from predictor.anchors.schedule import ClosedLoopRun
from predictor.anchors.solve import ServedPoint, mean_context, solve_ladders
from predictor.anchors.tpot_ladders import expected_token_ms
from predictor.cards import ModelCard
from predictor.errors import DataUnavailable
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.transfer import KernelContext, WidthLaw, default_constants
from predictor.transfer.terms import step_terms
from predictor.types import Dtype, Layout, Precision, StartMode

RECIPES = "nvidia_recipes.toml"
CARDS = {"Qwen3-235B-A22B-FP8": "Qwen3-235B-A22B", "Llama-3.1-8B-Instruct": "Llama-3.1-8B"}
DOUBTFUL_TTFT_WEIGHT = 0.3  # of a ladder whose TTFT differs by answer length (flag ttft_shape_conflict)
MIN_CLEAN_LOADS = 3

LayoutKey = tuple[str, str, Layout]


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
        length_range_frac=range_frac(row),
        max_running=known.cap(False),
        token_budget=known.token_budget * row.layout.attn_dp,
        discipline=known.discipline,
        chunked=row.backend != "trtllm",
        poll_steps=known.poll(row.clients) if row.layout.attn_dp == 1 else 1,
        start="staggered" if row.gap_analysis else "burst",
    )


def range_frac(row: NvidiaRow) -> float:
    """Shortest over nominal length: the gap-analysis harness sends fixed lengths."""
    return 1.0 if row.gap_analysis else 0.8


def case_of(row: NvidiaRow) -> Case:
    """A colocated row as a request to the facade."""
    known = recipe_of(row)
    cap = known.cap(False)
    scheduler = SchedulerSettings(
        max_running=cap if cap < NO_CAP else None,
        token_budget=known.token_budget,
        chunk_size=None if row.backend == "trtllm" else known.token_budget,
        prefix_cache=False,
    )
    deployment = Deployment(
        model=card_of(row).name,
        gpu=platform(row.system.removesuffix("_sxm")).name,
        engine=engine_profile(row.backend).name,
        layout=row.layout,
        precision=formats(row.precision, known.kv),
        scheduler=scheduler,
    )
    start = StartMode.STAGGERED if row.gap_analysis else StartMode.BURST
    poll = known.poll(row.clients) if row.layout.attn_dp == 1 else 1
    return Case(deployment, closed_loop(row.shape, row.clients, range_frac(row), start), poll)


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
        engine=engine_profile(row.backend).name,
        context_tokens=context_tokens,
    )


def usable(rows: Sequence[NvidiaRow]) -> tuple[NvidiaRow, ...]:
    """Clean rows of a ladder; all of them where cleaning leaves too few to hold a curve."""
    clean = tuple(row for row in rows if row.clean)
    return clean if len(clean) >= MIN_CLEAN_LOADS else tuple(rows)


def solve(kept: Mapping[Shape, Sequence[NvidiaRow]]) -> SolvedSteps:
    """Steps, prompt coefficients and host time of one layout's ladders, solved together."""
    points = {s: [ServedPoint(run_of(r), r.tpot_ms, r.ttft_ms) for r in ladder] for s, ladder in kept.items()}
    first = next(iter(kept.values()))[0]
    known = default_constants(platform(first.system.removesuffix("_sxm")))
    contexts = {shape: mean_context(ladder[0].run) for shape, ladder in points.items()}

    def added_cache_ms(short: Shape, long: Shape, batch: int) -> float:
        near, far = (side_of(first, first.layout, contexts[shape]) for shape in (short, long))
        return step_terms(far, batch, known).kv_ms - step_terms(near, batch, known).kv_ms

    doubtful = {
        s: DOUBTFUL_TTFT_WEIGHT for s, ladder in kept.items() if any("ttft_shape_conflict" in r.flags for r in ladder)
    }
    side = side_of(first, first.layout, next(iter(contexts.values())))
    solved = solve_ladders(points, added_cache_ms, doubtful, expected_token_ms(side))
    return SolvedSteps(side, solved.curves, solved.prefill, range_frac(first), solved.host_ms)


def anchor_of(name: str, ladders: Mapping[Shape, Sequence[NvidiaRow]]) -> Anchor:
    """The anchor file of one layout's ladders."""
    kept = {shape: usable(ladder) for shape, ladder in ladders.items()}
    measured = {
        shape: [(case_of(row), MeasuredRun(row.clients, row.tpot_ms, row.ttft_ms)) for row in ladder]
        for shape, ladder in kept.items()
    }
    return artefact(name, solve(kept), "none", measured)


@dataclass(frozen=True, slots=True)
class NvidiaPredictor:
    """Anchors of one protocol, by stack, build and layout."""

    anchors: Mapping[LayoutKey, Anchor]
    law: WidthLaw = "combined"

    def predict(self, assignment: NvidiaAssignment) -> Prediction:
        """One colocated target."""
        if assignment.anchor is None:
            raise DataUnavailable(f"row {assignment.row.id} has no anchor")
        stack, build, layout, _ = assignment.anchor
        return predicted(case_of(assignment.row), self.anchors[(stack, build, layout)], self.law)


def solve_all(ladders: Mapping[LadderKey, Sequence[NvidiaRow]], law: WidthLaw = "combined") -> NvidiaPredictor:
    """Make the anchors of a protocol."""
    groups: dict[LayoutKey, dict[Shape, Sequence[NvidiaRow]]] = defaultdict(dict)
    for (stack, build, layout, shape), rows in ladders.items():
        groups[(stack, build, layout)][shape] = rows
    anchors = {
        (stack, build, layout): anchor_of(f"{stack}#{build}#{layout.label()}", rows)
        for (stack, build, layout), rows in groups.items()
    }
    return NvidiaPredictor(anchors, law)
