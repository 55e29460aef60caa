"""Broken and contradictory benchmark files: one line with the evidence, never a number."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.anchors.import_formats import BenchRun, Latency, read_benchmark
from predictor.anchors.import_solve.checks import StepFloor, check_floor, check_run
from predictor.errors import BadFile

# A closed loop of 4 clients: 40 requests of 128 tokens, TTFT 30 ms, TPOT 9 ms.
E2E = 30.0 + 127 * 9.0
GOOD: dict[str, Any] = {
    "backend": "openai",
    "model_id": "m",
    "num_prompts": 40,
    "request_rate": "inf",
    "max_concurrency": 4,
    "duration": 10 * E2E / 1e3 * 1.02,
    "completed": 40,
    "failed": 0,
    "total_input_tokens": 40960,
    "total_output_tokens": 5120,
    "request_throughput": 40 / (10 * E2E / 1e3 * 1.02),
    "output_throughput": 5120 / (10 * E2E / 1e3 * 1.02),
    "total_token_throughput": 46080 / (10 * E2E / 1e3 * 1.02),
    "mean_ttft_ms": 30.0,
    "median_ttft_ms": 29.0,
    "p99_ttft_ms": 60.0,
    "mean_tpot_ms": 9.0,
    "median_tpot_ms": 8.9,
    "p99_tpot_ms": 9.9,
    "mean_itl_ms": 9.0,
    "median_itl_ms": 8.8,
    "p99_itl_ms": 12.0,
    "mean_e2el_ms": E2E,
    "median_e2el_ms": E2E,
    "p99_e2el_ms": E2E * 1.1,
}
TEXT = json.dumps(GOOD)


def read(**changes: Any) -> BenchRun:
    return read_benchmark(json.dumps(GOOD | changes), "r.json").runs[0]


def without(*names: str, **changes: Any) -> BenchRun:
    row = {name: value for name, value in (GOOD | changes).items() if name not in names}
    return read_benchmark(json.dumps(row), "r.json").runs[0]


def test_the_good_file_is_good() -> None:
    check_run(read())


@settings(max_examples=60)
@given(cut=st.integers(1, len(TEXT) - 1))
def test_a_file_cut_anywhere_is_one_line_that_says_so(cut: int) -> None:
    with pytest.raises(BadFile) as error:
        read_benchmark(TEXT[:cut], "r.json")
    assert str(error.value).startswith("r.json: ")
    assert "\n" not in str(error.value)


def test_a_cut_last_line_of_json_lines_is_named() -> None:
    with pytest.raises(BadFile, match=r"r\.jsonl line 2: ends in the middle of a value"):
        read_benchmark(TEXT + "\n" + TEXT[: len(TEXT) // 2], "r.jsonl")


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_none_are_refused(word: str) -> None:
    with pytest.raises(BadFile, match=f"holds {word}, which is no measurement"):
        read_benchmark(TEXT.replace('"mean_ttft_ms": 30.0', f'"mean_ttft_ms": {word}'), "r.json")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mean_tpot_ms": -9.0}, "mean_tpot_ms is -9.0, expected a finite number at least 0"),
        ({"duration": 0}, "duration is 0, expected a finite number above 0 of seconds"),
        ({"mean_ttft_ms": "30"}, "mean_ttft_ms is '30', expected a number"),
        ({"mean_ttft_ms": True}, "mean_ttft_ms is True, expected a number"),
        ({"completed": 39.5}, "completed is 39.5, expected a whole number"),
    ],
)
def test_wrong_values_are_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadFile) as error:
        read(**changes)
    assert said in str(error.value)


def test_arrays_of_unequal_length_are_half_a_file() -> None:
    with pytest.raises(BadFile, match="2, 1, 2 and 2 entries: the file is not whole"):
        read(input_lens=[10, 10], output_lens=[5], ttfts=[0.1, 0.1], itls=[[0.1], [0.1]])


# Units mixed up


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mean_tpot_ms": 0.009, "median_tpot_ms": 0.0089, "p99_tpot_ms": 0.0099}, "TPOT looks like seconds"),
        ({"mean_e2el_ms": E2E / 1e3, "median_e2el_ms": E2E / 1e3, "p99_e2el_ms": E2E / 1e3}, "E2E looks like seconds"),
        ({"mean_ttft_ms": 0.03, "median_ttft_ms": 0.029, "p99_ttft_ms": 0.06}, "TTFT looks like seconds"),
        ({"duration": GOOD["duration"] * 1e3}, "the duration looks like ms in a field of s"),
    ],
)
def test_seconds_for_milliseconds_are_told_by_the_other_figures(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadFile, match=said):
        check_run(read(**changes))


def test_all_latencies_in_seconds_are_told_by_littles_law() -> None:
    scaled = {name: value / 1e3 for name, value in GOOD.items() if name.endswith("_ms")}
    with pytest.raises(BadFile, match="in flight, with 4 clients: its latency looks like s in a field of ms"):
        check_run(read(**scaled))


def test_latencies_alone_are_told_by_what_the_weights_take_to_read() -> None:
    run = BenchRun("r.csv", "CSV", 4, 40, Latency(0.03), Latency(0.009))
    check_run(run)
    with pytest.raises(BadFile, match="reading the weights of M takes 4 ms a step: it looks like seconds"):
        check_floor(run, StepFloor(4.0, "reading the weights of M"))


@settings(max_examples=100)
@given(
    ttft=st.floats(5.0, 50_000.0),
    tpot=st.floats(1.0, 300.0),
    tokens=st.integers(2, 4000),
    clients=st.integers(1, 512),
    ramp=st.floats(0.4, 1.0),
)
def test_a_consistent_run_is_never_refused(ttft: float, tpot: float, tokens: int, clients: int, ramp: float) -> None:
    if ttft < tpot / 3.0:
        ttft = tpot
    e2e = ttft + (tokens - 1) * tpot
    rate = clients / e2e * 1e3 * ramp
    run = BenchRun(
        "r",
        "t",
        clients,
        clients * 10,
        Latency(ttft),
        Latency(tpot),
        e2e=Latency(e2e),
        duration_s=clients * 10 / rate,
        mean_output_tokens=float(tokens),
        requests_per_s=rate,
        output_tok_s=rate * tokens,
    )
    check_run(run)


@pytest.mark.parametrize("which", ["ttft", "tpot", "e2e"])
@settings(max_examples=30)
@given(tokens=st.integers(32, 4000), clients=st.integers(1, 512))
def test_a_thousandfold_slip_never_passes(which: str, tokens: int, clients: int) -> None:
    ttft, tpot = 200.0, 15.0
    e2e = ttft + (tokens - 1) * tpot
    rate = clients / e2e * 1e3 * 0.9
    slipped = {"ttft": ttft, "tpot": tpot, "e2e": e2e}
    slipped[which] /= 1e3
    run = BenchRun(
        "r",
        "t",
        clients,
        clients * 10,
        Latency(slipped["ttft"]),
        Latency(slipped["tpot"]),
        e2e=Latency(slipped["e2e"]),
        duration_s=clients * 10 / rate,
        mean_output_tokens=float(tokens),
        requests_per_s=rate,
    )
    with pytest.raises(BadFile):
        check_run(run)


def test_percentiles_that_fall_and_lost_requests_are_refused() -> None:
    with pytest.raises(BadFile, match="ttft percentiles fall"):
        check_run(read(p99_ttft_ms=20.0))
    with pytest.raises(BadFile, match="4 of 44 requests failed"):
        check_run(read(failed=4))
    check_run(without("mean_e2el_ms", "median_e2el_ms", "p99_e2el_ms"))
