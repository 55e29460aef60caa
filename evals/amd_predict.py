"""Predict AMD corpus rows from their A2 anchors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evals.amd_rows import AmdRow, AnchorLayout, Assignment
from evals.recipes import Recipe, recipe
from evals.served import (
    MeasuredRun,
    ServedAnchor,
    ServedMeans,
    SplitPools,
    move_anchor,
    predict_colocated,
    predict_split,
    rate_residual,
    solve_anchor,
)
from predictor.anchors.schedule import ClosedLoopRun
from predictor.anchors.solve import mean_context
from predictor.cards import ModelCard
from predictor.errors import DataUnavailable
from predictor.profiles.loader import model_card, platform
from predictor.transfer import KernelContext, TransferConstants, WidthLaw, default_constants
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

AnchorKey = tuple[str, int]


def formats(precision: str, kv: Dtype) -> Precision:
    """Number formats of a corpus precision label; int4 and fp4 are 4-bit experts."""
    weight = {"bf16": Dtype.BF16, "fp8": Dtype.FP8, "fp4": Dtype.FP4, "int4": Dtype.FP4}[precision]
    return Precision(weight=weight, linear=weight, expert=weight, kv=kv)


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
        precision=formats(row.precision, known.kv),
        engine=row.engine,
        context_tokens=mean_context(run),
        draft_depth=depth,
        tokens_per_step=TOKENS_PER_STEP[depth],
        allreduce=known.allreduce,
    )


def run_of(row: AmdRow) -> ClosedLoopRun:
    """How a row was driven. Ranks under attention DP each have a token budget of their own."""
    known = recipe_of(row)
    return ClosedLoopRun(
        clients=row.clients,
        isl_tokens=row.isl,
        osl_tokens=row.osl,
        max_running=known.cap(row.spec != "none"),
        token_budget=known.token_budget * row.layout.attn_dp,
        discipline=known.discipline,
        poll_steps=known.poll(row.clients),
    )


def requests_per_s(row: AmdRow) -> float:
    """Requests a second of the whole deployment, from the reported throughput."""
    return row.total_tok_s_per_gpu * row.gpus / (0.9 * (row.isl + row.osl))


def measured_run(row: AmdRow) -> MeasuredRun:
    """An anchor row as a run."""
    return MeasuredRun(run_of(row), row.tpot_ms, requests_per_s(row))


@dataclass(frozen=True, slots=True)
class AmdPredictor:
    """Solved anchors of one protocol, by stack and campaign."""

    anchors: Mapping[AnchorKey, ServedAnchor]
    law: WidthLaw = "combined"
    constants: TransferConstants | None = None

    def predict(self, assignment: Assignment) -> ServedMeans:
        """One target row."""
        row, source, shape = assignment.row, assignment.anchor, assignment.shape
        if source is None or shape is None:
            raise DataUnavailable(f"row {row.index} of {row.stack} has no anchor")
        anchor = self.anchors[(source.stack, source.campaign)]
        constants = self.constants or default_constants(anchor.side.platform)
        run = run_of(row)
        target = side_of(row, row.layout, run)
        moved = move_anchor(anchor, shape, target, constants, self.law)
        if not row.disagg:
            means = predict_colocated(moved, run)
            residual = rate_residual(anchor, shape, row.clients)
            return replace(means, requests_per_s=means.requests_per_s * residual)
        pool = side_of(row, row.prefill_layout, run)
        prefill = move_anchor(anchor, shape, pool, constants, self.law).prefill
        return predict_split(moved, SplitPools(row.decode_workers, row.prefill_workers, prefill), run)


def usable(rows: Sequence[AmdRow]) -> tuple[AmdRow, ...]:
    """Clean rows of a ladder; all of them where cleaning leaves too few to hold a curve."""
    clean = tuple(row for row in rows if not row.bad)
    return clean if len(clean) >= 3 else tuple(rows)


def solve_all(
    layouts: Sequence[AnchorLayout], law: WidthLaw = "combined", constants: TransferConstants | None = None
) -> AmdPredictor:
    """Solve the anchors of a protocol."""
    anchors = {}
    for layout in layouts:
        runs = {shape: [measured_run(row) for row in usable(ladder)] for shape, ladder in layout.ladders.items()}
        first = next(iter(layout.ladders.values()))[0]
        side = side_of(first, layout.layout, run_of(first))
        anchors[(layout.stack, layout.campaign)] = solve_anchor(
            side, runs, constants or default_constants(side.platform)
        )
    return AmdPredictor(anchors, law, constants)
