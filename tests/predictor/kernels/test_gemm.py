"""The GEMM tile model: vectorised equals scalar, published orders of size, and what must never happen."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.kernels.gemm import gemm_grid_us, gemm_scalar_us, gemm_us
from predictor.kernels.gpu import Generation, generation_of, gpu_of
from predictor.profiles.loader import platform
from predictor.types import Dtype

GPUS = tuple(gpu_of(platform(name)) for name in ("H100", "B200", "MI355X"))
shapes = st.tuples(st.integers(1, 32768), st.integers(32, 65536), st.integers(32, 65536))
some_gpu = st.sampled_from(GPUS)
some_dtype = st.sampled_from(tuple(Dtype))


def one_us(gpu, dtype, m, n, k):
    return float(gemm_us(gpu, dtype, np.array([float(m)]), np.array([float(n)]), np.array([float(k)]))[0])


@settings(max_examples=60, deadline=None)
@given(some_gpu, some_dtype, shapes)
def test_vectorised_equals_scalar(gpu, dtype, shape):
    assert one_us(gpu, dtype, *shape) == pytest.approx(gemm_scalar_us(gpu, dtype, *shape), rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(some_gpu, some_dtype, shapes, st.sampled_from([0, 1, 2]), st.integers(1, 4096))
def test_a_larger_product_never_costs_less(gpu, dtype, shape, axis, more):
    larger = tuple(size + more * (position == axis) for position, size in enumerate(shape))
    assert gemm_scalar_us(gpu, dtype, *larger) >= gemm_scalar_us(gpu, dtype, *shape) * (1 - 1e-12)


@settings(max_examples=40, deadline=None)
@given(some_gpu, some_dtype, shapes)
def test_no_product_beats_the_roofline(gpu, dtype, shape):
    m, n, k = shape
    floor_us = max(2.0 * m * n * k / gpu.peak_flops(dtype), n * k * 0.5 / gpu.hbm_bytes_per_s) * 1e6
    assert gemm_scalar_us(gpu, dtype, m, n, k) > floor_us


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_weight_bound_products_follow_weight_bytes(gpu):
    """At one row a large matrix is read once: fp8 takes about half of bf16, both near HBM speed."""
    floor_us = gpu.constants.launch_us
    bf16, fp8 = (gemm_scalar_us(gpu, dtype, 1, 28672, 8192) - floor_us for dtype in (Dtype.BF16, Dtype.FP8))
    expected_us = 28672 * 8192 * 2.0 / (gpu.constants.hbm_bf16 * gpu.hbm_bytes_per_s) * 1e6
    assert bf16 == pytest.approx(expected_us, rel=0.02)
    assert fp8 / bf16 == pytest.approx(0.5 * gpu.constants.hbm_bf16 / gpu.constants.hbm_fp8, rel=0.02)


def test_narrow_weights_are_read_faster_than_wide_ones():
    gpu = GPUS[0]
    m, n, k = np.array([8.0]), np.array([8192.0]), np.array([8192.0])
    assert gemm_us(gpu, Dtype.BF16, m, n, k, Dtype.FP8)[0] < gemm_us(gpu, Dtype.BF16, m, n, k)[0]


def test_split_k_makes_deep_narrow_products_cheaper_than_one_wave_allows():
    """128 rows by 128 columns is one tile: without split-K a single compute unit would do all of K."""
    gpu = GPUS[0]
    unit_flops = gpu.constants.compute_bf16 * gpu.peak_bf16_flops / gpu.compute_units
    one_unit_us = 2.0 * 128 * 128 * 16384 / unit_flops * 1e6
    assert gemm_scalar_us(gpu, Dtype.BF16, 128, 128, 16384) < one_unit_us / 4


def test_grid_is_frozen_and_memoised():
    times = gemm_grid_us(GPUS[0], Dtype.BF16, Dtype.BF16, 4096, 4096, (1, 8, 64))
    assert times is gemm_grid_us(GPUS[0], Dtype.BF16, Dtype.BF16, 4096, 4096, (1, 8, 64))
    with pytest.raises(ValueError, match="read-only"):
        times[0] = 0.0


@pytest.mark.parametrize(
    ("name", "vendor", "generation"),
    [
        ("H200", "nvidia", Generation.HOPPER),
        ("GB200", "nvidia", Generation.BLACKWELL),
        ("GB300", "nvidia", Generation.BLACKWELL),
        ("MI325X", "amd", Generation.CDNA3),
        ("MI355X", "amd", Generation.CDNA4),
        ("L40S", "nvidia", Generation.ADA),
        ("A100", "nvidia", Generation.AMPERE),
    ],
)
def test_generation_of_every_shipped_gpu(name, vendor, generation):
    assert generation_of(name, vendor) is generation
