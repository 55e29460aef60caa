"""Kernels that only move bytes, and the activation quantisation that low-precision GEMMs need.

``time = t0 + bytes / (eb·BW)`` (measured tables: 6–12% median error). Quantisation is an op of its own, so that a
fusion with the norm or the activation before it can remove it.
"""

import numpy as np
from numpy.typing import NDArray

from predictor.kernels.facts import QuantFacts
from predictor.kernels.gpu import Gpu
from predictor.types import Dtype

FloatArray = NDArray[np.float64]

# Reads a 2-byte value twice (scale, then cast) and writes one byte: the byte count the measured fp8 GEMM rows imply.
QUANT_BYTES_PER_VALUE = 5.0


def stream_us(gpu: Gpu, moved_bytes: FloatArray) -> FloatArray:
    """Time of one elementwise kernel, us."""
    rate = gpu.constants.hbm_stream * gpu.hbm_bytes_per_s
    result: FloatArray = gpu.constants.launch_us + moved_bytes / rate * 1e6
    return result


def quant_us(gpu: Gpu, dtype: Dtype, rows: FloatArray, columns: FloatArray | float, facts: QuantFacts) -> FloatArray:
    """Time of one activation quantisation to ``dtype``, us; not for bf16, which has none."""
    moved = QUANT_BYTES_PER_VALUE * rows * columns / (gpu.constants.hbm(dtype) * gpu.hbm_bytes_per_s)
    result: FloatArray = facts.floor_us + rows * facts.row_ns * 1e-3 + moved * 1e6
    return result
