"""What the tests of traces share: rows to requests, a session, a run, and its requests as a table."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from predictor.des.play import PlayRules
from predictor.des.replica_cache import reuse_rules
from predictor.des.rules import SchedulerRules
from predictor.des.trace_sim import Reuse, TraceResult, simulate_trace
from predictor.step.model import PrefillCurve, TableStepModel
from predictor.workload.block_size import BlockSize, Tail
from predictor.workload.trace import TraceReader, TraceRequest

BLOCK = 64
STEP = TableStepModel((10.0, 10.1, 10.2, 10.3), (1e-5,) * 4, PrefillCurve(5.0, 0.1, 0.0, 5.0))
RULES = SchedulerRules("vLLM", max_running=64, token_budget=8192, block_tokens=16)
POOL_TOKENS = 64 * 4000
REUSE = Reuse(BLOCK, reuse_rules("vLLM"))


def read(*rows: dict[str, Any]) -> list[TraceRequest]:
    full = [{"input_length": 64, "output_length": 4} | row for row in rows]
    return list(TraceReader(map(json.dumps, full), block_size=BlockSize(BLOCK, Tail.FLOOR)))


def session(
    name: str, turns: int, *, context: int = 20, new: int = 3, think: float = 100.0, start: float = 0.0
) -> list[Any]:
    rows: list[dict[str, Any]] = []
    for turn in range(turns):
        blocks = context + turn * new
        rows.append(
            {
                "session_id": name,
                "request_id": f"{name}:{turn}",
                "timestamp": start,
                "input_length": BLOCK * blocks + 10,
                "think_time": think if turn else 0.0,
                "new_blocks": new if turn else context,
            }
        )
        if turn:
            rows[-1] |= {"prefix_from": f"{name}:{turn - 1}", "prefix_blocks": blocks - new}
    return rows


def play(requests: Iterable[TraceRequest], rules: PlayRules = PlayRules(), **options: Any) -> TraceResult:
    given: dict[str, Any] = {"kv_tokens": POOL_TOKENS, "reuse": REUSE, "play": rules} | options
    return simulate_trace(STEP, requests, RULES, **given)


def table(result: TraceResult) -> dict[str, dict[str, float]]:
    columns = result.simulation.requests
    rows = zip(columns["id"], columns["arrival_ms"], columns["e2e_ms"], columns["cached_tokens"], strict=True)
    return {
        result.names[int(number)]: {"arrival": arrival, "end": arrival + e2e, "cached": cached}
        for number, arrival, e2e, cached in rows
    }


def check_dependencies(requests: Sequence[TraceRequest], seen: dict[str, dict[str, float]]) -> None:
    for request in requests:
        if request.waits_on:
            ready = max(seen[name]["end"] for name in request.waits_on) + request.think_time_ms
            assert seen[request.request_id]["arrival"] == pytest.approx(ready)
