"""What an anchor's step model leaves of its own runs, carried to targets (paper §5.6, D.4).

A served anchor states, for each run it was solved from, measured over predicted TPOT, TTFT and rate. The ratios are
interpolated in log load and multiply what is predicted at a target: TPOT and rate whole; TTFT, whose single record is
noisy, whole at the anchor's own layout and lengths and in part elsewhere.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from math import ceil, exp, log
from statistics import fmean

from predictor.anchors.schema import Anchor, DecodeSweep, Reproduced
from predictor.types import Prediction, Workload

# Part of a TTFT misfit that is not noise: ladders of public runs are reproduced to 6.2% (median over anchors), repeats
# of one image differ by 3.7%: 1 − (3.7/6.2)².
TTFT_SHARE_MOVED = 0.65


# Decoding requests over clients of runs without a queue: 0.95 at 64 clients and more for the ramps alone, less what
# prompts take; public ladders without a known cap start to queue below 0.85 (closed-form study of the AMD corpus).
_NO_QUEUE = 0.85


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """What one run reported: mean TPOT and TTFT, prompt and answer tokens a second; None where not recorded."""

    clients: int
    tpot_ms: float
    ttft_ms: float | None = None
    total_tok_s: float | None = None

    def held(self, workload: Workload) -> int:
        """Requests that ran at once, at least: all clients where the time in decode leaves no room for a queue.

        By Little's law ``rate · answer · TPOT`` requests decode on average over the whole run, ramps included.
        """
        middle = (1.0 + workload.length_range_frac) / 2.0
        decode_ms = workload.osl_tokens * middle * self.tpot_ms
        if self.total_tok_s is not None:
            tokens = (workload.isl_tokens + workload.osl_tokens) * middle
            running = self.total_tok_s / tokens * decode_ms / 1e3
        elif self.ttft_ms is not None:
            running = self.clients * decode_ms / (self.ttft_ms + decode_ms)
        else:
            return 1
        return self.clients if running >= _NO_QUEUE * self.clients else max(1, ceil(running))


def with_reproduced(anchor: Anchor, runs: Mapping[tuple[int, int], Sequence[tuple[MeasuredRun, Prediction]]]) -> Anchor:
    """The anchor with its sweeps' ratios; ``runs`` by mean prompt and answer, each with what the anchor predicts."""
    sweeps = tuple(
        replace(sweep, reproduced=_reproduced(runs.get((sweep.prompt_tokens, sweep.output_tokens), ())))
        for sweep in anchor.decode
    )
    return replace(anchor, decode=sweeps)


def _reproduced(runs: Sequence[tuple[MeasuredRun, Prediction]]) -> tuple[Reproduced, ...]:
    """Ratios by rising load; runs of one load count as their geometric mean."""
    ordered = sorted(runs, key=lambda pair: pair[0].clients)
    return tuple(_ratios(clients, list(same)) for clients, same in groupby(ordered, key=lambda pair: pair[0].clients))


def _ratios(clients: int, runs: Sequence[tuple[MeasuredRun, Prediction]]) -> Reproduced:
    def mean(value: Callable[[MeasuredRun, Prediction], float | None]) -> float | None:
        logs = [log(ratio) for measured, told in runs if (ratio := value(measured, told)) is not None]
        return exp(fmean(logs)) if logs else None

    return Reproduced(
        clients=clients,
        tpot_ratio=mean(lambda run, told: run.tpot_ms / told.tpot_ms.mean) or 1.0,
        ttft_ratio=mean(lambda run, told: run.ttft_ms / told.ttft_ms.mean if run.ttft_ms else None),
        rate_ratio=mean(lambda run, told: run.total_tok_s / told.total_tok_s if run.total_tok_s else None),
    )


@dataclass(frozen=True, slots=True)
class Residual:
    """Factors on a prediction."""

    tpot: float = 1.0
    ttft: float = 1.0
    rate: float = 1.0


def residual_at(sweep: DecodeSweep, clients: float, moved: bool) -> Residual:
    """Factors at a load of one replica; ``moved``: the target's layout or lengths are not the anchor's."""

    def factor(value: Callable[[Reproduced], float | None]) -> float:
        points = [(float(run.clients), log(v)) for run in sweep.reproduced if (v := value(run)) is not None]
        return exp(log_interpolate(points, clients)) if points else 1.0

    ttft = factor(lambda run: run.ttft_ratio)
    return Residual(
        tpot=factor(lambda run: run.tpot_ratio),
        ttft=ttft**TTFT_SHARE_MOVED if moved else ttft,
        rate=factor(lambda run: run.rate_ratio),
    )


def log_interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """Values over rising positions, linear in the logarithm of the position and held at the ends.

    >>> log_interpolate([(1.0, 0.0), (4.0, 1.0)], 2.0)
    0.5
    """
    if x <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if x <= x1:
            return y0 + (y1 - y0) * log(x / x0) / log(x1 / x0)
    return points[-1][1]
