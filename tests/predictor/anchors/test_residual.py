"""What an anchor's step model leaves of its own runs is carried to targets."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferasim import (
    Anchor,
    Catalogue,
    Deployment,
    Layout,
    Mode,
    Workload,
    engine_profile,
    model_card,
    platform,
    predict,
)
from predictor.anchors.pool import pool_factor, shown_tokens
from predictor.anchors.residual import MeasuredRun, log_interpolate, residual_at, with_reproduced
from predictor.anchors.schema import Reproduced, checked
from predictor.engines import effective_settings
from predictor.memory import memory

CARD, H100, VLLM = model_card("Llama-3.1-8B"), platform("H100"), engine_profile("vLLM")
CATALOGUE = Catalogue(CARD, H100, VLLM)
TARGET = Deployment("Llama-3.1-8B", "H100", "vLLM", "0.33.0")


def loop(clients: int, isl: int = 1024) -> Workload:
    return Workload(isl, 1024, clients, length_range_frac=0.8)


def anchor(**changes: Any) -> Anchor:
    raw = {
        "schema_version": 2,
        "name": "a",
        "signature": {"gpu": "H100", "engine": "vLLM", "engine_version": "0.33.0", "model": "Llama-3.1-8B"},
        "decode": [
            {
                "prompt_tokens": 922,
                "output_tokens": 922,
                "kind": "served",
                "points": [{"batch": b, "step_ms": s} for b, s in ((1, 7.0), (8, 7.6), (64, 10.5))],
            }
        ],
        "prefill": {
            "points": [{"tokens": 922, "step_ms": 40.0}],
            "fixed_ms": 4.0,
            "per_token_ms": 0.035,
            "mixed_fixed_ms": 4.0,
        },
        "provenance": {"real_weights": True, "prefix_cache_off": True, "source": "made up"},
    }
    return replace(checked(Anchor, raw), **changes)


def told(used: Anchor, clients: int, tp: int = 1, isl: int = 1024) -> tuple[float, float, float]:
    target = replace(TARGET, layout=Layout(tp=tp))
    result = predict(target, loop(clients, isl), CATALOGUE, mode=Mode.ANCHORED, anchor=used)
    return result.tpot_ms.mean, result.ttft_ms.mean, result.total_tok_s


def measured(clients: int, factor: float) -> MeasuredRun:
    tpot, ttft, rate = told(anchor(), clients)
    return MeasuredRun(clients, tpot * factor, ttft * factor, rate / factor)


def reproduced(factors: dict[int, float]) -> Anchor:
    bare = anchor()
    runs = [
        (measured(c, f), predict(TARGET, loop(c), CATALOGUE, mode=Mode.ANCHORED, anchor=bare))
        for c, f in factors.items()
    ]
    return with_reproduced(bare, {(922, 922): runs})


def test_an_anchor_returns_its_own_runs() -> None:
    used = reproduced({1: 1.1, 8: 0.9, 64: 1.3})
    for clients, factor in ((1, 1.1), (8, 0.9), (64, 1.3)):
        run = measured(clients, factor)
        assert told(used, clients) == pytest.approx((run.tpot_ms, run.ttft_ms, run.total_tok_s), rel=5e-3)


def test_a_wider_target_gets_the_tpot_misfit_whole_the_ttft_misfit_in_part_and_other_time_in_ms() -> None:
    used = reproduced({1: 1.2, 64: 1.2})
    before, after = told(anchor(), 64, tp=2), told(used, 64, tp=2)
    assert after[0] == pytest.approx(1.2 * before[0])
    assert after[1] == pytest.approx(1.2**0.65 * before[1])
    cycle = 64 * 1844 * 1e3 / before[2]
    added = used.decode[0].reproduced[-1].outside_decode_ms
    assert added is not None
    assert added > 0.0
    assert 64 * 1844 * 1e3 / after[2] == pytest.approx(cycle + 922 * (after[0] - before[0]) + added, rel=1e-3)


def test_without_a_recorded_throughput_the_cycle_grows_with_ttft_and_tpot() -> None:
    bare = anchor()
    tpot, ttft, rate = told(bare, 8)
    same = predict(TARGET, loop(8), CATALOGUE, mode=Mode.ANCHORED, anchor=bare)
    used = with_reproduced(bare, {(922, 922): [(MeasuredRun(8, 1.5 * tpot, 2.0 * ttft), same)]})
    cycle, longer = (8 * 1843.2 * 1e3 / r for r in (rate, told(used, 8)[2]))
    assert longer - cycle == pytest.approx(921.6 * 0.5 * tpot + ttft, rel=1e-6)


@given(st.floats(1.0, 4096.0))
def test_residuals_stay_between_those_of_the_runs(clients: float) -> None:
    runs = tuple(Reproduced(clients=c, tpot_ratio=f) for c, f in ((1, 0.8), (8, 1.1), (64, 1.4)))
    sweep = replace(anchor().decode[0], reproduced=runs)
    assert 0.8 - 1e-9 <= residual_at(sweep, clients, moved=False).tpot <= 1.4 + 1e-9


def test_runs_of_one_load_count_as_their_geometric_mean() -> None:
    bare = anchor()
    same = predict(TARGET, loop(8), CATALOGUE, mode=Mode.ANCHORED, anchor=bare)
    runs = [(measured(8, f), same) for f in (0.5, 2.0)]
    (only,) = with_reproduced(bare, {(922, 922): runs}).decode[0].reproduced
    assert only.tpot_ratio == pytest.approx(1.0)


def test_log_interpolation_holds_its_ends() -> None:
    points = [(4.0, 1.0), (16.0, 3.0)]
    assert [log_interpolate(points, x) for x in (1.0, 8.0, 64.0)] == [1.0, 2.0, 3.0]


def test_requests_that_ran_at_once_raise_the_pool_and_never_lower_it() -> None:
    settings = effective_settings(VLLM, "0.33.0", H100, CARD, TARGET)
    here = memory(CARD, H100, TARGET, settings)
    sweep = anchor().decode[0]
    many, few = (anchor(decode=(replace(sweep, held_requests=n),)) for n in (4000, 2))
    assert pool_factor(few, here) == 1.0
    assert pool_factor(many, here) > 2.0
    assert shown_tokens(many) == 4000 * (922 + 922)
    held = predict(TARGET, loop(64), CATALOGUE, mode=Mode.ANCHORED, anchor=many)
    assert held.max_concurrency * 2048 >= 0.98 * 4000 * 1844
    assert held.memory.pool_source == "engine log"


def test_a_stated_pool_replaces_the_modelled_one_both_ways() -> None:
    for tokens in (50_000, 900_000):
        result = predict(TARGET, loop(8), CATALOGUE, mode=Mode.ANCHORED, anchor=anchor(kv_pool_tokens=tokens))
        assert result.memory.kv_pool_tokens == pytest.approx(tokens, rel=1e-3)


@pytest.mark.parametrize(
    ("run", "held"),
    [
        (MeasuredRun(64, 10.0, 100.0), 64),  # 9216 ms of decode against 100: nobody waits
        (MeasuredRun(64, 10.0, 9216.0), 32),
        (MeasuredRun(64, 10.0), 1),  # neither TTFT nor rate: nothing is known
        (MeasuredRun(64, 10.0, None, 19.9 * 1843.2 / 9.216), 20),  # 20 requests at once by Little's law
    ],
)
def test_little_s_law_tells_how_many_ran_at_once(run: MeasuredRun, held: int) -> None:
    assert run.held(loop(64)) == held


def test_a_carried_time_takes_away_no_more_than_there_is() -> None:
    bare = anchor()
    tpot, ttft, rate = told(bare, 8)
    same = predict(TARGET, loop(8), CATALOGUE, mode=Mode.ANCHORED, anchor=bare)
    used = with_reproduced(bare, {(922, 922): [(MeasuredRun(8, tpot, ttft, 3.0 * rate), same)]})
    assert told(used, 8)[2] == pytest.approx(8 * 1843.2 * 1e3 / (921.6 * tpot), rel=1e-6)
