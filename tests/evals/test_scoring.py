"""Pairs, frontiers and ranks on cases small enough to check by hand."""

import pytest

from evals.scoring import Option, frontier, pair_score, spearman


def test_pairs_count_decisive_ones_and_halve_ties() -> None:
    options = [Option(100.0, 1.0, 8), Option(102.0, 2.0, 8), Option(150.0, 2.0, 8), Option(200.0, 1.5, 4)]
    score = pair_score([options])
    # 100/102 is within 3%; of the rest 100<150 and 100<200 are right, 102/150 ties, 102<200 and 150<200 are wrong.
    assert (score.pairs, score.right) == (5, 2.5)
    assert score.acc_pct == 50.0
    assert pair_score([options], lambda a, b: a.gpus == b.gpus).pairs == 2


def test_two_anchor_rows_tell_nothing() -> None:
    anchors = [Option(100.0, 100.0, 8, is_prediction=False), Option(150.0, 150.0, 8, is_prediction=False)]
    assert pair_score([anchors]).pairs == 0
    assert pair_score([[*anchors, Option(300.0, 200.0, 8)]]).pairs == 2


def test_frontier_keeps_what_nothing_beats() -> None:
    assert frontier([(1.0, 5.0), (2.0, 4.0), (2.0, 3.0), (0.5, 5.0)]) == {0, 1}


def test_spearman_of_a_monotone_relation_is_one() -> None:
    assert spearman([1.0, 2.0, 5.0], [10.0, 20.0, 21.0]) == pytest.approx(1.0)
    assert spearman([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) is None
