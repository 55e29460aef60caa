"""Harvest checks (paper App. E): each stops a measurement from silently describing something else than the deployment.

Pure: measurements in, verdicts out. A check in ``REFUSING`` that fails leaves no artefact; the others mark it.
"""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from predictor.anchors.check import MONOTONE_SLACK, PACKING_RANGE
from predictor.anchors.fit import PrefillFit
from predictor.anchors.schema import Check

# Readings further apart than this disagree: a starved client reads several tokens at once, and its median gap lies.
READING_PCT = 15.0
# Repeats of one batch on idle devices differ by 1-4%.
SPREAD_PCT = 10.0
# A repeated prompt that takes less than this share of a fresh one's own work was not prefilled again.
CACHED_FRAC = 0.5
TELLING_FACTOR = 1.5
PROMPT_SLACK = 0.02
REFUSING = frozenset({"prefix_cache_off", "prompts_not_cached", "tokens_counted", "readings_agree"})


def prefix_cache_off(on: bool | None) -> Check:
    """What the server itself says."""
    if on is None:
        return Check(
            name="prefix_cache_off", passed=True, detail="the server does not say; judged by a repeated prompt"
        )
    detail = f"the server says enable_prefix_caching is {on}"
    return Check(name="prefix_cache_off", passed=not on, detail=detail)


def prompts_not_cached(fresh_ms: float, repeated_ms: float, shortest_ms: float, hits: float | None) -> Check:
    """A prompt sent again must be prefilled again: the server's counter of hits says so, else its time does.

    ``shortest_ms`` is what a prompt too short to matter takes: a cached prompt costs about that. Where the long prompt
    takes hardly longer, time tells nothing.
    """
    name = "prompts_not_cached"
    took = f"a prompt sent again takes {repeated_ms:.1f} ms, {fresh_ms:.1f} when fresh, the shortest {shortest_ms:.1f}"
    if hits is not None:
        return Check(name=name, passed=not hits, detail=f"{hits:.0f} cached prompt tokens counted; {took}")
    if fresh_ms < TELLING_FACTOR * shortest_ms:
        return Check(name=name, passed=True, detail=f"{took}: too short to tell, and the server counts no hits")
    share = (repeated_ms - shortest_ms) / (fresh_ms - shortest_ms)
    return Check(name=name, passed=share >= CACHED_FRAC, detail=took)


def real_weights(dummy: bool) -> Check:
    """An untrained router spreads tokens evenly: MoE steps come out up to a third too fast."""
    said = "dummy weights: an MoE step comes out too fast, the more so the larger the batch" if dummy else "real"
    return Check(name="real_weights", passed=not dummy, detail=said)


def prompt_length(asked: int, counted: int) -> Check:
    """The server's own count of the prompt's tokens; a chat template or a tokenizer adds to it."""
    off = counted / asked - 1.0 if counted else -1.0
    detail = f"{asked} tokens asked, {counted} counted by the server"
    return Check(name="prompt_length", passed=abs(off) <= PROMPT_SLACK or abs(counted - asked) <= 2, detail=detail)


def as_asked(rows: Sequence[tuple[str, object, object]]) -> Check:
    """(what, asked, effective): engines clamp a running cap or a budget, or capture other graphs, without stopping."""
    off = [f"{what} {effective}, asked {asked}" for what, asked, effective in rows if asked != effective]
    said = "; ".join(off) or "the engine runs with the limits and graphs it was asked for, as far as it says"
    return Check(name="limits_as_asked", passed=not off, detail=said)


def tokens_counted(tokens_per_chunk: float, counts_ids: bool) -> Check:
    """Gaps are between messages; with several tokens in one they are only usable where the tokens are counted."""
    detail = f"{tokens_per_chunk:.2f} tokens a message" + (", counted by their ids" if counts_ids else "")
    return Check(name="tokens_counted", passed=counts_ids or tokens_per_chunk <= 1.05, detail=detail)


