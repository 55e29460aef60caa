"""Accuracy on the public AMD served-run corpus: ``python -m evals.corpus_amd --json``.

Anchors by rule A2; rows are InferenceX runs on MI300X, MI325X and MI355X (source in ``docs/corpora.md``). Nothing is
fitted to target rows. ``--extra FILE`` adds rows of the same format that are never anchors.
"""

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, get_args

from evals.amd_anchors import Assignment, assign, campaign_anchors
from evals.amd_predict import AmdPredictor, solve_all
from evals.amd_rows import AmdRow, cleaning_counts, load_rows
from evals.corpus import data_dir, parser, run
from evals.markdown import add_option, with_targets
from evals.p3 import score_p3
from evals.scoring import Option, PairScore, Scored, answered, breakdown, frontier, pair_score, spearman, summary
from inferasim import Prediction
from predictor.transfer import WidthLaw

LAWS: tuple[WidthLaw, ...] = get_args(WidthLaw)
PAPER = {
    "total_tok_s_per_gpu_median_ape_pct": 7.0,
    "interactivity_median_ape_pct": 6.0,
    "rows": "262, 159 of them splits",
}
# Same decode pool and load under ids at most 10 apart (20 pairs); colocated rows are never repeated.
NOISE_FLOOR_PCT = {"tpot_same_build": 0.1, "tpot_ids_11_to_40": 4.0, "tpot_ids_over_150": 20.0}


def score(
    assignments: Sequence[Assignment], predictor: AmdPredictor, refused: Counter[str] | None = None
) -> list[Scored]:
    """Every clean target, predicted; ``refused`` counts what the product would not price, by the kind of refusal."""
    return answered(
        (a for a in assignments if a.scored),
        lambda a: _scored(a, predictor.predict(a)),
        lambda a: f"row {a.row.index} of {a.row.stack}",
        refused,
    )


def _scored(a: Assignment, told: Prediction) -> Scored:
    row = a.row
    return Scored(
        measured={
            "tpot": row.tpot_ms,
            "interactivity": 1e3 / row.tpot_ms,
            "total_tok_s_per_gpu": row.total_tok_s_per_gpu,
        },
        predicted={
            "tpot": told.tpot_ms.mean,
            "interactivity": told.interactivity_tok_s_user,
            # GPUs as the corpus counts them: whole nodes of a pool are paid where its workers do not fill them.
            "total_tok_s_per_gpu": told.total_tok_s / row.gpus,
        },
        labels={
            "transfer": a.kind,
            "model": row.model,
            "engine": row.engine,
            "gpu": row.gpu,
            "spec": row.spec,
            "stack": row.stack,
            "same_build": a.same_build,
            "in_4x": a.in_4x,
            "disagg": row.disagg,
            "shape_mix": "shape_mix" in row.flags,
            "row": row,
            "id_gap": a.id_gap,
            "anchor": a.anchor,
            "prediction": told,
        },
    )


def groups(scored: Sequence[Scored]) -> dict[str, Any]:
    """The named groups of a report."""
    colocated = [s for s in scored if not s.labels["disagg"]]
    splits = [s for s in scored if s.labels["disagg"]]
    core = [s for s in colocated if s.labels["same_build"] and s.labels["in_4x"]]
    wider = [s for s in colocated if str(s.labels["transfer"]).startswith("TPx")]
    return {
        "colocated": summary(colocated),
        "colocated_core": summary(core),
        "colocated_without_shape_mix": summary([s for s in colocated if not s.labels["shape_mix"]]),
        "colocated_other_build": summary([s for s in colocated if not s.labels["same_build"]]),
        "disaggregated": summary(splits),
        "disaggregated_near": summary([s for s in splits if s.labels["same_build"]]),
        "disaggregated_no_r1": summary([s for s in splits if s.labels["model"] != "dsr1"]),
        "wider_tp": summary(wider),
        "by_transfer": breakdown(scored, "transfer"),
        "by_model": breakdown(colocated, "model"),
        "by_engine": breakdown(colocated, "engine"),
        "by_gpu": breakdown(colocated, "gpu"),
        "by_speculation": breakdown(colocated, "spec"),
        "by_stack": breakdown(scored, "stack"),
    }


Entry = tuple[AmdRow, float, float, bool]  # row, TPOT and throughput a GPU (of an anchor: measured), whether predicted


def entries(scored: Sequence[Scored], anchors: Sequence[AmdRow]) -> list[Entry]:
    """Predicted rows, and anchor rows with their measured values."""
    told = [(s.labels["row"], s.predicted["tpot"], s.predicted["total_tok_s_per_gpu"], True) for s in scored]
    return told + [(row, row.tpot_ms, row.total_tok_s_per_gpu, False) for row in anchors if not row.bad]


def pairs(every: Sequence[Entry]) -> dict[str, Any]:
    """Pair accuracy on total throughput: one stack, shape and load; at least one of the two predicted.

    ``any_engine`` widens the choice to all engines, precisions of one name and speculation of one GPU and model.
    """
    result: dict[str, Any] = {}
    for name, shared in (("", lambda row: row.stack), ("_any_engine", lambda row: (row.gpu, row.model, row.precision))):
        sets: dict[object, list[Entry]] = defaultdict(list)
        for entry in every:
            row = entry[0]
            sets[(shared(row), row.shape, row.clients)].append(entry)
        options = [[_option(*entry) for entry in group] for group in sets.values()]
        alike = [[_option(*entry) for entry in group if not entry[0].disagg] for group in sets.values()]
        equal: Callable[[Option, Option], bool] = lambda a, b: a.gpus == b.gpus  # noqa: E731
        result |= {
            f"equal_gpu_pairs{name}": _accuracy(pair_score(alike, equal)),
            f"equal_gpu_pairs_with_splits{name}": _accuracy(pair_score(options, equal)),
            f"throughput_pairs{name}": _accuracy(pair_score(alike)),
            f"gpu_count_rule_pairs{name}": _accuracy(pair_score(alike, by=lambda option: float(option.gpus))),
        }
    return result


