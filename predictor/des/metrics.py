"""Latency samples with weights, and the result of a simulation."""

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import floor, fsum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from predictor.types import Distribution

FloatArray = NDArray[np.float64]

WHOLE_COLUMNS = ("id", "prompt_tokens", "output_tokens", "cached_tokens", "preemptions", "replica")
TIME_COLUMNS = ("arrival_ms", "queue_ms", "ttft_ms", "e2e_ms")


_SUMMED_AT_ONCE = 20_000  # samples turned into Python floats at a time


class RequestTable(Protocol):
    """Measured requests, column by column, without host time."""

    def __len__(self) -> int: ...

    def column(self, name: str) -> FloatArray:
        """One of ``WHOLE_COLUMNS`` or ``TIME_COLUMNS``."""
        ...


class RequestRows:
    """A table filled one request at a time; 56 bytes each."""

    __slots__ = ("_times", "_whole")

    def __init__(self) -> None:
        self._whole = array("i")
        self._times = array("d")

    def add(self, whole: tuple[int, int, int, int, int, int], times_ms: tuple[float, float, float, float]) -> None:
        """One request, in the order of ``WHOLE_COLUMNS`` and ``TIME_COLUMNS``."""
        self._whole.extend(whole)
        self._times.extend(times_ms)

    def __len__(self) -> int:
        return len(self._times) // len(TIME_COLUMNS)

    def column(self, name: str) -> FloatArray:
        """See :class:`RequestTable`."""
        if name in TIME_COLUMNS:
            return as_rows(self._times, len(TIME_COLUMNS))[:, TIME_COLUMNS.index(name)]
        whole = (
            np.frombuffer(self._whole, dtype=np.intc).reshape(-1, len(WHOLE_COLUMNS)) if len(self) else np.empty((0, 6))
        )
        return whole[:, WHOLE_COLUMNS.index(name)].astype(np.float64)


class RequestColumns:
    """A table of whole columns."""

    __slots__ = ("_columns",)

    def __init__(self, columns: Mapping[str, FloatArray]) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns["id"])

    def column(self, name: str) -> FloatArray:
        """See :class:`RequestTable`."""
        return self._columns[name]


class Samples:
    """Weighted latency samples in ms; sorted at the first percentile asked.

    Percentiles are those of ``numpy.percentile`` (linear between order statistics) on the list in which each value
    stands as often as its weight says.

    >>> samples = Samples.of([1.0, 2.0, 4.0], [1, 2, 1])
    >>> samples.mean, samples.p50, samples.percentile(100)
    (2.25, 2.0, 4.0)
    """

    def __init__(self, build: Callable[[], tuple[FloatArray, FloatArray | None]], width: float = 0.0) -> None:
        """``build`` yields values and their weights, None where each counts once; it is called when first needed."""
        self._build = build
        self.relative_width = width  # of the bins, where samples were folded into a histogram; 0: exact

    @classmethod
    def of(cls, values: object, weights: object | None = None) -> "Samples":
        """From values, each once or as often as its weight says."""
        held = np.asarray(values, dtype=np.float64)
        each = None if weights is None else np.asarray(weights, dtype=np.float64)
        return cls(lambda: (held, each))

    @cached_property
    def _sorted(self) -> tuple[FloatArray, FloatArray | None]:
        """Values in order, and how many samples are at most each."""
        values, weights = self._build()
        if weights is None:
            return np.sort(values), None
        order = np.argsort(values)  # which of two equal values comes first does not show
        return values[order], np.cumsum(weights[order])

    @cached_property
    def count(self) -> int:
        """Samples, with their weights."""
        values, cumulative = self._sorted
        if cumulative is None or not len(values):
            return len(values)
        return int(cumulative[-1])

    @cached_property
    def mean(self) -> float:
        """Weighted mean; NaN without samples. The sum is exact, so its order does not matter."""
        values, cumulative = self._sorted
        total = float(self.count)
        if not total:
            return float("nan")
        products = values if cumulative is None else values * np.diff(cumulative, prepend=0.0)
        parts = range(0, len(products), _SUMMED_AT_ONCE)
        return fsum(chain.from_iterable(products[at : at + _SUMMED_AT_ONCE].tolist() for at in parts)) / total

    def percentile(self, percent: float) -> float:
        """Exact weighted percentile, linear between order statistics."""
        values, cumulative = self._sorted
        if not self.count:
            return float("nan")
        position = (self.count - 1) * percent / 100.0
        low = floor(position)
        first, second = low, min(low + 1, self.count - 1)
        if cumulative is not None:
            first, second = (int(at) for at in np.searchsorted(cumulative, [first, second], side="right"))
        a, b = float(values[first]), float(values[second])
        return a + (b - a) * (position - low)

    @property
    def p50(self) -> float:
        """Median."""
        return self.percentile(50.0)

    @property
    def p90(self) -> float:
        """90th percentile."""
        return self.percentile(90.0)

    @property
    def p99(self) -> float:
        """99th percentile."""
        return self.percentile(99.0)

    def distribution(self) -> Distribution:
        """Mean and the three percentiles a prediction carries."""
        return Distribution(self.mean, self.p50, self.p90, self.p99)


