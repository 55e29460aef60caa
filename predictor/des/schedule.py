"""Schedule once, price many.

In a closed loop without think time on one replica no decision looks at the clock: which requests share a step follows
from lengths, slots, blocks and budgets alone. So the run log holds integers only, and serves every step model that
commits the same tokens a step. Pricing it is a handful of array operations.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from struct import Struct

import numpy as np

from predictor.des.clients import new_requests
from predictor.des.clock import CONTEXT_FRACTION
from predictor.des.lines import IntArray, LinePieces
from predictor.des.metrics import (
    FloatArray,
    HostTimes,
    RequestColumns,
    Samples,
    SimulationResult,
    Totals,
    expand_runs,
)
from predictor.des.pages import Pool, ample
from predictor.des.planner import scheduler_for
from predictor.des.request import Gap, PrefixCache
from predictor.des.rules import SchedulerRules
from predictor.errors import BadInput
from predictor.remembered import remembered
from predictor.step.model import PrefillCurve, StepModel
from predictor.types import Arrival, StartMode, Workload

_RUN = (
    "steps",
    "batch",
    "context",
    "growth",
    "weight",
    "late_weight",
    "tokens",
    "area",
    "done",
    "decoders",
    "preempted",
    "area_growth",
)
_REQUEST = ("id", "prompt", "output", "arrival", "admitted", "first", "finished", "cached", "preemptions")
_request_row = attrgetter(
    "id",
    "prompt_tokens",
    "output_tokens",
    "arrival",
    "admitted",
    "first",
    "finished",
    "cached_tokens",
    "preemptions",
)
# Rows are packed where they are told: faster than a list of integers that is turned into an array at the end.
_pack_run = Struct(f"={len(_RUN)}q").pack
_pack_request = Struct(f"={len(_REQUEST)}q").pack
# Durations are summed in two parts, so that a latency keeps full precision however late it falls.
_COARSE_PER_MS = float(1 << 20)


@dataclass(frozen=True, slots=True, eq=False)
class RunLog:
    """Runs and requests of one schedule. Stamps are run numbers: a request that ends with run 7 has stamp 8.

    ``context`` and ``growth`` are in ``context_units`` a token.
    """

    runs: IntArray  # shape (runs, 12): see _RUN
    requests: IntArray  # shape (requests, 9), in order of completion: see _REQUEST
    gaps: IntArray  # shape (gaps, 4): start stamp, end stamp, weight, whether the run at the end adds a step
    context_units: int
    tokens_per_step: float
    warm_requests: int

    def size_bytes(self) -> int:
        """Memory of its tables."""
        return self.runs.nbytes + self.requests.nbytes + self.gaps.nbytes


def clockless(workload: Workload) -> bool:
    """Whether the workload's schedule does not depend on step prices.

    >>> clockless(Workload(1024, 1024, concurrency=64)), clockless(Workload(1024, 1024, think_time_ms=5.0))
    (True, False)
    """
    closed = workload.arrival is Arrival.CLOSED and workload.think_time_ms == 0.0
    return closed and workload.start is not StartMode.STAGGERED


def warm_requests(workload: Workload) -> int:
    """Requests of the first wave, which a warmed-up measurement leaves out."""
    if workload.arrival is not Arrival.CLOSED or workload.start is not StartMode.WARM:
        return 0
    if workload.requests_per_client < 2:
        raise BadInput(
            "requests_per_client is 1, must be at least 2 with start 'warm', which leaves the first wave out"
        )
    return workload.concurrency


def context_steps(tokens_per_step: float) -> tuple[int, int]:
    """Context units a decode step adds to a request, and units a token."""
    unit = 1 if tokens_per_step == 1.0 else CONTEXT_FRACTION
    return round(tokens_per_step * unit), unit


def schedule(
    workload: Workload,
    rules: SchedulerRules,
    *,
    kv_blocks: int,
    tokens_per_step: float = 1.0,
    poll_interval_steps: int = 0,
    prefix_cache: PrefixCache | None = None,
    seed: int = 0,
    acceptance: tuple[float, ...] = (),
) -> RunLog:
    """Run a closed loop through the scheduler without a clock."""
    if not clockless(workload):
        raise BadInput(
            f"workload with arrival {workload.arrival.value!r}, start {workload.start.value!r} and think time "
            f"{workload.think_time_ms} ms reads the clock; schedule() takes closed loops that do not"
        )
    grow, unit = context_steps(tokens_per_step)
    scheduler = scheduler_for(
        rules,
        Pool(kv_blocks),
        grow=grow,
        unit=unit,
        prefix_cache=prefix_cache,
        poll_interval_steps=poll_interval_steps,
        ample_pool=ample(rules, kv_blocks, workload, tokens_per_step=tokens_per_step),
    )
    requests = new_requests(workload, seed, acceptance)
    runs, ended = bytearray(), bytearray()
    stamp = 0
    for _, request in zip(range(workload.concurrency), requests, strict=False):
        scheduler.check(request)
        scheduler.submit(request, 0)
    while True:
        before = scheduler.preemptions
        steps = scheduler.plan(stamp, stamp - 1)
        if not steps:
            break
        runs += _pack_run(
            steps,
            scheduler.batch,
            scheduler.context,
            scheduler.growth,
            scheduler.weight,
            scheduler.late_weight,
            scheduler.prompt_tokens,
            scheduler.prompt_area,
            scheduler.prompts_done,
            scheduler.decoders,
            scheduler.preemptions - before,
            scheduler.area_growth,
        )
        stamp += 1
        finished = scheduler.commit(steps, stamp)
        if not finished:
            continue
        for request in finished:
            ended += _pack_request(*_request_row(request))
        for following in islice(requests, len(finished)):
            following.arrival = stamp
            scheduler.check(following)
            scheduler.submit(following, stamp)
    return RunLog(
        runs=_rows(runs, len(_RUN)),
        requests=_rows(ended, len(_REQUEST)),
        gaps=_gap_rows(scheduler.gaps),
        context_units=unit,
        tokens_per_step=tokens_per_step,
        warm_requests=warm_requests(workload),
    )


# A search of 300 candidates meets some hundred schedules of 15 KB (16 clients) to 150 KB (200 clients) each. Bounded by
# bytes, to about one search's: hundreds of schedules of thousands of clients would be gigabytes in every process.
_MOST_SCHEDULE_BYTES = 4 * 2**20


@remembered(RunLog.size_bytes, _MOST_SCHEDULE_BYTES)
def cached_schedule(
    workload: Workload,
    rules: SchedulerRules,
    kv_blocks: int,
    tokens_per_step: float,
    poll_interval_steps: int,
    seed: int,
    acceptance: tuple[float, ...] = (),
) -> RunLog:
    """The log of :func:`schedule`, remembered: candidates of a search often share it."""
    return schedule(
        workload,
        rules,
        kv_blocks=kv_blocks,
        tokens_per_step=tokens_per_step,
        poll_interval_steps=poll_interval_steps,
        seed=seed,
        acceptance=acceptance,
    )


def _rows(packed: bytearray, width: int) -> IntArray:
    return np.frombuffer(packed, dtype=np.int64).reshape(-1, width)


def _gap_rows(gaps: Iterable[Gap]) -> IntArray:
    rows = [(gap.start, gap.end, gap.weight, int(gap.first_step)) for gap in gaps]
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


# Pricing


@dataclass(frozen=True, slots=True)
class _Times:
    """Prices of a log: first step and growth of each run, and every boundary in two parts."""

    first_ms: FloatArray
    growth_ms: FloatArray
    duration_ms: FloatArray
    coarse: IntArray  # shape (runs + 1,)
    fine_ms: FloatArray

    def between(self, start: IntArray, end: IntArray) -> FloatArray:
        """Time from one boundary to another, ms."""
        coarse = (self.coarse[end] - self.coarse[start]) / _COARSE_PER_MS
        return np.asarray(coarse + (self.fine_ms[end] - self.fine_ms[start]), dtype=np.float64)


def price(log: RunLog, step_model: StepModel, host: HostTimes = HostTimes()) -> SimulationResult:
    """Latencies and throughput of a schedule under one step model; equal to the full simulation.

    ``host.poll_interval_steps`` belongs to the schedule and is not read here.
    """
    if step_model.tokens_per_step != log.tokens_per_step:
        raise BadInput(
            f"the schedule commits {log.tokens_per_step} tokens a step, the step model {step_model.tokens_per_step}"
        )
    most_context = int((log.runs[:, 2] + log.runs[:, 0] * log.runs[:, 3]).max(initial=0))
    lines = LinePieces(step_model, log.runs[:, 1], most_context, log.context_units)
    runs, boundary = _split_at_kinks(log, lines)
    times = _times(runs, lines, step_model.prefill, host.first_wave_stall_ms)
    columns = {name: log.requests[:, index] for index, name in enumerate(_REQUEST)}
    stamps = {name: boundary[columns[name]] for name in ("arrival", "admitted", "first", "finished")}
    counted = columns["id"] >= log.warm_requests
    start = _measured_from(log, stamps["finished"])
    spans = {
        "arrival_ms": times.between(np.zeros_like(stamps["arrival"]), stamps["arrival"]),
        "queue_ms": times.between(stamps["arrival"], stamps["admitted"]),
        "ttft_ms": times.between(stamps["arrival"], stamps["first"]),
        "e2e_ms": times.between(stamps["arrival"], stamps["finished"]),
    }
    whole = {
        "id": columns["id"],
        "prompt_tokens": columns["prompt"],
        "output_tokens": columns["output"],
        "cached_tokens": columns["cached"],
        "preemptions": columns["preemptions"],
        "replica": np.zeros_like(columns["id"]),
    }
    table = {name: values[counted] for name, values in spans.items()}
    table |= {name: values[counted].astype(np.float64) for name, values in whole.items()}
    totals = _totals(log, runs, times, columns, stamps["finished"], start)
    return SimulationResult(
        RequestColumns(table), Samples(lambda: _gap_samples(log, runs, times, boundary, start)), totals, host, "runs"
    )


def _split_at_kinks(log: RunLog, lines: LinePieces) -> tuple[IntArray, IntArray]:
    """Runs cut where their decode line has a kink, and for each stamp of the log its boundary among the cut runs."""
    runs = log.runs
    batch, context = runs[:, 1], runs[:, 2]
    kinked = np.flatnonzero(
        lines.find(batch, context) != lines.find(batch, context + (runs[:, 0] - 1) * runs[:, 3] * (batch > 0))
    )
    if not len(kinked):
        return runs, np.arange(len(runs) + 1)
    pieces = np.ones(len(runs), dtype=np.int64)
    parts: list[IntArray] = []
    done = 0
    for number in kinked.tolist():
        cut = _cut_run(runs[number], lines)
        pieces[number] = len(cut)
        parts += [runs[done:number], np.array(cut, dtype=np.int64)]
        done = number + 1
    parts.append(runs[done:])
    return np.concatenate(parts), np.concatenate(([0], np.cumsum(pieces)))


def _cut_run(row: IntArray, lines: LinePieces) -> list[IntArray]:
    """Parts of one run that each lie on one piece of the decode line."""
    steps, batch, context, growth = (int(row[index]) for index in range(4))
    parts: list[IntArray] = []
    done = 0
    while steps:
        end = lines.end_of(int(lines.find(row[1:2], np.array([context]))[0]), batch)
        part = min(steps, -((context - end) // growth))
        cut = row.copy()
        cut[0], cut[2] = part, context
        cut[7] += done * row[11]
        if parts:  # preemptions came when the run was planned, and late first gaps in its first step
            cut[10] = 0
            cut[4] += cut[5]
            cut[5] = 0
        parts.append(cut)
        steps, context, done = steps - part, context + part * growth, done + part
    return parts


def _times(runs: IntArray, lines: LinePieces, curve: PrefillCurve, stall_ms: float) -> _Times:
    steps, batch, context, growth = (runs[:, index] for index in range(4))
    tokens, area, done = runs[:, 6], runs[:, 7], runs[:, 8]
    piece = lines.find(batch, context)
    slope = lines.slope_ms[piece]
    first = lines.intercept_ms[piece] + slope * context
    fixed = np.where(batch > 0, curve.mixed_fixed_ms, curve.fixed_ms)
    prompts = fixed + curve.per_token_ms * tokens + curve.per_token2_ms * area + curve.per_request_ms * done
    first = first + np.where(tokens > 0, prompts, 0.0)
    rise = np.where(steps > 1, slope * growth + curve.per_token2_ms * runs[:, 11], 0.0)
    duration = steps * first + rise * (steps * (steps - 1) // 2)
    if stall_ms and len(first):
        first[0] += stall_ms
        duration[0] += stall_ms
    coarse = np.floor(duration * _COARSE_PER_MS)
    fine = duration - coarse / _COARSE_PER_MS
    return _Times(
        first,
        rise,
        duration,
        np.concatenate(([0], np.cumsum(coarse.astype(np.int64)))),
        np.concatenate(([0.0], np.cumsum(fine))),
    )


def _measured_from(log: RunLog, finished: IntArray) -> int:
    """Boundary at which the measured time begins: zero, or when the warm requests' number has finished."""
    return int(finished[log.warm_requests - 1]) if log.warm_requests else 0


