"""Order of configurations in choice sets: ``python -m evals.ranking --json``.

A choice set is one GPU, model, precision, request shape and number of clients; within one stack (one engine and
speculation method), as an operator with one anchor chooses, and over all engines beside it. A pair is decisive where
the measured values differ by over 3%; a predicted tie counts half. Top-1: how often the pick by predicted throughput is
the measured best. Regret: how far the pick's measured throughput is below the best's. The rule without a model says
that more GPUs give more throughput, so pairs of equal GPU count stand apart, with the rival's order of the same pairs.

``--mode simulate`` predicts every row from kernel models alone, on the same sets and pairs; rows that the product
would not price are counted. Sources: ``docs/corpora.md``.
"""

import argparse
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.candidates import (
    Candidate,
    amd_candidate,
    amd_measured,
    amd_score,
    any_engine,
    candidates,
    choice_sets,
    nvidia_candidate,
    nvidia_measured,
    nvidia_score,
    one_stack,
)
from evals.corpus import data_dir, parser, run
from evals.corpus_nvidia import rival_predictions
from evals.nvidia_rows import NvidiaRow, proxy_tok_s
from evals.scoring import Option, PairScore, pair_score, quantile
from evals.simulated_rows import resimulated

# Paper Table 11: 42 choice sets of its own fixed-length runs.
PAPER = {
    "anchored": {
        "throughput_pairs": 68,
        "throughput_pair_acc_pct": 93.4,
        "tpot_pairs": 89,
        "tpot_pair_acc_pct": 85.4,
        "top1_pct": 73,
        "regret_pct": {"p50": 0.0, "p90": 0.2},
    },
    "simulate": {
        "throughput_pairs": 68,
        "throughput_pair_acc_pct": 89.0,
        "tpot_pairs": 89,
        "tpot_pair_acc_pct": 84.3,
        "top1_pct": 59,
        "regret_pct": {"p50": 0.0, "p90": 6.2},
    },
}

Choices = Sequence[Sequence[Candidate]]
RivalRates = Mapping[str, float]  # the rival's throughput by row


@dataclass(frozen=True, slots=True)
class Picks:
    """What choosing by predicted throughput leads to, over sets."""

    sets: int
    best: int
    regrets_pct: tuple[float, ...]  # ascending

    def as_json(self) -> dict[str, Any]:
        """Top-1 and regret; None without sets."""
        return {
            "top1_pct": round(100.0 * self.best / self.sets, 1) if self.sets else None,
            "regret_pct": {"p50": quantile(self.regrets_pct, 0.5), "p90": quantile(self.regrets_pct, 0.9)},
        }


def picks(sets: Choices) -> Picks:
    """Take the highest predicted throughput of each set (of equals the first), and see what it was worth."""
    regrets = []
    best = 0
    for options in sets:
        pick = max(options, key=lambda c: c.predicted_tok_s)
        top = max(c.tok_s for c in options)
        best += pick.tok_s == top
        regrets.append(100.0 * (1.0 - pick.tok_s / top))
    return Picks(len(sets), best, tuple(sorted(regrets)))


def throughput(c: Candidate) -> Option:
    """A candidate by throughput."""
    return Option(c.tok_s, c.predicted_tok_s, c.gpus, c.name, c.is_prediction)


def tpot(c: Candidate) -> Option:
    """A candidate by TPOT."""
    return Option(c.tpot_ms, c.predicted_tpot_ms, c.gpus, c.name, c.is_prediction)


def score_sets(sets: Choices, rival: RivalRates) -> dict[str, Any]:
    """The keys of one corpus, or of several together."""
    by_rate = [[throughput(c) for c in options] for options in sets]
    by_tpot = [[tpot(c) for c in options] for options in sets]
    rates, tpots = pair_score(by_rate), pair_score(by_tpot)
    rule = pair_score(by_rate, by=lambda option: float(option.gpus))
    tpot_rule = pair_score(by_tpot, by=lambda option: -float(option.gpus))
    return {
        "sets": len(sets),
        "pairs": rates.pairs,
        "throughput_pair_acc_pct": rates.acc_pct,
        "tpot_pairs": tpots.pairs,
        "tpot_pair_acc_pct": tpots.acc_pct,
        "gpu_count_rule_pair_acc_pct": rule.acc_pct,
        "gpu_count_rule_tpot_pair_acc_pct": tpot_rule.acc_pct,
        "equal_gpu": equal_gpu(by_rate, by_tpot, rival),
        **picks(sets).as_json(),
    }