@dataclass(frozen=True, slots=True)
class HostTimes:
    """Work of the CPU around the GPU's steps; it adds to TTFT and E2E and overlaps the GPU (paper §3.4).

    ``poll_interval_steps``: the engine receives new requests only every so many steps (0: at every step boundary).
    ``first_wave_stall_ms``: a one-off stall of the first step a replica runs, such as a compilation.
    """

    ms_per_request: float = 0.0
    us_per_prompt_token: float = 0.0
    poll_interval_steps: int = 0
    first_wave_stall_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts and sums of the measured part of a run."""

    duration_ms: float
    output_tokens: float
    prompt_tokens: float
    cached_tokens: float
    steps: int
    runs: int
    prompt_steps: int  # steps that hold prompt tokens
    mixed_steps: int  # steps that hold prompt tokens and decode rows
    decoding_ms: float  # requests in decode, integrated over time
    busy_ms: float  # replica-time with a step in flight
    preemptions: int


class SimulationResult:
    """Latency distributions and throughput of one simulation.

    ``ttft_ms`` counts from arrival, as a user or a benchmark client sees it; ``ttft_from_admission_ms`` from the step
    that admits the request. TPOT is (E2E − TTFT) / (output tokens − 1) of each request with two tokens or more. ITL is
    the gap between two deliveries to one request: a token, or with speculation the burst of one verify step.
    """

    def __init__(self, requests: RequestTable, itl: Samples, totals: Totals, host: HostTimes, engine: str) -> None:
        self._table = requests
        self._host = host
        self.itl_ms = itl
        self.totals = totals
        self.engine = engine

    @property
    def host_ms(self) -> FloatArray:
        """Host time of each measured request, in order of completion: in its latencies, and in no GPU step."""
        return self._host_ms()

    def _host_ms(self) -> FloatArray:
        prompts = self._table.column("prompt_tokens")
        return self._host.ms_per_request + self._host.us_per_prompt_token / 1000.0 * prompts

    def _from_admission_ms(self) -> FloatArray:
        return self._table.column("ttft_ms") - self._table.column("queue_ms") + self._host_ms()

    @cached_property
    def ttft_ms(self) -> Samples:
        """From arrival to the first token."""
        return Samples(lambda: (self._table.column("ttft_ms") + self._host_ms(), None))

    @cached_property
    def ttft_from_admission_ms(self) -> Samples:
        """From admission into the batch to the first token."""
        return Samples(lambda: (self._from_admission_ms(), None))

    @cached_property
    def tpot_ms(self) -> Samples:
        """Mean time a token after the first, one sample a request of two tokens or more."""

        def build() -> tuple[FloatArray, None]:
            each = self._tpot_ms()
            return each[~np.isnan(each)], None

        return Samples(build)

    def _tpot_ms(self) -> FloatArray:
        after_first = self._table.column("output_tokens") - 1.0
        span_ms = self._table.column("e2e_ms") - self._table.column("ttft_ms")
        each = np.full(len(self._table), np.nan)
        np.divide(span_ms, after_first, out=each, where=after_first > 0)
        return each

    @cached_property
    def e2e_ms(self) -> Samples:
        """From arrival to the last token."""
        return Samples(lambda: (self._table.column("e2e_ms") + self._host_ms(), None))

    @cached_property
    def requests(self) -> Mapping[str, FloatArray]:
        """Columns of the measured requests in order of completion, host time included.

        ``WHOLE_COLUMNS``, ``TIME_COLUMNS``, ``ttft_from_admission_ms`` and ``tpot_ms`` (NaN for one-token answers).
        """
        columns = {name: self._table.column(name) for name in (*WHOLE_COLUMNS, *TIME_COLUMNS)}
        columns["tpot_ms"] = self._tpot_ms()
        columns["ttft_from_admission_ms"] = self._from_admission_ms()
        columns["ttft_ms"] = columns["ttft_ms"] + self._host_ms()
        columns["e2e_ms"] = columns["e2e_ms"] + self._host_ms()
        return columns

    @property
    def completed(self) -> int:
        """Requests measured."""
        return len(self._table)

    @property
    def duration_ms(self) -> float:
        """Measured time."""
        return self.totals.duration_ms

    @property
    def output_tok_s(self) -> float:
        """Output tokens a second over all replicas."""
        return self.totals.output_tokens / self.totals.duration_ms * 1000.0

    @property
    def total_tok_s(self) -> float:
        """Prompt and output tokens a second over all replicas."""
        return (self.totals.output_tokens + self.totals.prompt_tokens) / self.totals.duration_ms * 1000.0

    @property
    def mean_running(self) -> float:
        """Requests in decode on average over the measured time."""
        return self.totals.decoding_ms / self.totals.duration_ms

    @property
    def mixed_step_frac(self) -> float:
        """Share of steps that hold prompt tokens beside decode rows."""
        return self.totals.mixed_steps / self.totals.steps

    @property
    def prompt_step_frac(self) -> float:
        """Share of steps that hold prompt tokens."""
        return self.totals.prompt_steps / self.totals.steps

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens found in the prefix cache."""
        return self.totals.cached_tokens / self.totals.prompt_tokens

    @property
    def steps(self) -> int:
        """Engine steps of all replicas."""
        return self.totals.steps

    @property
    def runs(self) -> int:
        """Runs of like steps in which they were simulated."""
        return self.totals.runs

    @property
    def preemptions(self) -> int:
        """Preemptions and retractions."""
        return self.totals.preemptions


def expand_runs(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Gaps and weights of runs given as rows of (first gap ms, growth a step ms, steps, weight)."""
    if not len(rows):
        return np.empty(0), np.empty(0)
    counts = rows[:, 2].astype(np.int64)
    starts = np.cumsum(counts) - counts
    index = np.arange(int(counts.sum())) - np.repeat(starts, counts)
    return np.repeat(rows[:, 0], counts) + np.repeat(rows[:, 1], counts) * index, np.repeat(rows[:, 3], counts)


def as_rows(flat: "array[float]", width: int) -> FloatArray:
    """A flat array of rows as a matrix."""
    return np.frombuffer(flat, dtype=np.float64).reshape(-1, width) if len(flat) else np.empty((0, width))
