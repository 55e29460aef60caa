"""Price of a step's operations over a grid of token counts: arrays, memoised by operation.

Each price splits in two: launch floors, which no width shrinks, and work. Times are us for one step (all layers).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from predictor.cards import Platform
from predictor.comm import Variant, collective_law, expert_exchange_us
from predictor.expert_load import Phase, busiest_rank
from predictor.kernels.elementwise import quant_us, stream_us
from predictor.kernels.engine_facts import EngineFacts
from predictor.kernels.gemm import gemm_grid_us
from predictor.kernels.gpu import Gpu
from predictor.kernels.moe import experts_us
from predictor.step.op_types import Collective, Experts, Gemm, Quant, StepOp, Stream

FloatArray = NDArray[np.float64]

# Exact where batches live, then steps of 8 like the capture lists, then an eighth of an octave up to 128k tokens.
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
    platform: Platform
    facts: EngineFacts
    attn_dp: int
    tp: int
    ep: int
    nodes: int
    redundant: int
    router_family: str
    allreduce: Variant

    def __hash__(self) -> int:
        """Short on purpose: prices are looked up by context dozens of times a candidate; equality tells the rest."""
        return hash((self.gpu.name, self.facts.engine, self.attn_dp, self.tp, self.ep, self.router_family))

    def tokens(self, scope: str) -> tuple[int, ...]:
        """The grid in tokens of one rank, or of all ranks of the group."""
        return _scaled_grid(1 if scope == "rank" else self.attn_dp)


@lru_cache(maxsize=64)
def _scaled_grid(ranks: int) -> tuple[int, ...]:
    return tuple(tokens * ranks for tokens in TOKEN_GRID)


@dataclass(frozen=True, slots=True)
class OpPrice:
    """Launch floor (us a step) and work over the grid (us a step) of one operation, and the term it belongs to."""

    term: str
    launch_us: float
    work_us: FloatArray


@lru_cache(maxsize=16384)
def op_price(context: PriceContext, op: StepOp, phase: Phase) -> OpPrice:
    """Price of one operation, all its layers together."""
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
    rows = _grid(context, op.scope)
    if op.fused:  # the kernel before it has the row in registers: only the narrow store is added
        moved = rows * op.columns / (context.gpu.constants.hbm_stream * context.gpu.hbm_bytes_per_s) * 1e6
        return _split("quant", 0.0, moved, op.count)
    facts = context.facts.quant(op.dtype)
    times = quant_us(context.gpu, op.dtype, rows, float(op.columns), facts)
    return _split("quant", facts.floor_us, times, op.count)


# ---- experts -------------------------------------------------------------------------------------------------------


def _experts(context: PriceContext, op: Experts, phase: Phase) -> OpPrice:
    tokens = context.tokens(op.scope)
    rows, read = _rank_load(op.experts, op.topk, context.ep, tokens, phase, context.redundant, context.router_family)
    ways = context.tp // context.ep  # each expert is sharded over the GPUs that share it
    facts = context.facts
    all_rows = np.asarray(tokens, dtype=np.float64) * op.topk
    times = experts_us(
        context.gpu,
        facts.moe,
        op.dtype,
        facts.expert_arithmetic,
        rows,
        read,
        float(op.hidden),
        float(-(-op.intermediate // ways)),
        3.0 if op.gated else 2.0,
        rows if facts.permutes_local_rows else all_rows,
    )
    times = np.maximum.accumulate(times)  # libraries take a smaller tile where rows an expert fall: never cheaper
    floor = facts.moe.floor_us
    if op.fused:  # gate and up, activation, quantisation and down in one kernel instead of four
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


# ---- collectives ---------------------------------------------------------------------------------------------------


def _collective(context: PriceContext, op: Collective) -> OpPrice:
    """Launch and the kernel's own latency beyond it as floor, ``m/B`` as work (paper B.2)."""
    launch = context.gpu.constants.launch_us
    nodes = context.nodes if op.gpus == context.tp else 1
    sizes = [tokens * op.bytes_per_token for tokens in context.tokens(op.scope)]
    if op.op == "all_to_all":
        exchange = [expert_exchange_us(context.platform, size, op.topk, op.gpus, nodes=nodes) for size in sizes]
        return OpPrice("collectives", launch * op.count, np.array(exchange) * op.count)
    law = collective_law(context.platform, op.op, op.gpus, variant=context.allreduce, nodes=nodes)
    latency = law.uncharged_alpha_us(sizes[0], launch)
    wire = np.maximum.accumulate(np.array([law.in_step_us(size) for size in sizes]))
    return OpPrice("collectives", (launch + latency) * op.count, wire * op.count)
