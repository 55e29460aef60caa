"""Accuracy on the public NVIDIA served-run corpus: ``python -m evals.corpus_nvidia --json``.

Measured rows are those of ``systems/silicon_sample.csv`` in the package aiconfigurator-core; kinds and anchors are
those of the public protocol file (sources in ``docs/corpora.md``). Nothing is fitted to target rows. The rival's
predictions of the same rows are printed beside. ``--extra FILE`` adds rows of the package's format that are never
anchors.
"""

import argparse
import csv
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from evals.corpus import data_dir, parser, run
from evals.markdown import add_option, with_targets
from evals.nvidia_predict import NvidiaPredictor, card_of, solve_all
from evals.nvidia_rows import (
    RIVAL_FILE,
    NvidiaAssignment,
    NvidiaRow,
    assign,
    assign_extra,
    flag_counts,
    ladder_rows,
    load_extra,
    load_rows,
    proxy_tok_s,
)
from evals.nvidia_widths import two_widths
from evals.scoring import Option, Scored, answered, breakdown, frontier, pair_score, spearman, summary
from inferasim import Prediction
from predictor.transfer import WidthLaw

# Repeats of one layout, shape, load and image in the corpus, medians (closed-form study of the corpus).
NOISE_FLOOR_PCT = {"tpot_same_image": 0.7, "ttft_same_image": 3.7, "proxy_same_image": 0.8, "tpot_other_image": 12.8}
LOAD_BANDS = ((4, "1-4"), (16, "5-16"), (64, "17-64"), (1 << 30, "65+"))

Rival = Mapping[str, tuple[float, float]]


def rival_predictions(corpus: Path) -> dict[str, tuple[float, float]]:
    """Predicted (TTFT, TPOT) of the rival by row id; repaired square widths, which its file has wrong, left out."""
    path = corpus / RIVAL_FILE
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {
            line["id"]: (float(line["pred_ttft_ms"]), float(line["pred_tpot_ms"]))
            for line in csv.DictReader(file)
            if line["pred_tpot_ms"] and not line["error"]
        }


def score(
    assignments: Sequence[NvidiaAssignment], predictor: NvidiaPredictor, refused: Counter[str] | None = None
) -> list[Scored]:
    """Every clean colocated target, predicted; ``refused`` counts what the product would not price, by kind."""
    return answered(
        (a for a in assignments if a.scored),
        lambda a: _scored(a, predictor.predict(a)),
        lambda a: f"row {a.row.id}",
        refused,
    )


def _values(row: NvidiaRow, ttft_ms: float, tpot_ms: float) -> dict[str, float]:
    return {
        "tpot": tpot_ms,
        "ttft": ttft_ms,
        "interactivity": 1e3 / tpot_ms,
        "throughput_proxy": proxy_tok_s(row.clients, row.osl, ttft_ms, tpot_ms),
    }


def _scored(a: NvidiaAssignment, told: Prediction) -> Scored:
    row = a.row
    return Scored(
        _values(row, row.ttft_ms, row.tpot_ms),
        _values(row, told.ttft_ms.mean, told.tpot_ms.mean),
        {
            "transfer": a.kind,
            "model": row.model,
            "engine": row.backend,
            "gpu": row.system,
            "stack": row.stack,
            "moe": "MoE" if card_of(row).is_moe else "dense",
            "load": next(name for most, name in LOAD_BANDS if row.clients <= most),
            "harness": "gap-analysis" if "gap-analysis" in row.build else "InferenceX",
            "same_build": a.same_build,
            "in_4x": a.in_4x,
            "ttft_agrees": "ttft_shape_conflict" not in row.flags,
            "anchor": a.anchor,
            "prediction": told,
            "row": row,
        },
    )


def rival_scored(scored: Sequence[Scored], rival: Rival) -> tuple[list[Scored], list[Scored]]:
    """Our and the rival's answers on the rows the rival answers."""
    ours, theirs = [], []
    for s in scored:
        row: NvidiaRow = s.labels["row"]
        if row.id in rival and "repaired_square" not in row.flags:
            ours.append(s)
            theirs.append(Scored(s.measured, _values(row, *rival[row.id]), s.labels))
    return ours, theirs


def beside_rival(scored: Sequence[Scored], rival: Rival) -> dict[str, Any]:
    """The rival's errors, and ours on the rows that it answers."""
    ours, theirs = rival_scored(scored, rival)
    return {
        "name": "AIConfigurator 0.12.0",
        "colocated": summary(theirs),
        "ours_same_rows": summary(ours),
        "wider_tp": summary([s for s in theirs if str(s.labels["transfer"]).startswith("TPx")]),
        "by_engine": breakdown(theirs, "engine"),
    }


