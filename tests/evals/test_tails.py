"""Tails of closed loops: lengths of the harness, anchors by rule, steps recovered, acceptance that differs."""

from math import log

import numpy as np
import pytest

from evals.corpus import CorpusAbsent, data_dir
from evals.request_runs import (
    ClosedRun,
    closed_runs,
    harness_lengths,
    kv_pool_tokens,
    poisson_arrivals_ms,
    spread_pct,
)
from evals.tails_closed import (
    Solved,
    acceptance_sigma,
    anchor_runs,
    request_slowness,
    simulated,
    solve,
    target_groups,
)
from predictor.des.metrics import HostTimes
from predictor.step.anchored import AnchoredStepModel
from predictor.step.curve import DecodeCurve
from predictor.step.model import PrefillCurve


def _run(name: str, depth: int, clients: int, requests: int, tpot_p99: float = 1.0) -> ClosedRun:
    return ClosedRun(name, depth, clients, requests, {"tpot_p99": tpot_p99})


def _solved(per_step: float = 1.0, sigma: float = 0.0, depth: int = 0) -> Solved:
    curve = DecodeCurve((1, 4), (4.0, 6.0), 7650.0, 0.5)
    model = AnchoredStepModel(curve, 0.0, PrefillCurve(0.0, 0.04, 0.0, 0.0), tokens_per_step=per_step)
    return Solved(model, depth, 1_600_000, HostTimes(0.0, 8.0), sigma)


def test_first_requests_are_those_recorded_line_by_line() -> None:
    prompts, outputs = harness_lengths(400)  # run gt_c4
    assert prompts[:3] == [7084, 6959, 7616]
    assert outputs[:3] == [958, 981, 858]


def test_anchors_are_the_sweep_up_to_a_quarter_of_the_heaviest_load() -> None:
    runs = [_run(f"a/sweep_c{c}", 0, c, 10 * c) for c in (1, 4, 16, 64)] + [_run("a/gt_c4", 0, 4, 400)]
    assert [run.clients for run in anchor_runs(runs, 0)] == [1, 4, 16]
    assert [[run.name for run in group] for group in target_groups(runs)] == [["a/gt_c4"], ["a/sweep_c64"]]


def test_a_repeat_of_an_anchor_is_no_target() -> None:
    runs = [_run("a/sweep_c1", 0, 1, 10), _run("a/sweep_c4", 0, 4, 40), _run("a/again_c1", 0, 1, 10)]
    assert [group[0].clients for group in target_groups(runs)] == [4]


def test_spread_is_half_the_range_over_the_median() -> None:
    runs = [_run("r", 0, 4, 40, value) for value in (9.0, 10.0, 11.0)]
    assert spread_pct(runs, "tpot_p99") == pytest.approx(10.0)
    assert spread_pct(runs[:1], "tpot_p99") is None


def test_a_single_client_waits_for_its_prompt_and_its_steps() -> None:
    summary = simulated(_solved(), 1, 10)
    prompts, outputs = harness_lengths(10)
    assert summary["tpot_p50"] == pytest.approx(4.0)
    assert summary["ttft_mean"] == pytest.approx(np.mean(prompts) * (0.04 + 0.008))
    assert summary["e2e_mean"] == pytest.approx(summary["ttft_mean"] + 4.0 * (np.mean(outputs) - 1.0))


def test_slowness_keeps_the_mean_and_what_drafting_allows() -> None:
    slow = request_slowness(_solved(2.0, 0.3, depth=3), 1000)
    assert np.mean(slow) == pytest.approx(1.0)
    assert min(slow) > 0.45
    assert max(slow) < 2.1
    assert request_slowness(_solved(), 5) == [1.0] * 5


def test_requests_that_accept_alike_leave_no_dispersion_to_explain() -> None:
    solved = _solved(2.0, depth=3)
    alone = simulated(solved, 4, 120)
    same = ClosedRun("a/sweep_c4", 3, 4, 120, alone)
    assert acceptance_sigma(solved, [same]) == 0.0
    wider = ClosedRun("a/sweep_c4", 3, 4, 120, {**alone, "tpot_p99": alone["tpot_p99"] * 1.5})
    plain = log(alone["tpot_p99"] / alone["tpot_p50"]) / 2.3263
    assert acceptance_sigma(solved, [wider]) ** 2 + plain**2 == pytest.approx(
        (plain + log(1.5) / 2.3263) ** 2, rel=1e-3
    )


def test_poisson_arrivals_have_the_rate_and_begin_at_once() -> None:
    arrivals = poisson_arrivals_ms(16.0, 1000)
    assert arrivals[0] == 0.0
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] / 999 == pytest.approx(1000.0 / 16.0, rel=0.1)


def test_measured_steps_of_light_loads_are_found_again() -> None:
    """The solved step at every anchor load is the run's median gap, which is a step without prompts (paper G.1)."""
    try:
        data = data_dir()
    except CorpusAbsent as absent:
        pytest.skip(str(absent))
    runs = closed_runs(data)  # every run's totals are those of the harness's draw, or this raises
    solved = solve(data, runs, 0)
    gaps = {run.clients: run.measured["itl_p50"] for run in anchor_runs(runs, 0)}
    steps = dict(zip(solved.model.curve.batches, solved.model.curve.step_ms, strict=True))
    assert sorted(gaps) == [1, 2, 4, 8, 16, 32, 64]
    assert all(steps[load] == pytest.approx(gap, rel=0.04) for load, gap in gaps.items())
    assert 1.3e6 < kv_pool_tokens(data, 0, 64) < 1.9e6
