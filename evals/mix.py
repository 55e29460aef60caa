"""The mix planner's picks against measured agentic runs: ``python -m evals.mix --json``.

Candidates are the agentic runs that an anchor covers (:mod:`evals.agentic`) and the anchors themselves, so every pick
was measured. The planner's own rule (:mod:`agent.mix.pick`) sees predictions only: interactivity 1000/ITL, TTFT, output
tokens a second per GPU. A slot is a model and tier that at least one candidate meets on hardware; its best is the most
throughput per GPU measured among those. ``within_12_pct`` includes the best; a pick that misses the tier on hardware,
or no pick, is ``missed`` and loses all. Runs without ITL or TTFT can only serve the tier without limits.

As in the paper (§5.11), runs of one layout at several session counts are candidates of their own, and the short list is
the planner's five best of them. ``by_layout`` lists each layout once, as ``inferasim mix`` does.
"""

import argparse
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from agent.mix.pick import Row, family, fill
from agent.pareto.frontier import X, Y
from agent.tiers import Tier, read_tiers
from evals import corpus
from evals.agentic import Run, gb300_runs, kimi_runs
from evals.agentic import evaluate as evaluate_agentic

# Paper §5.11, Table 15: six models on MI355X, 123 candidates.
PAPER = {
    "slots": 23,
    "best": 14,
    "within_12_pct": 16,
    "shortlist_best": 21,
    "shortlist_within_12_pct": 22,
    "missed": 2,
    "loss_median_pct": 0.0,
}
CLOSE = 0.88  # of the best: "within 12% of it"
LOST_PCT = 100.0
NEVER_MS = 1e12  # TTFT of a run that does not tell its own: over every limit


@dataclass(frozen=True, slots=True)
class Served:
    """What a run gives: tokens a second of one user, TTFT, output tokens a second per GPU."""

    tok_s_user: float
    ttft_ms: float
    per_gpu: float

    def meets(self, tier: Tier) -> bool:
        """Whether it serves a tier."""
        return tier.meets(self.tok_s_user, self.ttft_ms)


@dataclass(frozen=True, slots=True)
class RunChoice:
    """One measured run as a candidate."""

    run: Run
    measured: Served
    predicted: Served
    is_anchor: bool


def served(run: Run, ratio: Mapping[str, float]) -> Served:
    """A run's figures times the predicted over measured ratios; without ITL or TTFT it meets no limit."""
    told = run.itl is not None and run.ttft is not None and {"itl", "ttft"} <= ratio.keys()
    return Served(
        tok_s_user=1e3 / (run.itl * ratio["itl"]) if run.itl is not None and told else 0.0,
        ttft_ms=run.ttft * ratio["ttft"] if run.ttft is not None and told else NEVER_MS,
        per_gpu=run.tput * ratio["tput"] / run.gpus,
    )


EXACT = {"tput": 1.0, "itl": 1.0, "ttft": 1.0}


def choices(runs: Iterable[Run], report: Mapping[str, Any], splits: bool = False) -> list[RunChoice]:
    """Anchors as measured and covered runs as predicted; with ``splits`` the disaggregated runs too."""
    anchors = {(one["layout"], one["served_before"], one["anchor_sessions"]) for one in report["by_layout"]}
    ratios = {
        (one["layout"], one["served_before"], row["sessions"]): row["predicted_over_measured"]
        for one in report["by_layout"]
        for row in one["rows"]
        if row["covered"]
    }
    split_ratios = {(row["layout"], row["sessions"]): row["predicted_over_measured"] for row in report["split"]["rows"]}
    found = []
    for run in runs:
        key = (run.layout, run.served_before, run.sessions)
        if run.prefill_gpus:
            ratio = split_ratios.get((run.layout, run.sessions)) if splits else None
        else:
            ratio = EXACT if key in anchors else ratios.get(key)
        if ratio is not None:
            found.append(RunChoice(run, served(run, EXACT), served(run, ratio), key in anchors))
    return found


def as_row(choice: RunChoice, number: int) -> dict[str, Any]:
    """A candidate as the planner sees it: predictions only."""
    run = choice.run
    return {
        "i": number,
        X: choice.predicted.tok_s_user,
        Y: choice.predicted.per_gpu,
        "ttft_ms": choice.predicted.ttft_ms,
        "engine": run.engine,
        "weight": "fp4",
        "kv": "fp8",
        "label": f"{run.layout}{', cache warm' if run.served_before else ''}",
        "drafter": "none",
    }


def each_run(row: Row) -> Hashable:
    """Every run is a choice of its own, as in the paper."""
    return int(row["i"])


