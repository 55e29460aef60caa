"""How fast the simulator is, and that its fast engine of time equals the plain one.

Closed loops of 10·C requests on one vLLM-like replica under the step model of gpt-oss-120b on one H200 (graph
staircase and sliding-window kinks). *stepwise* is the plain loop that touches every running request at every step,
*lean* the best loop without runs, *fast* what ``simulate`` does by default; each includes mean, p50, p90 and p99 of all
latencies. Times are the least processor time of several repetitions after a first one that is not counted
(``fast_median_ms``: their median, ``fast_wall_ms``: the wall's least); no schedule is remembered between them.
"""

import argparse
import resource
import sys
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from statistics import median
from typing import Any, NamedTuple

from evals.corpus import parser, run
from evals.rival_dynosim import compare
from predictor.des.fleet import ReplicaSpec, simulate_fleet
from predictor.des.metrics import SimulationResult
from predictor.des.recorder import PROGRESS_EVERY
from predictor.des.schedule import cached_schedule, price
from predictor.des.schedulers import scheduler_rules
from predictor.des.simulator import simulate
from predictor.engines import effective_settings
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.step.model import StepModel
from predictor.step.simulate import simulate_step_model
from predictor.types import Arrival, Deployment, SchedulerSettings, Workload

CASES = ((1024, 1024, 16), (1024, 1024, 64), (1024, 1024, 256), (1024, 1024, 1024), (8192, 1024, 64))
KV_BLOCKS = 400_000  # endless, as in the study this is compared with
LATENCIES = ("ttft_ms", "ttft_from_admission_ms", "tpot_ms", "itl_ms", "e2e_ms")
DAY_S = 86_400.0
MODEL_NAME = "gpt-oss-120b on one H200, vLLM rules, simulate mode"
SPREAD = 0.5  # random lengths are uniform on nominal ± half


@lru_cache(maxsize=1)
def real_model() -> StepModel:
    """gpt-oss-120b on one H200 under vLLM, simulate mode."""
    card, gpu = model_card("gpt-oss-120b"), platform("H200")
    deployment = Deployment(model=card.name, gpu=gpu.name, engine="vLLM")
    settings = effective_settings(engine_profile("vLLM"), "", gpu, card, deployment)
    return simulate_step_model(card, gpu, deployment, settings)


def metrics(result: SimulationResult) -> dict[str, float]:
    """Every number a candidate is judged by."""
    values = {
        "output_tok_s": result.output_tok_s,
        "total_tok_s": result.total_tok_s,
        "duration_ms": result.duration_ms,
        "mean_running": result.mean_running,
        "mixed_step_frac": result.mixed_step_frac,
        "steps": float(result.steps),
        "preemptions": float(result.preemptions),
    }
    for name in LATENCIES:
        samples = getattr(result, name)
        values |= {f"{name}.{part}": getattr(samples, part) for part in ("mean", "p50", "p90", "p99")}
    return values


class Timed(NamedTuple):
    """Least wall and processor time of some repetitions, the median of the latter, and the metrics."""

    wall_ms: float
    cpu_ms: float
    median_ms: float
    values: dict[str, float]


def best_of(action: Callable[[], dict[str, float]], repetitions: int) -> Timed:
    """Repeat with nothing remembered. On a shared machine the processor time is the one to compare."""
    walls_ms, cpus_ms = [], []
    values = action() if repetitions > 1 else {}
    for _ in range(repetitions):
        cached_schedule.cache_clear()
        start, cpu_start = time.perf_counter(), time.process_time()
        values = action()
        walls_ms.append((time.perf_counter() - start) * 1000.0)
        cpus_ms.append((time.process_time() - cpu_start) * 1000.0)
    return Timed(min(walls_ms), min(cpus_ms), median(cpus_ms), values)


def most_difference(ours: Mapping[str, float], theirs: Mapping[str, float]) -> float:
    """Largest relative difference over all metrics."""
    return max(abs(value - theirs[name]) / max(abs(theirs[name]), 1e-300) for name, value in ours.items() if value)


