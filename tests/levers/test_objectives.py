"""Objectives and service-level bounds."""

from dataclasses import replace

import pytest

from levers.objectives import OBJECTIVES, objective, parse_slo, shortfall, violations
from predictor.errors import BadInput, UnknownName
from predictor.types import Coverage, Distribution, MemoryBreakdown, Mode, Prediction

GIB = 2**30
MEMORY = MemoryBreakdown(100 * GIB, 50 * GIB, 0.0, 4 * GIB, 1 * GIB, 155 * GIB, 288 * GIB, 70e3, 760_000)
PREDICTION = Prediction(
    mode=Mode.ANCHORED,
    anchor="a",
    coverage=Coverage.COVERED,
    flags=(),
    gpus=8,
    ttft_ms=Distribution(500.0, 400.0, 900.0, 2500.0),
    tpot_ms=Distribution(20.0, 19.0, 22.0, 30.0),
    itl_ms=Distribution(20.0),
    e2e_ms=Distribution(500.0 + 20.0 * 1023),
    output_tok_s=3000.0,
    total_tok_s=27000.0,
    max_concurrency=80,
    running=60.0,
    memory=MEMORY,
    step_ms={"attention": 6.0, "experts": 8.0, "collectives": 2.0},
)


def test_names_units_and_numbers_of_the_24() -> None:
    assert [x.number for x in OBJECTIVES] == list(range(1, 25))
    assert {x.name for x in OBJECTIVES} >= {
        "output_tok_s_per_gpu",
        "ttft_ms",
        "tpot_pollution",
        "comm_decode_ms",
        "gpus",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("total_tok_s_per_gpu", 3375.0),
        ("output_tok_s_per_gpu", 375.0),
        ("prefill_tok_s_per_gpu", 3000.0),
        ("prefill_tok_s", 24000.0),
        ("decode_step_ms", 16.0),
        ("interactivity_tok_s_user", 50.0),
        ("request_tok_s", 1000.0 * 1024 / (500.0 + 20.0 * 1023)),
        ("memory_gib", 155.0),
        ("kv_cache_gib", 50.0),
        ("tpot_pollution", 1.25),
        ("comm_decode_ms", 2.0),
        ("gpus", 8.0),
    ],
)
def test_scores_follow_their_definitions(name: str, value: float) -> None:
    assert objective(name).score(PREDICTION) == pytest.approx(value)
    assert objective(name).missing(PREDICTION) is None


def test_direction_signs_the_score() -> None:
    assert objective("ttft_ms").signed(PREDICTION) == -500.0
    assert objective("output_tok_s").signed(PREDICTION) == 3000.0


@pytest.mark.parametrize("name", ["sustainable_concurrency", "mixed_step_frac", "mixed_step_ms", "comm_prefill_ms"])
def test_what_a_prediction_does_not_hold_is_said_and_not_guessed(name: str) -> None:
    assert objective(name).score(PREDICTION) is None
    reason = objective(name).missing(PREDICTION)
    assert reason is not None
    assert name in reason.message


def test_a_simulated_step_without_collectives_communicates_nothing() -> None:
    alone = replace(PREDICTION, mode=Mode.SIMULATE, step_ms={"gemm": 5.0})
    assert objective("comm_decode_ms").score(alone) == 0.0
    assert objective("comm_decode_ms").score(replace(alone, mode=Mode.ANCHORED)) is None


def test_a_simulation_must_name_its_request_rate() -> None:
    simulated = replace(PREDICTION, method="des")
    assert objective("request_tok_s").score(simulated) is None
    assert objective("request_tok_s").score(replace(simulated, extras={"request_tok_s": 48.0})) == 48.0


def test_slo_on_a_percentile_names_value_and_bound() -> None:
    (reason,) = violations(PREDICTION, [parse_slo("ttft_ms_p99<=2000"), parse_slo("tpot_ms<=20")])
    assert reason.code == "slo_ttft_ms_p99"
    assert "2,500" in reason.message
    assert "2,000" in reason.message


def test_slo_from_below_and_on_an_unknown_value() -> None:
    missed = violations(PREDICTION, [parse_slo("interactivity_tok_s_user>=60"), parse_slo("itl_ms_p99<=100")])
    assert [reason.code for reason in missed] == ["slo_interactivity_tok_s_user", "slo_itl_ms_p99_unknown"]


def test_shortfall_is_the_relative_miss() -> None:
    assert shortfall(PREDICTION, [parse_slo("ttft_ms_p99<=2000")]) == pytest.approx(0.25)
    assert shortfall(PREDICTION, [parse_slo("ttft_ms<=500")]) == 0.0


@pytest.mark.parametrize("text", ["ttft_ms", "ttft_ms=5", "ttft_ms<=five", "ttft_ms<=-1", "ttft_ms<=inf", "<=3"])
def test_malformed_slo(text: str) -> None:
    with pytest.raises(BadInput, match="slo"):
        parse_slo(text)


def test_unknown_slo_metric_has_near_matches() -> None:
    with pytest.raises(UnknownName, match="ttft_ms_p90"):
        parse_slo("ttft_ms_p95<=100")
