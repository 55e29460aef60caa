"""The sweeps: waves for decode steps, prompts alone for prefill, several prompts in one step, a prompt sent twice."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from agent.bench.client import Completion, Endpoint, complete, connect
from agent.bench.metrics import read_counters
from agent.bench.prompts import PromptSource
from agent.bench.wave import WaveReading, read_wave, send_wave, spread_pct
from agent.harvest.checks import READING_PCT, SPREAD_PCT, disagreement_pct
from agent.harvest.plan import HarvestPlan
from agent.harvest.state import Kept

Say = Callable[[str], None]
# Fewest steps a window must hold; shorter ones are tried again with longer answers, this many times.
MIN_STEPS = 12
LENGTHEN = 3
# Extra repeats where readings or repeats disagree, before a point is marked.
RETRIES = 2
WARM_TOKENS = 8


@dataclass(slots=True)
class Session:
    """What all sweeps share."""

    endpoint: Endpoint
    prompts: PromptSource
    plan: HarvestPlan
    kept: Kept
    say: Say
    longest: int  # tokens a request may have
    skipped: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DecodeMeasurement:
    """One batch: the step, its three readings (medians over repeats), how far repeats and readings differ.

    The step is the median gap; where the readings disagree, the middle one of the three.
    """

    prompt_tokens: int
    batch: int
    step_ms: float
    median_gap_ms: float
    span_ms: float
    server_ms: float | None
    spread_pct: float
    answer_tokens: int
    tokens_per_chunk: float
    counted_prompt_tokens: int
    ids_counted: bool

    @property
    def disagreement_pct(self) -> float:
        """Of the three readings."""
        return disagreement_pct((self.median_gap_ms, self.span_ms, self.server_ms))


def decode_sweep(session: Session) -> list[DecodeMeasurement]:
    """Every wave of the plan, in rising order; a batch that never decodes together ends the sweep of its length."""
    found: list[DecodeMeasurement] = []
    stopped: set[int] = set()
    for prompt, batch in session.plan.waves:
        if prompt in stopped:
            continue
        name = f"decode {prompt} {batch}"
        row = session.kept.get(name)
        measurement = DecodeMeasurement(**_fields(row)) if row else asyncio.run(_decode_point(session, prompt, batch))
        if measurement is None:
            stopped.add(prompt)
            session.skipped.append(
                f"batch {batch} at {prompt} tokens never decodes together: the KV pool or the running cap is below it"
            )
            continue
        if row is None:
            session.kept.keep(name, _as_row(measurement))
        session.say(
            f"batch {batch:>4} at {prompt}: {measurement.step_ms:.3f} ms "
            f"(repeats within {measurement.spread_pct:.1f}%, readings within {measurement.disagreement_pct:.1f}%)"
        )
        found.append(measurement)
    return found


def _fields(row: Any) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "name"}


def _as_row(measurement: DecodeMeasurement) -> dict[str, Any]:
    return {name: getattr(measurement, name) for name in DecodeMeasurement.__slots__}


async def _decode_point(session: Session, prompt: int, batch: int) -> DecodeMeasurement | None:
    """Warm up, repeat, and repeat again where readings or repeats disagree."""
    async with connect(session.endpoint) as client:

        async def wave(answer: int) -> WaveReading | None:
            sent = await send_wave(client, session.endpoint, session.prompts, batch, prompt, answer)
            return read_wave(sent)

        answer = _first_answer(session, prompt, batch)
        await wave(min(answer, WARM_TOKENS + 2))
        readings: list[WaveReading] = []
        for _ in range(LENGTHEN):
            reading = await wave(answer)
            if reading is not None and reading.steps >= MIN_STEPS:
                readings.append(reading)
                break
            # Prompts were still being prefilled while the first answers ended: answers must outlast that.
            answer = min(session.longest - prompt, 2 * answer)
        else:
            return None
        for attempt in range(1, session.plan.repeats + RETRIES):
            if attempt >= session.plan.repeats and _settled(readings):
                break
            reading = await wave(answer)
            if reading is not None:
                readings.append(reading)
    return _summarise(prompt, batch, answer, readings, session.plan.repeats)


def _first_answer(session: Session, prompt: int, batch: int) -> int:
    """Answer tokens to begin with: the window, and a step for every request whose prompt is prefilled first."""
    return min(session.longest - prompt, session.plan.window_steps + 2 * batch)


def _settled(readings: list[WaveReading]) -> bool:
    if not readings:
        return False
    steps = [reading.median_gap_ms for reading in readings]
    each = [disagreement_pct((r.median_gap_ms, r.span_ms, r.server_ms)) for r in readings]
    return min(steps) > 0.0 and spread_pct(steps) <= SPREAD_PCT and median(each) <= READING_PCT


def _summarise(prompt: int, batch: int, answer: int, readings: list[WaveReading], repeats: int) -> DecodeMeasurement:
    """Medians over the repeats that agree best among themselves: those nearest to the median of all."""
    middle = median(reading.median_gap_ms for reading in readings)
    nearest = sorted(readings, key=lambda reading: abs(reading.median_gap_ms - middle))[: max(1, repeats)]
    steps = [reading.median_gap_ms for reading in nearest]
    counted = [reading.server_ms for reading in nearest if reading.server_ms is not None]
    gap, span = median(steps), median(reading.span_ms for reading in nearest)
    server = median(counted) if counted else None
    return DecodeMeasurement(
        prompt_tokens=prompt,
        batch=batch,
        step_ms=believed_step_ms(gap, span, server),
        median_gap_ms=gap,
        span_ms=span,
        server_ms=server,
        spread_pct=spread_pct(steps) if min(steps) > 0.0 else 1e9,
        answer_tokens=answer,
        tokens_per_chunk=max(reading.tokens_per_chunk for reading in nearest),
        counted_prompt_tokens=nearest[0].prompt_tokens,
        ids_counted=all(reading.ids_counted for reading in nearest),
    )


def believed_step_ms(gap_ms: float, span_ms: float, server_ms: float | None) -> float:
    """The median gap; where the readings disagree, the middle one of the three, or the span where there are two.

    A starved client reads several tokens at once: its median gap is then near zero, its span is not.

    >>> believed_step_ms(8.0, 8.2, 8.1), believed_step_ms(0.01, 8.2, 8.1), believed_step_ms(0.01, 8.2, None)
    (8.0, 8.1, 8.2)
    """
    if disagreement_pct((gap_ms, span_ms, server_ms)) <= READING_PCT:
        return gap_ms
    return span_ms if server_ms is None else median((gap_ms, span_ms, server_ms))


@dataclass(frozen=True, slots=True)
class PrefillMeasurement:
    """TTFT of one prompt alone: the median, the spread over repeats, and the server's count of its tokens."""

    tokens: int
    ttft_ms: float
    spread_pct: float
    counted_tokens: int
    cached_tokens: int


