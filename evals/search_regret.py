"""Regret of the seed search on spaces small enough to enumerate, beside random search and Optuna's TPE.

Each space fixes all levers but a few, so that every legal deployment can be priced and the true optimum is known. The
three searches then look scores up in that table. A budget counts priced candidates: what is illegal or does not fit
costs nothing, for TPE as for the others. Regret is how much worse the best legal candidate found is than the optimum,
in percent of the optimum, 100 where none was found. Random search and TPE run once for each random seed; neither knows
its budget, so one run tells what it had found at each. Spaces are spread over the cores.
"""

import argparse
import math
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from agent.evaluate import Evaluator
from evals.corpus import parser, run
from levers.build import search_context, with_pins
from levers.catalog import LEVERS
from levers.context import LeverValue, SearchContext
from levers.legality import illegal_reasons, memory_fits
from levers.objectives import objective, parse_slo
from levers.search import SeedSearch
from levers.space import Setting, canonical, defaults, to_deployment, with_followers
from predictor.predict import Catalogue
from predictor.types import Deployment, Mode, Workload

BUDGETS = (50, 150, 300)
RANDOM_SEEDS = 3
NOTHING_FOUND_PCT = 100.0
SUGGESTIONS = 3  # of TPE for each priced candidate, at most
Launched = tuple[Deployment, Workload]
Table = dict[Launched, tuple[float | None, bool, float]]  # signed score, legal, shortfall


@dataclass(frozen=True, slots=True)
class Space:
    """One enumerable space: what is deployed, what is optimised, and which levers are open."""

    name: str
    model: str
    gpu: str
    engine: str
    objective: str
    slos: tuple[str, ...]
    workload: Workload
    levers: tuple[str, ...]


SPACES = (
    Space("DeepSeek-R1, SGLang: output per GPU under TPOT", "DeepSeek-R1", "MI355X", "SGLang",
          "output_tok_s_per_gpu", ("tpot_ms<=25",), Workload(8192, 1024, 64),
          ("tp", "ep", "attn_dp", "max_running", "chunk_size", "spec_method")),
    Space("Llama-3.1-70B, vLLM: output under TPOT", "Llama-3.1-70B", "H100", "vLLM", "output_tok_s",
          ("tpot_ms<=25",), Workload(4096, 512, 128),
          ("tp", "replicas", "max_running", "token_budget", "graph_mode", "spec_method")),
    Space("MiniMax-M2.5, ATOM: TPOT at a rate", "MiniMax-M2.5", "MI355X", "ATOM", "tpot_ms", ("output_tok_s>=3000",),
          Workload(1024, 1024, 64),
          ("tp", "ep", "attn_dp", "max_running", "token_budget", "spec_method", "allreduce")),
    Space("Qwen3-235B-A22B, TensorRT-LLM: total per GPU under TPOT", "Qwen3-235B-A22B", "H200", "TensorRT-LLM",
          "total_tok_s_per_gpu", ("tpot_ms<=31",), Workload(2048, 1024, 128),
          ("tp", "ep", "attn_dp", "token_budget", "chunk_size", "graph_max_bs")),
    Space("Qwen3.6-35B-A3B, vLLM: interactivity at a rate", "Qwen3.6-35B-A3B", "B200", "vLLM",
          "interactivity_tok_s_user", ("output_tok_s>=5000",), Workload(8192, 1024, 32),
          ("tp", "ep", "attn_dp", "spec_method", "spec_depth", "concurrency", "allreduce")),
    Space("gpt-oss-120b, SGLang: TTFT under TPOT", "gpt-oss-120b", "MI300X", "SGLang", "ttft_ms", ("tpot_ms<=8",),
          Workload(8192, 1024, 128),
          ("tp", "replicas", "pp", "chunk_size", "token_budget", "max_running")),
    Space("Kimi-K2.5, vLLM: total per GPU under TPOT", "Kimi-K2.5", "B300", "vLLM", "total_tok_s_per_gpu",
          ("tpot_ms<=18",), Workload(4096, 1024, 64),
          ("tp", "ep", "attn_dp", "a2a_backend", "moe_backend", "max_running", "graph_mode")),
)  # fmt: skip


