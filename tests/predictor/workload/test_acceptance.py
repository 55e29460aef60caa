"""Drawn acceptance."""

import numpy as np
import pytest

from predictor.des.rules import SchedulerRules
from predictor.des.simulator import simulate
from predictor.errors import BadInput
from predictor.step.model import PrefillCurve, TableStepModel
from predictor.types import Workload
from predictor.workload.acceptance import mean_tokens_per_step, verify_steps

RATES = (0.86, 0.71, 0.6)


def test_drawn_steps_commit_the_mean_on_average() -> None:
    drawn = verify_steps(RATES, np.random.default_rng(3))
    next(drawn)
    steps = [drawn.send(1000) for _ in range(400)]
    assert 1000 / np.mean(steps) == pytest.approx(mean_tokens_per_step(RATES), rel=0.01)
    assert np.std(steps) > 3.0


def test_nothing_accepted_is_no_speculation_and_all_accepted_is_the_depth() -> None:
    none, every = (verify_steps((rate, rate), np.random.default_rng(0)) for rate in (0.0, 1.0))
    next(none), next(every)
    assert (none.send(17), every.send(17), every.send(18)) == (17, 6, 6)


def test_drawn_acceptance_spreads_tpot_around_the_mean() -> None:
    length = mean_tokens_per_step(RATES)
    model = TableStepModel((8.0, 8.2, 8.4, 8.6), (2e-5,) * 4, PrefillCurve(9.0, 0.02, 0.0, 3.0), tokens_per_step=length)
    rules = SchedulerRules("vllm", max_running=8, token_budget=8192, block_tokens=16, draft_tokens=3)
    workload = Workload(500, 400, 4, requests_per_client=20)
    mean = simulate(model, workload, rules, kv_blocks=10_000)
    drawn = simulate(model, workload, rules, kv_blocks=10_000, acceptance=RATES)
    assert drawn.tpot_ms.mean == pytest.approx(mean.tpot_ms.mean, rel=0.03)
    assert drawn.tpot_ms.p99 - drawn.tpot_ms.p50 > 4 * (mean.tpot_ms.p99 - mean.tpot_ms.p50)
    assert drawn.totals.output_tokens == 80 * 400


def test_acceptance_without_speculation_is_refused() -> None:
    model = TableStepModel((8.0, 8.2), (2e-5,) * 2, PrefillCurve(9.0, 0.02, 0.0, 3.0))
    rules = SchedulerRules("vllm", max_running=8, token_budget=8192, block_tokens=16, draft_tokens=3)
    with pytest.raises(BadInput, match="acceptance of 3 drafted tokens"):
        simulate(model, Workload(10, 10), rules, kv_blocks=100, acceptance=RATES)
    with pytest.raises(BadInput, match="rates between 0 and 1"):
        next(verify_steps((1.2,), np.random.default_rng(0)))