def equal_gpu(
    by_rate: Sequence[Sequence[Option]], by_tpot: Sequence[Sequence[Option]], rival: RivalRates
) -> dict[str, Any]:
    """Pairs of equal GPU count, and the same of those that the rival answers."""

    def equal(a: Option, b: Option) -> bool:
        return a.gpus == b.gpus

    def answered(a: Option, b: Option) -> bool:
        return equal(a, b) and a.name in rival and b.name in rival

    rates = pair_score(by_rate, equal)
    ours, theirs = pair_score(by_rate, answered), pair_score(by_rate, answered, by=lambda o: rival[o.name])
    return {
        "pairs": rates.pairs,
        "throughput_pair_acc_pct": rates.acc_pct,
        "tpot_pair_acc_pct": pair_score(by_tpot, equal).acc_pct,
        "rival_pair_acc_pct": theirs.acc_pct,
        "rival_same_pairs": {"pairs": ours.pairs, **_side_by_side(ours, theirs)},
    }


def _side_by_side(ours: PairScore, theirs: PairScore) -> dict[str, Any]:
    return {"ours_acc_pct": ours.acc_pct, "rival_acc_pct": theirs.acc_pct}


def rival_rates(corpus: Path, every: Sequence[NvidiaRow]) -> dict[str, float]:
    """The rival's throughput proxy of the rows it answers; repaired square widths, wrong in its file, left out."""
    answers = rival_predictions(corpus)
    return {
        row.id: proxy_tok_s(row.clients, row.osl, *answers[row.id])
        for row in every
        if row.id in answers and "repaired_square" not in row.flags
    }


def report(amd: Sequence[Candidate], nvidia: Sequence[Candidate], rival: RivalRates) -> dict[str, Any]:
    """Both corpora together, apart, and over engines."""

    def part(key: Callable[[Candidate], Hashable], *groups: Sequence[Candidate]) -> dict[str, Any]:
        return score_sets([options for group in groups for options in choice_sets(group, key)], rival)

    colocated = [c for c in amd if not c.split]
    return {
        **part(one_stack, colocated, nvidia),
        "amd": {
            **part(one_stack, colocated),
            "with_splits": part(one_stack, amd),
            "any_engine": part(any_engine, colocated),
        },
        "nvidia": {**part(one_stack, nvidia), "any_engine": part(any_engine, nvidia)},
        "any_engine": part(any_engine, colocated, nvidia),
    }


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """The whole report of one mode."""
    corpus = data_dir(args.corpus)
    if args.mode == "simulate":
        amd, nvidia = resimulated(amd_measured(corpus)), resimulated(nvidia_measured(corpus))
    else:
        amd, nvidia = amd_score(corpus), nvidia_score(corpus)
    rows = [s.labels["row"] for s in (*nvidia.scored, *nvidia.anchors)]
    print(f"{len(amd.scored)} AMD and {len(nvidia.scored)} NVIDIA targets", file=sys.stderr)
    return {
        "mode": args.mode,
        "refused": {"amd": amd.refused, "nvidia": nvidia.refused},
        "choice_set": "one stack, request shape and number of clients; any_engine: one GPU, model and precision",
        **report(candidates(amd, amd_candidate), candidates(nvidia, nvidia_candidate), rival_rates(corpus, rows)),
        "paper": PAPER[args.mode],
    }


def main() -> int:
    """Command line."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--mode", choices=("anchored", "simulate"), default="anchored")
    return run(evaluate, arguments)


if __name__ == "__main__":
    sys.exit(main())
