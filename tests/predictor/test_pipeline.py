"""Pipelines: Eq. 4 against Table 20 at one client, placement, properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.errors import BadInput
from predictor.pipeline import (
    Hops,
    hop_transfer_ms,
    mean_transfer_ms,
    microbatch,
    pipeline_costs,
    pipeline_step_ms,
    stage_hops,
)
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.types import Layout

MI355X, SGLANG = platform("MI355X"), engine_profile("SGLang")
LLAMA = model_card("Llama-3.1-8B")


def test_sglang_costs_as_published() -> None:
    costs = pipeline_costs(SGLANG)
    assert costs.hop_us == 970.0
    assert costs.flags == ()
    assert 0.31 <= costs.host_ms(1) <= 0.39
    assert 0.69 <= costs.host_ms(64) <= 0.78


def test_other_engines_are_assumed_and_say_so() -> None:
    vllm, atom = pipeline_costs(engine_profile("vLLM")), pipeline_costs(engine_profile("ATOM"))
    assert [flag.code for flag in vllm.flags] == ["pp_assumed"]
    assert vllm.host_ms(64) == 0.0
    assert atom.host_ms(64) > 0.0


# Paper Table 20: TPOT in ms at one client, 1k prompts, TP1, by number of stages.
ONE_CLIENT_TPOT_MS = {
    "Llama-3.1-8B": {1: 4.46, 2: 6.32, 4: 8.15, 8: 12.06},
    "Qwen3-14B": {1: 8.86, 2: 11.12, 4: 13.02, 8: 16.93},
    "Qwen3.6-35B-A3B": {1: 3.95, 2: 6.19, 4: 8.17, 8: 12.43},
}


@pytest.mark.parametrize("model", ONE_CLIENT_TPOT_MS)
@pytest.mark.parametrize("pp", [2, 4, 8])
def test_one_client_pays_920_to_1130_us_a_stage(model: str, pp: int) -> None:
    ladder = ONE_CLIENT_TPOT_MS[model]
    p2p_ms = hop_transfer_ms(model_card(model), MI355X, 1, network=False)
    costs = pipeline_costs(SGLANG)
    ours_ms = pipeline_step_ms(ladder[1], pp, costs.hop_us, p2p_ms, costs.host_ms(1), microbatches=1)
    assert 920 <= (ladder[pp] - ladder[1]) / pp * 1e3 <= 1130
    assert 920 <= (ours_ms - ladder[1]) / pp * 1e3 <= 1130
    assert ours_ms == pytest.approx(ladder[pp], rel=0.06)


def test_a_network_hop_costs_at_most_10_us_more_a_token_over_two_hops() -> None:
    node, network = (hop_transfer_ms(LLAMA, MI355X, 1, network=crosses) for crosses in (False, True))
    assert 0.0 < 2 * (network - node) * 1e3 <= 10.0


def test_placement() -> None:
    assert stage_hops(1, 1) == Hops(0, 0)
    assert stage_hops(8, 1) == Hops(8, 0)
    assert stage_hops(2, 2) == Hops(0, 2)
    assert stage_hops(8, 2) == Hops(6, 2)
    assert stage_hops(8, 4) == Hops(4, 4)
    with pytest.raises(BadInput, match="2 stages on 4 nodes"):
        stage_hops(2, 4)


def test_micro_batches() -> None:
    assert microbatch(64, 8) == (8.0, 8)
    assert microbatch(1, 8) == (1.0, 1)
    assert microbatch(3, 8) == (1.0, 3)


@given(
    st.floats(0.1, 100), st.integers(1, 16), st.floats(0, 3000), st.floats(0, 1), st.floats(0, 2), st.integers(1, 16)
)
def test_stages_never_speed_up_a_step(
    step_ms: float, pp: int, hop_us: float, p2p_ms: float, host_ms: float, inflight: int
) -> None:
    added = pipeline_step_ms(step_ms, pp, hop_us, p2p_ms, host_ms, inflight)
    deeper = pipeline_step_ms(step_ms, pp + 1, hop_us, p2p_ms, host_ms, inflight)
    assert step_ms <= added <= deeper
    if pp == 1:
        assert added == step_ms


@given(st.sampled_from([(2, 1), (4, 2), (8, 4), (8, 8)]), st.floats(1, 256))
def test_mean_transfer_lies_between_the_tiers(shape: tuple[int, int], tokens: float) -> None:
    pp, nodes = shape
    node, network = (hop_transfer_ms(LLAMA, MI355X, tokens, network=crosses) for crosses in (False, True))
    low, high = sorted((node, network))
    assert low - 1e-12 <= mean_transfer_ms(LLAMA, MI355X, Layout(pp=pp, nodes=nodes), tokens) <= high + 1e-12
    assert mean_transfer_ms(LLAMA, MI355X, Layout(), tokens) == 0.0
