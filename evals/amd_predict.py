"""Predict AMD corpus rows from their A2 anchors, through the public facade."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evals.amd_anchors import AnchorLayout, Assignment
from evals.amd_rows import AmdRow, Shape
from evals.facade import Case, SolvedSteps, artefact, closed_loop, predicted
from evals.recipes import NO_CAP, Recipe, recipe
from inferasim import Anchor, Deployment, Prediction, PrefillPool, SchedulerSettings, Speculation
from predictor.anchors.residual import MeasuredRun
from predictor.anchors.schedule import ClosedLoopRun
from predictor.anchors.solve import ServedPoint, mean_context
from predictor.anchors.tpot_ladders import solve_anchor
from predictor.cards import ModelCard
from predictor.comm import variant_named
from predictor.errors import DataUnavailable
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.transfer import KernelContext, WidthLaw, default_constants
from predictor.types import Dtype, Layout, Precision

RECIPES = "amd_recipes.toml"
CARDS = {
    "minimaxm3": "MiniMax-M3",
    "dsr1": "DeepSeek-R1",
    "minimaxm2.5": "MiniMax-M2.5",
    "dsv4": "DeepSeek-V4-Pro",
    "qwen3.5": "Qwen3.5-397B-A17B",
    "gptoss120b": "gpt-oss-120b",
    "llama70b": "Llama-3.1-70B",
    "kimik2.5": "Kimi-K2.5",
    "glm5": "GLM-5",
    "glm5.1": "GLM-5",
}
# Tokens a verify step commits on random prompts are not published; the coding curves' depth-2 and depth-3 median is
# used for all models, since only a ratio of steps depends on it.
TOKENS_PER_STEP = {0: 1.0, 2: 2.3, 3: 2.6}

HANDOFFS = {"vllm-disagg": "nixl", "mori-sglang": "mori", "atom-disagg": "mori", "mooncake-atom": "mooncake"}

AnchorKey = tuple[str, int]


def formats(precision: str, known: Recipe) -> Precision:
    """Number formats of a corpus precision label; int4 and fp4 are 4-bit experts."""
    weight = {"bf16": Dtype.BF16, "fp8": Dtype.FP8, "fp4": Dtype.FP4, "int4": Dtype.FP4}[precision]
    return Precision(weight=weight, linear=weight, expert=known.expert or weight, kv=known.kv)


def recipe_of(row: AmdRow) -> Recipe:
    """Launch settings of a row."""
    return recipe(RECIPES, row.engine, row.gpu, row.model, row.precision, row.spec)


def card_of(row: AmdRow) -> ModelCard:
    """Model card of a row."""
    return model_card(CARDS.get(row.model, row.model))


def side_of(row: AmdRow, layout: Layout, run: ClosedLoopRun) -> KernelContext:
    """Kernel context of a row at a layout."""
    known = recipe_of(row)
    depth = known.draft_depth if row.spec != "none" else 0
    return KernelContext(
        card=card_of(row),
        platform=platform(row.gpu),
        layout=layout,
        precision=formats(row.precision, known),
        engine=engine_profile(row.engine).name,
        context_tokens=mean_context(run),
        draft_depth=depth,
        tokens_per_step=TOKENS_PER_STEP[depth],
        allreduce=variant_named(known.allreduce),
    )


def run_of(row: AmdRow) -> ClosedLoopRun:
    """How a row was driven. An attention-DP rank has its own token budget, and its own cap where so counted."""
    known = recipe_of(row)
    cap, ranks = known.cap(row.spec != "none"), row.layout.attn_dp
    return ClosedLoopRun(
        clients=row.clients,
        isl_tokens=row.isl,
        osl_tokens=row.osl,
        max_running=cap * ranks if engine_profile(row.engine).caps_per_rank else cap,
        token_budget=known.token_budget * row.layout.attn_dp,
        discipline=known.discipline,
        poll_steps=known.poll(row.clients),
    )


def driven(row: AmdRow) -> ClosedLoopRun:
    """How an anchor row ran: with as many requests at once as its throughput tells by Little's law."""
    run, held = run_of(row), measured_run(row).held(closed_loop(row.shape, row.clients))
    return replace(run, max_running=held) if held < row.clients else run


