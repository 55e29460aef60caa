"""Collectives: published constants, laws against measurements, properties."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.comm import (
    CUSTOM_MAX_BYTES,
    NETWORK_WIRE_US,
    VARIANTS,
    collective_law,
    collective_ms,
    expert_exchange_us,
    explain_collective,
    traffic,
    wire_gb_s,
)
from predictor.comm_fit import MeasuredPoint, fit, predict_us
from predictor.errors import BadInput
from predictor.profiles.loader import platform

MI355X, H100, GB200 = platform("MI355X"), platform("H100"), platform("GB200")
KIB, MIB, GIB = 2**10, 2**20, 2**30


@pytest.mark.parametrize(
    ("gpus", "size", "alpha_us", "bandwidth_gb_s"),
    [
        (2, 4 * MIB, 4.9, 60.4),
        (4, 512 * KIB, 5.5, 63.0),
        (4, 513 * KIB, 6.4, 100.0),
        (8, 256 * KIB, 6.4, 56.0),
        (8, 257 * KIB, 11.0, 123.0),
    ],
)
def test_custom_all_reduce_as_published(gpus: int, size: int, alpha_us: float, bandwidth_gb_s: float) -> None:
    price = explain_collective(MI355X, "all_reduce", size, gpus, in_step=False)
    assert (price.alpha_us, price.bandwidth_gb_s) == (alpha_us, bandwidth_gb_s)
    assert price.ms == pytest.approx((alpha_us + size / bandwidth_gb_s / 1e3) / 1e3)


@pytest.mark.parametrize(("gpus", "bandwidth_gb_s", "bound"), [(8, 408.8, 0.01), (4, 205.5, 0.01), (2, 113.3, 0.10)])
def test_the_mesh_law_predicts_the_measured_all_to_all(gpus: int, bandwidth_gb_s: float, bound: float) -> None:
    law = wire_gb_s(MI355X, gpus) / traffic("all_to_all", gpus)
    assert law == pytest.approx(bandwidth_gb_s, rel=bound)


def test_library_and_custom_kernels_meet_at_8_mib() -> None:
    custom = collective_ms(MI355X, "all_reduce", CUSTOM_MAX_BYTES, 8, in_step=False)
    library = collective_ms(MI355X, "all_reduce", CUSTOM_MAX_BYTES + 1, 8, in_step=False)
    assert library == pytest.approx(custom, rel=0.01)


def test_the_datasheet_nic_is_within_the_published_13_pct_of_send_recv() -> None:
    """Paper G.2: 50 GB/s at 0.8 predicts cross-node send/recv within 9.1%, 13% at worst."""
    datasheet = MI355X.nic_bytes_per_s * MI355X.nic_efficiency / 1e9
    assert datasheet == pytest.approx(40.0)
    for size in (8 * MIB, 64 * MIB, GIB):
        measured_law_us = 44.2 + size / 45.1e3
        assert abs((44.2 + size / (datasheet * 1e3)) / measured_law_us - 1) < 0.13


def test_inside_a_step_only_the_wire_is_charged() -> None:
    assert collective_ms(MI355X, "all_reduce", 64 * KIB, 8) == pytest.approx(64 * KIB / 56.0 / 1e6)
    hop = collective_ms(MI355X, "send_recv", 8 * KIB, 2, nodes=2)
    assert hop * 1e3 == pytest.approx(NETWORK_WIRE_US + 8 * KIB / 45.1e3)
    assert hop < collective_ms(MI355X, "send_recv", 8 * KIB, 2, nodes=2, in_step=False) / 10


def test_alpha_beyond_a_charged_launch() -> None:
    law = collective_law(MI355X, "all_reduce", 8)
    assert law.uncharged_alpha_us(MIB, MI355X.kernel_launch_us) == pytest.approx(11.0 - 4.98)
    assert law.uncharged_alpha_us(MIB, 20.0) == 0.0


def test_one_gpu_talks_to_nobody() -> None:
    assert collective_ms(MI355X, "all_reduce", GIB, 1, in_step=False) == 0.0
    assert explain_collective(MI355X, "all_reduce", GIB, 1).tier == "none"


def test_an_nvlink_domain_over_nodes_is_one_tier() -> None:
    assert collective_law(GB200, "all_reduce", 16, nodes=4).tier == "node"
    assert collective_law(H100, "all_reduce", 16, nodes=2).tier == "network"


def test_network_records_of_table_19() -> None:
    sixteen = explain_collective(MI355X, "all_reduce", 64 * MIB, 16, nodes=2, in_step=False)
    one_each = explain_collective(MI355X, "all_reduce", 64 * MIB, 2, nodes=2, in_step=False)
    assert (sixteen.alpha_us, sixteen.bandwidth_gb_s) == (90.5, 31.6)
    assert (one_each.alpha_us, one_each.bandwidth_gb_s) == (58.7, 19.8)
    four_nodes = explain_collective(MI355X, "all_reduce", 64 * MIB, 32, nodes=4, in_step=False)
    assert four_nodes.bandwidth_gb_s == pytest.approx(31.6 * 0.5 / 0.75)
    gather = explain_collective(MI355X, "all_gather", 64 * MIB, 16, nodes=2, in_step=False)
    assert gather.bandwidth_gb_s == pytest.approx(2 * 31.6)


def test_hierarchical_all_reduce_without_records() -> None:
    """Two nodes of 8: reduce-scatter and all-gather on NVLink, an eighth of the message over each NIC."""
    price = explain_collective(H100, "all_reduce", GIB, 16, nodes=2, in_step=False)
    per_gb = 2 * 7 / 8 / 270 + 1 / 8 / 40
    assert price.bandwidth_gb_s == pytest.approx(1 / per_gb)
    assert price.variant == "hierarchical"


def test_bad_groups_are_refused() -> None:
    with pytest.raises(BadInput, match="do not fit"):
        collective_ms(MI355X, "all_reduce", 1.0, 16)
    with pytest.raises(BadInput, match="equally many"):
        collective_ms(MI355X, "all_reduce", 1.0, 9, nodes=2)
    with pytest.raises(BadInput, match="legal is auto, custom"):
        collective_ms(MI355X, "all_reduce", 1.0, 8, variant="tree")  # type: ignore[arg-type]


PLATFORMS = st.sampled_from([platform(name) for name in ("MI300X", "MI325X", "MI355X", "H100", "B200", "GB300")])
OPS = st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"])
SIZES = st.floats(1.0, 2.0**32)


@given(
    PLATFORMS, OPS, st.sampled_from([(2, 1), (4, 1), (8, 2), (16, 2), (32, 4)]), st.sampled_from(VARIANTS), SIZES, SIZES
)
def test_a_larger_message_never_costs_less_inside_a_step(gpu, op, group, variant, a, b) -> None:  # type: ignore[no-untyped-def]
    gpus, nodes = group
    small, large = sorted((a, b))
    few, many = (collective_ms(gpu, op, m, gpus, variant=variant, nodes=nodes) for m in (small, large))
    assert 0.0 < few <= many * (1 + 1e-12)


@given(PLATFORMS, OPS, st.sampled_from([2, 4]), SIZES, SIZES)
def test_standalone_times_rise_on_each_kernel(gpu, op, gpus, a, b) -> None:  # type: ignore[no-untyped-def]
    law = collective_law(gpu, op, gpus)
    small, large = sorted((a, b))
    if law.piece(small) == law.piece(large):
        assert law.us(small) <= law.us(large)


@given(PLATFORMS, st.floats(1.0, 1e9), st.integers(1, 10), st.sampled_from([(8, 1), (16, 2), (32, 4)]))
def test_expert_exchanges_grow_with_tokens_and_nodes(gpu, token_bytes, topk, group) -> None:  # type: ignore[no-untyped-def]
    gpus, nodes = group
    if gpus > gpu.gpus_per_node * nodes:
        gpus = gpu.gpus_per_node * nodes
    one = expert_exchange_us(gpu, token_bytes, topk, gpus, nodes=nodes)
    assert 0.0 < one < expert_exchange_us(gpu, 2 * token_bytes, topk, gpus, nodes=nodes)
    assert one <= expert_exchange_us(gpu, token_bytes, topk, gpus, nodes=nodes, in_step=False)


def test_expert_exchange_of_one_node_against_mori() -> None:
    """MoRI EP8 on MI300X, 128 tokens of 7168 a rank, top-8: combine in bf16 measured at 47 us."""
    us = expert_exchange_us(platform("MI300X"), 128 * 7168 * 2, 8, 8, in_step=False)
    assert us == pytest.approx(47.0, rel=0.10)


# ---- fitting -------------------------------------------------------------------------------------------------------


@given(st.floats(1.0, 100.0), st.floats(1.0, 500.0), st.floats(1.5, 10.0), st.floats(1.5, 10.0))
def test_two_kernels_are_found_again(alpha: float, bandwidth: float, slower: float, faster: float) -> None:
    def time_us(size: float) -> float:
        first = alpha + size / (bandwidth * 1e3)
        return first if size < 3e5 else alpha * (1 + slower) + size / (bandwidth * (1 + faster) * 1e3)

    sizes = [2.0**exponent for exponent in range(10, 31)]
    pieces = fit([MeasuredPoint(size, time_us(size)) for size in sizes])
    for size in sizes:
        assert predict_us(pieces, size) == pytest.approx(time_us(size), rel=0.25)


@given(st.lists(st.tuples(st.floats(1, 1e9), st.floats(1, 1e6)), min_size=2, max_size=12, unique_by=lambda p: p[0]))
def test_fitted_constants_are_physical(points: list[tuple[float, float]]) -> None:
    for piece in fit([MeasuredPoint(size, time) for size, time in points]):
        assert piece.alpha_us >= 0.0
        assert piece.bandwidth_gb_s > 0.0
        assert math.isfinite(piece.us(1e9))


def test_a_profile_needs_two_points() -> None:
    with pytest.raises(BadInput, match="two or more"):
        fit([MeasuredPoint(1.0, 1.0)])
