"""Conformal widths and their check, on residuals small enough to check by hand."""

import random
from math import exp, inf, log
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.conformal import (
    Check,
    Residual,
    check,
    check_both_ways,
    conformal_quantile,
    coverage_pct,
    enough_stacks,
    halves,
    median_width_pct,
    widths,
)
from evals.interval_rows import residuals_of
from evals.intervals import calibrated, kind_widths, report, toml_of
from evals.scoring import Scored
from predictor.intervals import WidthTable
from predictor.profiles.decode import decode


def residual(size: float, stack: str = "a", kind: str = "TPx2", metric: str = "tpot") -> Residual:
    return Residual(stack, kind, metric, size)


@pytest.mark.parametrize(
    ("count", "rank"),
    [(4, 4), (5, 5), (9, 8), (10, 9), (99, 80), (100, 81)],  # ceil(0.8·(n+1))
)
def test_the_quantile_is_the_finite_sample_one(count: int, rank: int) -> None:
    assert conformal_quantile(range(1, count + 1)) == rank


def test_too_few_rows_give_no_width() -> None:
    assert conformal_quantile([0.1, 0.2, 0.3]) == inf
    assert widths([residual(0.1), residual(0.2)]) == {}


def test_widths_are_by_kind_and_metric() -> None:
    rows = [residual(size / 10.0) for size in range(1, 5)]
    rows += [residual(size / 10.0, metric="ttft") for size in range(2, 6)]
    rows += [residual(size / 10.0, kind="EP") for size in range(3, 7)]
    assert widths(rows) == {("TPx2", "tpot"): 0.4, ("TPx2", "ttft"): 0.5, ("EP", "tpot"): 0.6}


def test_a_half_is_checked_against_the_other_halfs_width() -> None:
    # Stacks a and c calibrate b and d and the reverse: widths 0.4 and 0.8.
    sizes = {"a": (0.1, 0.2), "b": (0.1, 0.5), "c": (0.3, 0.4), "d": (0.7, 0.8)}
    rows = [residual(size, stack) for stack, of in sizes.items() for size in of]
    first, second = halves(rows)
    assert {one.stack for one in first} == {"a", "c"}
    checks = check_both_ways(rows)
    # b and d against 0.4: 0.1 lies inside. a and c against 0.8: all four do.
    assert (len(checks), coverage_pct(checks)) == (8, 62.5)
    assert coverage_pct(check(widths(first), second)) == 25.0


def test_kinds_without_a_width_are_not_checked() -> None:
    assert check({("EP", "tpot"): 1.0}, [residual(0.1)]) == []
    assert coverage_pct([]) is None
    assert median_width_pct([]) is None


def test_the_whole_width_is_told() -> None:
    # e^0.1 − e^−0.1 of the prediction.
    assert median_width_pct([Check(residual(0.0), 0.1)]) == pytest.approx(20.0, abs=0.05)


def test_thin_kinds_are_left_out() -> None:
    rows = [residual(0.1, f"s{i}") for i in range(6)] + [residual(0.1, f"s{i}", "EP") for i in range(5)]
    assert enough_stacks(rows) == {("TPx2", "tpot")}
    assert {one.kind for one in calibrated(rows)} == {"TPx2"}
    assert report(rows)["not_calibrated"] == {"least_stacks": 6, "kinds": ["EP: tpot"], "rows": 5}


@given(st.integers(0, 2**32 - 1))
def test_shuffled_halves_part_whole_stacks(seed: int) -> None:
    rows = [residual(0.1, f"s{i % 7}") for i in range(30)]
    first, second = halves(rows, seed)
    assert {one.stack for one in first} & {one.stack for one in second} == set()
    assert len(first) + len(second) == 30
    assert halves(rows, seed) == (first, second)


def test_exchangeable_rows_are_covered_four_times_in_five() -> None:
    source = random.Random(7)
    rows = [residual(abs(source.gauss(0.0, 0.2)), f"s{i // 25}") for i in range(2500)]
    found = coverage_pct(check_both_ways(rows))
    assert found is not None
    assert 76.0 <= found <= 84.0


def test_residuals_of_a_row_are_in_logs() -> None:
    class Row:
        stack = "s"

    scored = Scored(
        {"tpot": 10.0, "interactivity": 100.0, "throughput_proxy": 50.0},
        {"tpot": 8.0, "interactivity": 125.0, "throughput_proxy": 100.0},
        {"row": Row()},
    )
    found = {one.metric: one for one in residuals_of(scored, "EP")}
    assert (found["tpot"].stack, found["tpot"].kind) == ("s", "EP")
    assert found["tpot"].size == pytest.approx(log(1.25))
    assert found["throughput"].size == pytest.approx(log(2.0))
    assert set(found) == {"tpot", "throughput"}


def test_the_data_file_reads_back_as_it_was_made(tmp_path: Path) -> None:
    import tomllib

    rows = [residual(0.1 * (i + 1), f"s{i}") for i in range(6)]
    kinds = kind_widths(rows)
    (kind,) = kinds
    assert (kind.name, kind.rows, kind.stacks, kind.ttft) == ("TPx2", 6, 6, None)
    assert kind.tpot == pytest.approx(exp(0.6), abs=1e-4)
    table = decode(WidthTable, tomllib.loads(toml_of(kinds)), "made")
    assert list(table.kind) == kinds
    assert table.of("TPx2") == kind
    assert table.of("EP") is None
