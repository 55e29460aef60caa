"""Grouped GEMMs of routed experts on one rank.

::

    t    = t_m + √(mem² + comp²) + permute
    mem  = D·g·H·I·w / (eb·BW·√occ),  occ = min(1, D·ceil(I·(g−1)/128)/SM)
    comp = 2·g·H·I·(rows, each expert's padded to 16, 32 or 64) / (ef·P)
    permute = c·rows·H / BW

``D`` distinct experts read, ``g`` matrices an expert (3 gated, 2 not), ``H`` the width experts work in, ``I`` the
intermediate width on this rank, ``w`` bytes a weight. Few experts occupy few compute units and read HBM slowly, which
is the shape of the measured few-expert curve.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.kernels.gemm import bytes_per_value
from predictor.kernels.gpu import Gpu
from predictor.types import Dtype

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MoeConstants:
    """Facts of one grouped-GEMM kernel family on one GPU generation and precision."""

    fixed_us: float  # t_m: sort, two grouped GEMMs, activation, finalize
    hbm: float
    compute: float
    permute_bytes: float  # c: bytes moved a routed row and hidden column
    source: str = ""


def padded_rows(rows: FloatArray, experts_read: FloatArray) -> FloatArray:
    """Rows after each expert's share is padded to the tile height: 16 below 16 rows an expert, 32 below 32, else 64."""
    each = rows / np.maximum(experts_read, 1e-9)
    tile = np.where(each <= 16.0, 16.0, np.where(each <= 32.0, 32.0, 64.0))
    # A random share wastes half a tile on average, and never less than the tile the expert was read for.
    result: FloatArray = experts_read * np.maximum(tile, each + tile / 2.0)
    return result


def experts_us(
    gpu: Gpu,
    constants: MoeConstants,
    dtype: Dtype,
    rows: FloatArray,
    experts_read: FloatArray,
    hidden: int,
    intermediate: int,
    gated: bool,
    moved_rows: FloatArray,
) -> FloatArray:
    """Time of the routed experts of one layer, us: ``rows`` routed rows over ``experts_read`` distinct experts.

    ``moved_rows`` are the rows this rank permutes: all routed rows in engines that permute before they select.
    """
    matrices = 3.0 if gated else 2.0
    columns = np.ceil(intermediate * (matrices - 1.0) / 128.0)
    occupancy = np.minimum(1.0, np.maximum(experts_read, 1e-9) * columns / gpu.compute_units)
    weights = experts_read * matrices * hidden * intermediate * bytes_per_value(dtype)
    memory = weights / (constants.hbm * gpu.hbm_bytes_per_s * np.sqrt(occupancy))
    flops = 2.0 * matrices * hidden * intermediate * padded_rows(rows, experts_read)
    compute = flops / (constants.compute * gpu.peak_flops(dtype))
    permute = constants.permute_bytes * moved_rows * hidden / gpu.hbm_bytes_per_s
    result: FloatArray = constants.fixed_us + (np.sqrt(memory**2 + compute**2) + permute) * 1e6
    return result
