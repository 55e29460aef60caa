"""Step times out of served runs, through the simulator, so that prefill stalls are not counted twice (paper G.1).

What a closed loop schedules does not depend on step times, so each mean of a run is linear in them. The simulator gives
the coefficients: it prices one integer schedule under a decode curve with knots at the measured loads and a prefill
curve ``F + c1·n + c2·n²``. All runs of a deployment are solved together, by non-negative least squares on relative
errors::

    mean TPOT_j, median ITL_j, duration_j, mean TTFT_j  =  Σ_k Φ_jk · d_k + φ_j · (F, c1, c2, h)

Open arrivals and the median gap are not linear; they are linearised anew in each of a few rounds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from math import isfinite, log

import numpy as np

from predictor.des.metrics import HostTimes, SimulationResult
from predictor.des.rules import SchedulerRules
from predictor.des.schedule import RunLog, clockless, price
from predictor.des.schedule import schedule as run_schedule
from predictor.des.simulator import simulate
from predictor.errors import BadInput
from predictor.linear import FloatArray, non_negative_least_squares
from predictor.step.capture import padded_batch
from predictor.step.interpolate import MonotoneSweep
from predictor.step.model import DecodeLine, PrefillCurve, StepModel
from predictor.types import Workload

ROUNDS = 4
# Weight of a relative error against that of a mean TPOT. A recorded TTFT holds host time, polling and one-off stalls
# that no step time explains.
WEIGHTS = {"tpot_ms": 1.0, "itl_p50_ms": 1.0, "duration_ms": 1.0, "ttft_ms": 0.5}
# A decode step is never below this share of the lightest recorded TPOT: stalls cannot be all of it.
MIN_STEP_FRAC = 0.2
# Standard error of a solved step above which its batch is said to be undetermined.
UNDETERMINED_FRAC = 0.15
# Residuals beyond so many medians count linearly, not squared (Huber 1964): one run that holds something else, such as
# a queue nobody recorded, does not bend the steps of the others.
_HUBER_MEDIANS, _HUBER_LEAST = 3.0, 0.02
# Prior pull of host time and fixed prefill cost towards zero, in units of one relative error: breaks the tie between
# them where the runs do not.
_RIDGE = 1e-3
_BUMP = 1e-3  # relative step of the numerical derivative


@dataclass(frozen=True, slots=True)
class ServedRun:
    """One run as one scheduler sees it, and what was recorded; statistics that were not are None."""

    origin: str
    workload: Workload
    rules: SchedulerRules
    kv_blocks: int
    recorded: "Statistics"
    tokens_per_step: float = 1.0


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a run reports, ms. ``mean`` tells whether TTFT and TPOT are means or medians."""

    tpot_ms: float | None = None
    ttft_ms: float | None = None
    itl_p50_ms: float | None = None
    duration_ms: float | None = None
    tpot_is_mean: bool = True
    ttft_is_mean: bool = True

    def given(self) -> list[tuple[str, float]]:
        """Names and values of what was recorded."""
        return [(name, value) for name in WEIGHTS if (value := getattr(self, name)) is not None]


class KnotModel:
    """A step model given by steps at a few batches, monotone between them; see ``StepModel``.

    ``context_tokens`` is that of one sequence at which the steps hold; above the last knot a request costs
    ``prefill.per_token_ms`` more. A batch is padded up to the next of ``capture_sizes`` below the last knot.
    """

    def __init__(
        self,
        knots: Sequence[int],
        step_ms: Sequence[float],
        context_tokens: float,
        slope_ms_per_token: float,
        prefill: PrefillCurve,
        tokens_per_step: float = 1.0,
        capture_sizes: tuple[int, ...] = (),
    ) -> None:
        self.capture_sizes = tuple(size for size in capture_sizes if size <= knots[-1])
        self.sweep = MonotoneSweep(knots, step_ms)
        self.context_tokens = context_tokens
        self.slope_ms_per_token = slope_ms_per_token
        self.prefill = prefill
        self.tokens_per_step = tokens_per_step

    def decode_line(self, batch: int, context_tokens: float = 0.0) -> DecodeLine:
        """One piece: the step at the knots' context, moved along the slope."""
        step = self.sweep.at(padded_batch(batch, self.capture_sizes)) + self.prefill.per_token_ms * max(
            0.0, batch - self.sweep.batches[-1]
        )
        return DecodeLine(step - self.slope_ms_per_token * batch * self.context_tokens, self.slope_ms_per_token)


