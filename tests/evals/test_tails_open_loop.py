"""Open-loop runs: what was sent, which row is the anchor, repeated prompts, scaled steps."""

from dataclasses import replace

import pytest

from evals.corpus import CorpusAbsent, data_dir
from evals.open_loop import (
    OpenRow,
    ScaledSteps,
    Served,
    SharedPrompts,
    anchor_of,
    errors,
    pooled,
    rivals,
    simulate_stage,
)
from evals.open_loop_runs import Stage, card, model_of, stages
from predictor.des.request import Request
from predictor.step.model import PrefillCurve, TableStepModel
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
    assert anchor_of([faster, overloaded, whole, STAGE], "llama-2-7b") == STAGE


def test_a_prompt_that_comes_again_keeps_all_but_its_last_block() -> None:
    cache = SharedPrompts(16, 100)
    first, second, again = (Request(i, 593, 10, payload=i % 2) for i in range(3))
    found = []
    for request in (first, second, again):
        found.append(cache.lookup(request))
        cache.insert(request)
    assert found == [0, 96, 592]
    assert SharedPrompts(16, 100).lookup(Request(0, 592, 1, payload=0)) == 0
    cache.insert(Request(3, 592, 1, payload=5))
    assert cache.lookup(Request(4, 592, 1, payload=5)) == 576  # the last token is computed again


def test_an_idle_server_answers_in_prefill_and_steps() -> None:
    """One request a second, 12 ms of work: prompts after the first round compute their last 14 tokens only."""
    steps = TableStepModel((1.0,), (0.0,), PrefillCurve(2.0, 0.1, 0.0, 0.5))
    result = simulate_stage(Served(steps, 100_000, factor=2.0, host_ms=3.0), STAGE)
    assert result.ttft_ms.p50 == pytest.approx(2.0 * (2.0 + 0.1 * 14) + 3.0)
    assert result.e2e_ms.p50 == pytest.approx(result.ttft_ms.p50 + 2.0 * 10)
    assert pooled([result, result])["e2e_mean"] == pytest.approx(result.e2e_ms.mean)


def test_scaled_steps_scale_everything() -> None:
    scaled = ScaledSteps(TableStepModel((4.0, 6.0), (0.1, 0.2), PrefillCurve(1.0, 0.2, 0.3, 0.4, 0.5)), 3.0)
    assert scaled.decode_line(2).at(10.0) == pytest.approx(3.0 * 8.0)
    assert scaled.prefill.prompt_ms(10) == pytest.approx(3.0 * (1.0 + 2.0 + 30.0 + 0.5))
    assert scaled.prefill.mixed_fixed_ms == pytest.approx(1.2)


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
