"""How fast a sweep of the paper's size runs: 13 models, three engines, two request shapes, on MI355X nodes.

The paper sweeps 13 models and 169,962 points. The space here is larger, so it is thinned evenly to ``--points``; every
fixed-length point is simulated request by request, split pools too, and after them a stated sample of trace points.
``--share`` prices one task in so many only, and says what the whole would take; ``--resume-check`` kills and resumes a
small sweep.
"""

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from agent.pareto import SweepRequest, run_sweep
from evals.corpus import data_dir, parser, run

MODELS = (
    "DeepSeek-R1",
    "DeepSeek-V3.2",
    "DeepSeek-V4-Flash",
    "DeepSeek-V4-Pro",
    "GLM-5",
    "GLM-5.2",
    "gpt-oss-120b",
    "Kimi-K2.5",
    "Kimi-K3",
    "MiniMax-M2.7",
    "MiniMax-M3",
    "Qwen3-14B",
    "Qwen3.5-397B-A17B",
)
PAPER_POINTS = 170_000  # paper §5.8: 169,962
# Trace points are simulated on a clock with their prefix caches, so a sample of them is played: the paper's 8,490 take
# an hour.
TRACE_POINTS = 1000
TRACE = "traces/agentic_coding_small.jsonl.gz"  # 610 requests in 8 sessions of a recorded coding agent
TRACE_REQUESTS = 300


def request(points: int) -> SweepRequest:
    """The sweep that is timed."""
    return SweepRequest(
        models=MODELS,
        cluster="MI355X:8x2",
        shapes=("1024/1024", "8192/1024"),
        split_depths=(3,),
        pipelines=False,  # priced in closed form only, and every point here is simulated
        most_points=points,
    )


def traced_request(points: int, trace: Path) -> SweepRequest:
    """Trace points of the same models: with and without a host tier, with and without a drafter."""
    return SweepRequest(
        models=MODELS,
        cluster="MI355X:8x2",
        shapes=(),
        traces=(str(trace),),
        trace_requests=TRACE_REQUESTS,
        concurrencies=(1, 2, 4, 8),
        split_depths=(3,),
        most_points=points,
    )


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """Time the sweep, or a share of its tasks, and after it the sample of trace points."""
    asked = request(args.points)
    traced = traced_request(args.trace_points, data_dir(args.corpus) / TRACE)
    start, cpu = time.perf_counter(), cpu_s()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "points.jsonl"
        sweep = run_sweep(asked, out=out, jobs=args.jobs, one_task_in=args.share, progress=shown)
        size = out.stat().st_size
    fixed_s = time.perf_counter() - start
    played = run_sweep(traced, jobs=args.jobs, one_task_in=args.share, progress=shown)
    wall_s = time.perf_counter() - start
    stop_workers(args.jobs)
    used = cpu_s() - cpu
    listing = sweep.listing_cpu_s + played.listing_cpu_s
    done = sum(one.priced + sum(one.refused.values()) for one in (sweep, played))
    whole_points = sweep.points + played.points
    result: dict[str, Any] = {
        "models": len(MODELS),
        "points": done,
        "fixed_length_points": done - played.priced - sum(played.refused.values()),
        "trace_points": played.priced + sum(played.refused.values()),
        "trace_sample": f"the first {TRACE_REQUESTS} requests of {Path(TRACE).name}",
        "priced": sweep.priced + played.priced,
        "refused": {"fixed_length": dict(sweep.refused), "trace": dict(played.refused)},
        "wall_s": round(wall_s, 1),
        "fixed_length_wall_s": round(fixed_s, 1),
        "cpu_s": round(used, 1),
        "points_per_s": round(done / wall_s, 1),
        "cpu_ms_per_point": round(1000.0 * (used - listing) / done, 2),
        "listing_cpu_s": round(listing, 1),
        "peak_rss_mb": round(peak_rss_mb(args.jobs)),
        "simulated_share": round((sweep.simulated + played.simulated) / (sweep.priced + played.priced), 4),
        "jobs": args.jobs,
        "file_mb": round(size / 1e6, 1),
        "whole_points": whole_points,
    }
    if args.share > 1:
        whole_cpu = listing + (used - listing) * whole_points / done
        result["whole"] = {"cpu_s": round(whole_cpu), "wall_s_on_two_cores": round(whole_cpu / 2.0)}
    if args.resume_check:
        result["killed_and_resumed_same"] = resume_check()
    return result


def shown(done: int, points: int) -> None:
    """Progress for a person."""
    if done % 5000 < 288:
        print(f"{done} of {points} points", file=sys.stderr)


def cpu_s() -> float:
    """Processor time of this process and of those it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def peak_rss_mb(jobs: int) -> float:
    """Peak memory of this process, and of its workers as if all of them peaked at once as the largest did."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss if jobs > 1 else 0
    return (own + jobs * worker) / 1024.0  # ru_maxrss is in KiB on Linux


def stop_workers(jobs: int) -> None:
    """End the pool, so that its processor time counts."""
    if jobs > 1:
        from joblib.externals.loky import get_reusable_executor

        get_reusable_executor().shutdown(wait=True)


def resume_check() -> bool:
    """Whether a sweep cut in the middle of a line ends with the same charts as one that ran through."""
    small = SweepRequest(models=("gpt-oss-120b",), cluster="MI355X:8", engines=("sglang",), most_points=300)
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder) / "whole.jsonl", Path(folder) / "killed.jsonl"
        first = run_sweep(small, out=whole)
        killed.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
        second = run_sweep(small, out=killed)
        return 0 < second.resumed < second.points and first.as_json()["charts"] == second.as_json()["charts"]


def main() -> int:
    """Command line."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--points", type=int, default=PAPER_POINTS, metavar="N", help="size of the sweep")
    arguments.add_argument("--trace-points", type=int, default=TRACE_POINTS, metavar="N", help="trace points played")
    arguments.add_argument("--share", type=int, default=1, metavar="K", help="price one task in K only")
    arguments.add_argument("--jobs", type=int, default=2, metavar="N", help="worker processes (default 2)")
    arguments.add_argument("--resume-check", action="store_true", help="also kill and resume a small sweep")
    return run(evaluate, arguments)


if __name__ == "__main__":
    sys.exit(main())
