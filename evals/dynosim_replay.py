"""Runs traffic shapes through DynoSim, the replay engine of the package ai-dynamo, in that package's own environment.

Reads ``{"model", "shapes"}`` as JSON on stdin and prints one JSON object a shape. It imports nothing of this project:
``evals.simulator_speed --rival dynosim`` starts it with the other environment's Python.
"""

import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

FAR_TOKENS = 1e8  # the tables are linear, so two points each say all


def step_tables(model: dict[str, float], folder: Path) -> Path:
    """The step-time function as the interpolation tables the package reads."""
    np: Any = importlib.import_module("numpy")
    path = folder / "step.npz"
    ends = np.array([0.0, FAR_TOKENS])
    decode = model["decode_ms"] + model["decode_ms_per_context_token"] * ends
    np.savez(
        path,
        prefill_isl=ends,
        prefill_ttft_ms=model["prefill_ms"] + model["prefill_ms_per_token"] * ends,
        decode_active_kv_tokens=ends,
        decode_context_length=ends,
        decode_itl=np.array([[decode[0], decode[0]], [decode[1], decode[1]]]),
    )
    return path


def replay(shape: dict[str, Any], tables: Path) -> dict[str, float]:
    """One shape; wall time is the package's own measure of its engine."""
    mocker: Any = importlib.import_module("dynamo.mocker")
    runner: Any = importlib.import_module("dynamo.replay")
    engine = mocker.MockEngineArgs(
        engine_type="vllm",
        num_gpu_blocks=shape["kv_blocks"],
        block_size=shape["block_tokens"],
        max_num_seqs=shape["max_running"],
        max_num_batched_tokens=shape["token_budget"],
        enable_prefix_caching=False,
        planner_profile_data=str(tables),
    )
    arrivals = (
        {"replay_concurrency": shape["concurrency"]}
        if shape["interval_ms"] is None
        else {"arrival_interval_ms": shape["interval_ms"]}
    )
    report = runner.run_synthetic_trace_replay(
        shape["isl"], shape["osl"], shape["requests"], extra_engine_args=engine, **arrivals
    )
    names = ("ttft", "tpot")
    values = {f"{name}_{part}_ms": report[f"{part}_{name}_ms"] for name in names for part in ("mean", "p99")}
    return values | {"wall_ms": report["wall_time_ms"], "completed": report["completed_requests"]}


def main() -> None:
    """Shapes in, results out."""
    request = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder:
        tables = step_tables(request["model"], Path(folder))
        for shape in request["shapes"]:
            best = min((replay(shape, tables) for _ in range(request["repetitions"])), key=lambda row: row["wall_ms"])
            print(json.dumps(best), flush=True)


if __name__ == "__main__":
    main()
