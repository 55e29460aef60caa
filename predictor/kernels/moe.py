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

import numpy as np
from numpy.typing import NDArray

from predictor.kernels.facts import MoeFacts
from predictor.kernels.gemm import bytes_per_value
from predictor.kernels.gpu import Gpu
from predictor.types import Dtype

FloatArray = NDArray[np.float64]

_COLUMNS_PER_ITEM = 128.0  # a work item covers 128 columns of one expert's first matrices


def padded_rows(rows: FloatArray, experts_read: FloatArray) -> FloatArray:
    """Rows after each expert's share is padded: to 16 up to 16 rows an expert, to 32 up to 32, above to 64s.

    >>> padded_rows(np.array([32.0, 40.0]), np.array([8.0, 1.0])).tolist()
    [128.0, 64.0]
    """
    each = rows / np.maximum(experts_read, 1e-9)
    tile = np.where(each <= 16.0, 16.0, np.where(each <= 32.0, 32.0, 64.0))
    result: FloatArray = experts_read * np.maximum(tile, np.ceil(each / tile) * tile)
    return result


def experts_us(
    gpu: Gpu,
    facts: MoeFacts,
    weight: Dtype,
    arithmetic: Dtype,
    rows: FloatArray,
    experts_read: FloatArray,
    hidden: FloatArray | float,
    intermediate: FloatArray | float,
    matrices: FloatArray | float,
    moved_rows: FloatArray,
) -> FloatArray:
    """Time of the routed experts of one layer, us: ``rows`` routed rows over ``experts_read`` distinct experts.

    ``moved_rows`` are the rows this rank permutes: all routed rows in engines that permute before they select.
    """
    items = np.ceil(np.asarray(intermediate) * (np.asarray(matrices) - 1.0) / _COLUMNS_PER_ITEM)
    occupancy = np.minimum(1.0, np.maximum(experts_read, 1e-9) * items / gpu.compute_units)
    weights = experts_read * matrices * hidden * intermediate * bytes_per_value(weight)
    memory = weights / (facts.hbm * gpu.hbm_bytes_per_s * np.sqrt(occupancy))
    flops = 2.0 * matrices * hidden * intermediate * padded_rows(rows, experts_read)
    compute = flops / (facts.compute * gpu.peak_flops(arithmetic))
    permute = facts.permute_bytes * moved_rows * hidden / gpu.hbm_bytes_per_s
    result: FloatArray = facts.floor_us + (np.sqrt(memory**2 + compute**2) + permute) * 1e6
    return result