def _totals(
    log: RunLog, runs: IntArray, times: _Times, columns: dict[str, IntArray], finished: IntArray, start: int
) -> Totals:
    counted = slice(log.warm_requests, None)
    steps, batch, tokens = runs[start:, 0], runs[start:, 1], runs[start:, 6]
    window = times.between(np.array([start]), finished[-1:])
    prompt = tokens > 0
    return Totals(
        duration_ms=float(window[0]),
        output_tokens=float(columns["output"][counted].sum()),
        prompt_tokens=float(columns["prompt"][counted].sum()),
        cached_tokens=float(columns["cached"][counted].sum()),
        steps=int(steps.sum()),
        runs=len(steps),
        prompt_steps=int(steps[prompt].sum()),
        mixed_steps=int(steps[prompt & (batch > 0)].sum()),
        decoding_ms=float(np.dot(runs[start:, 9], times.duration_ms[start:])),
        busy_ms=float(times.duration_ms[start:].sum()),
        preemptions=int(runs[start:, 10].sum()),
    )


def _gap_samples(
    log: RunLog, runs: IntArray, times: _Times, boundary: IntArray, start: int
) -> tuple[FloatArray, FloatArray]:
    steps, weight, late = runs[start:, 0], runs[start:, 4], runs[start:, 5]
    first, growth = times.first_ms[start:], times.growth_ms[start:]
    rows: FloatArray = np.concatenate(
        (
            np.column_stack((first, growth, steps, weight))[weight > 0],
            np.column_stack((first + growth, growth, steps - 1, late))[(late > 0) & (steps > 1)],
        )
    )
    values, weights = expand_runs(rows)
    if not len(log.gaps):
        return values, weights
    begun, ended, gap_weight, first_step = (log.gaps[:, index] for index in range(4))
    ended = boundary[ended]
    extra = np.where(first_step > 0, times.first_ms[np.minimum(ended, len(runs) - 1)], 0.0)
    spans = times.between(boundary[begun], ended) + extra
    told = np.where(first_step > 0, ended >= start, ended > start)
    return np.concatenate((values, spans[told])), np.concatenate((weights, gap_weight[told]))
