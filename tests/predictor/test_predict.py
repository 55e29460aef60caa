"""The entry of the core, end to end on bundled anchors: what it was made from, what it is worth, what it refuses."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.anchor_files import bundled_anchors
from predictor.errors import AnchorRefused, BadInput, DoesNotFit
from predictor.predict import Catalogue, predict
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.types import (
    Arrival,
    Coverage,
    Deployment,
    Dtype,
    Layout,
    Mode,
    Precision,
    PrefillPool,
    Speculation,
    Workload,
)

ANCHORS = bundled_anchors()
LLAMA = Catalogue(model_card("Llama-3.1-8B"), platform("MI355X"), engine_profile("SGLang"), ANCHORS)
BASE = Deployment("Llama-3.1-8B", "MI355X", "SGLang", "0.5.19")
WORKLOAD = Workload(1024, 1024, 16)


@pytest.mark.parametrize(
    ("isl", "clients", "tpot_ms", "tok_s"),
    [(1024, 1, 4.46, 223), (1024, 16, 5.03, 3071), (1024, 64, 7.73, 7773), (8192, 1, 4.57, 213),
     (8192, 16, 8.19, 1720), (8192, 64, 21.56, 2519)],
)  # fmt: skip
def test_an_anchor_reproduces_its_own_published_rows(isl: int, clients: int, tpot_ms: float, tok_s: float) -> None:
    """Paper Table 20, one stage: TPOT within 2%, throughput within 3% (prefill is one curve over all rows)."""
    prediction = predict(BASE, Workload(isl, 1024, clients), LLAMA)
    assert (prediction.mode, prediction.coverage) == (Mode.ANCHORED, Coverage.COVERED)
    assert prediction.tpot_ms.mean == pytest.approx(tpot_ms, rel=0.02)
    assert prediction.output_tok_s == pytest.approx(tok_s, rel=0.03)


def test_without_an_anchor_kernel_models_answer_and_say_so() -> None:
    prediction = predict(BASE, WORKLOAD, replace(LLAMA, anchors=()))
    assert (prediction.mode, prediction.anchor, prediction.coverage) == (Mode.SIMULATE, None, Coverage.NONE)
    assert any("ranking" in flag.message for flag in prediction.flags)


def test_anchored_mode_refuses_to_fall_back_and_says_which_field() -> None:
    other = Catalogue(LLAMA.card, platform("MI325X"), LLAMA.profile, ANCHORS)
    with pytest.raises(AnchorRefused, match=r"MI355X.*MI325X"):
        predict(replace(BASE, gpu="MI325X"), WORKLOAD, other, mode=Mode.ANCHORED)


def test_other_formats_move_the_step_by_simulated_work_and_are_flagged() -> None:
    narrow = replace(BASE, precision=Precision(Dtype.FP8, Dtype.FP8, Dtype.FP8, Dtype.BF16))
    prediction = predict(narrow, WORKLOAD, LLAMA)
    assert prediction.coverage is Coverage.PROJECTED
    assert "kernel_set_differs" in {flag.code for flag in prediction.flags}
    assert prediction.tpot_ms.mean < predict(BASE, WORKLOAD, LLAMA).tpot_ms.mean


def test_a_step_breakdown_adds_up_to_the_step() -> None:
    for deployment in (BASE, replace(BASE, layout=Layout(pp=4)), replace(BASE, layout=Layout(tp=2))):
        prediction = predict(deployment, WORKLOAD, LLAMA)
        assert sum(prediction.step_ms.values()) == pytest.approx(prediction.extras["decode_step_ms"], rel=1e-9)


def test_replicas_share_the_clients() -> None:
    one = predict(BASE, replace(WORKLOAD, concurrency=16), LLAMA)
    four = predict(replace(BASE, replicas=4), replace(WORKLOAD, concurrency=64), LLAMA)
    assert four.gpus == 4
    assert four.tpot_ms.mean == pytest.approx(one.tpot_ms.mean)
    assert four.output_tok_s == pytest.approx(4 * one.output_tok_s)


def test_load_beyond_the_pool_queues_and_says_which_limit() -> None:
    prediction = predict(BASE, Workload(100_000, 1024, 256), LLAMA)
    assert prediction.running < 256
    assert any(flag.code == "queued" and "KV pool" in flag.message for flag in prediction.flags)
    assert prediction.ttft_ms.mean > predict(BASE, Workload(100_000, 1024, 8), LLAMA).ttft_ms.mean


def test_a_model_that_does_not_fit_is_refused_with_the_numbers() -> None:
    big = Catalogue(model_card("DeepSeek-R1"), platform("H100"), engine_profile("vLLM"))
    with pytest.raises(DoesNotFit, match="GiB"):
        predict(Deployment("DeepSeek-R1", "H100", "vLLM", "0.33.0"), WORKLOAD, big)


def test_open_arrivals_are_simulated_and_never_priced_by_a_closed_form() -> None:
    workload = replace(WORKLOAD, arrival=Arrival.POISSON, request_rate_per_s=1.0)
    prediction = predict(BASE, workload, LLAMA)
    assert prediction.method == "des"
    assert prediction.output_tok_s == pytest.approx(1024, rel=0.3)  # one request a second of 1024 tokens
    with pytest.raises(BadInput, match="poisson"):
        predict(BASE, workload, LLAMA, method="analytic")
    with pytest.raises(BadInput, match="method"):
        predict(BASE, workload, LLAMA, method="guess")


def test_simulation_and_closed_form_agree_where_nothing_queues() -> None:
    for clients in (1, 4, 16):
        workload = replace(WORKLOAD, concurrency=clients)
        closed, simulated = (predict(BASE, workload, LLAMA, method=method) for method in ("analytic", "des"))
        assert simulated.tpot_ms.mean == pytest.approx(closed.tpot_ms.mean, rel=0.01)
        assert simulated.output_tok_s == pytest.approx(closed.output_tok_s, rel=0.02)
        assert simulated.tpot_ms.p99 is not None
        assert closed.tpot_ms.p99 is None


@pytest.mark.parametrize(("stages", "clients"), [(2, 1), (2, 64), (4, 16), (8, 64)])
def test_pipelines_simulated_stage_by_stage_agree_with_equation_4(stages: int, clients: int) -> None:
    deployment, workload = replace(BASE, layout=Layout(pp=stages)), replace(WORKLOAD, concurrency=clients)
    closed, simulated = (predict(deployment, workload, LLAMA, method=method) for method in ("auto", "des"))
    assert (closed.method, simulated.method) == ("analytic", "des")
    assert simulated.tpot_ms.mean == pytest.approx(closed.tpot_ms.mean, rel=0.01)
    assert simulated.output_tok_s == pytest.approx(closed.output_tok_s, rel=0.02)
    assert simulated.tpot_ms.p99 is not None


def test_open_arrivals_on_a_pipeline_have_tails() -> None:
    workload = replace(WORKLOAD, arrival=Arrival.POISSON, request_rate_per_s=1.0)
    for records in (LLAMA, replace(LLAMA, anchors=())):
        prediction = predict(replace(BASE, layout=Layout(pp=2)), workload, records)
        assert prediction.method == "des"
        assert prediction.ttft_ms.p50 is not None
        assert prediction.ttft_ms.p99 is not None
        assert prediction.ttft_ms.p50 < prediction.ttft_ms.p99 < 5.0 * prediction.ttft_ms.p50
    moe = Catalogue(model_card("Qwen3-235B-A22B"), platform("MI355X"), engine_profile("SGLang"))
    ranks = Deployment("Qwen3-235B-A22B", "MI355X", "SGLang", layout=Layout(tp=4, ep=4, attn_dp=4, pp=2))
    with pytest.raises(BadInput, match="attn-dp 4 inside 2 pipeline stages"):
        predict(ranks, WORKLOAD, moe, method="des")


SPLIT = replace(BASE, prefill=PrefillPool(Layout(), 1, "nixl"))


def test_a_stated_hit_rate_shortens_prompts_in_both_methods() -> None:
    cold = replace(WORKLOAD, isl_tokens=8192)
    warm = replace(cold, prefix_hit_frac=0.9)
    for method in ("analytic", "des"):
        before, after = (predict(BASE, one, LLAMA, method=method).ttft_ms.mean for one in (cold, warm))
        assert after < 0.5 * before


def test_a_split_counts_both_pools_and_never_stalls_decode() -> None:
    workload = Workload(8192, 1024, 64)
    whole, split = (predict(deployment, workload, LLAMA) for deployment in (BASE, SPLIT))
    assert split.gpus == 2
    assert split.tpot_ms.mean < whole.tpot_ms.mean
    assert split.ttft_ms.mean < whole.ttft_ms.mean
    assert "split_restored" in {flag.code for flag in split.flags}
    assert split.extras["mixed_step_frac"] == 0.0


def test_a_simulated_split_agrees_with_its_closed_form_and_has_percentiles() -> None:
    workload = Workload(2048, 512, 32, length_range_frac=0.8)
    closed, simulated = (predict(SPLIT, workload, LLAMA, method=method) for method in ("analytic", "des"))
    assert simulated.tpot_ms.mean == pytest.approx(closed.tpot_ms.mean, rel=0.05)
    assert simulated.output_tok_s == pytest.approx(closed.output_tok_s, rel=0.08)
    assert simulated.ttft_ms.p99 is not None
    assert simulated.ttft_ms.p50 is not None
    assert simulated.ttft_ms.p99 >= simulated.ttft_ms.p50


def test_a_starved_split_is_bound_by_its_prefill_pool() -> None:
    """Long prompts and short answers: twice the prefill pool, twice the rate."""
    workload = Workload(8192, 16, 64)
    one = predict(SPLIT, workload, LLAMA)
    two = predict(replace(SPLIT, prefill=PrefillPool(Layout(), 2, "nixl")), workload, LLAMA)
    assert two.output_tok_s == pytest.approx(2 * one.output_tok_s, rel=0.1)


CLIENTS = st.integers(1, 256)
LENGTHS = st.integers(64, 16_000)


@settings(max_examples=40)
@given(CLIENTS, LENGTHS, st.integers(2, 2000), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8]))
def test_every_legal_point_is_priced_with_littles_law(clients: int, isl: int, osl: int, tp: int, pp: int) -> None:
    deployment = replace(BASE, layout=Layout(tp=tp, pp=pp))
    prediction = predict(deployment, Workload(isl, osl, clients), LLAMA)
    in_flight = prediction.output_tok_s / osl * prediction.e2e_ms.mean / 1000.0
    assert in_flight == pytest.approx(clients, rel=0.02)
    assert prediction.tpot_ms.mean > 0
    assert prediction.max_concurrency >= 1


@settings(max_examples=30)
@given(CLIENTS, LENGTHS, st.integers(2, 2000))
def test_more_tokens_never_cost_less(clients: int, isl: int, osl: int) -> None:
    base = predict(BASE, Workload(isl, osl, clients), LLAMA)
    longer = predict(BASE, Workload(isl * 2, osl, clients), LLAMA)
    assert longer.ttft_ms.mean >= base.ttft_ms.mean * (1 - 1e-9)
    assert longer.e2e_ms.mean >= base.e2e_ms.mean * (1 - 1e-9)


def test_the_same_question_has_the_same_answer_to_the_last_bit() -> None:
    assert predict(BASE, WORKLOAD, LLAMA) == predict(BASE, WORKLOAD, LLAMA)


def test_one_client_that_drafts_has_room_for_its_drafts() -> None:
    """The pool is cut to what the clients can fill, and what the last verify step drafts is part of it."""
    catalogue = Catalogue(model_card("GLM-5.2"), platform("MI355X"), engine_profile("SGLang"))
    drafting = Deployment(
        "GLM-5.2",
        "MI355X",
        "SGLang",
        layout=Layout(tp=8),
        precision=Precision(Dtype.FP4, Dtype.FP4, Dtype.FP4, Dtype.FP8),
        speculation=Speculation("mtp", 4),
    )
    assert predict(drafting, Workload(1024, 2, 1), catalogue).method == "des"


@pytest.mark.parametrize("pool", ["main", "prefill"])
@pytest.mark.parametrize(("engine", "model", "independent"), [
    ("vLLM", "Llama-3.1-8B", True), ("vLLM", "gpt-oss-120b", False),
    ("SGLang", "Llama-3.1-8B", False), ("SGLang", "gpt-oss-120b", False),
])  # fmt: skip
def test_ranks_that_share_no_step_are_asked_for_as_replicas(
    engine: str, model: str, independent: bool, pool: str
) -> None:
    """vLLM's DP ranks of a dense model are engines of their own; those of MoE, and other engines', step together."""
    ranks = Layout(tp=4, attn_dp=2)
    here = Catalogue(model_card(model), platform("H200"), engine_profile(engine))
    deployment = Deployment(here.card.name, "H200", engine, layout=ranks)
    if pool == "prefill":
        deployment = replace(deployment, layout=Layout(tp=4), prefill=PrefillPool(ranks, 3, "nixl"))
    if not independent:
        assert predict(deployment, WORKLOAD, here, mode=Mode.SIMULATE).output_tok_s > 0.0
        return
    fix = r"prefill tp 2 and prefill replicas 6" if pool == "prefill" else r"tp 2 and replicas 2"
    with pytest.raises(BadInput, match=fix):
        predict(deployment, WORKLOAD, here, mode=Mode.SIMULATE)


@pytest.mark.parametrize("deployment", [
    BASE,
    replace(BASE, layout=Layout(pp=2)),
    replace(BASE, prefill=PrefillPool(Layout(), 1, "mori")),
], ids=["colocated", "pipeline", "split"])  # fmt: skip
def test_a_stated_hit_rate_spares_prefill_and_leaves_decode_as_it_is(deployment: Deployment) -> None:
    """Half of the prompt is cached: the first token comes sooner, and a lone request decodes at the same context."""
    alone = Workload(16384, 64, 1)
    cold, warm = (
        predict(deployment, replace(alone, prefix_hit_frac=share), LLAMA, method="des") for share in (0.0, 0.5)
    )
    assert warm.ttft_ms.mean < 0.8 * cold.ttft_ms.mean
    assert warm.tpot_ms.mean == pytest.approx(cold.tpot_ms.mean, rel=1e-9)
