"""What an anchor's step model leaves of its own runs, carried to targets (paper §5.6, D.4).

A served anchor states, for each run it was solved from, measured over predicted TPOT and TTFT. The ratios are
interpolated in log load and multiply what is predicted at a target: TPOT whole; TTFT, whose single record is noisy,
whole at the anchor's own layout and lengths and in part elsewhere.

Throughput is carried as time. By Little's law a client's cycle is ``C / rate``; what it holds beyond decode, measured
less predicted, is ms of the server (front end, first-token path, stalls of a start) and no share of the answer::

    δ = (C/rate − n·TPOT)_measured − (C/rate − n·TPOT)_predicted,    C/rate' = C/rate + n·(TPOT' − TPOT) + δ

with n the mean answer. At a target δ takes away no more than is predicted there. Where only TTFT was recorded, δ is
what it adds to TTFT.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from math import ceil, exp, fsum, log

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
        replace(sweep, reproduced=_reproduced(runs.get(lengths, ()), lengths))
        for sweep in anchor.decode
        for lengths in ((sweep.prompt_tokens, sweep.output_tokens),)
    )
    return replace(anchor, decode=sweeps)


def _reproduced(runs: Sequence[tuple[MeasuredRun, Prediction]], lengths: tuple[int, int]) -> tuple[Reproduced, ...]:
    """Ratios by rising load; runs of one load count as their geometric mean."""
    ordered = sorted(runs, key=lambda pair: pair[0].clients)
    return tuple(
        _ratios(clients, list(same), lengths) for clients, same in groupby(ordered, key=lambda pair: pair[0].clients)
    )


def _ratios(clients: int, runs: Sequence[tuple[MeasuredRun, Prediction]], lengths: tuple[int, int]) -> Reproduced:
    outside = [ms for measured, told in runs if (ms := _outside_decode_ms(measured, told, lengths)) is not None]

    def mean(value: Callable[[MeasuredRun, Prediction], float | None]) -> float | None:
        logs = [log(ratio) for measured, told in runs if (ratio := value(measured, told)) is not None]
        return exp(fsum(logs) / len(logs)) if logs else None

    return Reproduced(
        clients=clients,
        tpot_ratio=mean(lambda run, told: run.tpot_ms / told.tpot_ms.mean) or 1.0,
        ttft_ratio=mean(lambda run, told: run.ttft_ms / told.ttft_ms.mean if run.ttft_ms else None),
        outside_decode_ms=fsum(outside) / len(outside) if outside else None,
    )


def _outside_decode_ms(run: MeasuredRun, told: Prediction, lengths: tuple[int, int]) -> float | None:
    """Measured less predicted time of a client's cycle that is not decode; None without a recorded throughput."""
    if run.total_tok_s is None:
        return None
    tokens, answer = sum(lengths) * run.clients * 1e3, lengths[1]
    return tokens / run.total_tok_s - tokens / told.total_tok_s - answer * (run.tpot_ms - told.tpot_ms.mean)


@dataclass(frozen=True, slots=True)
class Residual:
    """Factors on a predicted TPOT and TTFT, and ms of a cycle outside decode; None where no throughput told it."""

    tpot: float = 1.0
    ttft: float = 1.0
    outside_decode_ms: float | None = None


def residual_at(sweep: DecodeSweep, clients: float, moved: bool) -> Residual:
    """Residual at a load of one replica; ``moved``: the target's layout or lengths are not the anchor's."""

    def at(value: Callable[[Reproduced], float | None]) -> float | None:
        points = [(float(run.clients), v) for run in sweep.reproduced if (v := value(run)) is not None]
        return log_interpolate(points, clients) if points else None

    ttft = exp(at(lambda run: None if run.ttft_ratio is None else log(run.ttft_ratio)) or 0.0)
    return Residual(
        tpot=exp(at(lambda run: log(run.tpot_ratio)) or 0.0),
        ttft=ttft**TTFT_SHARE_MOVED if moved else ttft,
        outside_decode_ms=at(lambda run: run.outside_decode_ms),
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