def disagreement_pct(readings: Sequence[float | None]) -> float:
    """Largest over smallest of the readings there are."""
    known = [value for value in readings if value is not None and value > 0.0]
    missing = [value for value in readings if value is not None and value <= 0.0]
    if missing:
        return float("inf")
    return (max(known) / min(known) - 1.0) * 100.0 if known else float("inf")


def readings_agree(rows: Sequence[tuple[int, float]]) -> Check:
    """(batch, disagreement %) of every point: fails where most disagree, or one is no time at all."""
    off = [value for _, value in rows if value > READING_PCT]
    if not off:
        worst = max((value for _, value in rows), default=0.0)
        return Check(name="readings_agree", passed=True, detail=f"three readings of a step within {worst:.1f}%")
    passed = 2 * len(off) <= len(rows) and float("inf") not in off
    return Check(name="readings_agree", passed=passed, detail=f"readings of a step apart: {_apart(rows)}")


def every_reading_agrees(rows: Sequence[tuple[int, float]]) -> Check:
    """As :func:`readings_agree`, for single points: their step is the middle one of the three readings."""
    apart = _apart(rows)
    said = f"the middle of three readings that are apart was taken: {apart}" if apart else "at every batch"
    return Check(name="every_reading_agrees", passed=not apart, detail=said)


def _apart(rows: Sequence[tuple[int, float]]) -> str:
    return ", ".join(f"batch {batch}: {_pct(value)}" for batch, value in rows if value > READING_PCT)


def _pct(value: float) -> str:
    return "a reading that is not positive" if value == float("inf") else f"{value:.0f}%"


def repeats_agree(rows: Sequence[tuple[int, float]]) -> Check:
    """(batch, spread % over repeats)."""
    off = [(batch, value) for batch, value in rows if value > SPREAD_PCT]
    if not off:
        worst = max((value for _, value in rows), default=0.0)
        return Check(name="repeats_agree", passed=True, detail=f"repeats within {worst:.1f}%")
    said = ", ".join(f"batch {batch}: {value:.0f}%" for batch, value in off)
    return Check(name="repeats_agree", passed=False, detail=f"repeats of a step apart: {said}")


def monotone(what: str, points: Sequence[tuple[int, float]]) -> Check:
    """Steps that fall as the batch or the prompt grows were measured under another load."""
    falls = [
        f"{later[0]} takes {later[1]:.3g} ms, {earlier[0]} took {earlier[1]:.3g}"
        for earlier, later in pairwise(points)
        if later[1] < earlier[1] * (1.0 - MONOTONE_SLACK)
    ]
    name = f"{what}_monotone"
    return Check(name=name, passed=not falls, detail="; ".join(falls) or f"{what} rises over {len(points)} points")


def fit_quality(fit: PrefillFit, times_ms: Sequence[float]) -> Check:
    """The fit must reproduce the sweep; a residual above a tenth of the shortest prompt says that it does not."""
    limit = 0.1 * median(times_ms)
    detail = f"residual {fit.rms_residual_ms:.2f} ms over prompts of {min(times_ms):.1f} to {max(times_ms):.1f} ms"
    return Check(name="prefill_fit", passed=fit.rms_residual_ms <= limit, detail=detail)


def packing(sequences: int, tokens_each: int, step_ms: float, budget: int, single_ms: float) -> Check:
    """Packed prompts in one step against one prompt of all their tokens; outside the range they were serialised."""
    total = sequences * tokens_each
    low, high = PACKING_RANGE
    ratio = step_ms / single_ms
    detail = f"{sequences} × {tokens_each} tokens cost {ratio:.2f} times one prompt of {total} (expected {low}-{high})"
    if budget < total:
        return Check(name="packing", passed=False, detail=f"{detail}; the budget {budget} does not admit them together")
    return Check(name="packing", passed=low <= ratio <= high, detail=detail)
