"""Price of a step's operations over a grid of token counts: arrays, memoised by operation.

Each price splits in two: launch floors, which no width shrinks, and work. Times are us for one step (all layers).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from predictor.expert_load import Phase, busiest_rank
from predictor.kernels.elementwise import quant_us, stream_us
from predictor.kernels.engine_facts import EngineFacts, moe_constants
from predictor.kernels.gemm import gemm_grid_us
from predictor.kernels.gpu import Gpu
from predictor.kernels.moe import experts_us
from predictor.step.op_types import Collective, Experts, Gemm, Quant, StepOp, Stream
from predictor.types import Dtype

FloatArray = NDArray[np.float64]

LINK_EFFICIENCY = 0.6  # share of the datasheet link that all-reduces of 16 kB to 2 MB reach (measured tables, one fit)

# Exact where batches live, then steps of 8 like the capture lists, then an eighth of an octave.
TOKEN_GRID: tuple[int, ...] = (
    *range(1, 17),
    *range(20, 65, 4),
    *range(72, 513, 8),
    *(round(512 * 2 ** (step / 8)) for step in range(1, 65)),
)


@dataclass(frozen=True, slots=True)
class PriceContext:
    """What a price depends on besides the operation."""

    gpu: Gpu
    facts: EngineFacts
    attn_dp: int
    tp: int
    ep: int
    redundant: int
    router_family: str

    def tokens(self, scope: str) -> tuple[int, ...]:
        """The grid in tokens of one rank, or of all ranks of the group."""
        if scope == "rank" or self.attn_dp == 1:
            return TOKEN_GRID
        return tuple(tokens * self.attn_dp for tokens in TOKEN_GRID)


@dataclass(frozen=True, slots=True)
class OpPrice:
    """Launch floor (us a step) and work over the grid (us a step) of one operation, and the term it belongs to."""

    term: str
    launch_us: float
    work_us: FloatArray


@lru_cache(maxsize=8192)
def op_price(context: PriceContext, op: StepOp, phase: Phase) -> OpPrice:
    """Price of one operation, all layers together."""
    if isinstance(op, Gemm):
        return _gemm(context, op)
    if isinstance(op, Stream):
        return _stream(context, op)
    if isinstance(op, Quant):
        return _quant(context, op)
    if isinstance(op, Experts):
        return _experts(context, op, phase)
    return _collective(context, op)


def _split(term: str, floor_us: float, total_us: FloatArray, count: float) -> OpPrice:
    work = (total_us - floor_us) * count
    work.setflags(write=False)
    return OpPrice(term, floor_us * count, work)


def _grid(context: PriceContext, scope: str) -> FloatArray:
    return np.asarray(context.tokens(scope), dtype=np.float64)


def _gemm(context: PriceContext, op: Gemm) -> OpPrice:
    times = gemm_grid_us(context.gpu, op.dtype, op.weight, op.n, op.k, context.tokens(op.scope))
    return _split(op.term, context.gpu.constants.launch_us, times, op.count)


def _stream(context: PriceContext, op: Stream) -> OpPrice:
    times = stream_us(context.gpu, op.bytes_per_token * _grid(context, op.scope))
    return _split(op.term, context.gpu.constants.launch_us, times, op.count)


def _quant(context: PriceContext, op: Quant) -> OpPrice:
    facts = context.facts.quant_fp4 if op.dtype is Dtype.FP4 else context.facts.quant
    rows = _grid(context, op.scope)
    if op.fused:  # the norm or activation before it has the row in registers: only the narrow store is added
        moved = rows * op.columns / (context.gpu.constants.hbm_stream * context.gpu.hbm_bytes_per_s) * 1e6
        return _split("quant", 0.0, moved, op.count)
    times = quant_us(context.gpu, op.dtype, rows, op.columns, facts.fixed_us, facts.row_ns)
    return _split("quant", min(facts.fixed_us, context.gpu.constants.launch_us), times, op.count)


def _experts(context: PriceContext, op: Experts, phase: Phase) -> OpPrice:
    tokens = context.tokens(op.scope)
    rows, read = _rank_load(op.experts, op.topk, context.ep, tokens, phase, context.redundant, context.router_family)
    ways = context.tp // context.ep  # each expert is sharded over the GPUs that share it
    constants = moe_constants(context.facts.name, context.gpu.generation, op.dtype)
    all_rows = np.asarray(tokens, dtype=np.float64) * op.topk
    moved_rows = rows if context.facts.permutes_local_rows else all_rows
    times = experts_us(
        context.gpu, constants, op.dtype, rows, read, op.hidden, -(-op.intermediate // ways), op.gated, moved_rows
    )
    floor = constants.fixed_us
    if op.fused:
        saved = min(floor, 3.0 * context.gpu.constants.launch_us)
        times, floor = times - saved, floor - saved
    return _split("experts", floor, times, op.count)


@lru_cache(maxsize=1024)
def _rank_load(
    experts: int, topk: int, ep: int, tokens: tuple[int, ...], phase: Phase, redundant: int, family: str
) -> tuple[FloatArray, FloatArray]:
    """Rows and experts of the rank that gates the layer, over the grid; running maxima, since sampling has noise."""
    loads = [busiest_rank(experts, topk, ep, float(count), phase, redundant, family=family) for count in tokens]
    rows = np.maximum.accumulate(np.array([load.rows for load in loads]))
    read = np.maximum.accumulate(np.array([load.experts_read for load in loads]))
    return rows, read


def _collective(context: PriceContext, op: Collective) -> OpPrice:
    """``m/B`` besides the launch floor, as inside a step (paper B.2); ``m`` by the ring volume of each collective."""
    gpu = context.gpu
    share = (op.gpus - 1) / op.gpus * (2.0 if op.op == "all_reduce" else 1.0)
    moved = _grid(context, op.scope) * op.bytes_per_token * share
    work = moved / (LINK_EFFICIENCY * gpu.link_bytes_per_s) * 1e6 * op.count
    floor = max(gpu.constants.launch_us, gpu.constants.collective_us)
    return OpPrice("collectives", floor * op.count, work)