@dataclass(frozen=True, slots=True)
class Shape:
    """Runs at one prompt and answer length: they share a decode sweep. ``slope`` is what a token of context costs."""

    isl_tokens: int
    osl_tokens: int
    context_tokens: float
    slope_ms_per_token: float
    runs: tuple[ServedRun, ...]
    capture_sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SolvedSweep:
    """Decode steps of one shape with the standard error of each, in percent."""

    shape: Shape
    knots: tuple[int, ...]
    step_ms: tuple[float, ...]
    error_pct: tuple[float, ...]
    residual_pct: float  # median |reproduced / recorded − 1| of its TPOTs
    determined: bool


@dataclass(frozen=True, slots=True)
class SolvedLadders:
    """All that the runs of one deployment tell."""

    sweeps: tuple[SolvedSweep, ...]
    prefill: PrefillCurve
    host_ms: float
    prefill_error_pct: float
    tpot_residual_pct: float
    ttft_residual_pct: float | None
    notes: tuple[str, ...] = ()
    reproduced: dict[str, tuple[tuple[str, float, float], ...]] = field(default_factory=dict)


def solve_ladders(shapes: Sequence[Shape]) -> SolvedLadders:
    """Solve every shape's steps and the shared prefill curve from all runs at once."""
    problem = _Problem(tuple(shapes))
    x = problem.start()
    for _ in range(ROUNDS):
        x = problem.improve(x)
    return problem.result(x)


def reproduce(run: ServedRun, model: StepModel, host_ms: float, plan: RunLog | None = None) -> SimulationResult:
    """One run under one step model; ``plan`` is its schedule where that does not read the clock."""
    host = HostTimes(ms_per_request=host_ms)
    if plan is not None:
        return price(plan, model, host)
    return simulate(model, run.workload, run.rules, kv_blocks=run.kv_blocks, host=host)


