"""Choice sets, pairs, picks and regret on sets small enough to check by hand."""

from dataclasses import replace

import pytest

from evals.candidates import Candidate, any_engine, choice_sets, one_stack
from evals.ranking import picks, report, score_sets
from evals.scoring import quantile

BASE = Candidate(
    name="a",
    gpu="mi355x",
    model="m",
    engine="vllm",
    precision="fp8",
    spec="none",
    shape=(1024, 1024),
    clients=16,
    layout="tp4",
    gpus=4,
    split=False,
    tpot_ms=10.0,
    tok_s=100.0,
    predicted_tpot_ms=11.0,
    predicted_tok_s=90.0,
)
# Measured 100 < 150 < 200; predicted 90 < 220 > 210: the pair (b, c) is in the wrong order.
SET = [
    BASE,
    replace(BASE, name="b", gpus=8, tok_s=150.0, predicted_tok_s=220.0, tpot_ms=8.0, predicted_tpot_ms=7.0),
    replace(BASE, name="c", gpus=8, tok_s=200.0, predicted_tok_s=210.0, tpot_ms=6.0, predicted_tpot_ms=6.0),
]


def test_a_set_needs_a_choice_and_a_prediction() -> None:
    anchors = [replace(c, is_prediction=False) for c in SET]
    assert choice_sets(anchors, one_stack) == []
    assert choice_sets(SET[:1], one_stack) == []
    assert choice_sets([*anchors[:2], SET[2]], one_stack) == [[*anchors[:2], SET[2]]]


@pytest.mark.parametrize(
    ("changed", "in_one_stack", "over_engines"),
    [
        (replace(BASE, engine="sglang"), 2, 1),
        (replace(BASE, spec="mtp"), 2, 1),
        (replace(BASE, precision="fp4"), 2, 2),
        (replace(BASE, clients=32), 2, 2),
    ],
)
def test_what_a_set_shares(changed: Candidate, in_one_stack: int, over_engines: int) -> None:
    other = [changed, replace(changed, name="other")]
    assert len(choice_sets([*SET, *other], one_stack)) == in_one_stack
    assert len(choice_sets([*SET, *other], any_engine)) == over_engines


def test_pick_and_regret() -> None:
    # The pick is b (220 predicted): 150 of the best 200, a regret of 25%.
    found = picks([SET])
    assert (found.sets, found.best, found.regrets_pct) == (1, 0, (25.0,))
    # With c predicted highest the best is picked.
    right = [*SET[:2], replace(SET[2], predicted_tok_s=230.0)]
    assert picks([SET, right]).as_json() == {"top1_pct": 50.0, "regret_pct": {"p50": 12.5, "p90": 22.5}}


def test_keys_of_a_set() -> None:
    rival = {"b": 1.0, "c": 2.0}  # the rival has the pair right
    told = score_sets([SET], rival)
    assert (told["sets"], told["pairs"]) == (1, 3)
    assert told["throughput_pair_acc_pct"] == pytest.approx(66.7)
    assert told["tpot_pair_acc_pct"] == 100.0
    # 4 GPUs against 8 twice right; 8 against 8 is a tie: 2.5 of 3.
    assert told["gpu_count_rule_pair_acc_pct"] == pytest.approx(83.3)
    assert told["gpu_count_rule_tpot_pair_acc_pct"] == pytest.approx(83.3)
    equal = told["equal_gpu"]
    assert (equal["pairs"], equal["throughput_pair_acc_pct"], equal["rival_pair_acc_pct"]) == (1, 0.0, 100.0)
    assert equal["rival_same_pairs"] == {"pairs": 1, "ours_acc_pct": 0.0, "rival_acc_pct": 100.0}


def test_splits_are_told_apart() -> None:
    split = replace(SET[2], name="s", split=True)
    told = report([*SET, split], [], {})
    assert told["amd"]["pairs"] == 3
    assert told["amd"]["with_splits"]["pairs"] == 5  # c and the split were measured alike


def test_no_sets_no_figures() -> None:
    told = score_sets([], {})
    assert told["throughput_pair_acc_pct"] is None
    assert told["top1_pct"] is None
    assert told["regret_pct"] == {"p50": None, "p90": None}


def test_quantiles_interpolate() -> None:
    assert quantile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert quantile([0.0, 10.0], 0.9) == 9.0
    assert quantile([], 0.5) is None