def prefill_sweep(session: Session) -> list[PrefillMeasurement]:
    """One prompt at a time at every length, each a fresh one."""
    found = []
    for tokens in session.plan.prefill_tokens:
        name = f"prefill {tokens}"
        row = session.kept.get(name)
        measurement = PrefillMeasurement(**_fields(row)) if row else asyncio.run(_prefill_point(session, tokens))
        if row is None:
            session.kept.keep(name, {slot: getattr(measurement, slot) for slot in PrefillMeasurement.__slots__})
        session.say(f"prompt of {tokens}: {measurement.ttft_ms:.2f} ms (repeats within {measurement.spread_pct:.1f}%)")
        found.append(measurement)
    return found


async def _alone(session: Session, tokens: int) -> Completion:
    async with connect(session.endpoint) as client:
        done = await complete(client, session.endpoint, session.prompts.prompt(tokens), 2)
    session.prompts.learn(tokens, done.prompt_tokens)
    return done


async def _prefill_point(session: Session, tokens: int) -> PrefillMeasurement:
    await _alone(session, tokens)  # the first prompt of a length may compile or capture
    done = [await _alone(session, tokens) for _ in range(session.plan.repeats)]
    times = [one.ttft_ms for one in done]
    if spread_pct(times) > SPREAD_PCT:
        done += [await _alone(session, tokens) for _ in range(RETRIES)]
        middle = median(one.ttft_ms for one in done)
        nearest = sorted(done, key=lambda one: abs(one.ttft_ms - middle))[: session.plan.repeats]
        times = [one.ttft_ms for one in nearest]
    return PrefillMeasurement(
        tokens, median(times), spread_pct(times), done[-1].prompt_tokens, max(one.cached_tokens for one in done)
    )


@dataclass(frozen=True, slots=True)
class CacheProbe:
    """A prompt sent again: its time, and prefix hits the server counted; None where it counts none."""

    repeated_ms: float
    hits: float | None


def cache_probe(session: Session) -> CacheProbe:
    """Send the longest prompt, then the same one again, several times."""

    async def probe() -> CacheProbe:
        tokens = session.plan.prefill_tokens[-1]
        prompt = session.prompts.prompt(tokens)
        async with connect(session.endpoint) as client:
            before = (await read_counters(client, session.endpoint)).prefix_hits
            await complete(client, session.endpoint, prompt, 2)
            again = [await complete(client, session.endpoint, prompt, 2) for _ in range(3)]
            after = (await read_counters(client, session.endpoint)).prefix_hits
        told = float(sum(one.cached_tokens for one in again))
        counted = after - before if before is not None and after is not None else None
        hits = max(told, counted) if counted is not None else told or None
        return CacheProbe(median(one.ttft_ms for one in again), hits)

    row = session.kept.get("cache")
    if row is not None:
        return CacheProbe(**_fields(row))
    result = asyncio.run(probe())
    session.kept.keep("cache", {"repeated_ms": result.repeated_ms, "hits": result.hits})
    return result


@dataclass(frozen=True, slots=True)
class PackedMeasurement:
    """Several prompts sent at once: time until all have their first token."""

    sequences: int
    tokens_each: int
    step_ms: float


def packed_probe(session: Session) -> PackedMeasurement | None:
    """The probe of the plan; the fastest repeat, in which all prompts made it into one step."""
    plan = session.plan
    if not plan.probe_sequences:
        return None
    row = session.kept.get("packed")
    if row is not None:
        return PackedMeasurement(**_fields(row))

    async def probe() -> float:
        async with connect(session.endpoint) as client:
            wave = await send_wave(
                client, session.endpoint, session.prompts, plan.probe_sequences, plan.prompt_tokens, 2
            )
        sent = min(one.sent_ms for one in wave.completions)
        return max(one.first_ms for one in wave.completions) - sent

    times = [asyncio.run(probe()) for _ in range(plan.repeats + 1)]
    result = PackedMeasurement(plan.probe_sequences, plan.prompt_tokens, min(times))
    session.kept.keep("packed", {slot: getattr(result, slot) for slot in PackedMeasurement.__slots__})
    session.say(f"{result.sequences} prompts of {result.tokens_each} in one step: {result.step_ms:.2f} ms")
    return result
