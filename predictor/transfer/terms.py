"""Times of the parts of one decode step that a layout moves: streams, experts, all-reduces."""

from dataclasses import dataclass
from math import log2

from predictor.comm import collective_law
from predictor.expert_load import few_experts_slowdown
from predictor.transfer.constants import TransferConstants
from predictor.transfer.context import KernelContext
from predictor.transfer.work import StepWork, step_work
from predictor.types import Dtype

_US_PER_MS = 1e3
_MS_PER_S = 1e3


@dataclass(frozen=True, slots=True)
class StepTerms:
    """Parts of a step in ms. ``expert_ms`` is at the full HBM peak: a ladder's own share divides it."""

    dense_ms: float
    kv_ms: float
    expert_ms: float
    allreduce_ms: float

    def total(self, expert_slowness: float) -> float:
        """Sum with experts read ``expert_slowness`` times slower than the HBM peak."""
        return self.dense_ms + self.kv_ms + expert_slowness * self.expert_ms + self.allreduce_ms


def by_gpus(table: tuple[tuple[int, float], ...], gpus: int) -> float:
    """Value at a group size, linear in log2 between entries and held at the ends."""
    low = max((entry for entry in table if entry[0] <= gpus), default=table[0])
    high = min((entry for entry in table if entry[0] >= gpus), default=table[-1])
    if low[0] == high[0]:
        return low[1]
    share = log2(gpus / low[0]) / log2(high[0] / low[0])
    return low[1] + share * (high[1] - low[1])


def allreduce_ms(side: KernelContext, work: StepWork, constants: TransferConstants) -> float:
    """Collectives a layout adds to a decode step: ``n · (α + m/B + sync)``.

    α is charged here although a step already pays the launch of every kernel it has: these are more kernels.
    """
    if not work.collectives:
        return 0.0
    platform = side.platform
    nodes = -(-side.gpus // platform.gpus_per_node) if side.gpus > (platform.link_domain_gpus or 0) else 1
    law = collective_law(platform, "all_reduce", side.gpus, variant=side.allreduce, nodes=nodes)
    sync_us = constants.sync_kernels * platform.kernel_launch_us
    reduced_us = work.collectives * (law.us(work.message_bytes) + sync_us)
    return (reduced_us + _context_exchange_us(side, work, sync_us)) / _US_PER_MS


def _context_exchange_us(side: KernelContext, work: StepWork, sync_us: float) -> float:
    """Query gathers and output merges of decode context parallelism; its group lies inside a node."""
    total = 0.0
    for layers, one in work.context_exchange:
        gather = collective_law(side.platform, "all_gather", side.layout.dcp).us(one.gather_bytes)
        scatter = collective_law(side.platform, "reduce_scatter", side.layout.dcp).us(one.scatter_bytes)
        total += layers * (gather + scatter + 2.0 * sync_us)
    return total


def step_terms(side: KernelContext, batch: float, constants: TransferConstants) -> StepTerms:
    """Terms of one step over ``batch`` requests."""
    work = step_work(side, batch)
    hbm = side.platform.hbm_bytes_per_s
    stream = constants.stream_share * hbm
    slowdown = 1.0
    if work.experts_read:
        curve = side.platform.expert_read_curve.get(_curve_dtype(side))
        slowdown = few_experts_slowdown(curve, work.experts_read) if curve else 1.0
    return StepTerms(
        dense_ms=work.dense_bytes / stream * _MS_PER_S,
        kv_ms=work.kv_bytes / stream * _MS_PER_S,
        expert_ms=work.expert_bytes * slowdown / hbm * _MS_PER_S,
        allreduce_ms=allreduce_ms(side, work, constants),
    )


def _curve_dtype(side: KernelContext) -> str:
    """Measured curve nearest in format: bf16 experts have none of their own and behave like fp8's wider slices."""
    return "fp4" if side.precision.expert is Dtype.FP4 else "fp8"
