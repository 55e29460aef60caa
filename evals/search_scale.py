"""The search study of paper App. D.3: every objective, four models, with and without a bound, on agentic requests.

Seed searches only, nothing from an LLM. Searches over one model share predictions, since a candidate costs the same
whatever is optimised; each search still makes and records its own trials.
"""

import argparse
import sys
import time
from collections.abc import Mapping
from typing import Any

from agent.anchor_files import bundled_anchors
from agent.evaluate import Evaluator, Memo
from agent.request import TuningRequest
from agent.search import SearchResult, seed_search
from evals.corpus import parser, run
from levers.objectives import OBJECTIVES
from predictor.predict import Catalogue

MODELS = ("DeepSeek-V4-Pro", "GLM-5.2", "MiniMax-M3", "Qwen3.5-397B-A17B")
CLUSTER, ENGINE = "MI355X:8", "sglang"
ISL_TOKENS, OSL_TOKENS, CLIENTS = 130_000, 900, 32  # the request shape of the study; its load is not given
SLO = "interactivity_tok_s_user>=25"  # the responsive tier of paper Table 15
# A search ends after its seeds, combinations and polish rounds; the study scored 56,328 candidates in 192 searches.
BUDGET = 293


def request(model: str, objective: str, slo: str | None) -> TuningRequest:
    """One search of the study; load and formats are open, so that the whole space is searched."""
    return TuningRequest(
        model=model,
        cluster=CLUSTER,
        engine=ENGINE,
        objective=objective,
        slos=() if slo is None else (slo,),
        isl=ISL_TOKENS,
        osl=OSL_TOKENS,
        concurrency=CLIENTS,
        free=("concurrency", "precision"),
        budget=BUDGET,
    )


def search(model: str, objective: str, slo: str | None, memo: Memo) -> SearchResult:
    """Run one search; nothing is written to a ledger."""
    asked = request(model, objective, slo)
    anchors = tuple(one for one in bundled_anchors() if one.signature.model == model)
    context = asked.context(anchors)
    goal = next(one for one in OBJECTIVES if one.name == objective)
    catalogue = Catalogue(context.card, context.platform, context.engine, anchors)
    evaluator = Evaluator(context, catalogue, goal, asked.parsed_slos(), memo=memo)
    return seed_search(evaluator, asked.budget, lambda trial: None)


def evaluate(args: argparse.Namespace) -> Mapping[str, Any]:
    """All searches; times are of this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    rows: list[dict[str, Any]] = []
    candidates = changed = speculated = 0
    for model in args.models or MODELS:
        memo: Memo = {}
        for objective in OBJECTIVES:
            found = {slo: search(model, objective.name, slo, memo) for slo in (None, SLO)}
            plain, bounded = (found[slo].best for slo in (None, SLO))
            candidates += sum(result.counts()["scored"] for result in found.values())
            moved = (plain and dict(plain.levers)) != (bounded and dict(bounded.levers))
            changed += moved
            drafted = [one is not None and one.levers["spec_method"] != "none" for one in (plain, bounded)]
            speculated += sum(drafted)
            done = time.process_time() - cpu
            print(
                f"{model}, {objective.name}: {len(memo)} deployments priced, {done:.0f} CPU s so far", file=sys.stderr
            )
            rows.append(
                {
                    "model": model,
                    "objective": objective.name,
                    "best": plain and plain.judged.score,
                    "best_with_slo": bounded and bounded.judged.score,
                    "slo_changed": moved,
                    "speculation": drafted,
                    "trials": [len(result.trials) for result in found.values()],
                    "reasons": found[None].reasons(),
                }
            )
    return {
        "searches": 2 * len(rows),
        "candidates": candidates,
        "cpu_s": round(time.process_time() - cpu, 1),
        "wall_s": round(time.perf_counter() - wall, 1),
        "slo_changed": changed,
        "speculation_won": speculated,
        "slo": SLO,
        "paper": {"searches": 192, "candidates": 56_328, "cpu_s": [10_800, 28_800]},
        "rows": rows,
    }


if __name__ == "__main__":
    arguments = parser(__doc__ or "")
    arguments.add_argument("--models", nargs="*", help="only these models")
    raise SystemExit(run(evaluate, arguments))
