"""Grouped GEMMs: weight bytes, few experts, padding, and monotony."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.kernels.facts import MoeFacts
from predictor.kernels.gpu import gpu_of
from predictor.kernels.moe import experts_us, padded_rows
from predictor.profiles.loader import platform
from predictor.types import Dtype

B200 = gpu_of(platform("B200"))
FACTS = MoeFacts(20.0, 0.85, 0.4, 3.0)


def layer_us(rows, read, weight=Dtype.FP8, intermediate=2048.0, facts=FACTS):
    rows, read = np.atleast_1d(np.asarray(rows, float)), np.atleast_1d(np.asarray(read, float))
    return experts_us(B200, facts, weight, weight, rows, read, 7168.0, intermediate, 3.0, rows)


def test_weight_bound_layers_cost_their_experts_bytes():
    read = np.array([64.0, 128.0])
    times = layer_us(read, read) - FACTS.floor_us
    expected = 64 * 3 * 7168 * 2048 / (FACTS.hbm * B200.hbm_bytes_per_s) * 1e6
    assert times[0] == pytest.approx(expected, rel=0.05)
    assert times[1] / times[0] == pytest.approx(2.0, rel=0.02)


def test_few_experts_read_slowly():
    """One expert's 32 column blocks occupy a fifth of the GPU, so it reads well below the saturated rate."""
    one, many = (layer_us([1.0 * n], [1.0 * n])[0] - FACTS.floor_us for n in (1, 64))
    assert one > 1.8 * many / 64


def test_rows_set_the_cost_of_large_steps():
    few, many = layer_us([1e6, 2e6], [256.0, 256.0]) - FACTS.floor_us
    assert many / few == pytest.approx(2.0, rel=0.05)


@given(st.floats(1, 1e5), st.floats(0, 1e5), st.floats(1, 256))
def test_more_rows_never_cost_less(rows, more, read):
    assert layer_us([rows + more], [read])[0] >= layer_us([rows], [read])[0] * (1 - 1e-12)


def test_narrower_weights_and_tp_slices_read_less():
    assert layer_us(64, 64, Dtype.FP4)[0] < layer_us(64, 64, Dtype.FP8)[0]
    assert layer_us(64, 64, intermediate=256.0)[0] < layer_us(64, 64)[0]


@given(st.floats(1, 1e6), st.floats(1, 512))
def test_padding_holds_every_row_and_wastes_less_than_a_tile_an_expert(rows, read):
    padded = padded_rows(np.array([rows]), np.array([read]))[0]
    assert padded >= rows * (1 - 1e-9)
    assert padded <= rows + 64.0 * read * (1 + 1e-9)
