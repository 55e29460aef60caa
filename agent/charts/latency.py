"""Latencies of a simulated deployment: cumulative shares, and a replica's first minutes request by request."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from agent.charts.figure import Axis, Figure, Mark, Series, Span, cell
from predictor.des.metrics import FloatArray, SimulationResult

CURVE_POINTS = 120  # quantiles drawn of a curve
LANES = 16  # clients shown one by one
PERCENTS = (50.0, 90.0, 99.0)
SAME_MS = 1e-3  # moments closer than this are one: they were summed in different orders


def cdf_figure(key: str, metric: str, results: Mapping[str, SimulationResult]) -> Figure:
    """Share of requests (of tokens for ITL) at or under a latency; one curve a deployment. ``metric`` as ``ttft``."""
    label = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E"}[metric]
    samples = {name: getattr(result, f"{metric}_ms") for name, result in results.items()}
    percents = np.linspace(0.0, 100.0, CURVE_POINTS)
    series = []
    for number, (name, one) in enumerate(samples.items()):
        values = tuple(float(one.percentile(percent)) for percent in percents.tolist())
        series.append(Series(name, values, tuple(percents.tolist()), Mark.LINE, number))
    rows = tuple(
        (name, float(one.mean), *(float(one.percentile(percent)) for percent in PERCENTS))
        for name, one in samples.items()
    )
    what = "tokens" if metric == "itl" else "requests"
    told = "; ".join(f"{row[0]}: median {cell(row[2])} ms, p99 {cell(row[4])} ms" for row in rows)
    return Figure(
        key,
        f"{label}: share of {what} served within a time",
        f"{told}.",
        Axis(f"{label}, ms", log=_wide(series)),
        Axis(f"% of {what}", low=0.0, high=100.0),
        ("deployment", "mean ms", *(f"p{percent:.0f} ms" for percent in PERCENTS)),
        rows,
        series=tuple(series),
    )


def _wide(series: Sequence[Series]) -> bool:
    """Whether a linear axis would hide most of the curves."""
    values = [value for one in series for value in one.x if value > 0.0]
    return bool(values) and max(values) > 20.0 * min(values)


def lanes_figure(key: str, name: str, result: SimulationResult, one_replica: bool = True) -> Figure:
    """What some clients live through: waiting, prefill, decode, request after request."""
    lanes = _lanes(result)
    count = min(LANES, len(lanes))
    shown = [lanes[int(number * len(lanes) / count)] for number in range(count)]
    until = _window_ms(result)
    kinds: tuple[tuple[str, list[tuple[int, float, float]]], ...] = (("waiting", []), ("prefill", []), ("decode", []))
    for lane, requests in enumerate(shown):
        for arrival, admitted, first, finished in requests:
            edges = (arrival, admitted, first, finished)
            for (_, pieces), begin, end in zip(kinds, edges, edges[1:], strict=False):
                if end > begin and begin < until:
                    pieces.append((lane, begin / 1000.0, min(end, until) / 1000.0))
    mean = {kind: _mean([end - begin for _, begin, end in pieces]) for kind, pieces in kinds}
    told = ", ".join(f"{kind} {value:.3g} s" for kind, value in mean.items() if value)
    return Figure(
        key,
        f"Timeline of {_whose(one_replica)}: {name}",
        f"{count} of {len(lanes)} clients over the first {until / 1000.0:.3g} s; on average {told} a request.",
        Axis("s since the first request", low=0.0, high=until / 1000.0),
        Axis("client"),
        ("client", "phase", "from s", "to s"),
        tuple(
            (shown_lane + 1, kind, begin, end)
            for kind, pieces in kinds
            for shown_lane, begin, end in sorted(pieces)[: 4 * LANES]
        ),
        spans=tuple(Span(kind, tuple(pieces), _PHASE[kind]) for kind, pieces in kinds if pieces),
        categories=tuple(f"{number + 1}" for number in range(count)),
    )


_PHASE = {"waiting": 7, "prefill": 4, "decode": 0}


def load_figure(key: str, name: str, result: SimulationResult, one_replica: bool = True) -> Figure:
    """Requests that wait, prefill and decode over time."""
    arrival, admitted, first, finished = _moments(result)
    until = _window_ms(result)
    series, rows = [], []
    for number, (kind, begin, end) in enumerate(
        (("decode", first, finished), ("prefill", admitted, first), ("waiting", arrival, admitted))
    ):
        times, counts = _count_over_time(begin, end, until)
        if max(counts, default=0) == 0:
            continue
        series.append(
            Series(kind, tuple(value / 1000.0 for value in times), tuple(counts), Mark.STEPS, _PHASE[kind], number)
        )
        rows.append((kind, _time_mean(times, counts), float(max(counts))))
    told = "; ".join(f"{row[0]}: {row[1]:.3g} on average, {row[2]:.0f} at most" for row in rows)
    return Figure(
        key,
        f"Requests over time on {_whose(one_replica)}: {name}",
        f"The first {until / 1000.0:.3g} s. {told}.",
        Axis("s since the first request", low=0.0, high=until / 1000.0),
        Axis("requests", low=0.0),
        ("phase", "mean", "most"),
        tuple(rows),
        series=tuple(series),
    )


def _whose(one_replica: bool) -> str:
    return "a replica" if one_replica else "all replicas"


def _moments(result: SimulationResult) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Arrival, admission, first and last token of each request on the engine, ms, in order of arrival."""
    table = result.requests
    arrival = np.asarray(table["arrival_ms"], dtype=float)
    order = np.argsort(arrival, kind="stable")
    admitted = arrival + table["queue_ms"]
    first, finished = (arrival + table[name] - result.host_ms for name in ("ttft_ms", "e2e_ms"))
    return arrival[order], np.minimum(admitted, first)[order], first[order], finished[order]


