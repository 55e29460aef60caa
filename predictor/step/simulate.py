"""Simulate mode: a step model from the model card, the layout and kernel models alone (paper §3).

No measurement of the deployment enters, so predictions are for ranking. Token-priced operations are arrays over one
token grid, memoised by operation; a model is their sum. Attention is exactly linear in total context on pieces whose
ends are windows and sparse top-k widths, so :meth:`SimulateStepModel.decode_line` is exact.

What stays when a width grows is kept apart: launch floors, host time and sampling (:meth:`SimulateStepModel.fixed_ms`).
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

import numpy as np

from predictor.cards import ModelCard, Platform
from predictor.expert_load import Phase, router_family
from predictor.kernels.engine_facts import engine_facts
from predictor.kernels.gpu import gpu_of
from predictor.step.attention_price import AttentionStep, ContextRead, decode_attention, prefill_attention
from predictor.step.capture import padded_batch
from predictor.step.model import INFINITE_CONTEXT, DecodeLine, PrefillCurve
from predictor.step.op_price import TOKEN_GRID, FloatArray, OpPrice, PriceContext, op_price
from predictor.step.op_types import StepOp, StepOps
from predictor.step.ops import step_ops
from predictor.types import Deployment

# Host time the GPU waits for once a step, besides sampling kernels: 6% of a 70B FP8 TP8 step at batch 16 on H100.
HOST_STEP_MS = 0.4
# A kernel issued from the host instead of replayed from a graph.
EAGER_LAUNCH_US = 5.0

FIXED_TERMS = ("launch", "host", "sampling")


@dataclass(frozen=True, slots=True)
class StepSettings:
    """What the engine decides about a step, resolved for one deployment.

    ``capture_sizes`` rise and are batches (requests) of one attention-DP rank; empty means eager. ``chunk_tokens`` is
    the largest number of prompt tokens of one step. ``tokens_per_step`` is L(k) where the deployment speculates.
    """

    capture_sizes: tuple[int, ...] = ()
    chunk_tokens: int = 8192
    host_step_ms: float = HOST_STEP_MS
    tokens_per_step: float = 1.0
    per_request_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class _Curve:
    """Summed prices of a list of operations: floors and work by term over the token grid, us."""

    launch_us: float
    work_us: dict[str, FloatArray]
    total_us: FloatArray

    def at(self, tokens: float) -> float:
        """Work at a token count, us; linear between grid points, proportional above the last."""
        return _interpolate(self.total_us, tokens)


_GRID_ARRAY = np.asarray(TOKEN_GRID, dtype=np.float64)


def _interpolate(values: FloatArray, tokens: float) -> float:
    last = float(TOKEN_GRID[-1])
    if tokens > last:
        return float(values[-1]) * tokens / last
    position = bisect_left(TOKEN_GRID, tokens)
    if TOKEN_GRID[position] == tokens or position == 0:
        return float(values[position])
    low, high = TOKEN_GRID[position - 1], TOKEN_GRID[position]
    share = (tokens - low) / (high - low)
    return float(values[position - 1]) * (1.0 - share) + float(values[position]) * share


def _sum_prices(prices: list[OpPrice]) -> _Curve:
    work: dict[str, FloatArray] = {}
    for price in prices:
        held = work.get(price.term)
        work[price.term] = price.work_us if held is None else held + price.work_us
    total = np.zeros(len(TOKEN_GRID))
    for values in work.values():
        total = total + values
    return _Curve(sum(price.launch_us for price in prices), work, total)


@dataclass(slots=True)
class SimulateStepModel:
    """See :class:`~predictor.step.model.StepModel`; build it with :func:`simulate_step_model`."""

    context: PriceContext
    ops: StepOps
    settings: StepSettings
    queries: float  # tokens verified for each request in a decode step: 1 + depth
    prefill: PrefillCurve
    decode_curve: _Curve
    head_curve: _Curve
    _lines: dict[int, tuple[DecodeLine, ...]] = field(default_factory=dict)

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens a decode step commits for each request."""
        return self.settings.tokens_per_step

    def decode_line(self, batch: int, context_tokens: float = 0.0) -> DecodeLine:
        """The piece of the decode line at this batch that holds ``context_tokens`` (total over the batch)."""
        pieces = self._lines.get(batch)
        if pieces is None:
            pieces = self._lines[batch] = self._pieces(batch)
        for piece in pieces[:-1]:
            if context_tokens < piece.end_context_tokens:
                return piece
        return pieces[-1]

    def breakdown_ms(self, batch: int, context_tokens: float = 0.0) -> dict[str, float]:
        """Decode step by term, ms; the terms add up to the decode line at that context."""
        padded = padded_batch(batch, self.settings.capture_sizes)
        attention = self._attention(padded)
        tokens = padded * self.queries
        terms = {name: _interpolate(values, tokens) for name, values in self.decode_curve.work_us.items()}
        for name, values in self.head_curve.work_us.items():
            terms[name] = terms.get(name, 0.0) + _interpolate(values, tokens)
        terms["attention"] = sum(part.work_us for part in attention)
        for part in attention:
            terms["attention"] += sum(_read_us(read, context_tokens, batch) for read in part.reads)
        terms["launch"] = self._launch_us(attention, padded in self.settings.capture_sizes)
        result = {name: value / 1000.0 for name, value in terms.items()}
        result["host"] = self.settings.host_step_ms
        return result

    def fixed_ms(self, batch: int) -> float:
        """Part of the step that no width shrinks: launch floors, host, sampling."""
        terms = self.breakdown_ms(batch)
        return sum(terms[name] for name in FIXED_TERMS)

    def _attention(self, padded: int) -> list[AttentionStep]:
        gpu, facts = self.context.gpu, self.context.facts
        return [decode_attention(gpu, facts, op, float(padded), self.queries) for op in self.ops.attention]

    def _launch_us(self, attention: list[AttentionStep], captured: bool) -> float:
        floors = self.decode_curve.launch_us + self.head_curve.launch_us + sum(part.launch_us for part in attention)
        return floors if captured else floors * max(1.0, EAGER_LAUNCH_US / self.context.gpu.constants.launch_us)

    def _pieces(self, batch: int) -> tuple[DecodeLine, ...]:
        padded = padded_batch(batch, self.settings.capture_sizes)
        captured = padded in self.settings.capture_sizes
        attention = self._attention(padded)
        tokens = padded * self.queries
        fixed_us = self.decode_curve.at(tokens) + self.head_curve.at(tokens)
        fixed_us += self._launch_us(attention, captured) + sum(part.work_us for part in attention)
        reads = [read for part in attention for read in part.reads]
        return _lines(fixed_us / 1000.0 + self.settings.host_step_ms, reads, batch)