def context_of(space: Space) -> SearchContext:
    """The search context with every lever pinned but the space's own."""
    opened = [lever.name for lever in LEVERS if lever.name in space.levers and lever.group in ("load", "precision")]
    here = search_context(model=space.model, gpu=space.gpu, engine=space.engine, workload=space.workload, free=opened)
    start = defaults(here)
    return with_pins(here, {lever.name: start[lever.name] for lever in LEVERS if lever.name not in space.levers})


def points(context: SearchContext, levers: tuple[str, ...]) -> Iterator[tuple[tuple[LeverValue, ...], Setting]]:
    """Every combination of the open levers' values, with its setting."""
    start = defaults(context)
    choices = [lever.values(context) for lever in LEVERS if lever.name in levers]
    names = [lever.name for lever in LEVERS if lever.name in levers]
    for chosen in product(*choices):
        changes = dict(zip(names, chosen, strict=True))
        yield chosen, canonical(with_followers(changes, start, context), context)


def enumerate_space(
    evaluator: Evaluator, levers: tuple[str, ...]
) -> tuple[Table, dict[tuple[LeverValue, ...], Launched], int]:
    """Score of every deployment that is legal and fits, the deployment of every such combination, and the points seen.

    Points are the distinct deployments that are legal in structure, whether they fit or not.
    """
    context = evaluator.context
    refused: dict[Launched, bool] = {}  # legal in structure: whether memory refuses it
    illegal: set[Launched] = set()
    launched_by: dict[tuple[LeverValue, ...], Launched] = {}
    for chosen, setting in points(context, levers):
        launched = to_deployment(setting, context)
        if launched in illegal:
            continue
        if launched not in refused:
            if illegal_reasons(*launched, context):
                illegal.add(launched)
                continue
            refused[launched] = bool(memory_fits(*launched, context))
        if not refused[launched]:
            launched_by[chosen] = launched
    fit = [launched for launched, too_big in refused.items() if not too_big]
    judged = {launched: evaluator.evaluate(*launched) for launched in sorted(fit, key=_schedule_key)}
    table = {one: (judged[one].signed_score, judged[one].legal, judged[one].shortfall) for one in fit}
    return table, launched_by, len(refused)


def _schedule_key(launched: Launched) -> str:
    """Deployments that share a schedule get neighbouring keys, so that it is found while it is remembered."""
    deployment, workload = launched
    shares = deployment.layout.attn_dp * deployment.replicas
    return repr((workload.concurrency, shares, deployment.speculation, deployment.scheduler, deployment.layout))


def best_legal(table: Mapping[Any, tuple[float | None, bool, float]]) -> float:
    """The largest signed score among legal deployments; -inf where there is none."""
    return max((score for score, legal, _ in table.values() if legal and score is not None), default=-math.inf)


def regret_pct(found: float, optimum: float) -> float:
    """How much worse than the optimum, percent of the optimum."""
    return NOTHING_FOUND_PCT if math.isinf(found) else 100.0 * (optimum - found) / abs(optimum)


def seed_search(context: SearchContext, table: Table, budget: int) -> float:
    """Best legal score of the seed search."""
    search, found = SeedSearch(context, budget), -math.inf
    while not search.done:
        candidate = search.ask()
        assert candidate is not None
        score, legal, shortfall = table[candidate.deployment, candidate.workload]
        search.tell(candidate, score, legal, shortfall)
        found = max(found, score) if legal and score is not None else found
    return found


def random_search(table: Table, seed: int) -> dict[int, float]:
    """Best legal score of distinct deployments drawn at random, by budget."""
    outcomes = list(table.values())
    order = np.random.default_rng(seed).permutation(len(outcomes))
    return {budget: best_legal({i: outcomes[i] for i in order[:budget].tolist()}) for budget in BUDGETS}


