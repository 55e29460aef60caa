"""Accuracy on the public AMD served-run corpus: ``python -m evals.corpus_amd --json``.

Anchors by rule A2; rows are InferenceX runs on MI300X, MI325X and MI355X (source in ``docs/corpora.md``). Nothing is
fitted to target rows. ``--extra FILE`` adds rows of the same format that are never anchors.
"""

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from evals.amd_predict import AmdPredictor, solve_all
from evals.amd_rows import AmdRow, Assignment, assign, campaign_anchors, cleaning_counts, load_rows
from evals.corpus import data_dir, parser, run
from evals.p3 import score_p3
from evals.scoring import Option, Scored, breakdown, frontier, pair_score, spearman, summary
from predictor.transfer import WidthLaw

LAWS: tuple[WidthLaw, ...] = get_args(WidthLaw)
PAPER = {
    "total_tok_s_per_gpu_median_ape_pct": 7.0,
    "interactivity_median_ape_pct": 6.0,
    "rows": "262, 159 of them splits",
}
# Same decode pool and load under ids at most 10 apart (20 pairs); colocated rows are never repeated.
NOISE_FLOOR_PCT = {"tpot_same_build": 0.1, "tpot_ids_11_to_40": 4.0, "tpot_ids_over_150": 20.0}


def score(assignments: Sequence[Assignment], predictor: AmdPredictor) -> list[Scored]:
    """Every clean target, predicted."""
    return [_scored(a, predictor) for a in assignments if a.target and not a.row.bad]


def _scored(a: Assignment, predictor: AmdPredictor) -> Scored:
    row, means = a.row, predictor.predict(a)
    tokens = 0.9 * (row.isl + row.osl)
    return Scored(
        measured={
            "tpot": row.tpot_ms,
            "interactivity": 1e3 / row.tpot_ms,
            "total_tok_s_per_gpu": row.total_tok_s_per_gpu,
        },
        predicted={
            "tpot": means.tpot_ms,
            "interactivity": 1e3 / means.tpot_ms,
            "total_tok_s_per_gpu": means.requests_per_s * tokens / row.gpus,
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


def choice_sets(
    scored: Sequence[Scored], anchors: Sequence[AmdRow], splits: bool
) -> list[list[tuple[AmdRow, float, float]]]:
    """Rows to choose between: one GPU, model, precision, shape and load. Anchor rows take part as measured."""
    sets: dict[object, list[tuple[AmdRow, float, float]]] = defaultdict(list)
    for row, tpot, rate in _values(scored, anchors):
        if splits or not row.disagg:
            sets[(row.gpu, row.model, row.precision, row.shape, row.clients)].append((row, tpot, rate))
    return [rows for rows in sets.values() if len(rows) > 1]


def _values(scored: Sequence[Scored], anchors: Sequence[AmdRow]) -> list[tuple[AmdRow, float, float]]:
    values = [(s.labels["row"], s.predicted["tpot"], s.predicted["total_tok_s_per_gpu"]) for s in scored]
    return values + [(row, row.tpot_ms, row.total_tok_s_per_gpu) for row in anchors if not row.bad]


def pairs(scored: Sequence[Scored], anchors: Sequence[AmdRow]) -> dict[str, Any]:
    """Pair accuracy on total throughput, and at equal GPU count beside the rule that uses no model."""
    sets = choice_sets(scored, anchors, splits=True)
    total = [
        [Option(r.total_tok_s_per_gpu * r.gpus, rate * r.gpus, r.gpus, r.stack) for r, _, rate in rows] for rows in sets
    ]
    equal = pair_score(total, lambda a, b: a.gpus == b.gpus)
    alike = [
        [Option(r.total_tok_s_per_gpu * r.gpus, rate * r.gpus, r.gpus) for r, _, rate in rows if not r.disagg]
        for rows in sets
    ]
    return {
        "equal_gpu_pairs": {"n": equal.pairs, "acc_pct": equal.acc_pct},
        "equal_gpu_pairs_colocated": _pair_dict(pair_score(alike, lambda a, b: a.gpus == b.gpus)),
        "throughput_pairs": _pair_dict(pair_score(total)),
        "gpu_count_rule_pairs": _pair_dict(pair_score(total, by=lambda option: float(option.gpus))),
    }


def _pair_dict(score: Any) -> dict[str, Any]:
    return {"n": score.pairs, "acc_pct": score.acc_pct}


def frontier_hits(scored: Sequence[Scored], anchors: Sequence[AmdRow]) -> dict[str, Any]:
    """Share of measured frontier points (interactivity, throughput per GPU) that the predicted frontier keeps."""
    result: dict[str, Any] = {}
    for name, splits in (("colocated", False), ("all", True)):
        charts: dict[object, list[tuple[AmdRow, float, float]]] = defaultdict(list)
        for row, tpot, rate in _values(scored, anchors):
            if splits or not row.disagg:
                charts[(row.stack, row.shape)].append((row, tpot, rate))
        hits = points = 0
        ranks = []
        for rows in charts.values():
            layouts = {(r.layout, r.disagg, r.config_id) for r, _, _ in rows}
            if len(layouts) < 2:
                continue
            measured = frontier([(1e3 / r.tpot_ms, r.total_tok_s_per_gpu) for r, _, _ in rows])
            predicted = frontier([(1e3 / tpot, rate) for _, tpot, rate in rows])
            hits += len(measured & predicted)
            points += len(measured)
            rank = spearman([r.total_tok_s_per_gpu for r, _, _ in rows], [rate for _, _, rate in rows])
            ranks += [rank] if rank is not None else []
        result[name] = round(100.0 * hits / points, 1) if points else None
        result[f"{name}_points"] = points
    return {"frontier_hit_pct": result}


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
    scored = score(assignments, predictor)
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
        "noise_floor_pct": NOISE_FLOOR_PCT,
        "paper": PAPER,
        **groups(own),
        "other_load": score_p3(rows),
        **pairs(own, anchor_rows),
        **frontier_hits(own, anchor_rows),
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
            **pairs([*own, *extra], anchor_rows),
            **frontier_hits(extra, []),
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
    return run(evaluate, arguments)


if __name__ == "__main__":
    sys.exit(main())
