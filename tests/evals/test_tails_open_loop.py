"""Open-loop runs: what was sent, which row is the anchor, repeated prompts, its file, time-outs."""

from dataclasses import replace

import pytest

from evals.corpus import CorpusAbsent, data_dir
from evals.open_loop import (
    OpenRow,
    anchor_stage,
    calibrated,
    errors,
    holds_rate,
    kernel_anchor,
    pooled,
    predicted,
    rivals,
    scaled,
    workload_of,
)
from evals.open_loop_runs import Stage, card, model_of, stages
from predictor.des.request import Request
from predictor.load import FixedShare
from predictor.transfer.work import weight_counts

STAGE = Stage(
    experiment="x-llama-2-7b-tp1-codegen",
    stage="stage_0",
    model="llama-2-7b",
    tp=1,
    rate_per_s=1.0,
    requests=20,
    prompt_tokens=590,
    output_tokens=11,
    distinct_prompts=2,
    system_tokens=100,
    token_budget=2048,
    max_running=128,
    e2e_mean_ms=1800.0,
    e2e_p50_ms=1790.0,
    e2e_p99_ms=2000.0,
    ttft_mean_ms=25.0,
    ttft_p50_ms=24.0,
    ttft_p99_ms=40.0,
    overloaded=False,
)


@pytest.mark.parametrize(
    ("model", "billions"),
    [("llama-2-7b", 6.48), ("llama-2-70b", 68.5), ("codellama-34b", 33.2), ("mixtral-8x7b", 46.4)],
)
def test_cards_hold_the_published_parameters(model: str, billions: float) -> None:
    """Without embeddings, which every one of the four has 0.26 or 0.52 billion of."""
    counts = weight_counts(card(model))
    experts = counts.per_expert * counts.experts * counts.moe_layers
    assert (counts.attention + counts.feed_forward + experts) / 1e9 == pytest.approx(billions, rel=0.005)


def test_model_is_read_off_the_experiment() -> None:
    assert model_of("20260217-llama-2-70b-hf-tp4-codegen") == "llama-2-70b"


def test_anchor_is_the_lowest_rate_that_is_not_overloaded() -> None:
    faster = replace(STAGE, rate_per_s=2.0, experiment="a")
    overloaded = replace(STAGE, rate_per_s=0.5, overloaded=True)
    whole = replace(STAGE, stage="summary", rate_per_s=0.0)
    assert anchor_stage([faster, overloaded, whole, STAGE], "llama-2-7b") == STAGE


@pytest.mark.parametrize(("prompt", "cached"), [(593, 592), (592, 576), (575, 560), (1082, 1072)])
def test_a_prompt_that_comes_again_keeps_all_but_its_last_block(prompt: int, cached: int) -> None:
    """The last token is computed again."""
    workload = workload_of(replace(STAGE, prompt_tokens=prompt))
    request = Request(0, prompt, 10)
    assert FixedShare(workload.prefix_hit_frac).lookup(request) == cached
    assert workload.concurrency * workload.requests_per_client == STAGE.requests


def test_the_anchor_reproduces_its_own_medians() -> None:
    stage = replace(STAGE, requests=64, e2e_p50_ms=140.0, ttft_p50_ms=30.0)
    anchor = calibrated(stage, kernel_anchor(stage))
    result = predicted(stage, anchor)
    assert result.ttft_ms.p50 == pytest.approx(30.0, abs=0.1)
    assert result.e2e_ms.p50 == pytest.approx(140.0, abs=0.2)
    slower = predicted(stage, scaled(anchor, 2.0))
    span = result.e2e_ms.p50 - result.ttft_ms.p50
    assert slower.e2e_ms.p50 - slower.ttft_ms.p50 == pytest.approx(2.0 * span, rel=1e-3)


def test_requests_that_time_out_are_not_in_the_means() -> None:
    result = predicted(STAGE, kernel_anchor(STAGE))
    assert pooled([result, result])["e2e_mean"] == pytest.approx(result.e2e_ms.mean)
    uneven = predicted(replace(STAGE, rate_per_s=100.0), kernel_anchor(STAGE))
    limit = (uneven.e2e_ms.mean + uneven.e2e_ms.p99) / 2.0
    assert pooled([uneven], limit)["e2e_p99"] < limit < uneven.e2e_ms.p99
    assert holds_rate(result, STAGE)
    assert not holds_rate(result, replace(STAGE, rate_per_s=2.0))


def test_rivals_are_compared_on_the_very_rows() -> None:
    try:
        data = data_dir()
    except CorpusAbsent as absent:
        pytest.skip(str(absent))
    exact = [
        OpenRow(
            stage,
            {key: getattr(stage, f"{key}_ms") for key in ("e2e_mean", "e2e_p99", "ttft_mean", "ttft_p99")},
            "target",
        )
        for stage in stages(data)
        if not stage.overloaded
    ]
    assert errors(exact)["e2e_mean_median_ape_pct"] == 0.0
    found = rivals(data, exact)
    assert len(stages(data)) == 40
    # the figures of the source's own summary: best of five 15.2% on E2E mean, 18.5% on TTFT mean
    assert found["aiconfigurator-estimate"]["all_whole_runs"]["e2e_mean_median_ape_pct"] == pytest.approx(15.2, abs=0.1)
    assert found["blis-evolved"]["all_whole_runs"]["ttft_mean_median_ape_pct"] == pytest.approx(18.5, abs=0.1)
    assert found["vidur"]["same_rows"]["n"] == 3
    assert "same_rows" not in found["llmservingsim"]
