"""Decode context parallelism: what it exchanges, and that both step models price it."""

import pytest

from predictor.context_parallel import layer_exchange
from predictor.profiles.loader import model_card, platform, platform_names
from predictor.step.curve import DecodeCurve
from predictor.step.decode_work import deployment_ops
from predictor.step.op_types import Collective
from predictor.transfer import KernelContext, move_decode
from predictor.transfer.constants import default_constants
from predictor.transfer.terms import step_terms
from predictor.transfer.work import step_work
from predictor.types import Deployment, Dtype, Layout, Precision

FP8 = Precision(Dtype.FP8, Dtype.FP8, Dtype.FP8, Dtype.FP8)


def side(
    layout: Layout, context_tokens: float = 60_000.0, card: str = "DeepSeek-R1", gpu: str = "MI355X"
) -> KernelContext:
    return KernelContext(model_card(card), platform(gpu), layout, FP8, "vllm", context_tokens)


def test_a_layer_of_mla_exchanges_latent_queries_and_outputs() -> None:
    """DeepSeek-R1 at TP8, DCP8: 128 heads of 512 + 64 go out, 128 of 512 and one fp32 log-sum-exp come back."""
    one = layer_exchange(model_card("DeepSeek-R1").attention, 16, 8)
    assert one is not None
    assert one.gather_bytes == 2 * 128 * 576
    assert one.scatter_bytes == 128 * (2 * 512 + 4)


def test_nothing_is_exchanged_without_it_or_by_recurrent_layers() -> None:
    card = model_card("Qwen3.5-397B-A17B")
    assert layer_exchange(card.attention, 4, 1) is None
    kinds = {group.attention.kind: layer_exchange(group.attention, 4, 2) for group in card.groups}
    assert kinds["linear"] is None
    assert kinds["gqa"] is not None


@pytest.mark.parametrize("dcp", [2, 4, 8])
def test_each_rank_reads_its_share_of_the_cache(dcp: int) -> None:
    whole, shared = (step_work(side(Layout(tp=8, dcp=width)), 16.0) for width in (1, dcp))
    assert shared.kv_bytes == pytest.approx(whole.kv_bytes / dcp)
    assert shared.dense_bytes == whole.dense_bytes


@pytest.mark.parametrize("gpu", platform_names())
def test_it_pays_at_long_context_and_costs_at_short(gpu: str) -> None:
    """The cache read falls with context, the exchange does not: one side wins at each end."""
    plain, shared = Layout(tp=8), Layout(tp=8, dcp=8)
    curve = DecodeCurve((1, 16, 64), (20.0, 30.0, 60.0), 200_000.0, 0.1)
    long = move_decode(curve, side(plain, 200_000.0, gpu=gpu), side(shared, 200_000.0, gpu=gpu), "floor_split")
    assert long.at(64) < curve.at(64)
    constants = default_constants(platform(gpu))
    short_plain, short_shared = (step_terms(side(one, 256.0, gpu=gpu), 64.0, constants) for one in (plain, shared))
    assert short_shared.kv_ms + short_shared.allreduce_ms > short_plain.kv_ms + short_plain.allreduce_ms


def test_simulated_steps_hold_both_collectives() -> None:
    """The kernel models gather queries and merge outputs in decode only, once a layer."""
    card, gpu = model_card("DeepSeek-R1"), platform("H200")
    deployment = Deployment(card.name, gpu.name, "vLLM", "0.33.0", layout=Layout(tp=8, dcp=8), precision=FP8)
    ops = deployment_ops(card, gpu, deployment, deployment.layout)
    found = [one for one in ops.decode if isinstance(one, Collective) and one.name.startswith("dcp_")]
    assert {one.name: one.op for one in found} == {"dcp_gather": "all_gather", "dcp_merge": "reduce_scatter"}
    assert sum(one.count for one in found) == 2 * card.layers
    assert not [one for one in ops.prefill if isinstance(one, Collective) and one.name.startswith("dcp_")]
