"""What to measure for a target: one replica, one node, at most one doubling away, everything removed named."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.anchor_files import bundled_anchors
from predictor.errors import DoesNotFit
from predictor.params import native_precision
from predictor.profiles.loader import engine_profile, model_card, model_names, platform
from predictor.reduce import reduce_target, sweep_batches
from predictor.types import Deployment, Layout, PrefillPool, Workload

SGLANG = engine_profile("SGLang")
MI355X = platform("MI355X")
LLAMA = model_card("Llama-3.1-8B")
WORKLOAD = Workload(1024, 1024, 16)


def target(name: str, layout: Layout) -> Deployment:
    return Deployment(name, "MI355X", "SGLang", "0.5.19", layout, precision=native_precision(model_card(name)))


def test_a_pipeline_over_nodes_reduces_to_one_stage_on_one_node() -> None:
    """Paper App. C.2: TP8 x PP2 over two nodes is projected from a one-stage anchor of at most half a doubling less."""
    found = reduce_target(target("Llama-3.1-8B", Layout(tp=8, pp=2, nodes=2)), WORKLOAD, LLAMA, MI355X, SGLANG)
    assert found.run.layout == Layout(tp=4)
    removed = {part.what: (part.target, part.run) for part in found.removed}
    assert removed == {"TP width": ("8", "4"), "pipeline stages": ("2", "1"), "nodes of a replica": ("2", "1")}
    assert all(part.restored_by and part.source for part in found.removed)


def test_a_split_fleet_reduces_to_one_replica_with_both_phases() -> None:
    split = replace(
        target("Llama-3.1-8B", Layout()), replicas=3, prefill=PrefillPool(Layout(), 2, "mori"), host_kv_gb=64.0
    )
    found = reduce_target(split, WORKLOAD, LLAMA, MI355X, SGLANG)
    assert (found.run.prefill, found.run.replicas, found.run.host_kv_gb) == (None, 1, 0.0)
    assert {part.what for part in found.removed} == {"replicas", "prefill pool", "host KV tier, GB"}
    assert not found.run.scheduler.prefix_cache


def test_the_anchor_that_already_serves_is_named() -> None:
    found = reduce_target(target("Llama-3.1-8B", Layout(pp=4)), WORKLOAD, LLAMA, MI355X, SGLANG, bundled_anchors())
    assert found.serving is not None
    assert found.serving.anchor.signature.model == "Llama-3.1-8B"
    none = reduce_target(target("DeepSeek-R1", Layout(tp=8)), WORKLOAD, model_card("DeepSeek-R1"), MI355X, SGLANG,
                         bundled_anchors())  # fmt: skip
    assert none.serving is None
    assert none.refused


def test_a_model_no_node_holds_cannot_be_reduced() -> None:
    h100 = platform("H100")
    big = Deployment("Kimi-K3", "H100", "vLLM", "0.33.0", Layout(tp=8, pp=8, nodes=8),
                     precision=native_precision(model_card("Kimi-K3")))  # fmt: skip
    with pytest.raises(DoesNotFit, match="one node"):
        reduce_target(big, WORKLOAD, model_card("Kimi-K3"), h100, engine_profile("vLLM"))


@pytest.mark.parametrize("name", sorted(model_names()))
def test_every_model_reduces_to_at_most_one_node(name: str) -> None:
    found = reduce_target(target(name, Layout(tp=8)), WORKLOAD, model_card(name), MI355X, SGLANG)
    run = found.run.layout
    assert run.gpus <= MI355X.gpus_per_node
    assert run.tp in (4, 8)
    assert found.batches[0] == 1
    assert found.batches[-1] >= 16
    assert len(found.prefill_tokens) == 5


@given(st.integers(1, 2000), st.lists(st.integers(1, 512), unique=True).map(sorted))
def test_a_sweep_starts_at_the_smallest_graph_and_reaches_the_load(load: int, sizes: list[int]) -> None:
    batches = sweep_batches(tuple(sizes), load)
    assert list(batches) == sorted(set(batches))
    assert batches[-1] >= load
    assert batches[0] == (sizes[0] if sizes else 1)
