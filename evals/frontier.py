"""Measured frontiers kept by predictions, on the AMD corpus: ``python -m evals.frontier --json``.

Charts of throughput per GPU against interactivity over measured configurations, as in the paper's §5.8: rank within a
chart, measured frontier points that the predicted frontier keeps, throughput per GPU lost by deploying from it, and
whether splitting prefill from decode pays, by latency tier. Anchor rows take part as measured (an operator has them);
``anchors_left_out`` is the paper's own protocol, without them. Charts that hold anchors alone do not count.
``mi355x_without_dsr1``: the paper's GPU without DeepSeek-R1, which it does not report and whose colocated anchor is of
another build than its splits. ``papers_models``: the eight charts of its InferenceX rows.
``throughput_lost_pct``: what a configuration of the predicted frontier gives per GPU below the best one that serves
users as fast. ``picked_by_prediction``: what choosing for a speed by predictions alone costs. Sources:
``docs/corpora.md``.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from agent.tiers import read_tiers
from evals.candidates import Candidate, amd_candidate, amd_score, candidates
from evals.corpus import data_dir, parser, run
from evals.frontiers import Decision, charts, decisions, score_charts

# Paper §5.8, Tables 3 and 13: 25 charts, 529 points, anchors left out; tier decisions without drafters, 14 charts.
PAPER = {
    "charts": 25,
    "points": 529,
    "spearman_median": 0.99,
    "frontier_hit_pct": 83.0,
    "throughput_lost_pct": {"p50": 0.0, "p90": 0.7},
    "tier_decisions": {"right": 42, "total": 48},
}
# Its InferenceX charts alone (Table 13), and the models they hold; it names the GPU and models, not the rows.
PAPER_INFERENCEX = {"charts": 8, "points": 262, "spearman_median": 0.99, "frontier_hit_pct": 82.3}
PAPER_MODELS = {"dsv4", "glm5", "minimaxm3", "qwen3.5"}
TIER_RULE = "interactivity alone (the corpus has no TTFT), without drafters, all engines of a GPU, model and shape"


def tier_decisions(every: Sequence[Candidate]) -> dict[str, Any]:
    """Colocated or split by tier; drafters stay out, as their acceptance depends on the traffic (and in the paper)."""
    tiers = read_tiers()
    plain = [c for c in every if c.spec == "none"]
    told = [decision for chart in charts(plain) for decision in decisions(chart, tiers)]
    with_drafters = [decision for chart in charts(every) for decision in decisions(chart, tiers)]
    return {
        **_counted(told),
        "rule": TIER_RULE,
        "by_tier": {tier.name: _counted([d for d in told if d.tier == tier.name]) for tier in tiers},
        "wrong": [asdict(d) for d in told if not d.right],
        "right_if_always": {kind: sum(d.measured == kind for d in told) for kind in ("colocated", "split")},
        "with_drafters": _counted(with_drafters),
    }


def of_the_paper(candidate: Candidate) -> bool:
    """Whether a row is of the GPU and models that the paper's InferenceX charts hold."""
    return candidate.gpu == "mi355x" and candidate.model in PAPER_MODELS


def _whole(every: Sequence[Candidate]) -> dict[str, Any]:
    return {**score_charts(every), "tier_decisions": tier_decisions(every)}


def _counted(told: Sequence[Decision]) -> dict[str, int]:
    return {"right": sum(d.right for d in told), "total": len(told)}


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """The whole report."""
    score = amd_score(data_dir(args.corpus))
    every = candidates(score, amd_candidate)
    targets = [c for c in every if c.is_prediction]
    print(f"{len(targets)} targets, {len(every) - len(targets)} anchor rows", file=sys.stderr)
    return {
        **_whole(every),
        "colocated": score_charts([c for c in every if not c.split]),
        "anchors_left_out": _whole(targets),
        "mi355x_without_dsr1": _whole([c for c in every if c.gpu == "mi355x" and c.model != "dsr1"]),
        "papers_models": {
            **_whole([c for c in every if of_the_paper(c)]),
            "anchors_left_out": _whole([c for c in targets if of_the_paper(c)]),
            "paper": PAPER_INFERENCEX,
        },
        "by_gpu": {gpu: score_charts([c for c in every if c.gpu == gpu]) for gpu in sorted({c.gpu for c in every})},
        "refused": score.refused,
        "paper": PAPER,
    }


def main() -> int:
    """Command line."""
    return run(evaluate, parser(__doc__ or ""))


if __name__ == "__main__":
    sys.exit(main())
