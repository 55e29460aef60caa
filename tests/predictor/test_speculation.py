"""Acceptance curves, drafter cost, depth search."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.errors import BadInput, DataUnavailable
from predictor.profiles.loader import model_card
from predictor.speculation import (
    Chain,
    Drafter,
    acceptance,
    best_depth,
    default_lengths,
    draft_cost_ratio,
    drafter,
    entropy_scale,
    fit_chain,
    given_acceptance,
    published_curves,
    speculation_refusal,
)
from predictor.types import Speculation


def test_published_curves_come_back_as_published() -> None:
    assert len(published_curves()) == 14
    curve = acceptance("GLM-5.2", "mtp")
    assert curve.origin == "measured"
    assert [curve.length(k) for k in range(9)] == [1.0, 1.84, 2.5, 2.99, 3.33, 3.61, 3.78, 3.91, 4.06]
    assert acceptance("MiniMax-M3", "eagle3", thinking=False).length(2) == 2.52
    assert acceptance("DeepSeek-V4-Pro", "mtp", thinking=False).length(1) == 1.92


@pytest.mark.parametrize(
    ("method", "medians"),
    [
        ("mtp", (1.92, 2.61, 2.99, 3.33, 3.61, 3.78, 3.91, 4.06)),
        ("eagle3", (1.815, 2.41, 2.855, 3.175, 3.405, 3.51, 3.62, 3.755)),
        ("dspark", (1.84, 2.51, 3.0, 3.36, 3.61, 3.75, 3.78, 3.88)),
    ],
)
def test_default_is_the_per_depth_median(method: str, medians: tuple[float, ...]) -> None:
    assert default_lengths(method) == pytest.approx(medians)


def test_sibling_then_default_then_nothing() -> None:
    assert acceptance("GLM-5.2", "eagle3").origin == "sibling"
    assert acceptance("Kimi-K2.5", "mtp").length(3) == 2.88
    assert acceptance("Llama-3.1-70B", "eagle3").origin == "default"
    with pytest.raises(DataUnavailable, match="ngram"):
        acceptance("GLM-5.2", "ngram")
    assert given_acceptance([1.4, 1.6], "own run").length(2) == 1.6
    with pytest.raises(BadInput, match="between 1 and k"):
        given_acceptance([2.5], "own run")
    with pytest.raises(BadInput, match="legal is mtp"):
        acceptance("GLM-5.2", "medusa")  # type: ignore[arg-type]


def test_entropy_classes_order_and_scale_the_first_position() -> None:
    assert 1.0 > entropy_scale("low") > entropy_scale("mixed") > entropy_scale("high") > 0.0
    plain, chat = acceptance("GLM-5.2", "mtp"), acceptance("GLM-5.2", "mtp", entropy="high")
    for depth in range(1, 12):
        assert chat.length(depth) - 1 == pytest.approx((plain.length(depth) - 1) * entropy_scale("high"))
    with pytest.raises(BadInput, match="legal is low, mixed, high"):
        entropy_scale("none")  # type: ignore[arg-type]


def test_held_out_depths_of_the_published_curves() -> None:
    """Fit on depth 1 to 4, predict 5 to 8: mean error under 4%, against 10% for standing still."""
    errors, still = [], []
    for curve in published_curves():
        kept = given_acceptance(curve.lengths[:4], "depth 1 to 4")
        for depth in range(5, 9):
            assert kept.extrapolated(depth)
            errors.append(abs(kept.length(depth) / curve.lengths[depth - 1] - 1))
            still.append(abs(kept.length(4) / curve.lengths[depth - 1] - 1))
    assert sum(errors) / len(errors) < 0.04
    assert sum(still) / len(still) > 0.10


CHANCE = st.floats(0.0, 1.0)


@given(CHANCE, CHANCE, st.integers(1, 40))
def test_a_chain_commits_between_one_and_depth_plus_one(first: float, later: float, depth: int) -> None:
    chain = Chain(first, later)
    assert 1.0 <= chain.length(depth) <= depth + 1 + 1e-9
    assert chain.length(depth + 1) >= chain.length(depth) - 1e-12


@given(st.floats(0.05, 1.0), st.floats(0.0, 0.99), st.integers(2, 8))
def test_a_chain_is_found_again(first: float, later: float, depths: int) -> None:
    fitted = fit_chain([Chain(first, later).length(k) for k in range(1, depths + 1)])
    assert fitted.first == pytest.approx(first, abs=1e-4)
    assert fitted.later == pytest.approx(later, abs=1e-3)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8), st.integers(0, 16))
def test_fitted_curves_stay_within_bounds(shares: list[float], depth: int) -> None:
    lengths = [1.0 + share * k for k, share in enumerate(shares, 1)]
    chain = fit_chain(lengths)
    assert 0.0 <= chain.first <= 1.0
    assert 0.0 <= chain.later <= 1.0
    curve = given_acceptance(lengths, "any")
    assert 1.0 <= curve.length(depth) <= depth + 1 + 1e-9
    for deeper in range(len(lengths), len(lengths) + 4):
        assert curve.length(deeper + 1) >= curve.length(deeper) - 1e-9


# ---- drafters ------------------------------------------------------------------------------------------------------

COSTS = {"layer_ms": 0.2, "dense_layer_ms": 0.1, "head_ms": 0.4, "step_ms": 12.0}


def test_drafters_in_layers_of_the_target() -> None:
    glm = model_card("GLM-5.2")
    assert draft_cost_ratio(drafter(glm, "mtp"), 3, **COSTS) == pytest.approx(3 * (0.2 + 0.4) / 12)
    eagle = drafter(glm, "eagle3")
    assert eagle.kind == "dense"
    assert draft_cost_ratio(eagle, 3, **COSTS) == pytest.approx(3 * (0.1 + 0.4 * 32000 / glm.vocab) / 12)
    assert draft_cost_ratio(drafter(glm, "dspark"), 3, **COSTS) == pytest.approx((3 * 0.2 + 3 * 0.4) / 12)
    assert draft_cost_ratio(drafter(glm, "ngram"), 3, **COSTS) == 0.0
    with pytest.raises(BadInput, match="no MTP layers"):
        drafter(model_card("Llama-3.1-8B"), "mtp")


@given(
    st.sampled_from([Drafter("mtp", 1, "target", 1.0, True), Drafter("dspark", 3, "moe", 1.0, False)]),
    st.integers(0, 8),
)
def test_deeper_drafts_never_cost_less(drafted: Drafter, depth: int) -> None:
    assert draft_cost_ratio(drafted, depth, **COSTS) <= draft_cost_ratio(drafted, depth + 1, **COSTS)
    assert draft_cost_ratio(drafted, 0, **COSTS) == 0.0


def test_speculation_only_where_it_pays() -> None:
    curve = acceptance("GLM-5.2", "mtp")
    cheap = best_depth(8, curve.length, lambda k: 10.0 + 0.5 * k)
    dear = best_depth(8, curve.length, lambda k: 10.0 * (1 + k))
    assert cheap.depth == 6
    assert cheap.gain == pytest.approx(3.78 / 1.3)
    assert (dear.depth, dear.gain) == (0, 1.0)


@given(st.floats(0.0, 5.0), st.floats(0.0, 5.0))
def test_dearer_drafts_are_never_deeper(a: float, b: float) -> None:
    curve = acceptance("Qwen3.5-397B-A17B", "mtp")
    cheap, dear = (best_depth(8, curve.length, lambda k, c=c: 10.0 + c * k) for c in sorted((a, b)))  # type: ignore[misc]
    assert dear.depth <= cheap.depth
    assert dear.gain >= 1.0


@pytest.mark.parametrize(
    ("anchor", "target", "refused"),
    [
        (Speculation(), Speculation(), False),
        (Speculation(), Speculation("mtp", 3), False),
        (Speculation("mtp", 3), Speculation("mtp", 5), False),
        (Speculation("mtp", 3), Speculation(), True),
        (Speculation("mtp", 3), Speculation("mtp", 0), True),
        (Speculation("mtp", 3), Speculation("eagle3", 3), True),
        (Speculation("mtp", 0), Speculation("eagle3", 3), False),
    ],
)
def test_anchors_with_speculation(anchor: Speculation, target: Speculation, refused: bool) -> None:
    assert (speculation_refusal(anchor, target) is not None) == refused
