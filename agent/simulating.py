"""A trace on a deployment, request by request: the keys of ``simulate --json`` and the per-request export."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from agent.handlers import MODES, look_up
from agent.playing import play_trace
from agent.predict_request import PredictRequest, validated
from predictor.des.export import write_csv, write_parquet
from predictor.des.metrics import Samples
from predictor.des.play import PlayRules
from predictor.des.trace_sim import TraceResult
from predictor.errors import BadInput
from predictor.workload.block_size import BlockSize, Tail
from predictor.workload.json_stream import open_trace
from predictor.workload.trace import TraceReader

SAMPLE_RECORDS = 1000  # read to learn the trace's blocks and its usual lengths


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """How a trace is read and played. ``slots`` None replays recorded arrivals; else that many live sessions."""

    path: str
    slots: int | None = None
    think_cap_ms: float | None = None
    router: str = "least-loaded"
    skip_bad_records: bool = False
    answers_return: bool = False
    block_tokens: int | None = None
    seed: int = 0


def simulate_once(
    fields: dict[str, Any],
    options: TraceOptions,
    *,
    mode: str = "auto",
    anchors: str | None = None,
    out: str | None = None,
    plot: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Play a trace; ``fields`` describe the deployment as a predict request without lengths."""
    if mode not in MODES:
        raise BadInput(f"mode {mode!r}: must be one of {', '.join(MODES)}")
    started = perf_counter()
    sample = _reader(options)
    head = list(islice(sample, SAMPLE_RECORDS))
    if not head:
        raise BadInput(f"trace {options.path}: holds no usable record")
    request = validated(
        PredictRequest,
        **{"concurrency": options.slots or 1, **fields},
        isl=max(1, round(median(one.input_tokens for one in head))),
        osl=max(1, round(median(one.output_tokens for one in head))),
    )
    catalogue, deployment = look_up(request, anchors)
    play = PlayRules(slots=options.slots, seed=options.seed)
    if options.think_cap_ms is not None:
        play = replace(play, think_cap_ms=options.think_cap_ms)
    reader = _reader(options)
    played = play_trace(
        deployment,
        request.workload(),
        catalogue,
        reader,
        sample.block_size,
        play,
        mode=MODES[mode],
        router=options.router,
        answers_return=options.answers_return,
        progress=progress,
    )
    result, selection, block = played.result, played.selection, sample.block_size
    if out is not None:
        export(result, Path(out))
    if plot is not None:
        from agent.charts.deployments import latency_figures, timeline_figures  # only pictures need charts
        from agent.charts.files import write_pictures

        name = f"{deployment.model} {deployment.layout.label()}"
        one = deployment.replicas == 1
        served = result.simulation
        write_pictures(
            (*latency_figures("trace", {name: served}), *timeline_figures("trace", name, served, one)), Path(plot)
        )
    return {
        "mode": "anchored" if selection else "simulate",
        "anchor": selection.anchor.name if selection else None,
        "coverage": selection.coverage if selection else "none",
        "flags": [{"code": one.code, "message": one.message} for one in played.flags],
        **served_json(result),
        "block_tokens": None if block is None else block.tokens,
        "over_context_records": played.over_context,
        "skipped_records": {kind.value: count for kind, count in sorted(reader.skipped.items())},
        "memory": asdict(played.memory),
        "wall_ms": (perf_counter() - started) * 1000.0,
    }


def served_json(result: TraceResult) -> dict[str, Any]:
    """Latencies, throughputs and hit rates."""
    simulation = result.simulation
    latencies = {
        "ttft_ms": simulation.ttft_ms,
        "ttft_from_admission_ms": simulation.ttft_from_admission_ms,
        "tpot_ms": simulation.tpot_ms,
        "itl_ms": simulation.itl_ms,
        "e2e_ms": simulation.e2e_ms,
    }
    columns = simulation.requests
    return {
        "requests": simulation.completed,
        "duration_ms": simulation.duration_ms,
        "gpus": result.gpus,
        **{name: _latency(samples) for name, samples in latencies.items()},
        "output_tok_s": simulation.output_tok_s,
        "total_tok_s": simulation.total_tok_s,
        "output_tok_s_per_gpu": result.output_tok_s_per_gpu,
        "total_tok_s_per_gpu": result.total_tok_s_per_gpu,
        "token_hit_rate": float(columns["cached_tokens"].sum() / columns["prompt_tokens"].sum()),
        "token_hit_rate_by_replica": list(result.hit_rates().values()),
        "preemptions": simulation.totals.preemptions,
    }


def _latency(samples: Samples) -> dict[str, float | None]:
    if not samples.count:
        return {"mean": None, "p50": None, "p90": None, "p99": None}
    return {"mean": samples.mean, "p50": samples.p50, "p90": samples.p90, "p99": samples.p99}


def export(result: TraceResult, path: Path) -> None:
    """One line a request: Parquet where the name ends so, else CSV."""
    if path.suffix == ".parquet":
        with path.open("wb") as sink:
            write_parquet(result, sink)
        return
    with path.open("w", encoding="utf-8", newline="") as text:
        write_csv(result, text)


def _reader(options: TraceOptions) -> TraceReader:
    size = None if options.block_tokens is None else BlockSize(options.block_tokens, Tail.CEIL)
    return TraceReader(
        open_trace(options.path),
        name=options.path,
        block_size=size,
        skip_bad_records=options.skip_bad_records,
    )
