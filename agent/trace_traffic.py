"""A request trace as a search takes it: mean lengths, arrival rate, and the share of the prompts that came before.

A search prices steady traffic, so a trace is its means there; ``inferasim simulate --trace`` plays the trace itself on
what was found. Nothing of a trace but these numbers leaves this module: its names and ids reach no prompt.
"""

from collections.abc import Iterable
from typing import Any

from predictor.errors import BadFile
from predictor.types import Arrival
from predictor.workload.blocks import Line, Prompt
from predictor.workload.json_stream import open_trace
from predictor.workload.trace import TraceReader, TraceRequest


def trace_traffic(path: str) -> dict[str, Any]:
    """Fields of a tuning request for the trace in a file; raises what the trace's reader and the file raise."""
    fields = traffic(TraceReader(open_trace(path), name=path))
    if not fields:
        raise BadFile(f"{path}: holds no request")
    return fields


def traffic(requests: Iterable[TraceRequest]) -> dict[str, Any]:
    """Mean lengths in tokens, the rate in requests a second where all arrivals are known, and the prefix share.

    The share is what a cache without limits would hold: blocks of a prompt that an earlier prompt began with, over all
    blocks. Where prompts name no blocks reuse is not known, and nothing is said of it.
    """
    count = input_tokens = output_tokens = reused = blocks = 0
    arrivals: list[float] = []
    seen: dict[Line, int] = {}
    for one in requests:
        count += 1
        input_tokens += one.input_tokens
        output_tokens += one.output_tokens
        if one.arrival_ms is not None and not one.waits_on:
            arrivals.append(one.arrival_ms)
        if one.prompt is not None:
            reused += _reuse(one.prompt, seen)
            blocks += one.prompt.blocks
    if count == 0:
        return {}
    fields: dict[str, Any] = {
        "isl": max(1, round(input_tokens / count)),
        "osl": max(1, round(output_tokens / count)),
    }
    span_ms = max(arrivals) - min(arrivals) if len(arrivals) == count else 0.0
    if span_ms > 0:
        fields |= {"arrival": Arrival.POISSON, "request_rate": 1000.0 * (count - 1) / span_ms}
    return fields | ({"prefix_hit": reused / blocks} if blocks else {})


def _reuse(prompt: Prompt, seen: dict[Line, int]) -> int:
    """Leading blocks of a prompt that were seen, and now all of them are."""
    found = 0
    line, end = prompt.line, prompt.blocks
    while line is not None:
        found = max(found, min(end, seen.get(line, 0)))
        seen[line] = max(end, seen.get(line, 0))
        end, line = line.start, line.parent
    return found
