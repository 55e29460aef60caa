"""GEMM time by tiles and waves, without a measurement.

Equation (times in s, all operands from HBM, ``w`` bytes a value)::

    hbm  = ((M·K + N·K)·w + 2·M·N) / (eb·BW)
    cta  = max(2·bm·bn·Ks / (ef·P/SM·min(1, (bm·bn/128²)^¼)), (min(bm, M) + min(bn, N))·Ks·w / (64 B·clock))
    t    = max(cta·max(1, T/SM), hbm) + [s > 1]·(2.5 us + 8·s·M·N / (64 B·clock·SM))
    time = t0 + min over tiles (bm, bn) and splits s of t

with ``T = ceil(M/bm)·ceil(N/bn)·s`` work items and ``Ks = ceil(ceil(K·w/128)/s)·128/w`` values of K each. The launch
floor, the choice among several tiles and split-K carry the model; hard wave quantisation and L2 re-reads were tried on
the measured tables and add nothing. Checked range: M 1–32768, N and K 32–65536.

Every candidate is non-decreasing in M, N and K, so their minimum is: more tokens never cost less.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from predictor.kernels.gpu import Gpu
from predictor.types import Dtype

FloatArray = NDArray[np.float64]

TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128), (256, 256))
SPLITS = (1, 2, 4, 8, 16, 32)
FEED_BYTES_PER_CLOCK = 64.0  # L2 to one compute unit, NVIDIA datasheets since Ampere; also CDNA3 and CDNA4
_K_STEP_BYTES = 128.0  # one step of the inner loop reads a 128-byte line of each operand row

# Bytes a value: nvfp4 keeps an fp8 scale for 16 values, mxfp4 an e8m0 scale for 32.
_BYTES = {Dtype.BF16: 2.0, Dtype.FP8: 1.0, Dtype.FP4: 0.5625}


def bytes_per_value(dtype: Dtype) -> float:
    """Bytes a value of a GEMM operand, block scales included."""
    return _BYTES[dtype]


def splits_for(dtype: Dtype) -> tuple[int, ...]:
    """Split-K factors the libraries use; low-precision kernels do not split K."""
    return SPLITS if dtype is Dtype.BF16 else (1,)


def gemm_us(
    gpu: Gpu, dtype: Dtype, m: FloatArray, n: FloatArray, k: FloatArray, weight: Dtype | None = None
) -> FloatArray:
    """Time of GEMMs ``(m, k) × (k, n)``, us, activation quantisation apart; arrays of one shape.

    ``dtype`` is the format of the activations and of the arithmetic; ``weight`` that of the weights where it is
    narrower (weight-only quantisation). Call it for many shapes at once: a call costs about 0.5 ms however few.
    """
    w = bytes_per_value(dtype)
    stored = bytes_per_value(weight or dtype)
    constants = gpu.constants
    units = float(gpu.compute_units)
    feed = FEED_BYTES_PER_CLOCK * gpu.clock_hz
    unit_flops = constants.compute(dtype) * gpu.peak_flops(dtype) / units
    hbm = (m * k * w + n * k * stored + 2.0 * m * n) / (constants.hbm(dtype) * gpu.hbm_bytes_per_s)
    steps = np.ceil(k * w / _K_STEP_BYTES)
    best = np.full(np.broadcast(m, n, k).shape, np.inf)
    for bm, bn in TILES:
        tiles = np.ceil(m / bm) * np.ceil(n / bn)
        compute_per_k = 2.0 * bm * bn / (unit_flops * min(1.0, (bm * bn / 128.0**2) ** 0.25))
        feed_per_k = (np.minimum(bm, m) + np.minimum(bn, n)) * w / feed
        per_k = np.maximum(compute_per_k, feed_per_k)
        for split in splits_for(dtype):
            depth = np.ceil(steps / split) * (_K_STEP_BYTES / w)
            time = np.maximum(per_k * depth * np.maximum(1.0, tiles * split / units), hbm)
            if split > 1:
                time = time + constants.split_k_us * 1e-6 + 8.0 * split * m * n / (feed * units)
            best = np.minimum(best, time)
    result: FloatArray = constants.launch_us + best * 1e6
    return result


def gemm_scalar_us(gpu: Gpu, dtype: Dtype, m: int, n: int, k: int) -> float:
    """The same as a plain loop for one shape: the reference that :func:`gemm_us` is held equal to."""
    w = bytes_per_value(dtype)
    constants = gpu.constants
    units = gpu.compute_units
    feed = FEED_BYTES_PER_CLOCK * gpu.clock_hz
    hbm = ((m * k + n * k) * w + 2.0 * m * n) / (constants.hbm(dtype) * gpu.hbm_bytes_per_s)
    best = math.inf
    for bm, bn in TILES:
        unit_flops = constants.compute(dtype) * gpu.peak_flops(dtype) / units * min(1.0, (bm * bn / 128.0**2) ** 0.25)
        for split in splits_for(dtype):
            items = math.ceil(m / bm) * math.ceil(n / bn) * split
            depth = math.ceil(math.ceil(k * w / _K_STEP_BYTES) / split) * _K_STEP_BYTES / w
            item = max(2.0 * bm * bn * depth / unit_flops, (min(bm, m) + min(bn, n)) * depth * w / feed)
            time = max(item * max(1.0, items / units), hbm)
            if split > 1:
                time += constants.split_k_us * 1e-6 + 8.0 * split * m * n / (feed * units)
            best = min(best, time)
    return constants.launch_us + best * 1e6


@lru_cache(maxsize=4096)
def gemm_grid_us(gpu: Gpu, dtype: Dtype, weight: Dtype, n: int, k: int, tokens: tuple[int, ...]) -> FloatArray:
    """Times over a grid of token counts for one weight matrix, us; memoised and frozen."""
    m = np.asarray(tokens, dtype=np.float64)
    times = gemm_us(gpu, dtype, m, np.full_like(m, float(n)), np.full_like(m, float(k)), weight)
    times.setflags(write=False)
    return times
