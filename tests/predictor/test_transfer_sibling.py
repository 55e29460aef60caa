"""A half-width sibling measures what the width law errs over a doubling (paper §3.1.2, B.1, Table 18)."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.anchor_files import bundled_anchors
from inferasim import Anchor, Catalogue, Deployment, Workload, engine_profile, model_card, platform, predict
from predictor.anchors.select import half_width_sibling
from predictor.errors import AnchorRefused
from predictor.step.curve import DecodeCurve
from predictor.step.model import PrefillCurve
from predictor.transfer import KernelContext, move_decode
from predictor.transfer.sibling import move_decode_measured, serial_parallel_prefill
from predictor.types import Dtype, Layout, Precision

BATCHES = (1, 8, 64)
BF16 = Precision(Dtype.BF16, Dtype.BF16, Dtype.BF16, Dtype.BF16)


def side(tp: int) -> KernelContext:
    return KernelContext(model_card("Llama-3.1-70B"), platform("MI355X"), Layout(tp=tp), BF16, "SGLang", 1536.0)


def sweep(*steps: float) -> DecodeCurve:
    return DecodeCurve(BATCHES, steps, 1536.0, 0.05)


@given(factors=st.tuples(*[st.floats(0.6, 1.6)] * 3))
@settings(max_examples=30, deadline=None)
def test_an_error_of_every_doubling_is_taken_out_exactly(factors: tuple[float, float, float]) -> None:
    """Steps that the law misses by the same factor from TP2 to TP4 and from TP4 to TP8 come back at TP8."""
    half = sweep(30.0, 40.0, 90.0)
    law = move_decode(half, side(2), side(4), "scale")
    anchor = sweep(*(law.at(b) * factor for b, factor in zip(BATCHES, factors, strict=True)))
    truth = [move_decode(anchor, side(4), side(8), "scale").at(b) * f for b, f in zip(BATCHES, factors, strict=True)]
    found = move_decode_measured(anchor, side(4), side(8), half, side(2), "scale")
    assert [found.at(b) for b in BATCHES] == pytest.approx(truth)


def test_identity_is_exact_and_the_sibling_must_have_half_the_width() -> None:
    anchor = sweep(20.0, 25.0, 60.0)
    assert move_decode_measured(anchor, side(4), side(4), sweep(30.0, 40.0, 90.0), side(2)) == anchor
    with pytest.raises(AnchorRefused, match="half the anchor's width, 2 of 4"):
        move_decode_measured(anchor, side(4), side(8), anchor, side(1))


def test_fallback_law_of_prompts_lies_between_nothing_and_all_parallel() -> None:
    """Paper Table 18: a serial part and one over w. 5 ms at TP2 and 3 at TP4 are 1 + 8/w, 2 at TP8."""
    wide, narrow = PrefillCurve(4.0, 3.0, 0.5, 0.0), PrefillCurve(4.0, 5.0, 2.0, 0.0)
    moved = serial_parallel_prefill(wide, narrow, 4, 8)
    assert (moved.fixed_ms, moved.per_token_ms) == (4.0, 2.0)
    assert moved.per_token2_ms == 0.25  # four times at half the width: no less than an ideal halving
    assert serial_parallel_prefill(narrow, wide, 4, 8) == narrow  # a faster sibling: nothing is parallel


def anchor_at(tp: int, scale: float) -> Anchor:
    """The bundled Llama anchor as if measured at another width, every step times ``scale``."""
    bundled = next(one for one in bundled_anchors() if one.signature.model == "Llama-3.1-8B")
    decode = tuple(
        replace(one, points=tuple(replace(point, step_ms=point.step_ms * scale) for point in one.points))
        for one in bundled.decode
    )
    return replace(bundled, name=f"tp{tp}", signature=replace(bundled.signature, tp=tp), decode=decode)


def test_a_prediction_uses_the_sibling_and_says_so() -> None:
    """Anchors at TP1 and TP2 whose steps hardly shrink: TP4 shrinks as little, not as the law alone would have it."""
    half, anchor = anchor_at(1, 1.0), anchor_at(2, 0.95)
    assert half_width_sibling((half, anchor), anchor) is half
    assert half_width_sibling((half, anchor), half) is None
    cards = (model_card("Llama-3.1-8B"), platform("MI355X"), engine_profile("sglang"))
    target = Deployment(
        "Llama-3.1-8B", "MI355X", "SGLang", anchor.signature.engine_version, Layout(tp=4), anchor.signature.precision
    )
    workload = Workload(1024, 1024, 16)
    alone = predict(target, workload, Catalogue(*cards, (anchor,)), method="analytic")
    both = predict(target, workload, Catalogue(*cards, (half, anchor)), method="analytic")
    assert both.anchor == "tp2"
    assert "shrink_measured" in {flag.code for flag in both.flags}
    assert "shrink_measured" not in {flag.code for flag in alone.flags}
    here = predict(replace(target, layout=Layout(tp=2)), workload, Catalogue(*cards, (half, anchor)), method="analytic")
    ratio, by_law = (one.extras["decode_step_ms"] / here.extras["decode_step_ms"] for one in (both, alone))
    assert by_law < 0.85
    assert ratio == pytest.approx(0.95, abs=0.05)