def _lanes(result: SimulationResult) -> list[list[tuple[float, float, float, float]]]:
    """Requests of one client after another: in a closed loop a request comes where another has ended."""
    lanes: list[list[tuple[float, float, float, float]]] = []
    free: list[tuple[float, int]] = []
    for moments in zip(*(column.tolist() for column in _moments(result)), strict=True):
        ready = [one for one in free if one[0] <= moments[0] + SAME_MS]
        if ready:
            taken = max(ready)  # the one that ended last: a client sends its next request at once
            free.remove(taken)
            lane = taken[1]
        else:
            lane = len(lanes)
            lanes.append([])
        lanes[lane].append(moments)
        free.append((moments[3], lane))
    return lanes


def _window_ms(result: SimulationResult) -> float:
    """The time shown: about three requests of a client."""
    finished = _moments(result)[3]
    return min(float(finished.max()), 3.0 * float(np.mean(result.requests["e2e_ms"])))


def _count_over_time(begin: FloatArray, end: FloatArray, until: float) -> tuple[list[float], list[int]]:
    """How many stretches hold at each moment where the number changes.

    >>> _count_over_time(np.array([0.0, 1.0]), np.array([2.0, 3.0]), 10.0)
    ([0.0, 1.0, 2.0, 3.0], [1, 2, 1, 0])
    """
    times = np.concatenate((begin, end))
    steps = np.concatenate((np.ones(len(begin), dtype=int), -np.ones(len(end), dtype=int)))
    order = np.argsort(times, kind="stable")
    times, counts = times[order], np.cumsum(steps[order])
    last = np.append(times[1:] != times[:-1], True) & (times <= until)  # one count a moment
    return times[last].tolist(), counts[last].tolist()


def _time_mean(times: Sequence[float], counts: Sequence[int]) -> float:
    spans = [end - begin for begin, end in pairwise(times)]
    whole = sum(spans)
    return sum(span * count for span, count in zip(spans, counts, strict=False)) / whole if whole else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
