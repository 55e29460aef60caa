"""Protocol P3: other loads of a measured ladder, from its lightest, middle and heaviest load."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from evals.amd_anchors import LadderRows, p3_ladders
from evals.amd_predict import anchor_of, case_of
from evals.amd_rows import AmdRow, Shape
from evals.facade import predicted
from evals.scoring import Scored, answered, summary
from inferasim import Prediction


def score_p3(rows: Sequence[AmdRow]) -> dict[str, Any]:
    """Median errors over the other loads of every clean colocated ladder."""
    ladders = p3_ladders([row for row in rows if not row.extra])
    refused: Counter[str] = Counter()
    scored = p3_scored(ladders, refused)
    return {"ladders": len(ladders), **summary(scored), "refused": dict(refused)}


def p3_scored(ladders: Sequence[LadderRows], refused: Counter[str]) -> list[Scored]:
    """The other loads, predicted; ``refused`` counts what the product would not price.

    Ladders of one configuration at several shapes are solved together: two prompt lengths tell the cost of a prompt.
    """
    groups: dict[object, dict[Shape, LadderRows]] = defaultdict(dict)
    for ladder in ladders:
        first = ladder.given[0]
        groups[(first.stack, first.config_id, first.layout)][first.shape] = ladder
    return [s for key, group in groups.items() for s in _score_group(str(key), group, refused)]


def _score_group(name: str, group: dict[Shape, LadderRows], refused: Counter[str]) -> list[Scored]:
    anchor = anchor_of(name, {shape: ladder.given for shape, ladder in group.items()})
    return answered(
        (row for ladder in group.values() for row in ladder.targets),
        lambda row: _scored(row, predicted(case_of(row), anchor)),
        lambda row: f"row {row.index} of {row.stack}",
        refused,
    )


def _scored(row: AmdRow, told: Prediction) -> Scored:
    measured = {
        "tpot": row.tpot_ms,
        "total_tok_s_per_gpu": row.total_tok_s_per_gpu,
        "interactivity": 1e3 / row.tpot_ms,
    }
    answer = {
        "tpot": told.tpot_ms.mean,
        "total_tok_s_per_gpu": told.total_tok_s / row.gpus,
        "interactivity": told.interactivity_tok_s_user,
    }
    return Scored(measured, answer, {"row": row})
