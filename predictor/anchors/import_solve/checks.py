"""Whether a benchmark's figures can all be true at once. Seconds taken for ms are 1000-fold, so the bounds are wide.

Three identities tie a closed loop together and hold to a few percent in every recorded file::

    E2E = TTFT + (output tokens − 1) · TPOT          throughput = completed / duration
    requests in flight = throughput · E2E ≤ clients                                         (Little)
"""

from dataclasses import dataclass

from predictor.anchors.import_formats.run import BenchRun, Latency
from predictor.errors import BadFile

# A figure this many times off another is not noise; a unit mix-up is 1000 times off.
UNIT_FACTOR = 30.0
# Half of the clients in flight on average is less than any ramp leaves; twice as many is more than there are.
_IN_FLIGHT = (1.0 / UNIT_FACTOR, 2.0)
# Above this share of failed requests the survivors no longer describe the load.
FAILED_FRAC = 0.05


def check_run(run: BenchRun) -> None:
    """Raise BadFile with the figures that contradict each other; silent when nothing does."""
    _check_failures(run)
    for name, latency in (("ttft", run.ttft), ("tpot", run.tpot), ("itl", run.itl), ("e2e", run.e2e)):
        _check_order(run, name, latency)
    _check_rates(run)
    _check_sum(run)
    _check_in_flight(run)
    _check_first_token(run)


def _check_failures(run: BenchRun) -> None:
    total = run.requests + run.failed
    if total and run.failed / total > FAILED_FRAC:
        raise BadFile(
            f"{run.origin}: {run.failed} of {total} requests failed: figures of the others do not describe this load"
        )


def _check_order(run: BenchRun, name: str, latency: Latency) -> None:
    rising = [value for value in (latency.p50, latency.p90, latency.p99) if value is not None]
    if rising != sorted(rising):
        raise BadFile(f"{run.origin}: {name} percentiles fall: p50, p90, p99 are {_list(rising)} ms")


def _check_rates(run: BenchRun) -> None:
    """Duration against throughput: both are of the whole run."""
    if run.duration_s is None or not run.requests:
        return
    for name, rate, tokens in (
        ("requests a second", run.requests_per_s, 1.0),
        ("output tokens a second", run.output_tok_s, run.mean_output_tokens),
    ):
        if rate is None or tokens is None:
            continue
        counted = run.requests * tokens / run.duration_s
        if not 0.5 < counted / rate < 2.0:
            raise BadFile(
                f"{run.origin}: {run.requests} requests in a duration of {run.duration_s:g} s are {counted:g} {name}, "
                f"the file says {rate:g}{_unit_hint(rate / counted, 'the duration', 'ms', 's')}"
            )


def _check_sum(run: BenchRun) -> None:
    """E2E against TTFT and TPOT, where all three stand in the file."""
    ttft, tpot, e2e, tokens = run.ttft.mean, run.tpot.mean, run.e2e.mean, run.mean_output_tokens
    if ttft is None or tpot is None or e2e is None or tokens is None or e2e == 0.0:
        return
    total = ttft + (tokens - 1.0) * tpot
    culprit = _culprit(ttft, (tokens - 1.0) * tpot, e2e)
    # Means of requests of very unequal lengths may miss the identity by a little; by twice only with a wrong unit.
    if 0.5 < total / e2e < 2.0 or (culprit == "" and 1.0 / UNIT_FACTOR < total / e2e < UNIT_FACTOR):
        return
    raise BadFile(
        f"{run.origin}: TTFT {ttft:g} ms + {tokens - 1.0:.0f} tokens at {tpot:g} ms make {total:g} ms, E2E is "
        f"{e2e:g} ms{culprit or ': at least one has another unit than its field says'}"
    )


def _culprit(ttft: float, decode: float, e2e: float) -> str:
    """Which of the three a change of unit would reconcile, as the end of a sentence; empty if none."""
    for name, candidate in (
        ("TPOT", (ttft + decode * 1e3) / e2e),
        ("TTFT", (ttft * 1e3 + decode) / e2e),
        ("E2E", (ttft + decode) / (e2e * 1e3)),
        ("TTFT and TPOT", (ttft + decode) * 1e3 / e2e),
    ):
        if 0.7 < candidate < 1.4:
            return f": {name} looks like seconds in a field of milliseconds"
    return ""


def _check_in_flight(run: BenchRun) -> None:
    """Little's law. The mean rate over a whole run has ramps in it, so only a wide band can be asked."""
    tokens = run.mean_output_tokens
    e2e = run.e2e.mean
    if e2e is None and run.ttft.mean is not None and run.tpot.mean is not None and tokens is not None:
        e2e = run.ttft.mean + (tokens - 1.0) * run.tpot.mean
    rate = _requests_per_s(run)
    if e2e is None or rate is None or run.concurrency is None or run.request_rate_per_s is not None:
        return
    clients = min(run.concurrency, run.requests) if run.requests else run.concurrency
    in_flight = rate * e2e / 1e3
    low, high = _IN_FLIGHT
    if not low < in_flight / clients < high:
        raise BadFile(
            f"{run.origin}: {rate:g} requests a second of {e2e:g} ms each are {in_flight:g} in flight, with "
            f"{clients} clients{_unit_hint(clients / in_flight, 'its latency', 's', 'ms')}"
        )


def _requests_per_s(run: BenchRun) -> float | None:
    if run.requests_per_s is not None:
        return run.requests_per_s
    if run.duration_s is not None and run.requests:
        return run.requests / run.duration_s
    if run.output_tok_s is not None and run.mean_output_tokens:
        return run.output_tok_s / run.mean_output_tokens
    return None


def _check_first_token(run: BenchRun) -> None:
    """A first token takes at least one step: a TTFT far below a TPOT has another unit."""
    ttft, tpot = run.ttft.typical, run.tpot.typical
    if ttft is None or tpot is None or ttft == 0.0:
        return
    if ttft < tpot / UNIT_FACTOR:
        raise BadFile(
            f"{run.origin}: TTFT {ttft:g} ms is {tpot / ttft:.0f} times shorter than one output token ({tpot:g} ms): "
            "TTFT looks like seconds in a field of milliseconds"
        )


@dataclass(frozen=True, slots=True)
class StepFloor:
    """Least time of a decode step, and what sets it."""

    step_ms: float
    reason: str


def check_floor(run: BenchRun, floor: StepFloor) -> None:
    """A token cannot come faster than its step reads what it must; speculation commits several tokens a step."""
    tpot = run.tpot.typical
    if tpot is None:
        return
    step = tpot * (run.tokens_per_step or 1.0)
    if step * UNIT_FACTOR < floor.step_ms:
        raise BadFile(
            f"{run.origin}: TPOT {tpot:g} ms, but {floor.reason} takes {floor.step_ms:.3g} ms a step: "
            "it looks like seconds in a field of milliseconds"
        )


def _unit_hint(ratio: float, what: str, is_: str, field: str) -> str:
    """Words for a ratio near 1000 or a thousandth."""
    if 300.0 < ratio < 3000.0:
        return f": {what} looks like {is_} in a field of {field}"
    if 300.0 < 1.0 / ratio < 3000.0:
        return f": {what} looks like {field} in a field of {is_}, or was converted twice"
    return ""


def _list(values: list[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