def groups(scored: Sequence[Scored]) -> dict[str, Any]:
    """The named groups of a report."""
    wider = [s for s in scored if str(s.labels["transfer"]).startswith("TPx")]
    core = [s for s in scored if s.labels["same_build"] and s.labels["in_4x"]]
    return {
        "colocated": summary(scored),
        "colocated_core": summary(core),
        "ttft_agrees_over_shapes": summary([s for s in scored if s.labels["ttft_agrees"]]),
        "wider_tp": summary(wider),
        "wider_tp_by_kind": breakdown(wider, "moe"),
        "wider_tp_by_engine": breakdown(wider, "engine"),
        **{f"by_{label}": breakdown(scored, label) for label in ("transfer", "model", "engine", "gpu", "load")},
        "by_harness": breakdown(scored, "harness"),
        "by_stack": breakdown(scored, "stack"),
    }


# ---- choices -------------------------------------------------------------------------------------------------------

Entry = tuple[NvidiaRow, float, bool]  # row, its predicted (or, of an anchor, measured) proxy, whether predicted

# What the options of a choice share besides GPU, model, shape and load.
CHOICES: dict[str, Callable[[NvidiaRow], object]] = {
    "equal_gpu_pairs": lambda row: row.precision,
    "equal_gpu_pairs_one_stack": lambda row: row.stack,
    "equal_gpu_pairs_any_precision": lambda row: "",
}


def choice_sets(
    scored: Sequence[Scored], anchors: Sequence[NvidiaRow], shared: Callable[[NvidiaRow], object]
) -> list[list[Entry]]:
    """Rows to choose between. Anchor rows take part as measured."""
    sets: dict[object, list[Entry]] = defaultdict(list)
    entries = [(s.labels["row"], s.predicted["throughput_proxy"], True) for s in scored]
    entries += [(row, row.proxy, False) for row in anchors if row.clean and not row.split]
    for row, value, predicted in entries:
        sets[(row.system, row.model, shared(row), row.shape, row.clients)].append((row, value, predicted))
    return [rows for rows in sets.values() if len(rows) > 1]


def pairs(scored: Sequence[Scored], anchors: Sequence[NvidiaRow], rival: Rival) -> dict[str, Any]:
    """Pairs of equal GPU count by throughput proxy, at least one of the two predicted."""
    return {name: _pairs(choice_sets(scored, anchors, shared), rival) for name, shared in CHOICES.items()}


def _pairs(groups_: Sequence[Sequence[Entry]], rival: Rival) -> dict[str, Any]:
    sets = [[Option(row.proxy, value, row.gpus, row.id, told) for row, value, told in rows] for rows in groups_]
    rows = {row.id: row for group in groups_ for row, _, _ in group}

    def rivals_value(option: Option) -> float:
        row = rows[option.name]
        return proxy_tok_s(row.clients, row.osl, *rival[option.name])

    def rival_answers(a: Option, b: Option) -> bool:
        told = all(o.name in rival and "repaired_square" not in rows[o.name].flags for o in (a, b))
        return a.gpus == b.gpus and told

    equal = pair_score(sets, lambda a, b: a.gpus == b.gpus)
    ours, theirs = pair_score(sets, rival_answers), pair_score(sets, rival_answers, by=rivals_value)
    everything, rule = pair_score(sets), pair_score(sets, by=lambda option: float(option.gpus))
    return {
        "n": equal.pairs,
        "acc_pct": equal.acc_pct,
        "rival_same_pairs": {"n": ours.pairs, "ours_acc_pct": ours.acc_pct, "rival_acc_pct": theirs.acc_pct},
        "all_pairs": {"n": everything.pairs, "acc_pct": everything.acc_pct},
        "gpu_count_rule": {"n": rule.pairs, "acc_pct": rule.acc_pct},
    }


