"""The mix planner's picks scored on a handful of made-up runs."""

from dataclasses import replace
from typing import Any

import pytest

from agent.tiers import Tier
from evals.agentic import Run
from evals.mix import EXACT, RunChoice, choices, each_run, fill_slot, score, served

RUN = Run("a", "M", "GB300", "vLLM", 4, 1, gpus=4, sessions=4, trace="t", tput=400.0, itl=10.0, ttft=100.0)
FAST = Tier(name="fast", min_tok_s_user=80.0, max_ttft_ms=1000.0)
ANY = Tier(name="bulk")


def choice(measured: tuple[float, float], predicted: tuple[float, float], name: str = "a") -> RunChoice:
    """A run by (tokens a second of a user, output tokens a second per GPU), measured and predicted."""
    run = replace(RUN, layout=name, tput=4.0 * measured[1], itl=1e3 / measured[0])
    ratio = {"itl": measured[0] / predicted[0], "tput": predicted[1] / measured[1], "ttft": 1.0}
    return RunChoice(run, served(run, EXACT), served(run, ratio), False)


def test_what_a_run_serves() -> None:
    told = served(RUN, {"itl": 0.5, "tput": 1.1, "ttft": 2.0})
    assert (told.tok_s_user, told.ttft_ms, told.per_gpu) == pytest.approx((200.0, 200.0, 110.0))


def test_a_run_without_itl_or_ttft_serves_only_the_tier_without_limits() -> None:
    for silent in (replace(RUN, itl=None), replace(RUN, ttft=None)):
        told = served(silent, EXACT)
        assert not told.meets(FAST)
        assert told.meets(ANY)
    assert not served(RUN, {"tput": 1.0}).meets(FAST)


def test_the_pick_is_the_best_predicted_and_is_held_against_the_best_measured() -> None:
    # Both meet the tier; b is predicted best and measured 90 where a gives 100.
    a, b = choice((100.0, 100.0), (100.0, 95.0)), choice((90.0, 90.0), (100.0, 120.0), "b")
    found = fill_slot("M", FAST, [a, b])
    assert found is not None
    assert (found.pick, found.best) == (b, a)
    assert found.loss_pct == pytest.approx(10.0)
    told = score([a, b], [FAST])
    assert (told["slots"], told["best"], told["within_12_pct"]) == (1, 0, 1)
    assert (told["shortlist_best"], told["missed"]) == (1, 0)
    assert told["loss_median_pct"] == 10.0


def test_a_pick_that_misses_the_tier_on_hardware_loses_all() -> None:
    a, b = choice((100.0, 100.0), (100.0, 100.0)), choice((70.0, 200.0), (85.0, 200.0), "b")
    told = score([a, b], [FAST])
    assert (told["slots"], told["missed"], told["no_pick"], told["loss_median_pct"]) == (1, 1, 0, 100.0)
    assert told["shortlist_within_12_pct"] == 1  # a stands on the short list


def test_half_the_limit_is_what_a_prediction_may_use() -> None:
    slow = replace(RUN, ttft=600.0)
    found = fill_slot("M", FAST, [RunChoice(slow, served(slow, EXACT), served(slow, EXACT), True)])
    assert found is not None  # 600 ms meets the tier on hardware, and is over half of its limit
    assert found.pick is None
    told = score([RunChoice(slow, served(slow, EXACT), served(slow, EXACT), True)], [FAST])
    assert (told["missed"], told["no_pick"]) == (1, 1)


def test_a_slot_that_nothing_meets_does_not_count() -> None:
    assert fill_slot("M", FAST, [choice((50.0, 100.0), (100.0, 100.0))]) is None
    assert score([choice((50.0, 100.0), (100.0, 100.0))], [FAST])["loss_median_pct"] is None


def test_near_equals_go_to_the_one_with_most_headroom() -> None:
    # Within 5% of the best throughput per GPU the faster one is picked (the planner's rule).
    a, b = choice((85.0, 100.0), (85.0, 100.0)), choice((160.0, 97.0), (160.0, 97.0), "b")
    found = fill_slot("M", FAST, [a, b], each_run)
    assert found is not None
    assert found.pick is b


def test_candidates_are_anchors_and_covered_runs() -> None:
    runs = [RUN, replace(RUN, sessions=8), replace(RUN, sessions=64), replace(RUN, layout="s", prefill_gpus=4)]
    ratio = {"tput": 1.25, "itl": 1.0, "ttft": 1.0}
    report: dict[str, Any] = {
        "by_layout": [
            {
                "layout": "a",
                "served_before": False,
                "anchor_sessions": 4,
                "rows": [
                    {"sessions": 8, "covered": True, "predicted_over_measured": ratio},
                    {"sessions": 64, "covered": False, "predicted_over_measured": ratio},
                ],
            }
        ],
        "split": {"rows": [{"layout": "s", "sessions": 4, "predicted_over_measured": ratio}]},
    }
    found = choices(runs, report)
    assert [(one.run.sessions, one.is_anchor, one.predicted.per_gpu) for one in found] == [
        (4, True, 100.0),
        (8, False, 125.0),
    ]
    assert len(choices(runs, report, splits=True)) == 3