def case(isl: int, osl: int, clients: int, lengths: str, repetitions: int) -> dict[str, Any]:
    """One row."""
    if lengths == "fixed":
        workload = Workload(isl, osl, clients)
    else:
        longest = 1.0 + SPREAD
        workload = Workload(
            round(isl * longest), round(osl * longest), clients, length_range_frac=(1.0 - SPREAD) / longest
        )
    model = real_model()
    rules = scheduler_rules("vLLM", "", SchedulerSettings(max_running=1024))

    def simulated(engine: str) -> Callable[[], dict[str, float]]:
        return lambda: metrics(simulate(model, workload, rules, kv_blocks=KV_BLOCKS, engine=engine))

    few = max(1, repetitions // 2)
    fast = best_of(simulated("runs"), repetitions)
    timed = best_of(simulated("timed_runs"), repetitions)
    lean = best_of(simulated("lean"), few)
    stepwise = best_of(simulated("stepwise"), 1 if clients > 64 else few)
    log = cached_schedule(workload, rules, KV_BLOCKS, 1.0, 0, 0)
    again = best_of(lambda: metrics(price(log, model)), repetitions)
    return {
        "isl": isl,
        "osl": osl,
        "lengths": lengths,
        "concurrency": clients,
        "requests": len(log.requests),
        "steps": int(fast.values["steps"]),
        "runs": len(log.runs),
        "fast_ms": round(fast.cpu_ms, 3),
        "fast_median_ms": round(fast.median_ms, 3),
        "fast_wall_ms": round(fast.wall_ms, 3),
        "priced_again_ms": round(again.cpu_ms, 3),
        "timed_runs_ms": round(timed.cpu_ms, 3),
        "lean_ms": round(lean.cpu_ms, 3),
        "stepwise_ms": round(stepwise.cpu_ms, 3),
        "ratio": round(stepwise.cpu_ms / fast.cpu_ms, 2),
        "lean_ratio": round(lean.cpu_ms / fast.cpu_ms, 2),
        "max_rel_diff": max(most_difference(other.values, stepwise.values) for other in (fast, timed, lean)),
    }


def million(requests: int) -> dict[str, Any]:
    """A day of open-loop traffic: Poisson arrivals over 24 hours, 1024/211 with random lengths, one replica."""
    longest = 1.0 + SPREAD
    workload = Workload(
        round(1024 * longest),
        round(211 * longest),
        arrival=Arrival.POISSON,
        request_rate_per_s=requests / DAY_S,
        requests_per_client=requests,
        length_range_frac=(1.0 - SPREAD) / longest,
    )
    spec = ReplicaSpec(real_model(), scheduler_rules("vLLM", "", SchedulerSettings()), KV_BLOCKS)

    def report(done: int) -> None:
        if sys.stderr.isatty() and done % (requests // 100) < PROGRESS_EVERY:
            filled = 40 * done // requests
            print(f"\r[{'#' * filled}{'.' * (40 - filled)}] {done:,} of {requests:,}", end="", file=sys.stderr)

    start, cpu_start = time.perf_counter(), time.process_time()
    result = simulate_fleet(spec, workload, progress=report)
    values = metrics(result)
    wall_s = time.perf_counter() - start
    return {
        "requests": result.completed,
        "simulated_h": round(result.duration_ms / 3.6e6, 3),
        "steps": result.steps,
        "runs_per_request": round(result.runs / result.completed, 3),
        "wall_s": round(wall_s, 2),
        "cpu_s": round(time.process_time() - cpu_start, 2),
        "requests_per_s": round(result.completed / wall_s, 1),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "itl_percentile_width": result.itl_ms.relative_width,
        "metrics": {name: round(value, 6) for name, value in values.items()},
    }


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """All cases, fixed and random lengths; or the day of traffic."""
    if args.rival:
        return {"rival": compare(args.rival_python, args.repetitions)}
    if args.million:
        return {"model": MODEL_NAME, "million": million(args.requests)}
    rows = []
    for lengths in ("fixed", "random"):
        for isl, osl, clients in CASES:
            if args.most_clients and clients > args.most_clients:
                continue
            row = case(isl, osl, clients, lengths, args.repetitions)
            rows.append(row)
            print(
                f"{isl}/{osl} C={clients} {lengths}: fast {row['fast_ms']} ms (median {row['fast_median_ms']}), "
                f"stepwise {row['stepwise_ms']} ms, "
                f"ratio {row['ratio']}, difference {row['max_rel_diff']:.1e}",
                file=sys.stderr,
            )
    return {"model": MODEL_NAME, "cases": rows}


def main() -> int:
    """Command line."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--repetitions", type=int, default=5, metavar="N", help="take the best of N (default 5)")
    arguments.add_argument("--most-clients", type=int, default=0, metavar="C", help="leave out cases above C clients")
    arguments.add_argument("--million", action="store_true", help="a day of open-loop traffic, in bounded memory")
    arguments.add_argument("--requests", type=int, default=1_000_000, metavar="N", help="requests of --million")
    arguments.add_argument("--rival", choices=["dynosim"], help="the same traffic and step times in another simulator")
    arguments.add_argument(
        "--rival-python", default=".rivals/dynosim/bin/python", metavar="PATH", help="Python of its environment"
    )
    return run(evaluate, arguments)


if __name__ == "__main__":
    sys.exit(main())