def tpe_search(
    table: Table,
    launched_by: Mapping[tuple[LeverValue, ...], Launched],
    choices: list[tuple[str, tuple[LeverValue, ...]]],
    seed: int,
) -> dict[int, float]:
    """Best legal score of multivariate TPE by budget, over the same levers, bounds and legality as its constraint.

    A suggestion that is illegal, does not fit or was priced before costs no budget, up to ``SUGGESTIONS`` for each.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    worst = min(score for score, _, _ in table.values() if score is not None)
    priced: set[Launched] = set()
    best, found = -math.inf, dict.fromkeys(BUDGETS, -math.inf)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler = optuna.samplers.TPESampler(
            seed=seed, multivariate=True, constraints_func=lambda trial: trial.user_attrs["constraint"]
        )
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for suggested in range(SUGGESTIONS * max(BUDGETS)):
            running = [budget for budget in BUDGETS if len(priced) < budget and suggested < SUGGESTIONS * budget]
            if not running:
                break
            trial = study.ask()
            chosen = tuple(values[trial.suggest_categorical(name, range(len(values)))] for name, values in choices)
            launched = launched_by.get(chosen)
            score, legal, shortfall = table[launched] if launched else (None, False, math.inf)
            trial.set_user_attr("constraint", (0.0 if legal else 1.0 + min(shortfall, 10.0),))
            study.tell(trial, worst if score is None else score)
            if launched is not None:
                priced.add(launched)
            best = max(best, score) if legal and score is not None else best
            found |= dict.fromkeys(running, best)
    return found


def score_space(space: Space, seeds: int) -> dict[str, Any]:
    """One space: its size, its optimum and the three searches' regrets at every budget."""
    started = time.process_time()
    here = context_of(space)
    catalogue = Catalogue(here.card, here.platform, here.engine, ())
    slos = tuple(parse_slo(text) for text in space.slos)
    evaluator = Evaluator(here, catalogue, objective(space.objective), slos, Mode.SIMULATE, tell_fusions=False)
    table, launched_by, seen = enumerate_space(evaluator, space.levers)
    optimum = best_legal(table)
    say(f"{space.name}: {seen} points, {len(table)} priced in {time.process_time() - started:.0f} CPU s; now searches")
    choices = [(lever.name, lever.values(here)) for lever in LEVERS if lever.name in space.levers]
    runs = {
        "seed": [{budget: seed_search(here, table, budget) for budget in BUDGETS}],
        "random": [random_search(table, seed) for seed in range(seeds)],
        "tpe": [tpe_search(table, launched_by, choices, seed) for seed in range(seeds)],
    }
    regrets = {
        name: {str(budget): [regret_pct(run[budget], optimum) for run in found] for budget in BUDGETS}
        for name, found in runs.items()
    }
    cpu_s = time.process_time() - started
    say(f"{space.name}: seed regret {', '.join(f'{at}: {each[0]:.2f}%' for at, each in regrets['seed'].items())}")
    return {
        "space": space.name,
        "points": seen,
        "fit": len(table),
        "legal": sum(legal for _, legal, _ in table.values()),
        "optimum": abs(optimum),
        "regret_pct": regrets,
        "cpu_s": round(cpu_s, 1),
    }


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def evaluate(args: argparse.Namespace) -> Mapping[str, Any]:
    """All spaces, and the medians over spaces and random seeds."""
    chosen = [space for space in SPACES if args.space.lower() in space.name.lower()]
    started = time.perf_counter()
    spaces = Parallel(n_jobs=args.jobs)(delayed(score_space)(space, args.seeds) for space in chosen)

    def medians(name: str) -> dict[str, float]:
        return {
            str(budget): median(regret for space in spaces for regret in space["regret_pct"][name][str(budget)])
            for budget in BUDGETS
        }

    return {f"{name}_median_regret_pct": medians(name) for name in ("seed", "random", "tpe")} | {
        "cpu_s": round(sum(space["cpu_s"] for space in spaces), 1),
        "wall_s": round(time.perf_counter() - started, 1),
        "spaces": spaces,
    }


def part_of_name(text: str) -> str:
    """A text that some space's name contains."""
    if not any(text.lower() in space.name.lower() for space in SPACES):
        raise argparse.ArgumentTypeError(f"{text!r} is in no name: {'; '.join(space.name for space in SPACES)}")
    return text


def main() -> int:
    """Command line."""
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--seeds", type=int, default=RANDOM_SEEDS, help="random seeds of random search and TPE")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes")
    arguments.add_argument("--space", type=part_of_name, default="", help="only spaces whose name contains this")
    return run(evaluate, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
