"""Steps solved from served runs: the schedule's means are exact, and known steps come back."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.anchors.schedule import ClosedLoopRun, schedule
from predictor.anchors.solve import (
    LEAST_TOKEN_SHARE,
    ServedPoint,
    decode_curve_from_served,
    mean_prompt,
    price_mean,
    prompt_token_ms,
    solve_ladders,
)
from predictor.step.curve import DecodeCurve
from predictor.step.model import PrefillCurve


def run(clients: int, isl: int = 1024, osl: int = 128, **kwargs: object) -> ClosedLoopRun:
    return ClosedLoopRun(clients, isl, osl, **kwargs)  # type: ignore[arg-type]


@pytest.mark.parametrize("discipline", ["mixed", "prefill_first"])
def test_one_client_has_no_stall(discipline: str) -> None:
    plan = schedule(run(1, discipline=discipline))
    assert plan.tpot.decode == pytest.approx({1: 1.0})
    assert plan.tpot.prompt_tokens == 0.0
    assert plan.ttft.prompt_tokens == pytest.approx(plan.prompt_tokens / plan.requests)
    assert plan.mean_running == 1.0


@settings(max_examples=30, deadline=None)
@given(clients=st.integers(1, 40), budget=st.integers(256, 20000), first=st.booleans())
def test_every_request_is_served(clients: int, budget: int, first: bool) -> None:
    discipline = "prefill_first" if first else "mixed"
    plan = schedule(run(clients, token_budget=budget, discipline=discipline))
    assert plan.total.prompts == 10 * clients
    assert plan.total.prompt_tokens == plan.prompt_tokens
    assert sum(plan.tpot.decode.values()) <= 1.0 + 1e-9
    assert max(plan.tpot.decode) <= clients


def test_stalls_are_those_of_the_closed_form() -> None:
    """Each of the other C − 1 requests stalls a request once an answer, but for the ramps (paper G.1)."""
    plan = schedule(run(64, 1024, 1024))
    assert plan.tpot.prompt_tokens == pytest.approx(63 * 1024 / 1024, rel=0.1)


def test_a_running_cap_holds() -> None:
    plan = schedule(run(64, max_running=16))
    assert max(plan.tpot.decode) == 16


@pytest.mark.parametrize("isl", [1024, 8192])
def test_known_steps_come_back(isl: int) -> None:
    truth = DecodeCurve((4, 8, 16, 32), (10.0, 12.0, 16.0, 24.0), 0.0)
    prefill = PrefillCurve(15.0, 0.02, 0.0, 15.0)
    runs = [run(c, isl, 1024) for c in truth.batches]
    points = [ServedPoint(r, price_mean(schedule(r).tpot, truth, prefill, mean_prompt(r))) for r in runs]
    solved = decode_curve_from_served(points, prefill)
    assert solved.curve.step_ms == pytest.approx(truth.step_ms)
    assert solved.residual_pct < 1e-6
    assert solved.determined


def test_a_single_run_is_not_determined() -> None:
    solved = decode_curve_from_served([ServedPoint(run(8), 12.0)], PrefillCurve(10.0, 0.02, 0.0, 10.0))
    assert not solved.determined


def test_prompt_cost_from_two_lengths() -> None:
    truth, prefill = DecodeCurve((4, 16), (10.0, 14.0), 0.0), PrefillCurve(0.0, 0.03, 0.0, 0.0)
    short, long = (
        [
            ServedPoint(r, price_mean(schedule(r).tpot, truth, prefill, mean_prompt(r)))
            for r in (run(4, isl, 512), run(16, isl, 512))
        ]
        for isl in (1024, 8192)
    )
    assert prompt_token_ms(short, long, []) == pytest.approx(0.03, rel=0.02)
    assert prompt_token_ms(short, [], []) is None


def test_no_prompt_is_free() -> None:
    # Neither TTFT nor TPOT grows with load: the steps and the host explain all, and c alone would come out as nought.
    run = ClosedLoopRun(4, 1024, 128, length_range_frac=1.0)
    ladder = [ServedPoint(replace(run, clients=clients), 20.0, 100.0) for clients in (4, 16, 64, 128)]
    solved = solve_ladders({(1024, 128): ladder}, lambda short, long, batch: 0.0, token_prior_ms=0.5)
    assert solved.prefill.per_token_ms >= LEAST_TOKEN_SHARE * 0.5
    assert solved.prefill.prompt_ms(1024) > 0.0