def _option(row: AmdRow, tpot_ms: float, rate: float, predicted: bool) -> Option:
    return Option(row.total_tok_s_per_gpu * row.gpus, rate * row.gpus, row.gpus, row.layout.label(), predicted)


def _accuracy(score: PairScore) -> dict[str, Any]:
    return {"n": score.pairs, "acc_pct": score.acc_pct}


def frontier_hits(every: Sequence[Entry]) -> dict[str, Any]:
    """Share of measured frontier points (interactivity, throughput per GPU) that the predicted frontier keeps.

    A chart is one GPU, model and shape: all engines, precisions and layouts.
    """
    hit: dict[str, Any] = {}
    ranks: dict[str, Any] = {}
    for name, splits in (("colocated", False), ("all", True)):
        charts: dict[object, list[Entry]] = defaultdict(list)
        for entry in every:
            if splits or not entry[0].disagg:
                charts[(entry[0].gpu, entry[0].model, entry[0].shape)].append(entry)
        hits = points = 0
        found = []
        for rows in charts.values():
            measured = frontier([(1e3 / row.tpot_ms, row.total_tok_s_per_gpu) for row, _, _, _ in rows])
            hits += len(measured & frontier([(1e3 / tpot, rate) for _, tpot, rate, _ in rows]))
            points += len(measured)
            rank = spearman([row.total_tok_s_per_gpu for row, _, _, _ in rows], [rate for _, _, rate, _ in rows])
            found += [rank] if rank is not None else []
        hit |= {name: round(100.0 * hits / points, 1) if points else None, f"{name}_points": points}
        ranks[name] = round(median(found), 4) if found else None
    return {"frontier_hit_pct": hit, "spearman_median": ranks}


def worst(scored: Sequence[Scored], count: int = 20) -> list[dict[str, Any]]:
    """Rows with the largest TPOT errors."""
    order = sorted(scored, key=lambda s: -s.ape("tpot"))[:count]
    return [
        {
            "row": s.labels["row"].index,
            "stack": s.labels["stack"],
            "layout": s.labels["row"].layout.label(),
            "shape": "x".join(map(str, s.labels["row"].shape)),
            "clients": s.labels["row"].clients,
            "transfer": s.labels["transfer"],
            "tpot_ms": round(s.measured["tpot"], 2),
            "predicted_tpot_ms": round(s.predicted["tpot"], 2),
            "step_ms": {part: round(ms, 3) for part, ms in s.labels["prediction"].step_ms.items()},
            "flags": list(s.labels["row"].flags),
        }
        for s in order
    ]


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """The whole report."""
    corpus = data_dir(args.corpus)
    rows = load_rows(corpus, Path(args.extra) if args.extra else None)
    protocol = "P2" if args.protocol == "P3" else args.protocol
    assignments = assign(rows, protocol)
    layouts = campaign_anchors(rows, protocol)
    predictor = solve_all(layouts, args.law)
    refused: Counter[str] = Counter()
    scored = score(assignments, predictor, refused)
    own = [s for s in scored if not s.labels["row"].extra]
    extra = [s for s in scored if s.labels["row"].extra]
    anchor_rows = [a.row for a in assignments if a.kind == "anchor"]
    visible = [a for a in assignments if not a.row.extra]
    result: dict[str, Any] = {
        "rule": "A2",
        "protocol": args.protocol,
        "law": args.law,
        "anchors": {"layouts": len(layouts), "ladders": sum(len(a.ladders) for a in layouts), "rows": len(anchor_rows)},
        "rows": len(visible),
        "cleaning": cleaning_counts(row for row in rows if not row.extra),
        "covered_pct": _covered(visible),
        "uncovered": _uncovered(visible),
        "refused": dict(refused),
        "noise_floor_pct": NOISE_FLOOR_PCT,
        "paper": PAPER,
        **groups(own),
        "other_load": score_p3(rows),
        **pairs(entries(own, anchor_rows)),
        **frontier_hits(entries(own, anchor_rows)),
        "rival": None,
        "worst": worst(own),
    }
    if args.protocol == "P3":
        result["colocated"] = result["other_load"]
    if args.extra:
        held = [a for a in assignments if a.row.extra]
        result["extra"] = {
            "rows": len(held),
            "covered_pct": _covered(held),
            "uncovered": _uncovered(held),
            **groups(extra),
            "other_load": summary([]),  # a held-out ladder gives no loads
            **pairs(entries(extra, anchor_rows)),
            **frontier_hits(entries(extra, anchor_rows)),
            "rival": None,
            "worst": worst(extra),
        }
    print(f"{len(own)} targets scored, {len(extra)} extra", file=sys.stderr)
    return result


def _covered(assignments: Sequence[Assignment]) -> float | None:
    wanted = [a for a in assignments if a.kind != "anchor"]
    return round(100.0 * sum(a.target for a in wanted) / len(wanted), 1) if wanted else None


def _uncovered(assignments: Sequence[Assignment]) -> dict[str, int]:
    return dict(Counter(a.kind.split(": ")[1] for a in assignments if a.kind.startswith("uncovered")))


def main() -> int:
    """Command line."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--protocol", choices=("P1", "P2", "P3"), default="P2")
    arguments.add_argument("--extra", metavar="FILE", help="more rows of the same format, scored as targets only")
    arguments.add_argument("--law", choices=LAWS, default="combined")
    add_option(arguments)
    return run(with_targets(evaluate, "amd"), arguments)


if __name__ == "__main__":
    sys.exit(main())
