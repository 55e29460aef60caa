"""80% prediction intervals by kind of transfer: ``python -m evals.intervals --json``.

Split-conformal: widths from one half of the stacks, checked on the other, both ways (every second stack by name; twenty
shuffled halves beside it). ``--write FILE`` makes the data file that the product ships, with widths from all stacks.
Kinds measured on fewer than six stacks have no width. Sources: ``docs/corpora.md``.
"""

import argparse
import sys
from collections.abc import Sequence
from math import exp
from pathlib import Path
from statistics import mean
from typing import Any

from evals.conformal import (
    MIN_STACKS,
    SHARE,
    Check,
    Key,
    Residual,
    check_both_ways,
    coverage_pct,
    enough_stacks,
    median_width_pct,
    widths,
)
from evals.corpus import data_dir, parser, run
from evals.interval_rows import every_residual
from predictor.intervals import KindWidths, Metric, calibrated_widths

SHUFFLES = 20
TARGET_PCT = (76.0, 84.0)
METRICS: tuple[Metric, ...] = ("tpot", "ttft", "throughput")
COMMAND = "python -m evals.intervals --write predictor/profiles/intervals.toml"
SOURCE = (
    "residuals of InferaSim on public served runs: InferenceX on MI300X, MI325X and MI355X (dump of 2026-07-20) and "
    "systems/silicon_sample.csv of aiconfigurator-core 0.12.0 (H100 to GB200); protocols P1, P2 and P3"
)


def calibrated(residuals: Sequence[Residual]) -> list[Residual]:
    """Residuals of the kinds and metrics that have enough stacks."""
    enough = enough_stacks(residuals)
    return [one for one in residuals if (one.kind, one.metric) in enough]


def kind_widths(residuals: Sequence[Residual]) -> list[KindWidths]:
    """Widths from all stacks as the product ships them, by name."""
    kept = calibrated(residuals)
    known = widths(kept)
    return [_kind(name, kept, known) for name in sorted({one.kind for one in kept})]


def _kind(name: str, residuals: Sequence[Residual], known: dict[Key, float]) -> KindWidths:
    of_kind = [one for one in residuals if one.kind == name]
    counts = [sum(one.metric == metric for one in of_kind) for metric in METRICS]
    factors = {m: round(exp(known[name, m]), 4) if (name, m) in known else None for m in METRICS}
    return KindWidths(name, max(counts), len({one.stack for one in of_kind}), **factors)


def toml_of(kinds: Sequence[KindWidths]) -> str:
    """The data file."""
    lines = [
        "# Widths of 80% prediction intervals by kind of transfer: four of five measured means lie within [x/f, x*f]",
        "# of the predicted mean x. Made by the command below; nothing is edited by hand.",
        f'source = "{SOURCE}"',
        f'command = "{COMMAND}"',
        f"share = {SHARE}",
    ]
    for kind in kinds:
        lines += ["", "[[kind]]", f'name = "{kind.name}"', f"rows = {kind.rows}", f"stacks = {kind.stacks}"]
        lines += [f"{m} = {factor}" for m in METRICS if (factor := getattr(kind, m)) is not None]
    return "\n".join(lines) + "\n"


def _group(checks: Sequence[Check]) -> dict[str, Any]:
    by_metric = {metric: [one for one in checks if one.residual.metric == metric] for metric in METRICS}
    return {
        "n": len(checks),
        "coverage_80_pct": coverage_pct(checks),
        "median_width_pct": median_width_pct(checks),
        "by_metric": {
            metric: {
                "n": len(group),
                "coverage_80_pct": coverage_pct(group),
                "median_width_pct": median_width_pct(group),
            }
            for metric, group in by_metric.items()
            if group
        },
    }


def _shuffled(residuals: Sequence[Residual]) -> dict[str, Any]:
    found = [coverage_pct(check_both_ways(residuals, seed)) for seed in range(SHUFFLES)]
    told = [pct for pct in found if pct is not None]
    if not told:
        return {"splits": 0}
    return {"splits": len(told), "mean_pct": round(mean(told), 1), "least_pct": min(told), "most_pct": max(told)}


def report(residuals: Sequence[Residual]) -> dict[str, Any]:
    """Coverage on stacks left out, widths, and what has no interval."""
    kept = calibrated(residuals)
    checks = check_both_ways(kept)
    kinds = kind_widths(residuals)
    enough = enough_stacks(residuals)
    thin = [one for one in residuals if (one.kind, one.metric) not in enough]
    return {
        **_group(checks),
        "target_pct": TARGET_PCT,
        "shuffled_halves": _shuffled(kept),
        "rows": len(residuals),
        "stacks": len({one.stack for one in residuals}),
        "by_transfer": [
            {
                "transfer": kind.name,
                "rows": kind.rows,
                "stacks": kind.stacks,
                **_group([one for one in checks if one.residual.kind == kind.name]),
                "factors": {metric: kind.factor(metric) for metric in METRICS},
            }
            for kind in kinds
        ],
        "not_calibrated": {
            "least_stacks": MIN_STACKS,
            "kinds": sorted({f"{one.kind}: {one.metric}" for one in thin}),
            "rows": len(thin),
        },
        "shipped_widths_are_these": kinds == list(calibrated_widths().kind),
    }


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """Residuals, the check and, where asked, the data file."""
    residuals = every_residual(data_dir(args.corpus), args.jobs)
    print(f"{len(residuals)} residuals", file=sys.stderr)
    if args.write:
        Path(args.write).write_text(toml_of(kind_widths(residuals)), encoding="utf-8")
        calibrated_widths.cache_clear()
    return report(residuals)


def main() -> int:
    """Command line."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--write", metavar="FILE", help="write the widths of all stacks as the product's data file")
    arguments.add_argument("--jobs", type=int, default=2, metavar="N", help="processes to predict on")
    return run(evaluate, arguments)


if __name__ == "__main__":
    sys.exit(main())