def _read_us(read: ContextRead, context_tokens: float, batch: int) -> float:
    return read.us_per_token * min(context_tokens, read.cap_tokens * batch)


def _lines(intercept_ms: float, reads: list[ContextRead], batch: int) -> tuple[DecodeLine, ...]:
    """Pieces between the caps: at each cap its reads turn from slope to intercept."""
    pieces: list[DecodeLine] = []
    slope_ms = sum(read.us_per_token for read in reads) / 1000.0
    for cap in sorted({read.cap_tokens for read in reads if read.cap_tokens < INFINITE_CONTEXT}):
        end = cap * batch
        pieces.append(DecodeLine(intercept_ms, slope_ms, end))
        capped_ms = sum(read.us_per_token for read in reads if read.cap_tokens == cap) / 1000.0
        intercept_ms += capped_ms * end
        slope_ms -= capped_ms
    pieces.append(DecodeLine(intercept_ms, max(0.0, slope_ms)))
    return tuple(pieces)


def simulate_step_model(
    card: ModelCard, platform: Platform, deployment: Deployment, settings: StepSettings
) -> SimulateStepModel:
    """Build the model of one candidate: about a millisecond once its matrices have been priced before."""
    gpu = gpu_of(platform)
    facts = engine_facts(deployment.engine, gpu.generation)
    layout = deployment.layout
    ops = step_ops(card, layout, deployment.precision, deployment.kernels, facts.fusions)
    context = PriceContext(
        gpu, facts, layout.attn_dp, layout.tp, layout.ep, deployment.eplb_redundant, router_family(card.name)
    )
    speculation = deployment.speculation
    queries = 1.0 + speculation.depth if speculation.active else 1.0
    return SimulateStepModel(
        context=context,
        ops=ops,
        settings=settings,
        queries=queries,
        prefill=_prefill_curve(context, ops, settings),
        decode_curve=_curve(context, ops.decode, "decode"),
        head_curve=_curve(context, ops.head, "decode"),
    )


def _curve(context: PriceContext, ops: tuple[StepOp, ...], phase: Phase) -> _Curve:
    return _sum_prices([op_price(context, op, phase) for op in ops])


def _prefill_curve(context: PriceContext, ops: StepOps, settings: StepSettings) -> PrefillCurve:
    """``F + c1·n + c2·n²`` of a prompt: c2 and part of c1 from attention, the rest fitted to the operations' sum.

    The sum over the grid from 256 tokens to the chunk size is fitted by weighted least squares (weights 1/n, so that a
    short prompt counts as much as a long one), with no negative coefficient.
    """
    curve = _curve(context, ops.prefill, "prefill")
    head = _curve(context, ops.head, "prefill")
    attention = [prefill_attention(context.gpu, context.facts, op) for op in ops.attention]
    first = bisect_left(TOKEN_GRID, min(256, settings.chunk_tokens))
    last = bisect_right(TOKEN_GRID, settings.chunk_tokens)
    fixed_us, per_token_us = _fit_line(_GRID_ARRAY[first:last], curve.total_us[first:last])
    floors_us = curve.launch_us + head.launch_us + sum(part.launch_us for part in attention)
    eager_us = floors_us * max(1.0, EAGER_LAUNCH_US / context.gpu.constants.launch_us)
    head_us = float(head.total_us[0])
    attention_floor_us = sum(part.launch_us for part in attention)
    return PrefillCurve(
        fixed_ms=(fixed_us + eager_us + head_us) / 1000.0 + settings.host_step_ms,
        per_token_ms=(per_token_us + sum(part.us_per_token for part in attention)) / 1000.0,
        per_token2_ms=sum(part.us_per_pair for part in attention) / 2000.0,
        mixed_fixed_ms=attention_floor_us / 1000.0,
        per_request_ms=settings.per_request_ms,
    )


def _fit_line(tokens: FloatArray, values: FloatArray) -> tuple[float, float]:
    """Weighted least squares of ``a + b·n`` with weights 1/n² on squared errors; neither coefficient negative."""
    inverse, cost = 1.0 / tokens, values / tokens
    count, s1, s2 = float(len(tokens)), float(inverse.sum()), float((inverse * inverse).sum())
    y0, y1 = float(cost.sum()), float((cost * inverse).sum())
    spread = count * s2 - s1 * s1
    if spread <= 0.0:  # one grid point: all of it is proportional
        return 0.0, y0 / count
    intercept, slope = (count * y1 - s1 * y0) / spread, (s2 * y0 - s1 * y1) / spread
    if intercept < 0.0:
        return 0.0, y0 / count
    return (intercept, slope) if slope >= 0.0 else (y1 / s2, 0.0)
