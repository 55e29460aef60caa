"""Which kind of transfer a prediction is, what is outside of all kinds, and its bounds."""

from dataclasses import replace

import pytest

from agent.anchor_files import bundled_anchors
from predictor.intervals import (
    KindWidths,
    Transfer,
    WidthTable,
    calibrated_widths,
    intervals,
    near,
    width_kind,
)
from predictor.predict import Catalogue, predict
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.types import Arrival, Deployment, Dtype, Intervals, Layout, Mode, Precision, Prediction, Workload

CATALOGUE = Catalogue(model_card("Llama-3.1-8B"), platform("MI355X"), engine_profile("SGLang"), bundled_anchors())
BASE = Deployment("Llama-3.1-8B", "MI355X", "SGLang", "0.5.19")
LOAD = Workload(1024, 1024, 16)


def found(deployment: Deployment = BASE, workload: Workload = LOAD, mode: Mode | None = None) -> Intervals:
    told = predict(deployment, workload, CATALOGUE, mode=mode).interval_80
    assert told is not None
    return told


@pytest.mark.parametrize(
    ("source", "target", "same_isl", "same_osl", "kind"),
    [
        (Layout(tp=4), Layout(tp=4), True, True, "other load"),
        (Layout(tp=4), Layout(tp=4), True, False, "same width"),
        (Layout(tp=4), Layout(tp=4), False, True, "other ISL"),
        (Layout(tp=1), Layout(tp=8), True, True, "TPx8"),
        (Layout(tp=8), Layout(tp=4), True, True, "TP narrower"),
        (Layout(tp=4), Layout(tp=8, ep=8), True, True, "EP"),
        (Layout(tp=8, ep=8), Layout(tp=8), False, True, "EP, other ISL"),
        (Layout(tp=8), Layout(tp=8, ep=8, attn_dp=8), True, True, "attention DP"),
        (Layout(tp=4), Layout(tp=8), False, True, "TPx2, other ISL"),
    ],
)
def test_kinds(source: Layout, target: Layout, same_isl: bool, same_osl: bool, kind: str) -> None:
    assert width_kind(source, target, same_isl, same_osl) == kind


def test_lengths_are_near_within_half() -> None:
    assert near(1000, 1500)
    assert near(1500, 1000)
    assert not near(1000, 1501)


def test_an_anchored_prediction_has_bounds_around_every_mean() -> None:
    prediction = predict(replace(BASE, layout=Layout(tp=2)), LOAD, CATALOGUE)
    told = prediction.interval_80
    assert told is not None
    assert (told.kind, told.outside) == ("TPx2", "")
    for name, value in (
        ("tpot_ms", prediction.tpot_ms.mean),
        ("ttft_ms", prediction.ttft_ms.mean),
        ("e2e_ms", prediction.e2e_ms.mean),
        ("interactivity_tok_s_user", prediction.interactivity_tok_s_user),
        ("output_tok_s_per_gpu", prediction.output_tok_s_per_gpu),
        ("total_tok_s", prediction.total_tok_s),
    ):
        low, high = told.bounds[name]
        assert low < value < high
        assert low * high == pytest.approx(value**2)  # equal factors on both sides
    # Interactivity is 1000 / TPOT, so are its bounds.
    assert told.bounds["interactivity_tok_s_user"][0] == pytest.approx(1e3 / told.bounds["tpot_ms"][1])


def test_the_measured_layout_is_told_better_than_a_moved_one() -> None:
    near_by, moved = found(), found(replace(BASE, layout=Layout(tp=4)))
    assert (near_by.kind, moved.kind) == ("other load", "TPx4")

    def width(told: Intervals) -> float:
        low, high = told.bounds["tpot_ms"]
        return high / low

    assert width(near_by) < width(moved)


def test_kernel_models_alone_have_the_widest_interval_of_their_vendor() -> None:
    assert found(mode=Mode.SIMULATE).kind == "simulate, AMD"


@pytest.mark.parametrize(
    ("deployment", "workload", "reason"),
    [
        (replace(BASE, layout=Layout(pp=2)), LOAD, "pipeline stages"),
        (BASE, replace(LOAD, arrival=Arrival.POISSON, request_rate_per_s=1.0), "poisson arrivals"),
        (BASE, replace(LOAD, prefix_hit_frac=0.5), "cached share"),
        (replace(BASE, engine_version="0.5.23"), LOAD, "anchor build 0.5.19, target 0.5.23"),
        (BASE, replace(LOAD, concurrency=1024), "1024 requests a replica"),
        (replace(BASE, precision=Precision(Dtype.FP8, Dtype.FP8, Dtype.FP8)), LOAD, "anchor bf16, target fp8"),
        (BASE, replace(LOAD, isl_tokens=100_000, concurrency=1), "prompts 12 times the anchor's"),
    ],
)
def test_what_was_never_calibrated_has_none_and_says_why(
    deployment: Deployment, workload: Workload, reason: str
) -> None:
    told = found(deployment, workload)
    assert reason in told.outside
    assert (told.kind, told.bounds) == ("", {})


def test_a_kind_on_too_few_stacks_says_so() -> None:
    table = WidthTable("made up", "none", 0.8, (KindWidths("EP", 10, 6, tpot=1.25),))
    told = intervals(Transfer("TP narrower"), {"tpot_ms": ("tpot", 10.0)}, table)
    assert "too few stacks" in told.outside
    known = intervals(Transfer("EP"), {"tpot_ms": ("tpot", 10.0), "ttft_ms": ("ttft", 50.0)}, table)
    assert known.bounds == {"tpot_ms": (8.0, 12.5)}  # TTFT was not recorded
    assert (known.rows, known.stacks) == (10, 6)


def test_bundled_widths_say_where_they_come_from() -> None:
    table = calibrated_widths()
    assert table.share == 0.8
    assert table.command.startswith("python -m evals.intervals")
    wanted = {"same width", "TPx2", "TPx4", "EP", "attention DP", "other ISL", "other load", "disaggregated"}
    assert wanted < {kind.name for kind in table.kind}
    for kind in table.kind:
        assert kind.stacks >= 6
        assert all(factor is None or factor > 1.0 for factor in (kind.tpot, kind.ttft, kind.throughput))


def test_predictions_carry_them() -> None:
    assert isinstance(predict(BASE, LOAD, CATALOGUE), Prediction)
    assert predict(BASE, LOAD, CATALOGUE).interval_80 == found()
