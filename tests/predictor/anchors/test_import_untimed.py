"""Ladders without TTFT are imported by the solver for TPOT alone."""

import pytest

from predictor.anchors.import_solve.artefact import BenchmarkFile, Imported, import_benchmark
from predictor.anchors.import_solve.setting import Lookups
from predictor.anchors.import_solve.untimed import NOTE
from predictor.anchors.schedule import ClosedLoopRun, schedule
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.transfer import KernelContext, default_constants
from predictor.transfer.terms import step_terms
from predictor.types import Dtype, Layout, Precision

FIND = Lookups(model_card, platform, engine_profile)
COLUMNS = ",".join(
    ("gpu,engine,engine_version,model,tp,ep,attn_dp,weight_dtype,kv_dtype,spec_method,prefix_cache,real_weights",
     "isl,osl,length_range,concurrency,requests,mean_tpot_ms")
)  # fmt: skip
FACTS = "MI355X,vLLM,0.33.0,MiniMax-M2.5,2,1,1,fp8,fp8,none,off,true"
LOADS = (1, 2, 4, 8, 16, 32, 64)
TOKEN_MS = 0.03


def cache_ms(batch: float, context_tokens: float) -> float:
    """What reading the cache adds to a step, by its bytes."""
    side = KernelContext(
        model_card("MiniMax-M2.5"),
        platform("MI355X"),
        Layout(tp=2),
        Precision(weight=Dtype.FP8, linear=Dtype.FP8, expert=Dtype.FP8, kv=Dtype.FP8),
        "vLLM",
        context_tokens,
    )
    return step_terms(side, batch, default_constants(side.platform)).kv_ms


def step_ms(batch: float, isl: int) -> float:
    return 8.0 + 0.9 * batch**0.6 + cache_ms(batch, 0.9 * (isl + 512))


def ladder(isl: int, fixed_ms: float, loads: tuple[int, ...] = LOADS) -> str:
    """Rows of closed loops with these steps and this cost of a prompt."""
    rows = []
    for clients in loads:
        usage = schedule(ClosedLoopRun(clients, isl, 1024)).tpot
        tpot = usage.price(lambda batch: step_ms(batch, isl), TOKEN_MS, 0.0, fixed_ms)
        rows.append(f"{FACTS},{isl},1024,0.8,{clients},{10 * clients},{tpot:.6f}")
    return "\n".join(rows)


def imported(*parts: str) -> Imported:
    text = "\n".join((COLUMNS, *parts))
    return import_benchmark([BenchmarkFile("ladder.csv", text)], {}, FIND)


def test_two_prompt_lengths_tell_the_cost_of_a_prompt_token() -> None:
    anchor = imported(ladder(1024, 20.0), ladder(8192, 20.0)).anchor
    assert anchor.prefill.per_token_ms == pytest.approx(TOKEN_MS, rel=0.1)
    assert anchor.prefill.mixed_fixed_ms == anchor.prefill.fixed_ms > 0.0
    assert NOTE in anchor.provenance.notes
    assert len(anchor.decode) == 2
    for sweep in anchor.decode:
        assert sweep.residual_pct is not None
        assert sweep.residual_pct < 1.0
        assert [point.batch for point in sweep.points] == list(LOADS)
        for point in sweep.points:
            expected = step_ms(point.batch, round(sweep.prompt_tokens / 0.9))
            assert point.step_ms == pytest.approx(expected, rel=0.15)


def test_one_prompt_length_takes_the_kernel_models_cost() -> None:
    one = imported(ladder(1024, 20.0)).anchor
    assert one.prefill.per_token_ms > 0.0
    assert one.decode[0].determined


def test_fewer_loads_than_steps_is_said() -> None:
    assert imported(ladder(1024, 20.0, (1, 8))).anchor.decode[0].determined
    both = imported(ladder(1024, 20.0, (8,)), ladder(8192, 20.0, (8,)))
    assert not any(sweep.determined for sweep in both.anchor.decode)
