"""Width laws: paper Eq. 1 on exact decompositions, identity at equal layout, monotone terms."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.errors import AnchorRefused, BadInput
from predictor.profiles.loader import model_card, platform
from predictor.step.curve import DecodeCurve
from predictor.step.model import PrefillCurve
from predictor.transfer import KernelContext, equation_1, measured_shrink, move_decode, move_prefill, refine_decode
from predictor.types import Dtype, Layout, Precision

FP8 = Precision(Dtype.FP8, Dtype.FP8, Dtype.FP8, Dtype.FP8)
CARDS = ("Llama-3.1-70B", "MiniMax-M2.5", "DeepSeek-R1", "gpt-oss-120b", "Qwen3.5-397B-A17B")


def side(card: str = "MiniMax-M2.5", gpu: str = "MI355X", layout: Layout | None = None) -> KernelContext:
    return KernelContext(model_card(card), platform(gpu), layout or Layout(tp=2), FP8, "vllm", 1400.0)


def ladder(steps: list[float]) -> DecodeCurve:
    return DecodeCurve(tuple(4 * 2**i for i in range(len(steps))), tuple(steps), 1400.0, 0.02)


def test_eq1_returns_an_exact_decomposition() -> None:
    """Steps built as f + x/w come back at another width (paper Eq. 1 with ρ = w/w')."""
    fixed, sharded = 8.0, (0.0, 6.0, 12.0, 24.0)
    narrow = DecodeCurve((1, 4, 16, 64), tuple(fixed + x for x in sharded), 0.0)
    assert equation_1(narrow, 4, 8).step_ms == tuple(fixed + x / 2 for x in sharded)


def test_measured_shrink_clamps_and_skips_small_excess() -> None:
    """ρ is clamped to [0.5, 1] and batches whose excess is under 1 ms are left out (paper §3.1.2, B.1)."""
    half = DecodeCurve((1, 2, 8, 32, 64), (10.0, 10.5, 14.0, 20.0, 30.0), 0.0)
    full = DecodeCurve((1, 2, 8, 32, 64), (9.0, 9.3, 12.0, 12.0, 31.0), 0.0)
    shrink = measured_shrink(full, half)
    assert shrink is not None
    assert shrink.batches == (8.0, 32.0, 64.0)
    assert shrink.rho == pytest.approx((0.75, 0.5, 1.0))


def test_measured_shrink_of_two_doublings_is_applied_twice() -> None:
    curve = DecodeCurve((1, 64), (10.0, 18.0), 0.0)
    shrink = measured_shrink(DecodeCurve((1, 64), (10.0, 16.0), 0.0), DecodeCurve((1, 64), (10.0, 18.0), 0.0))
    assert shrink is not None
    assert equation_1(curve, 2, 8, shrink).step_ms[1] == pytest.approx(10.0 + 8.0 * 0.75**2)


@pytest.mark.parametrize("gpu", ["MI355X", "H200"])
@pytest.mark.parametrize("card", CARDS)
@settings(max_examples=25, deadline=None)
@given(steps=st.lists(st.floats(1.0, 200.0), min_size=2, max_size=6))
def test_identity_is_exact(card: str, gpu: str, steps: list[float]) -> None:
    here = side(card, gpu)
    curve = ladder(steps)
    assert move_decode(curve, here, here) == curve
    refined = refine_decode(curve, here)
    by_batch = dict(zip(refined.batches, refined.step_ms, strict=True))
    assert [by_batch[b] for b in curve.batches] == steps


@pytest.mark.parametrize("card", CARDS)
def test_wider_tp_never_costs_more_streaming(card: str) -> None:
    """A ladder of pure streaming on a dense or MoE model gets faster with width, within its all-reduces."""
    steps = [60.0, 80.0, 110.0, 150.0, 220.0]
    two, four = side(card, layout=Layout(tp=2)), side(card, layout=Layout(tp=4))
    assert move_decode(ladder(steps), two, four).at(64) < 220.0


def test_laws_by_name() -> None:
    curve = ladder([10.0, 20.0])
    two, four = side(), side(layout=Layout(tp=4))
    assert move_decode(curve, two, four, "unchanged") is curve
    assert move_decode(curve, two, four, "scale").step_ms == (5.0, 10.0)
    assert move_decode(curve, two, four, "eq1").step_ms == (10.0, 15.0)
    with pytest.raises(BadInput, match="floor_split"):
        move_decode(curve, two, four, "magic")  # type: ignore[arg-type]


def test_other_kernel_sets_are_refused() -> None:
    curve = ladder([10.0, 20.0])
    with pytest.raises(AnchorRefused, match="MI300X"):
        move_decode(curve, side(), side(gpu="MI300X"))
    with pytest.raises(AnchorRefused, match="draft_depth"):
        move_decode(curve, side(), replace(side(), draft_depth=3))


def test_prefill_keeps_its_fixed_part_and_halves_from_two_gpus_on() -> None:
    """F stays (paper §3.1.2); all-reduces appear at the second GPU, so the first doubling gains least."""
    curve = PrefillCurve(146.9, 0.02, 0.0, 20.0)
    one, two, four = (side(layout=Layout(tp=tp)) for tp in (1, 2, 4))
    first = move_prefill(curve, one, two)
    assert first.fixed_ms == 146.9
    second = move_prefill(first, two, four)
    assert second.per_token_ms / first.per_token_ms < first.per_token_ms / curve.per_token_ms
    assert move_prefill(curve, two, two) == curve
