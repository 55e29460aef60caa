"""Poisson load on old engines: steps of an offline table, requests without a token, a full step's price."""

import pytest

from evals.corpus import CorpusAbsent, data_dir
from evals.request_runs import OpenRun, SentRequest, llama_run
from evals.tails_poisson import (
    CHUNKED,
    SETUPS,
    measured,
    offline_steps,
    poisson_rows,
    prompt_token_ms,
    simulated,
    step_model,
)
from predictor.step.anchored import AnchoredStepModel
from predictor.step.curve import DecodeCurve
from predictor.step.model import PrefillCurve


def test_prompt_token_is_what_longer_prompts_add() -> None:
    """4 sequences · 1000 tokens more take 2 s more: 0.5 ms a token; decode rows add 1 s over 2048 · 4 steps: 0.12."""
    short = {4: 10.0, 8: 11.0}
    long = {4: 10.2, 8: 11.4}
    assert prompt_token_ms(short, long, 1000) == pytest.approx(0.05)
    assert prompt_token_ms(short, {4: 12.0}, 1000) == pytest.approx(1000.0 / (2048 * 4))  # bounded by a decode row


def test_steps_are_the_batch_without_its_prompts() -> None:
    batches, steps = offline_steps({4: 20.47 + 4 * 128 * 0.001}, 1.0)
    assert batches == (4,)
    assert steps == pytest.approx((10.0,))


def test_requests_without_a_token_count_in_no_statistic() -> None:
    run = OpenRun(
        "h100",
        16.0,
        (SentRequest(10, 3, 100.0, (20.0, 40.0)), SentRequest(10, 0, 0.0, ()), SentRequest(10, 1, 300.0, ())),
    )
    found = measured(run)
    assert found["ttft_mean"] == pytest.approx(200.0)
    assert found["tpot_mean"] == pytest.approx(30.0)
    assert found["e2e_mean"] == pytest.approx(230.0)
    model = AnchoredStepModel(DecodeCurve((1, 4), (10.0, 10.0), 100.0), 0.0, PrefillCurve(5.0, 1.0, 0.0, 0.0))
    predicted = simulated(model, CHUNKED, run)
    assert predicted["tpot_p50"] == pytest.approx(10.0)
    assert predicted["ttft_p50"] == pytest.approx(15.0)


def test_a_full_step_costs_its_tokens_whoever_they_belong_to() -> None:
    try:
        data = data_dir()
    except CorpusAbsent as absent:
        pytest.skip(str(absent))
    model = step_model(data, SETUPS[0])
    alone = model.prefill.fixed_ms + model.prefill.chunk_ms(512)
    beside = model.decode_line(128).at(128 * model.curve.context_tokens) + model.prefill.chunk_ms(512 - 128)
    assert alone == pytest.approx(beside)
    assert len(llama_run(data, "h100").requests) == 1000
    h100 = poisson_rows(data)[0]
    assert h100.predicted["e2e_p99"] == pytest.approx(h100.measured["e2e_p99"], rel=0.098)
