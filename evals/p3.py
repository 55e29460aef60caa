"""Protocol P3: other loads of a measured ladder, from its lightest, middle and heaviest load."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from evals.amd_predict import measured_run, run_of, side_of
from evals.amd_rows import AmdRow, LadderRows, Shape, p3_ladders
from evals.scoring import Scored, summary
from evals.served import move_anchor, predict_colocated, rate_residual, solve_anchor
from predictor.transfer import default_constants


def score_p3(rows: Sequence[AmdRow]) -> dict[str, Any]:
    """Median errors over the other loads of every clean colocated ladder.

    Ladders of one configuration at several shapes are solved together: two prompt lengths tell the cost of a prompt.
    """
    ladders = p3_ladders([row for row in rows if not row.extra])
    groups: dict[object, dict[Shape, LadderRows]] = defaultdict(dict)
    for ladder in ladders:
        first = ladder.given[0]
        groups[(first.stack, first.config_id, first.layout)][first.shape] = ladder
    scored = [s for group in groups.values() for s in _score_group(group)]
    return {"ladders": len(ladders), **summary(scored)}


def _score_group(group: dict[Shape, LadderRows]) -> list[Scored]:
    first = next(iter(group.values())).given[0]
    side = side_of(first, first.layout, run_of(first))
    constants = default_constants(side.platform)
    runs = {shape: [measured_run(row) for row in ladder.given] for shape, ladder in group.items()}
    anchor = solve_anchor(side, runs, constants)
    result = []
    for shape, ladder in group.items():
        target = replace(side, context_tokens=anchor.ladders[shape].curve.context_tokens)
        moved = move_anchor(anchor, shape, target, constants)
        for row in ladder.targets:
            means = predict_colocated(moved, run_of(row))
            rate = means.requests_per_s * rate_residual(anchor, shape, row.clients)
            result.append(
                Scored(
                    {
                        "tpot": row.tpot_ms,
                        "total_tok_s_per_gpu": row.total_tok_s_per_gpu,
                        "interactivity": 1 / row.tpot_ms,
                    },
                    {
                        "tpot": means.tpot_ms,
                        "total_tok_s_per_gpu": rate * 0.9 * (row.isl + row.osl) / row.gpus,
                        "interactivity": 1 / means.tpot_ms,
                    },
                    {"row": row},
                )
            )
    return result