class _Problem:
    """Unknowns: steps of every shape at its knots, then F, c1, c2 and h."""

    def __init__(self, shapes: tuple[Shape, ...]) -> None:
        if not shapes or not any(shape.runs for shape in shapes):
            raise BadInput("nothing to solve: no runs")
        self.shapes = shapes
        self.logs = [[_log_of(run) for run in shape.runs] for shape in shapes]
        self.knots = [_knots(shape, logs) for shape, logs in zip(shapes, self.logs, strict=True)]
        self.first: list[int] = np.cumsum([0, *(len(knots) for knots in self.knots)]).tolist()
        lengths = {shape.isl_tokens for shape in shapes}
        self.quadratic = len(lengths) > 1
        self.rows = [
            (s, r, name, value)
            for s, shape in enumerate(shapes)
            for r, run in enumerate(shape.runs)
            for name, value in run.recorded.given()
        ]
        if not any(name == "tpot_ms" for _, _, name, _ in self.rows):
            raise BadInput("nothing to solve: no run records a TPOT")
        self.tps = shapes[0].runs[0].tokens_per_step
        self.floor = np.zeros(self.size)
        for s, shape in enumerate(shapes):
            lightest = min(run.recorded.tpot_ms or np.inf for run in shape.runs) * self.tps
            self.floor[self.first[s] : self.first[s + 1]] = MIN_STEP_FRAC * lightest if isfinite(lightest) else 0.0

    @property
    def size(self) -> int:
        """Number of unknowns."""
        return self.first[-1] + 4

    def model(self, x: FloatArray, s: int) -> KnotModel:
        """Step model of one shape."""
        fixed, c1, c2, _ = x[-4:].tolist()
        shape = self.shapes[s]
        return KnotModel(
            self.knots[s],
            tuple(x[self.first[s] : self.first[s + 1]].tolist()),
            shape.context_tokens,
            shape.slope_ms_per_token,
            PrefillCurve(fixed, c1, c2, 0.0),
            self.tps,
            shape.capture_sizes,
        )

    def start(self) -> FloatArray:
        """Steps a little below the recorded TPOTs, half of the lightest TTFT for prompt tokens."""
        x = np.zeros(self.size)
        for s, (shape, knots) in enumerate(zip(self.shapes, self.knots, strict=True)):
            loads = sorted((_load(run), (run.recorded.tpot_ms or 0.0) * self.tps) for run in shape.runs)
            points = [(load, tpot) for load, tpot in loads if tpot > 0.0]
            for k, knot in enumerate(knots):
                near = min(points, key=lambda point: abs(log(point[0] / knot)))
                x[self.first[s] + k] = 0.8 * near[1]
        first = [
            (run.recorded.ttft_ms / shape.isl_tokens)
            for shape in self.shapes
            for run in shape.runs
            if run.recorded.ttft_ms is not None
        ]
        x[-3] = 0.5 * min(first) if first else 0.05 * float(np.min(x[: self.first[-1]]))
        x[-4] = float(np.min(x[: self.first[-1]]))
        return np.maximum(x, self.floor)

    def values(self, x: FloatArray, only: int | None = None) -> FloatArray:
        """Every recorded statistic as the simulator has it; of one shape alone where ``only`` is given."""
        results: dict[tuple[int, int], SimulationResult] = {}
        out = np.zeros(len(self.rows))
        for index, (s, r, name, _) in enumerate(self.rows):
            if only is not None and s != only:
                continue
            if (s, r) not in results:
                results[s, r] = reproduce(self.shapes[s].runs[r], self.model(x, s), float(x[-1]), self.logs[s][r])
            out[index] = statistic(results[s, r], name, self.shapes[s].runs[r].recorded)
        return out

    def improve(self, x: FloatArray) -> FloatArray:
        """One round: linearise at ``x`` and solve."""
        matrix, target = self.system(x)
        scale = np.linalg.norm(matrix, axis=0)
        scale[scale == 0.0] = 1.0
        solved = x
        weights = np.ones(len(target))
        for _ in range(ROUNDS):
            rows = weights[:, None] * matrix / scale
            solved = self.floor + non_negative_least_squares(rows, weights * (target - matrix @ self.floor)) / scale
            weights = _huber(matrix @ solved - target)
        return np.asarray(solved, dtype=np.float64)

    def system(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Weighted rows: relative derivative of every statistic, and what they should add up to."""
        base = self.values(x)
        recorded = np.array([value for *_, value in self.rows])
        weights = np.array([WEIGHTS[name] for _, _, name, _ in self.rows]) / recorded
        jacobian = np.zeros((len(self.rows), self.size))
        unit = float(np.median(x[: self.first[-1]]))
        for column in range(self.size):
            if column == self.size - 2 and not self.quadratic:
                continue
            bump = x.copy()
            step = _BUMP * max(abs(float(x[column])), self._least(column, unit))
            bump[column] += step
            only = next((s for s in range(len(self.shapes)) if self.first[s] <= column < self.first[s + 1]), None)
            moved = self.values(bump, only)
            changed = np.array([only is None or s == only for s, *_ in self.rows])
            jacobian[changed, column] = (moved[changed] - base[changed]) / step
        target = recorded - base + jacobian @ x
        ridge = np.zeros((2, self.size))
        ridge[0, self.size - 4] = ridge[1, self.size - 1] = _RIDGE / unit
        return (
            np.vstack([jacobian * weights[:, None], ridge]),
            np.concatenate([target * weights, np.zeros(2)]),
        )

    def _least(self, column: int, unit_ms: float) -> float:
        """A size for the derivative's step where the unknown is zero."""
        tokens = float(max(shape.isl_tokens for shape in self.shapes))
        per = {self.size - 3: tokens, self.size - 2: tokens * tokens}
        return unit_ms / per.get(column, 1.0)

    def result(self, x: FloatArray) -> SolvedLadders:
        """Residuals, standard errors and what is not determined."""
        values = self.values(x)
        recorded = np.array([value for *_, value in self.rows])
        matrix, target = self.system(x)
        weights = _huber(matrix @ x - target)
        errors = _standard_errors(weights[:, None] * matrix, weights * (matrix @ x - target), x, self.floor)
        ratios = values / recorded - 1.0
        sweeps = []
        notes = []
        for s, shape in enumerate(self.shapes):
            part = slice(self.first[s], self.first[s + 1])
            share = errors[part]
            mine = [
                abs(r) for r, (t, _, name, _) in zip(ratios, self.rows, strict=True) if t == s and name == "tpot_ms"
            ]
            free = bool(np.all(x[part] > self.floor[part] * 1.001))
            determined = len(mine) > 1 and free and bool(np.all(share < UNDETERMINED_FRAC))
            if not free:
                notes.append(f"{shape.isl_tokens}/{shape.osl_tokens}: stalls explain all of a TPOT; a step is held up")
            sweeps.append(
                SolvedSweep(
                    shape,
                    self.knots[s],
                    tuple(x[part].tolist()),
                    tuple((share * 100.0).tolist()),
                    float(np.median(mine)) * 100.0 if mine else float("nan"),
                    determined,
                )
            )
        fixed, c1, c2, host = x[-4:].tolist()
        ttft = [abs(r) for r, (_, _, name, _) in zip(ratios, self.rows, strict=True) if name == "ttft_ms"]
        tpot = [abs(r) for r, (_, _, name, _) in zip(ratios, self.rows, strict=True) if name == "tpot_ms"]
        return SolvedLadders(
            tuple(sweeps),
            PrefillCurve(fixed, c1, c2, 0.0),
            host,
            float(errors[-3] * 100.0),
            float(np.median(tpot)) * 100.0,
            float(np.median(ttft)) * 100.0 if ttft else None,
            tuple(notes),
            self._reproduced(values),
        )

    def _reproduced(self, values: FloatArray) -> dict[str, tuple[tuple[str, float, float], ...]]:
        table: dict[str, list[tuple[str, float, float]]] = {}
        for (s, r, name, recorded), value in zip(self.rows, values.tolist(), strict=True):
            table.setdefault(self.shapes[s].runs[r].origin, []).append((name, recorded, value))
        return {origin: tuple(rows) for origin, rows in table.items()}


def _huber(residual: FloatArray) -> FloatArray:
    """Square roots of Huber's weights."""
    limit = max(_HUBER_LEAST, _HUBER_MEDIANS * float(np.median(np.abs(residual))))
    return np.asarray(np.sqrt(np.minimum(1.0, limit / np.maximum(np.abs(residual), 1e-300))), dtype=np.float64)


def _log_of(run: ServedRun) -> RunLog | None:
    if not clockless(run.workload):
        return None
    return run_schedule(run.workload, run.rules, kv_blocks=run.kv_blocks, tokens_per_step=run.tokens_per_step)


def _load(run: ServedRun) -> float:
    """Requests that can run at once."""
    context = run.workload.isl_tokens + run.workload.osl_tokens
    held = max(1, run.kv_blocks * run.rules.block_tokens // context)
    return float(min(run.workload.concurrency, run.rules.running_cap, held))


def _knots(shape: Shape, logs: Sequence[RunLog | None]) -> tuple[int, ...]:
    """Batches that stand for the runs: the largest each decodes. Batches within a tenth share one knot, the larger."""
    found: set[int] = set()
    for run, plan in zip(shape.runs, logs, strict=True):
        largest = int(plan.runs[:, 1].max()) if plan is not None else 0
        found.add(largest or max(1, round(_load(run))))
    rising = sorted(found)
    return tuple(b for b, following in zip_longest(rising, rising[1:]) if following is None or following > 1.1 * b)


def statistic(result: SimulationResult, name: str, recorded: Statistics) -> float:
    """The simulated counterpart of one recorded statistic, ms."""
    readers: dict[str, Callable[[], float]] = {
        "tpot_ms": lambda: result.tpot_ms.mean if recorded.tpot_is_mean else result.tpot_ms.p50,
        "ttft_ms": lambda: result.ttft_ms.mean if recorded.ttft_is_mean else result.ttft_ms.p50,
        "itl_p50_ms": lambda: result.itl_ms.p50,
        "duration_ms": lambda: result.duration_ms,
    }
    return readers[name]()


def _standard_errors(matrix: FloatArray, residual: FloatArray, x: FloatArray, floor: FloatArray) -> FloatArray:
    """Standard error of each unknown over its value; infinite where the rows do not tell it."""
    scale = np.linalg.norm(matrix, axis=0)
    told = scale > 0.0
    degrees = max(1, matrix.shape[0] - 2 - int(told.sum()))
    variance = float(residual @ residual) / degrees
    scaled = matrix[:, told] / scale[told]
    inverse = np.linalg.pinv(scaled.T @ scaled, rcond=1e-10)
    errors = np.full(len(x), np.inf)
    errors[told] = np.sqrt(np.maximum(np.diag(inverse) * variance, 0.0)) / scale[told]
    return np.asarray(errors / np.maximum(x, np.maximum(floor, 1e-300)), dtype=np.float64)
