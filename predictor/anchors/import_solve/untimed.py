"""Imported ladders whose files hold no TTFT: solved from TPOT alone (:mod:`predictor.anchors.tpot_ladders`)."""

from collections.abc import Sequence

import numpy as np

from predictor.anchors.import_solve.ladder import ServedRun, Shape, SolvedLadders, SolvedSweep
from predictor.anchors.import_solve.served import side_of
from predictor.anchors.import_solve.setting import Setting
from predictor.anchors.schedule import ClosedLoopRun
from predictor.anchors.solve import ServedPoint, SolvedLadder
from predictor.anchors.tpot_ladders import solve_anchor
from predictor.transfer.constants import default_constants
from predictor.types import Arrival, StartMode

NOTE = "no TTFT was recorded: a prompt's fixed part is drawn from TPOT over loads and other ladders, not measured"


def solves_without_ttft(shapes: Sequence[Shape], setting: Setting) -> bool:
    """Whether these runs are closed loops of one scheduler that recorded mean TPOT and no first token."""
    return setting.deployment.layout.attn_dp == 1 and all(
        run.recorded.ttft_ms is None
        and run.recorded.tpot_ms is not None
        and run.recorded.tpot_is_mean
        and run.workload.arrival is Arrival.CLOSED
        for shape in shapes
        for run in shape.runs
    )


def solve_without_ttft(shapes: Sequence[Shape], setting: Setting) -> SolvedLadders:
    """Steps of every shape and the prompt's cost."""
    runs = {
        (shape.isl_tokens, shape.osl_tokens): [
            ServedPoint(closed_run(run), run.recorded.tpot_ms) for run in shape.runs if run.recorded.tpot_ms is not None
        ]
        for shape in shapes
    }
    first = shapes[0]
    side = side_of(setting, first.context_tokens, first.runs[0].tokens_per_step)
    solved = solve_anchor(side, runs, default_constants(setting.platform))
    ladders = [solved.ladders[shape.isl_tokens, shape.osl_tokens] for shape in shapes]
    notes = dict.fromkeys(note for ladder in ladders for note in ladder.notes)
    return SolvedLadders(
        sweeps=tuple(_sweep(shape, ladder) for shape, ladder in zip(shapes, ladders, strict=True)),
        prefill=solved.prefill,
        host_ms=0.0,
        prefill_error_pct=float("inf"),
        tpot_residual_pct=float(np.median([ladder.residual_pct for ladder in ladders])),
        ttft_residual_pct=None,
        notes=(NOTE, *notes),
    )


def closed_run(run: ServedRun) -> ClosedLoopRun:
    """A run as the closed-loop schedule takes it."""
    workload, rules = run.workload, run.rules
    tokens = (workload.isl_tokens + workload.osl_tokens) * (1.0 + workload.length_range_frac) / 2.0
    held = max(1, int(run.kv_blocks * rules.block_tokens / tokens))
    return ClosedLoopRun(
        clients=workload.concurrency,
        isl_tokens=workload.isl_tokens,
        osl_tokens=workload.osl_tokens,
        length_range_frac=workload.length_range_frac,
        requests_per_client=workload.requests_per_client,
        max_running=min(rules.running_cap, held),
        token_budget=rules.prompt_budget,
        discipline="mixed" if rules.mixed_steps else "prefill_first",
        chunked=rules.chunked_prefill,
        start="staggered" if workload.start is StartMode.STAGGERED else "burst",
    )


def _sweep(shape: Shape, ladder: SolvedLadder) -> SolvedSweep:
    curve = ladder.curve
    return SolvedSweep(
        shape,
        curve.batches,
        curve.step_ms,
        tuple(float("inf") for _ in curve.batches),
        ladder.residual_pct,
        ladder.determined,
    )
