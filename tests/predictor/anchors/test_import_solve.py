"""Steps come out of runs as they went into the simulator, whatever the scheduler, and say how sure they are."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals import anchor_import as study
from predictor.anchors.check import doubts
from predictor.anchors.import_solve.artefact import BenchmarkFile, Imported, import_benchmark
from predictor.anchors.import_solve.ladder import KnotModel, ServedRun, Shape, Statistics, reproduce, solve_ladders
from predictor.anchors.schema import all_fields, parse_anchor
from predictor.anchors.select import assess
from predictor.des.schedulers import scheduler_rules
from predictor.errors import BadInput
from predictor.linear import non_negative_least_squares
from predictor.step.model import PrefillCurve
from predictor.types import Arrival, Coverage, SchedulerSettings, Workload

KNOTS, STEPS = (1, 4, 16), (8.0, 10.0, 15.0)
PREFILL = PrefillCurve(6.0, 0.03, 0.0, 0.0)
CONTEXT, SLOPE, HOST = 512 * 0.9 + 128 * 0.45, 2e-5, 12.0
TRUTH = KnotModel(KNOTS, STEPS, CONTEXT, SLOPE, PREFILL)


def served(engine: str, clients: int, **arrivals: object) -> ServedRun:
    limits = SchedulerSettings(max_running=64, token_budget=4096, chunk_size=4096 if engine == "sglang" else None)
    rules = scheduler_rules(engine, "", limits)
    workload = replace(Workload(512, 128, clients, length_range_frac=0.8), **arrivals)  # type: ignore[arg-type]
    return ServedRun(f"c{clients}", workload, rules, 200_000, Statistics())


def recorded(run: ServedRun) -> ServedRun:
    result = reproduce(run, TRUTH, HOST)
    values = Statistics(result.tpot_ms.mean, result.ttft_ms.mean, result.itl_ms.p50, result.duration_ms)
    return replace(run, recorded=values)


def shape_of(*runs: ServedRun) -> Shape:
    return Shape(512, 128, CONTEXT, SLOPE, runs)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "atom", "trtllm"])
def test_exact_runs_give_the_exact_steps_back(engine: str) -> None:
    solved = solve_ladders([shape_of(*(recorded(served(engine, c)) for c in KNOTS))])
    sweep = solved.sweeps[0]
    assert sweep.knots == KNOTS
    assert sweep.step_ms == pytest.approx(STEPS, rel=0.01)
    assert solved.prefill.per_token_ms == pytest.approx(PREFILL.per_token_ms, rel=0.02)
    assert solved.tpot_residual_pct < 0.5
    assert sweep.determined


def test_the_mean_tpot_of_a_loaded_run_is_not_its_step() -> None:
    """Paper G.1: fed as a step, it would count the stalls twice."""
    run = recorded(served("vllm", 16))
    assert run.recorded.tpot_ms is not None
    assert run.recorded.tpot_ms > 1.1 * STEPS[2]
    solved = solve_ladders([shape_of(recorded(served("vllm", 1)), run)])
    assert solved.sweeps[0].step_ms[-1] == pytest.approx(STEPS[2], rel=0.03)


def test_open_arrivals_are_solved_through_the_clock() -> None:
    arrivals = {"arrival": Arrival.POISSON, "request_rate_per_s": 3.0, "requests_per_client": 8}
    runs = [recorded(served("vllm", 1)), recorded(served("vllm", 4)), recorded(served("vllm", 16, **arrivals))]
    solved = solve_ladders([shape_of(*runs)])
    assert solved.tpot_residual_pct < 1.0
    assert solved.sweeps[0].step_ms[:2] == pytest.approx(STEPS[:2], rel=0.02)


def test_one_odd_run_does_not_bend_the_others() -> None:
    runs = [recorded(served("vllm", c)) for c in (1, 2, 4, 8, 16)]
    ttft = runs[-1].recorded.ttft_ms
    assert ttft is not None
    runs[-1] = replace(runs[-1], recorded=replace(runs[-1].recorded, ttft_ms=20.0 * ttft))
    solved = solve_ladders([shape_of(*runs)])
    middle = dict(zip(solved.sweeps[0].knots, solved.sweeps[0].step_ms, strict=True))
    assert middle[1] == pytest.approx(STEPS[0], rel=0.03)
    assert middle[4] == pytest.approx(STEPS[1], rel=0.03)


def test_medians_are_compared_with_medians() -> None:
    run = served("vllm", 16)
    result = reproduce(run, TRUTH, HOST)
    values = Statistics(
        result.tpot_ms.p50, result.ttft_ms.p50, result.itl_ms.p50, None, tpot_is_mean=False, ttft_is_mean=False
    )
    others = [recorded(served("vllm", c)) for c in (1, 4)]
    solved = solve_ladders([shape_of(*others, replace(run, recorded=values))])
    assert solved.sweeps[0].step_ms == pytest.approx(STEPS, rel=0.02)


def test_nothing_recorded_is_nothing_solved() -> None:
    with pytest.raises(BadInput, match="no run records a TPOT"):
        solve_ladders([shape_of(served("vllm", 1))])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5).flatmap(
        lambda n: st.tuples(
            st.lists(st.lists(st.floats(-3, 3), min_size=n, max_size=n), min_size=n, max_size=8),
            st.lists(st.floats(-5, 5), min_size=8, max_size=8),
        )
    )
)
def test_nnls_meets_the_conditions_of_an_optimum(problem: tuple[list[list[float]], list[float]]) -> None:
    rows, values = problem
    matrix = np.array(rows)
    target = np.array(values[: len(rows)])
    x = non_negative_least_squares(matrix, target)
    gradient = matrix.T @ (target - matrix @ x)
    scale = 1.0 + float(np.abs(matrix).sum() * np.abs(target).sum())
    assert np.all(x >= 0.0)
    assert np.all(gradient <= 1e-6 * scale)
    assert np.all(np.abs(gradient[x > 0.0]) <= 1e-6 * scale)


# Whole files


CASE = study.CASES[0]
TRUE = study.truth_of(CASE)
LOADS = (1, 4, 16)


def files(noise: float, loads: tuple[int, ...] = LOADS) -> list[BenchmarkFile]:
    name = CASE.card.hf_ids[0]
    error = study.write.Noise(noise, 3)
    out = []
    for clients in loads:
        load = study.write.Load(clients, study.ISL, study.OSL, study.LENGTH_RANGE, name)
        run = study.write.figures(study.benchmark(TRUE, clients), error)
        out.append(BenchmarkFile(f"c{clients}.json", study.write.vllm(run, load)))
    return out


def imported(noise: float = 0.0, loads: tuple[int, ...] = LOADS) -> Imported:
    return import_benchmark(files(noise, loads), CASE.facts() | {"length_range": 0.8}, study.FIND)


def test_a_ladder_makes_an_anchor_that_says_where_it_comes_from() -> None:
    result = imported()
    anchor = result.anchor
    assert anchor.name == "llama-3.1-70b-h200-vllm-0.33.0-tp4-fp8"
    assert [point.batch for point in anchor.decode[0].points] == list(LOADS)
    for point in anchor.decode[0].points:
        known = TRUE.step_ms(point.batch, anchor.decode[0].context_tokens)
        assert point.step_ms == pytest.approx(known, rel=0.03)
        assert point.served_tpot_ms is not None
    assert anchor.decode[0].kind == "served"
    assert anchor.decode[0].residual_pct is not None
    assert anchor.decode[0].determined is True
    assert [source.name for source in anchor.provenance.inputs] == ["c1.json", "c4.json", "c16.json"]
    assert parse_anchor(json.dumps(all_fields(anchor)), "again") == anchor
    assert set(result.reproduced) == {"c1.json", "c4.json", "c16.json"}


def test_an_import_is_the_same_every_time() -> None:
    assert imported(0.03).anchor.content_hash == imported(0.03).anchor.content_hash


def test_noise_shows_in_the_stated_errors() -> None:
    stated = [point.error_pct for point in imported(0.05).anchor.decode[0].points]
    clean = [point.error_pct for point in imported(0.0).anchor.decode[0].points]
    assert all(error is not None and error > 0.0 for error in stated)
    assert sum(error or 0.0 for error in stated) > 2.0 * sum(error or 0.0 for error in clean)


def test_one_run_scales_a_simulation_and_says_so() -> None:
    anchor = imported(loads=(16,)).anchor
    sweep = anchor.decode[0]
    assert sweep.kind == "scaled"
    assert sweep.determined is False
    by_batch = {point.batch: point.step_ms for point in sweep.points}
    # The truth is the kernel models' own shape, stretched: so the factors must come back.
    assert by_batch[16] == pytest.approx(TRUE.step_ms(16, sweep.context_tokens), rel=0.02)
    assert by_batch[1] == pytest.approx(TRUE.step_ms(1, sweep.context_tokens), rel=0.02)
    assert any("its shape over batch is not measured" in note for note in anchor.provenance.notes)
    selection = assess(anchor, TRUE.setting.deployment, Workload(study.ISL, study.OSL, 16))
    assert selection.coverage is Coverage.PROJECTED
    assert "scaled_from_one_run" in {flag.code for flag in selection.flags}


def test_runs_that_contradict_their_deployment_are_marked() -> None:
    """Ten times slower than the kernel models: the factor is outside what a kernel can be off by."""
    text = files(0.0, (16,))[0].text
    row = study.write.json.loads(text)
    slow = {name: value * 10.0 for name, value in row.items() if name.endswith("_ms")} | {
        "duration": row["duration"] * 10
    }
    slow |= {name: row[name] / 10.0 for name in ("request_throughput", "output_throughput", "total_token_throughput")}
    stated = CASE.facts() | {"length_range": 0.8}
    anchor = import_benchmark(
        [BenchmarkFile("slow.json", study.write.json.dumps(row | slow))], stated, study.FIND
    ).anchor
    assert any("check that run and deployment belong together" in note for note in anchor.provenance.notes)


def test_one_batch_steps_are_taken_as_they_are() -> None:
    steps = [(b, 1024, 128, 50.0 * b, 8.0 + b) for b in (1, 4, 16, 64)] + [(1, 4096, 128, 180.0, 9.5)]
    text = study.write.one_batch(steps, study.write.Noise(0.0, 0))
    stated = CASE.facts() | {"model": CASE.model, "engine": "sglang", "engine_version": "0.5.23"}
    anchor = import_benchmark([BenchmarkFile("s.jsonl", text)], stated, study.FIND).anchor
    sweep = anchor.sweep_for(1024)
    assert sweep.kind == "single_wave"
    assert [(p.batch, p.step_ms) for p in sweep.points] == [(1, 9.0), (4, 12.0), (16, 24.0), (64, 72.0)]
    assert [point.tokens for point in anchor.prefill.points] == [1024, 4096]
    assert not [flag for flag in doubts(anchor) if flag.code == "not_monotone"]


def test_runs_and_steps_do_not_mix() -> None:
    text = study.write.one_batch([(1, 1024, 128, 50.0, 9.0)], study.write.Noise(0.0, 0))
    with pytest.raises(BadInput, match="import them apart"):
        import_benchmark([*files(0.0, (1,)), BenchmarkFile("s.jsonl", text)], CASE.facts(), study.FIND)
