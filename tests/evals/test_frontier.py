"""Charts, frontiers, losses and colocated-or-split decisions on charts small enough to check by hand."""

from dataclasses import replace

import pytest

from agent.tiers import Tier
from evals.candidates import Candidate
from evals.frontier import tier_decisions
from evals.frontiers import (
    Asked,
    asked_lost_pct,
    charts,
    decisions,
    deployed_lost_pct,
    measured_frontier,
    picked_by_prediction,
    predicted_frontier,
    score_charts,
)

BASE = Candidate(
    name="",
    gpu="mi355x",
    model="m",
    engine="vllm",
    precision="fp8",
    spec="none",
    shape=(1024, 1024),
    clients=1,
    layout="tp1",
    gpus=1,
    split=False,
    tpot_ms=1.0,
    tok_s=1.0,
    predicted_tpot_ms=1.0,
    predicted_tok_s=1.0,
)


def point(
    measured: tuple[float, float], predicted: tuple[float, float], *, split: bool = False, gpus: int = 1
) -> Candidate:
    """A configuration by (interactivity, throughput per GPU)."""
    return replace(
        BASE,
        split=split,
        gpus=gpus,
        tpot_ms=1e3 / measured[0],
        tok_s=measured[1] * gpus,
        predicted_tpot_ms=1e3 / predicted[0],
        predicted_tok_s=predicted[1] * gpus,
    )


# Measured: a (100, 10), b (50, 40) and d (20, 50) are on the frontier, c (45, 30) is behind b. Predicted: c is on it
# and b is behind c.
A = point((100.0, 10.0), (100.0, 10.0))
B = point((50.0, 40.0), (40.0, 30.0))
C = point((45.0, 30.0), (50.0, 35.0))
D = point((20.0, 50.0), (20.0, 50.0), gpus=4)
CHART = [A, B, C, D]


def test_frontiers() -> None:
    assert measured_frontier(CHART) == [0, 1, 3]
    assert predicted_frontier(CHART) == [0, 2, 3]


def test_what_a_deployed_configuration_loses() -> None:
    # a and d are the best at their speed; c gives 30 where b, which is faster, gives 40.
    assert deployed_lost_pct(CHART) == pytest.approx([0.0, 25.0, 0.0])


def test_what_a_speed_loses() -> None:
    # At 100 and 20 tok/s the point itself is kept. At 50 only a is fast enough (c is 10% slower): 10 of 40.
    assert asked_lost_pct(CHART) == pytest.approx([0.0, 75.0, 0.0])
    # Within 3% c counts: 30 of 40.
    near = point((48.6, 30.0), (50.0, 35.0))
    assert asked_lost_pct([A, B, near, D]) == pytest.approx([0.0, 25.0, 0.0])
    # Nothing on the predicted frontier serves the fastest point's speed.
    fast, slow = point((100.0, 10.0), (10.0, 10.0)), point((50.0, 20.0), (50.0, 20.0))
    assert asked_lost_pct([fast, slow]) == [100.0, 0.0]


def test_picks_by_prediction_alone() -> None:
    # At 50 tok/s c is predicted to serve it best: 30 of 40, and 10% slower than asked.
    told = picked_by_prediction(CHART)
    assert told[0] == Asked(0.0, 0.0)
    assert (told[1].lost_pct, told[1].slower_pct) == pytest.approx((25.0, 10.0))
    # Nothing is predicted to serve 100: the fastest prediction is taken.
    assert picked_by_prediction([point((100.0, 10.0), (90.0, 10.0))]) == [Asked(0.0, 0.0)]


def test_charts_of_anchors_alone_do_not_count() -> None:
    anchors = [replace(c, is_prediction=False, model="other") for c in CHART]
    assert charts([*CHART, *anchors]) == [CHART]
    mixed = [*CHART, replace(A, is_prediction=False)]
    assert charts(mixed) == [mixed]


def test_report_of_a_chart() -> None:
    told = score_charts(CHART)
    assert (told["charts"], told["points"], told["frontier_points"]) == (1, 4, 3)
    assert told["frontier_hit_pct"] == pytest.approx(66.7)
    assert told["spearman_median"] == 0.8  # b and c change places: 1 − 6·2/(4·15)
    assert told["throughput_lost_pct"] == {"p50": 0.0, "p90": 20.0}
    assert score_charts([])["frontier_hit_pct"] is None


FAST, ANY = Tier(name="fast", min_tok_s_user=50.0), Tier(name="bulk")


def test_decisions_need_both_kinds() -> None:
    assert decisions(CHART, [FAST, ANY]) == []


def test_decisions_by_tier() -> None:
    split = point((60.0, 45.0), (60.0, 20.0), split=True, gpus=8)
    told = {d.tier: d for d in decisions([*CHART, split], [FAST, ANY])}
    # Fast: measured colocated 40 (b) against 45 of the split; predicted c 35 against 20.
    assert (told["fast"].measured, told["fast"].predicted, told["fast"].measured_gain) == ("split", "colocated", 1.125)
    assert not told["fast"].right
    # Bulk: d wins on both sides.
    assert (told["bulk"].measured, told["bulk"].predicted, told["bulk"].right) == ("colocated", "colocated", True)


def test_a_tier_that_one_kind_alone_meets() -> None:
    split = point((200.0, 5.0), (120.0, 5.0), split=True)
    tier = Tier(name="realtime", min_tok_s_user=150.0)
    (told,) = decisions([A, split], [tier])
    assert (told.measured, told.predicted, told.measured_gain) == ("split", "neither", None)
    assert decisions([A, split], [Tier(name="none", min_tok_s_user=500.0)]) == []


def test_drafters_stay_out_of_tier_decisions() -> None:
    split = point((60.0, 45.0), (60.0, 20.0), split=True)
    drafted = replace(point((60.0, 90.0), (60.0, 90.0)), spec="mtp")
    told = tier_decisions([*CHART, split, drafted])
    assert told["with_drafters"]["total"] >= told["total"] > 0
    assert told["by_tier"]["responsive"] == {"right": 0, "total": 1}
