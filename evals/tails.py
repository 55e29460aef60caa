"""Tails against real per-request records: p50 and p99 of TTFT, ITL, TPOT and E2E (paper §5.4).

``python -m evals.tails --json``. Step times come from anchor rows only: :mod:`evals.tails_closed` for closed loops,
:mod:`evals.tails_poisson` for Poisson arrivals.
Targets: p99 TPOT within 10.7%, p99 E2E within 9.8% at the median, the paper's figures on its own runs; repeated runs
there differ by 1–4% on these p99s, and the repeats of this corpus are printed beside.
"""

import argparse
from collections.abc import Sequence
from statistics import median
from typing import Any

from evals.corpus import data_dir, parser, run
from evals.request_runs import METRICS, closed_runs, spread_pct
from evals.tails_closed import TailRow, anchor_repeats, closed_rows, target_groups
from evals.tails_poisson import poisson_rows

PAPER_PCT = {"tpot": 10.7, "e2e": 9.8, "itl": 13.8}  # paper §5.4, median over 88 runs of at least 160 requests
PAPER_MIN_REQUESTS = 160


def ape_pct(row: TailRow, key: str) -> float:
    """Absolute percentage error of one statistic."""
    return abs(row.predicted[key] / row.measured[key] - 1.0) * 100.0


def medians(rows: Sequence[TailRow], statistic: str = "p99") -> dict[str, float]:
    """Median error of one statistic by metric."""
    return {
        f"{metric}_{statistic}_median_ape_pct": round(median(ape_pct(row, f"{metric}_{statistic}") for row in rows), 2)
        for metric in METRICS
    }


def as_json(row: TailRow) -> dict[str, Any]:
    """A row for people: measured, predicted and error of each statistic."""
    figures = {
        key: {
            "measured_ms": round(row.measured[key], 2),
            "predicted_ms": round(row.predicted[key], 2),
            "error_pct": round((row.predicted[key] / row.measured[key] - 1.0) * 100.0, 1),
        }
        for key in row.measured
    }
    spread = None if row.spread_pct is None else {k: round(v, 2) for k, v in row.spread_pct.items()}
    return {
        "name": row.name,
        "requests": row.requests,
        "repeats": row.repeats,
        "repeat_half_range_pct": spread,
        **figures,
    }


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """Simulate every target and compare."""
    data = data_dir(args.corpus)
    rows = [*closed_rows(data), *poisson_rows(data)]
    runs = closed_runs(data)
    repeated = [group for group in (*target_groups(runs), *anchor_repeats(runs)) if len(group) > 1]
    floor = {
        f"{metric}_p99": round(median(s for g in repeated if (s := spread_pct(g, f"{metric}_p99")) is not None), 2)
        for metric in METRICS
    }
    many = [row for row in rows if row.requests >= PAPER_MIN_REQUESTS]
    return {
        "n": len(rows),
        **medians(rows),
        **medians(rows, "p50"),
        "from_160_requests": {"n": len(many), **medians(many)},
        "paper_p99_median_ape_pct": PAPER_PCT,
        "noise_floor_half_range_pct": {"setups": len(repeated), **floor},
        "rows": [as_json(row) for row in rows],
    }


if __name__ == "__main__":
    raise SystemExit(run(evaluate, parser(__doc__.splitlines()[0])))