def frontier_hits(scored: Sequence[Scored], anchors: Sequence[NvidiaRow]) -> dict[str, Any]:
    """Share of measured frontier points (interactivity, proxy per GPU) that the predicted frontier keeps."""
    charts: dict[object, list[tuple[NvidiaRow, float, float]]] = defaultdict(list)
    for s in scored:
        row = s.labels["row"]
        charts[(row.system, row.model, row.shape)].append(
            (row, s.predicted["interactivity"], s.predicted["throughput_proxy"] / row.gpus)
        )
    for row in anchors:
        if row.clean and not row.split:
            charts[(row.system, row.model, row.shape)].append((row, 1e3 / row.tpot_ms, row.proxy / row.gpus))
    hits = points = 0
    ranks = []
    for rows in charts.values():
        measured = frontier([(1e3 / row.tpot_ms, row.proxy / row.gpus) for row, _, _ in rows])
        hits += len(measured & frontier([(speed, rate) for _, speed, rate in rows]))
        points += len(measured)
        rank = spearman([row.proxy / row.gpus for row, _, _ in rows], [rate for _, _, rate in rows])
        ranks += [rank] if rank is not None else []
    middle = sorted(ranks)[len(ranks) // 2] if ranks else None
    return {
        "frontier_hit_pct": {"colocated": round(100.0 * hits / points, 1) if points else None, "points": points},
        "spearman_median": round(middle, 4) if middle is not None else None,
    }


def worst(scored: Sequence[Scored], count: int = 20) -> list[dict[str, Any]]:
    """Rows with the largest TPOT errors."""
    return [
        {
            "id": s.labels["row"].id,
            "transfer": s.labels["transfer"],
            **{f"{m}_ms": round(s.measured[m], 2) for m in ("tpot", "ttft")},
            **{f"predicted_{m}_ms": round(s.predicted[m], 2) for m in ("tpot", "ttft")},
            "step_ms": {part: round(ms, 3) for part, ms in s.labels["prediction"].step_ms.items()},
            "flags": list(s.labels["row"].flags),
        }
        for s in sorted(scored, key=lambda s: -s.ape("tpot"))[:count]
    ]


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """The whole report."""
    corpus = data_dir(args.corpus)
    rows, lines = load_rows(corpus)
    rival = rival_predictions(corpus)
    assignments = assign(rows, lines, args.protocol)
    ladders = ladder_rows(assignments)
    predictor = solve_all(ladders, args.law)
    refused: Counter[str] = Counter()
    scored = score(assignments, predictor, refused)
    anchor_rows = [row for ladder in ladders.values() for row in ladder]
    result: dict[str, Any] = {
        "rule": "A2",
        "protocol": args.protocol,
        "law": args.law,
        "anchors": {"layouts": len(predictor.anchors), "ladders": len(ladders), "rows": len(anchor_rows)},
        "rows": len(lines),
        "cleaning": flag_counts(lines),
        **_coverage(assignments),
        "refused": dict(refused),
        "noise_floor_pct": NOISE_FLOOR_PCT,
        **groups(scored),
        "disaggregated": {"n": sum(a.row.split for a in assignments), "scored": 0, "reason": SPLITS_REASON},
        "other_load": _other_load(rows, lines, args.law, rival) if args.protocol != "P3" else summary(scored),
        "two_widths": two_widths(rows, args.law),
        **pairs(scored, anchor_rows, rival),
        **frontier_hits(scored, anchor_rows),
        "rival": beside_rival(scored, rival),
        "worst": worst(scored),
    }
    if args.extra:
        extra = load_extra(Path(args.extra), rows, len(lines))
        placed = assign_extra(extra, ladders)
        refused = Counter()
        extra_scored = score(placed, predictor, refused)
        result["extra"] = {
            "rows": len(extra),
            **_coverage(placed),
            "refused": dict(refused),
            **groups(extra_scored),
            "disaggregated": {"n": sum(a.row.split for a in placed), "scored": 0, "reason": SPLITS_REASON},
            **pairs(extra_scored, anchor_rows, rival),
            **frontier_hits(extra_scored, anchor_rows),
            "rival": beside_rival(extra_scored, rival),
            "worst": worst(extra_scored),
        }
    print(f"{len(scored)} targets scored", file=sys.stderr)
    return result


SPLITS_REASON = "prefill workers and hand-off are not recorded; colocated rows only"


def _other_load(
    rows: Sequence[NvidiaRow], lines: Sequence[Mapping[str, str]], law: WidthLaw, rival: Rival
) -> dict[str, Any]:
    assignments = assign(rows, lines, "P3")
    scored = score(assignments, solve_all(ladder_rows(assignments), law))
    return {**summary(scored), "by_engine": breakdown(scored, "engine"), "rival": beside_rival(scored, rival)}


def _coverage(assignments: Sequence[NvidiaAssignment]) -> dict[str, Any]:
    wanted = [a for a in assignments if a.kind != "anchor" and not a.row.split]
    covered = sum(a.target for a in wanted)
    missing = Counter(
        a.kind.removeprefix("uncovered").removeprefix(": ") or "no ladder of 4 loads" for a in wanted if not a.target
    )
    return {"covered_pct": round(100.0 * covered / len(wanted), 1) if wanted else None, "uncovered": dict(missing)}


def main() -> int:
    """Command line."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--protocol", choices=("P1", "P2", "P3"), default="P2")
    arguments.add_argument("--extra", metavar="FILE", help="more rows of the package's format, scored as targets only")
    arguments.add_argument("--law", choices=get_args(WidthLaw), default="combined")
    add_option(arguments)
    return run(with_targets(evaluate, "nvidia"), arguments)


if __name__ == "__main__":
    sys.exit(main())
