"""The client counts tokens, not messages, and names what a server did wrong."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.bench.client import Chunk, Completion, Endpoint, complete, connect
from agent.bench.metrics import Counters, parse_metrics
from agent.bench.prompts import LOWEST_ID, PromptSource
from agent.bench.wave import Wave, read_wave, run_wave
from agent.failures import EndpointFailed
from agent.harvest.checks import REFUSING, disagreement_pct, readings_agree
from tests.agent.fake_engine import FakeEngine, Script


def endpoint(engine: FakeEngine, ids: bool = True, timeout_s: float = 10.0) -> Endpoint:
    return Endpoint(engine.url, "tiny", timeout_s, counts_ids=ids)


def one(engine: FakeEngine, tokens: int = 8, ids: bool = True) -> Completion:
    async def run() -> Completion:
        where = endpoint(engine, ids)
        async with connect(where) as client:
            return await complete(client, where, [101, 102, 103], tokens)

    return asyncio.run(run())


def test_a_stream_is_read_token_by_token() -> None:
    with FakeEngine() as engine:
        done = one(engine)
    assert done.output_tokens == 8
    assert len(done.chunks) == 8
    assert done.prompt_tokens == 3
    assert done.sent_ms < done.first_ms < done.last_ms
    body = engine.bodies[0]
    assert "seed" not in body
    assert body["temperature"] == 0.0
    assert body["ignore_eos"] is True


@pytest.mark.parametrize("ids", [True, False])
def test_messages_of_two_tokens_are_two_tokens(ids: bool) -> None:
    with FakeEngine(Script(tokens_per_chunk=2, returns_ids=ids)) as engine:
        done = one(engine, ids=ids)
    assert done.output_tokens == 8
    assert len(done.chunks) == 4
    assert done.tokens_per_chunk == 2.0
    assert sum(chunk.tokens for chunk in done.chunks) == 8
    assert done.span_ms == pytest.approx((done.last_ms - done.first_ms) / 6)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (Script(status_after=1), "HTTP 500: .*engine is not healthy"),
        (Script(truncate_after=1), r"broke after \d+ chunks|was cut after \d of 8 tokens"),
        (Script(error_event_after=1), "error in the stream: .*engine core died"),
    ],
)
def test_a_server_s_faults_are_named(script: Script, said: str) -> None:
    with FakeEngine(script) as engine, pytest.raises(EndpointFailed, match=said):
        one(engine)


def test_nobody_listening_is_said() -> None:
    with FakeEngine() as engine:
        pass
    with pytest.raises(EndpointFailed, match="the connection broke after 0 chunks"):
        one(engine)


def test_a_server_that_ignores_ignore_eos_is_refused() -> None:
    class Short(FakeEngine):
        def _give(self, request: object, tokens: int) -> None:  # type: ignore[override]
            request.tokens = min(request.tokens, 4)  # type: ignore[attr-defined]
            super()._give(request, tokens)  # type: ignore[arg-type]

    with Short() as engine, pytest.raises(EndpointFailed, match="4 tokens came of 8 asked for"):
        one(engine)


def test_a_wave_measures_the_step_of_its_batch() -> None:
    script = Script(step_ms=lambda batch: 4.0 * batch, prefill_ms=lambda tokens: 1.0)
    with FakeEngine(script) as engine:
        wave = run_wave(endpoint(engine), PromptSource(1, 1000), 3, 16, 40)
        reading = read_wave(wave)
    assert reading is not None
    assert reading.batch == 3
    assert reading.steps >= 30
    # Sleeps are never shorter than asked; how much longer is the machine's business.
    assert reading.span_ms >= 11.9
    assert reading.server_ms is not None
    assert reading.server_ms >= 11.9  # counted by the engine, in its own time
    assert reading.prompt_tokens == 16


def test_one_failure_ends_the_wave() -> None:
    with FakeEngine(Script(status_after=3)) as engine, pytest.raises(EndpointFailed, match="HTTP 500"):
        run_wave(endpoint(engine), PromptSource(1, 1000), 8, 16, 10_000)


# Readings of a wave, without a clock


def completion(first: float, gaps: list[float], tokens: int = 1) -> Completion:
    at, chunks = first, [Chunk(first, tokens)]
    for gap in gaps:
        at += gap
        chunks.append(Chunk(at, tokens))
    return Completion(0.0, tuple(chunks), 100, tokens * len(chunks))


def wave(*completions: Completion, server: tuple[Counters, Counters] = (Counters(), Counters())) -> Wave:
    return Wave(tuple(completions), *server)


def test_only_steps_with_every_request_decoding_count() -> None:
    early = completion(10.0, [50.0, *[8.0] * 20])  # its second token waits for the other's prefill
    late = completion(60.0, [*[8.0] * 20, 99.0])  # its last gap falls after the first one has ended
    reading = read_wave(wave(early, late))
    assert reading is not None
    assert reading.median_gap_ms == pytest.approx(8.0)
    assert reading.span_ms == pytest.approx(8.0)
    assert reading.steps == 20


def test_a_starved_client_s_median_lies_and_its_span_does_not() -> None:
    """Several tokens read at once: gaps of nearly nothing, then a long one."""
    bursts = [0.01, 0.01, 0.01, 31.97] * 6
    reading = read_wave(wave(completion(0.0, bursts)))
    assert reading is not None
    assert reading.median_gap_ms == pytest.approx(0.01)
    assert reading.span_ms == pytest.approx(8.0)


def test_tokens_of_a_message_share_its_gap() -> None:
    reading = read_wave(wave(completion(0.0, [16.0] * 10, tokens=2)))
    assert reading is not None
    assert reading.median_gap_ms == pytest.approx(8.0)
    assert reading.span_ms == pytest.approx(8.0)
    assert reading.tokens_per_chunk == 2.0


def test_server_counters_are_taken_between_two_readings() -> None:
    counters = (Counters(1.0, 100.0), Counters(1.9, 200.0))
    reading = read_wave(wave(completion(0.0, [9.0] * 10), server=counters))
    assert reading is not None
    assert reading.server_ms == pytest.approx(9.0)


def test_a_server_whose_clock_is_set_back_is_refused_by_its_reading() -> None:
    counters = (Counters(4000.0, 100.0), Counters(400.9, 200.0))
    reading = read_wave(wave(completion(0.0, [9.0] * 10), server=counters))
    assert reading is not None
    assert reading.server_ms is not None
    apart = disagreement_pct((reading.median_gap_ms, reading.span_ms, reading.server_ms))
    check = readings_agree([(1, apart), (2, 1.0), (4, 1.0)])
    assert not check.passed
    assert check.name in REFUSING
    assert "batch 1: a reading that is not positive" in check.detail


def test_a_wave_whose_requests_never_decode_together_has_no_reading() -> None:
    assert read_wave(wave(completion(0.0, [5.0] * 4), completion(100.0, [5.0] * 4))) is None


@given(st.floats(0.5, 200.0), st.integers(1, 16), st.integers(12, 40))
def test_equal_steps_are_read_exactly(step: float, batch: int, steps: int) -> None:
    reading = read_wave(wave(*(completion(100.0, [step] * steps) for _ in range(batch))))
    assert reading is not None
    assert reading.median_gap_ms == pytest.approx(step)
    assert reading.span_ms == pytest.approx(step)


# Prompts and counters


def test_prompts_are_random_and_repeatable() -> None:
    one_source, same, other = PromptSource(1, 5000), PromptSource(1, 5000), PromptSource(2, 5000)
    first = one_source.prompt(50)
    assert first == same.prompt(50)
    assert first != one_source.prompt(50)
    assert first != other.prompt(50)
    assert all(isinstance(token, int) and LOWEST_ID <= token < 5000 for token in first)


def test_text_prompts_learn_their_length() -> None:
    source = PromptSource(1, 5000, token_ids=False)
    text = source.prompt(100)
    assert isinstance(text, str)
    source.learn(100, 200)
    again = source.prompt(100)
    assert isinstance(again, str)
    assert len(again.split()) == 50


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("vllm:inter_token_latency_seconds_sum 2.5\nvllm:inter_token_latency_seconds_count 100", (2.5, 100.0)),
        (
            'sglang:time_per_output_token_seconds_sum{a="b"} 1\nsglang:time_per_output_token_seconds_count{a="b"} 4',
            (1.0, 4.0),
        ),
        ('vllm:inter_token_latency_seconds_sum{e="0"} 1\nvllm:inter_token_latency_seconds_sum{e="1"} 2', (3.0, None)),
        ("# HELP nothing\n", (None, None)),
    ],
)
def test_counters_of_the_engines_are_known(text: str, read: tuple[float | None, float | None]) -> None:
    counters = parse_metrics(text)
    assert (counters.token_seconds, counters.token_count) == read


def test_without_counters_there_is_no_server_reading() -> None:
    make: Callable[[], Counters] = Counters
    assert make().step_ms_since(make()) is None
    assert Counters(1.0, 5.0).step_ms_since(Counters(1.0, 5.0)) is None
