"""Protocol P3: other loads of a measured ladder, from its lightest, middle and heaviest load."""

from collections.abc import Sequence
from typing import Any

from evals.amd_predict import measured_run, run_of, side_of
from evals.amd_rows import AmdRow, LadderRows, p3_ladders
from evals.scoring import Scored, summary
from evals.served import MovedSteps, predict_colocated, solve_anchor, token_curve
from predictor.transfer import default_constants


def score_p3(rows: Sequence[AmdRow]) -> dict[str, Any]:
    """Median errors over the other loads of every clean colocated ladder."""
    ladders = p3_ladders([row for row in rows if not row.extra])
    scored = [s for ladder in ladders for s in _score_ladder(ladder)]
    return {"ladders": len(ladders), **summary(scored)}


def _score_ladder(ladder: LadderRows) -> list[Scored]:
    first = ladder.given[0]
    side = side_of(first, first.layout, run_of(first))
    constants = default_constants(side.platform)
    anchor = solve_anchor(side, {first.shape: [measured_run(row) for row in ladder.given]}, constants)
    solved = anchor.ladders[first.shape]
    steps = MovedSteps(token_curve(solved.curve, side.tokens_per_step), solved.prefill)
    result = []
    for row in ladder.targets:
        means = predict_colocated(steps, run_of(row))
        rate = means.requests_per_s * 0.9 * (row.isl + row.osl) / row.gpus
        result.append(
            Scored(
                {"tpot": row.tpot_ms, "total_tok_s_per_gpu": row.total_tok_s_per_gpu, "interactivity": 1 / row.tpot_ms},
                {"tpot": means.tpot_ms, "total_tok_s_per_gpu": rate, "interactivity": 1 / means.tpot_ms},
                {"row": row},
            )
        )
    return result
