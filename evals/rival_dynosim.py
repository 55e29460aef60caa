"""Head to head with DynoSim (ai-dynamo 1.4.0): the same step-time function and traffic in both simulators.

The function is linear, so the other's interpolation tables hold it exactly: a decode pass costs 6 ms and 17 ns a token
of context, prompt work 3 ms a step and 20 us a token. DynoSim charges a decode pass to prompts that end in a step as
well, for the token they yield; here that is a larger fixed part of a pure prefill step and a little a prompt token
(``their_rule``). With it the two schedulers take the same steps, and what is left is how each treats preemption.
"""

import json
import os
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evals.corpus import CorpusAbsent
from predictor.des.metrics import SimulationResult
from predictor.des.rules import SchedulerRules
from predictor.des.schedule import cached_schedule
from predictor.des.simulator import simulate
from predictor.step.model import PrefillCurve, TableStepModel
from predictor.types import Arrival, Workload

DECODE_MS, CONTEXT_MS, PREFILL_MS, TOKEN_MS = 6.0, 1.7e-5, 3.0, 0.02
INSTALL = (
    "python -m venv .rivals/dynosim && .rivals/dynosim/bin/pip install numpy transformers && "
    ".rivals/dynosim/bin/pip install --no-deps ai-dynamo==1.4.0 ai-dynamo-runtime==1.4.0"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """One traffic shape; ``interval_ms`` None is a closed loop."""

    name: str
    isl: int
    osl: int
    concurrency: int
    requests: int
    interval_ms: float | None = None
    kv_blocks: int = 100_000
    block_tokens: int = 16
    max_running: int = 256
    token_budget: int = 8192


SHAPES = (
    Shape("1024/211, 64 clients", 1024, 211, 64, 6400),
    Shape("1024/1024, 16 clients", 1024, 1024, 16, 640),
    Shape("1024/1024, 64 clients", 1024, 1024, 64, 1280),
    Shape("1024/1024, 256 clients", 1024, 1024, 256, 2560),
    Shape("8192/1024, 64 clients", 8192, 1024, 64, 1280),
    Shape("1024/211, one each 60 ms", 1024, 211, 1, 4000, interval_ms=60.0),
    Shape("8192/1024, one each 400 ms", 8192, 1024, 1, 1000, interval_ms=400.0),
    Shape("1024/1024, 64 clients, KV for 40", 1024, 1024, 64, 640, kv_blocks=40 * 128),
)


def step_model(their_rule: bool = True) -> TableStepModel:
    """The step-time function; ``their_rule`` adds the decode pass of prompts that end."""
    fixed, token = (PREFILL_MS + DECODE_MS, TOKEN_MS + CONTEXT_MS) if their_rule else (PREFILL_MS, TOKEN_MS)
    return TableStepModel((DECODE_MS,) * 2, (CONTEXT_MS,) * 2, PrefillCurve(fixed, token, 0.0, PREFILL_MS))


def ours(shape: Shape, model: TableStepModel) -> tuple[SimulationResult, float]:
    """Simulate a shape with all metrics; the result and the wall time in ms."""
    rate = None if shape.interval_ms is None else 1000.0 / shape.interval_ms
    workload = Workload(
        shape.isl,
        shape.osl,
        shape.concurrency,
        arrival=Arrival.CLOSED if rate is None else Arrival.CONSTANT,
        request_rate_per_s=rate,
        requests_per_client=shape.requests // shape.concurrency,
    )
    rules = SchedulerRules("vLLM", shape.max_running, shape.token_budget, shape.block_tokens)
    cached_schedule.cache_clear()
    start = time.perf_counter()
    result = simulate(model, workload, rules, kv_blocks=shape.kv_blocks)
    for samples in (result.ttft_ms, result.tpot_ms, result.itl_ms, result.e2e_ms):
        samples.distribution()
    return result, (time.perf_counter() - start) * 1000.0


def theirs(python: str, repetitions: int) -> list[dict[str, float]]:
    """The shapes through the other simulator, in its own environment."""
    if not Path(python).exists():
        raise CorpusAbsent(f"DynoSim is not installed at {python}: {INSTALL}, or name its Python with --rival-python")
    model = {
        "decode_ms": DECODE_MS,
        "decode_ms_per_context_token": CONTEXT_MS,
        "prefill_ms": PREFILL_MS,
        "prefill_ms_per_token": TOKEN_MS,
    }
    request = {"model": model, "shapes": [asdict(shape) for shape in SHAPES], "repetitions": repetitions}
    script = Path(__file__).with_name("dynosim_replay.py")
    done = subprocess.run(
        [python, str(script)],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "DYN_LOG": "error"},
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def difference_pct(ours_ms: float, theirs_ms: float) -> float:
    """Our value over theirs, percent."""
    return round(100.0 * (ours_ms / theirs_ms - 1.0), 4)


def compare(python: str, repetitions: int) -> list[dict[str, Any]]:
    """One row a shape: requests a second of each, and our latencies against theirs."""
    rows = []
    for shape, their in zip(SHAPES, theirs(python, repetitions), strict=True):
        runs = [ours(shape, step_model()) for _ in range(repetitions)]
        result, wall_ms = min(runs, key=lambda run: run[1])
        plain = ours(shape, step_model(their_rule=False))[0]
        ours_per_s, theirs_per_s = shape.requests / wall_ms * 1000.0, shape.requests / their["wall_ms"] * 1000.0
        rows.append(
            {
                "shape": shape.name,
                "ours_req_s": round(ours_per_s, 1),
                "theirs_req_s": round(theirs_per_s, 1),
                "ratio": round(ours_per_s / theirs_per_s, 2),
                "ttft_mean_diff_pct": difference_pct(result.ttft_ms.mean, their["ttft_mean_ms"]),
                "ttft_p99_diff_pct": difference_pct(result.ttft_ms.p99, their["ttft_p99_ms"]),
                "tpot_mean_diff_pct": difference_pct(result.tpot_ms.mean, their["tpot_mean_ms"]),
                "tpot_p99_diff_pct": difference_pct(result.tpot_ms.p99, their["tpot_p99_ms"]),
                "ttft_mean_diff_without_their_rule_pct": difference_pct(plain.ttft_ms.mean, their["ttft_mean_ms"]),
                "preemptions": result.preemptions,
            }
        )
    return rows