def case_of(row: AmdRow) -> Case:
    """A row as a request to the facade."""
    known = recipe_of(row)
    drafts = row.spec != "none" and known.draft_depth > 0
    scheduler = SchedulerSettings(
        max_running=max_running(row, known),
        token_budget=known.token_budget,
        chunk_size=known.token_budget,
        prefix_cache=False,
    )
    pool = PrefillPool(
        row.prefill_layout, row.prefill_workers, HANDOFFS.get(row.framework, ""), replace(scheduler, max_running=None)
    )
    deployment = Deployment(
        model=card_of(row).name,
        gpu=platform(row.gpu).name,
        engine=engine_profile(row.engine).name,
        layout=row.layout,
        precision=formats(row.precision, known),
        scheduler=scheduler,
        speculation=Speculation(row.spec, known.draft_depth) if drafts else Speculation(),
        replicas=row.decode_workers,
        prefill=pool if row.disagg else None,
    )
    return Case(deployment, closed_loop(row.shape, row.clients), known.poll(row.clients))


def max_running(row: AmdRow, known: Recipe) -> int | None:
    """Running cap of the launch; a recipe that lifts a speculating engine's own cap sets it to the clients."""
    cap = known.cap(row.spec != "none")
    if cap < NO_CAP:
        return cap
    return row.clients if row.spec != "none" and engine_profile(row.engine).spec_max_running else None


def measured_run(row: AmdRow) -> MeasuredRun:
    """What an anchor row reported."""
    return MeasuredRun(row.clients, row.tpot_ms, None, row.total_tok_s_per_gpu * row.gpus)


@dataclass(frozen=True, slots=True)
class AmdPredictor:
    """Anchors of one protocol, by stack and campaign."""

    anchors: Mapping[AnchorKey, Anchor]
    law: WidthLaw = "combined"

    def predict(self, assignment: Assignment) -> Prediction:
        """One target row."""
        row, source = assignment.row, assignment.anchor
        if source is None:
            raise DataUnavailable(f"row {row.index} of {row.stack} has no anchor")
        return predicted(case_of(row), self.anchors[(source.stack, source.campaign)], self.law)


def usable(rows: Sequence[AmdRow]) -> tuple[AmdRow, ...]:
    """Clean rows of a ladder; all of them where cleaning leaves too few to hold a curve."""
    clean = tuple(row for row in rows if not row.bad)
    return clean if len(clean) >= 3 else tuple(rows)


def anchor_of(name: str, ladders: Mapping[Shape, Sequence[AmdRow]]) -> Anchor:
    """The anchor file of one layout's ladders."""
    first = next(iter(ladders.values()))[0]
    side = side_of(first, first.layout, run_of(first))
    runs = {shape: [ServedPoint(driven(row), row.tpot_ms) for row in rows] for shape, rows in ladders.items()}
    solved = solve_anchor(side, runs, default_constants(side.platform))
    steps = SolvedSteps(side, {shape: ladder.curve for shape, ladder in solved.ladders.items()}, solved.prefill)
    measured = {shape: [(case_of(row), measured_run(row)) for row in rows] for shape, rows in ladders.items()}
    return artefact(name, steps, first.spec, measured)


def solve_all(layouts: Sequence[AnchorLayout], law: WidthLaw = "combined") -> AmdPredictor:
    """Make the anchors of a protocol."""
    anchors = {
        (layout.stack, layout.campaign): anchor_of(
            f"{layout.stack}#{layout.campaign}", {shape: usable(ladder) for shape, ladder in layout.ladders.items()}
        )
        for layout in layouts
    }
    return AmdPredictor(anchors, law)