@dataclass(frozen=True, slots=True)
class SlotResult:
    """One model and tier: the pick, the measured best, and what the difference costs."""

    model: str
    tier: str
    best: RunChoice
    pick: RunChoice | None
    shortlist: tuple[RunChoice, ...]
    pick_meets: bool

    @property
    def loss_pct(self) -> float:
        """Throughput per GPU below the best; all of it where the pick misses the tier."""
        if self.pick is None or not self.pick_meets:
            return LOST_PCT
        return 100.0 * (1.0 - self.pick.measured.per_gpu / self.best.measured.per_gpu)

    def close(self, others: Iterable[RunChoice], tier: Tier) -> bool:
        """Whether one of these serves the tier within 12% of the best."""
        least = CLOSE * self.best.measured.per_gpu
        return any(one.measured.meets(tier) and one.measured.per_gpu >= least for one in others)


def fill_slot(
    model: str, tier: Tier, candidates: Sequence[RunChoice], distinct: Callable[[Row], Hashable] = each_run
) -> SlotResult | None:
    """The planner's choice for a slot; None where no candidate meets the tier on hardware."""
    meeting = [one for one in candidates if one.measured.meets(tier)]
    if not meeting:
        return None
    slot = fill(model, tier, [as_row(one, i) for i, one in enumerate(candidates)], distinct)
    pick = None if slot.pick is None else candidates[slot.pick["i"]]
    return SlotResult(
        model,
        tier.name,
        best=max(meeting, key=lambda one: one.measured.per_gpu),
        pick=pick,
        shortlist=tuple(candidates[row["i"]] for row in slot.shortlist),
        pick_meets=pick is not None and pick.measured.meets(tier),
    )


def score(
    candidates: Sequence[RunChoice], tiers: Sequence[Tier], distinct: Callable[[Row], Hashable] = each_run
) -> dict[str, Any]:
    """All slots together and by tier."""
    by_model: dict[str, list[RunChoice]] = {}
    for one in candidates:
        by_model.setdefault(f"{one.run.model} on {one.run.gpu}", []).append(one)
    results = [
        (tier, found)
        for tier in tiers
        for model, of_model in by_model.items()
        if (found := fill_slot(model, tier, of_model, distinct)) is not None
    ]
    return {
        "candidates": len(candidates),
        "anchors": sum(one.is_anchor for one in candidates),
        **counted(results),
        "by_tier": {tier.name: counted([(t, r) for t, r in results if t is tier]) for tier in tiers},
        "picks": [_told(tier, result) for tier, result in results],
    }


def counted(results: Sequence[tuple[Tier, SlotResult]]) -> dict[str, Any]:
    """The keys of a set of slots."""
    return {
        "slots": len(results),
        "best": sum(r.pick is r.best for _, r in results),
        "within_12_pct": sum(r.pick_meets and r.loss_pct <= 100.0 * (1.0 - CLOSE) for _, r in results),
        "shortlist_best": sum(r.best in r.shortlist for _, r in results),
        "shortlist_within_12_pct": sum(r.close(r.shortlist, tier) for tier, r in results),
        "missed": sum(not r.pick_meets for _, r in results),
        "no_pick": sum(r.pick is None for _, r in results),
        "loss_median_pct": round(median(r.loss_pct for _, r in results), 2) if results else None,
    }


def _told(tier: Tier, result: SlotResult) -> dict[str, Any]:
    return {
        "model": result.model,
        "tier": tier.name,
        "pick": None if result.pick is None else _run_json(result.pick),
        "best": _run_json(result.best),
        "shortlist": [_run_json(one) for one in result.shortlist],
        "pick_meets_tier": result.pick_meets,
        "loss_pct": round(result.loss_pct, 2),
    }


def _run_json(choice: RunChoice) -> dict[str, Any]:
    return {
        "layout": choice.run.layout,
        "engine": choice.run.engine,
        "sessions": choice.run.sessions,
        "cache_warm": choice.run.served_before,
        "anchor": choice.is_anchor,
        **{
            name: {
                "tok_s_user": round(of.tok_s_user, 2) or None,
                "ttft_ms": None if of.ttft_ms == NEVER_MS else round(of.ttft_ms, 2),
                "output_tok_s_per_gpu": round(of.per_gpu, 2),
            }
            for name, of in (("measured", choice.measured), ("predicted", choice.predicted))
        },
    }


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """Predict the agentic runs, then plan."""
    folder = corpus.data_dir(args.corpus) / "measured"
    runs = gb300_runs(folder) + kimi_runs(folder)
    predicted = evaluate_agentic(args)
    tiers = read_tiers()
    colocated, every = choices(runs, predicted), choices(runs, predicted, splits=True)
    print(f"{len(colocated)} colocated candidates, {len(every) - len(colocated)} splits", file=sys.stderr)
    return {
        **score(colocated, tiers),
        "by_layout": _without_picks(score(colocated, tiers, family)),
        "with_splits": score(every, tiers),
        "paper": PAPER,
    }


def _without_picks(told: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if name != "picks"}


def main() -> int:
    """Command line."""
    return corpus.run(evaluate, corpus.parser(__doc__ or ""))


if __name__ == "__main__":
    sys.exit(main())
