"""A decode step priced from its operations: terms at one batch and context, without graph padding or host time.

Work and floors are kept apart: ``launch`` holds every kernel's minimum cost, the other terms what is above it. One
object prices one deployment at any batch; :mod:`predictor.step.simulate` adds what the engine does around the kernels.
"""

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from predictor.cards import ModelCard, Platform
from predictor.comm import variant_named
from predictor.expert_load import Phase, router_family
from predictor.kernels.engine_facts import EngineFacts, engine_facts
from predictor.kernels.gpu import Gpu, gpu_of
from predictor.step.attention_price import ContextRead, DecodeAttention, decode_attention
from predictor.step.op_price import TOKEN_GRID, FloatArray, PriceContext, op_price
from predictor.step.op_types import StepOp, StepOps
from predictor.step.ops import step_ops
from predictor.types import Deployment, Layout, SchedulerSettings, Speculation


@dataclass(frozen=True, slots=True)
class Curve:
    """Summed prices of a list of operations over the token grid: floors, work by term, and all work; us."""

    launch_us: float
    terms_us: dict[str, FloatArray]
    total_us: FloatArray

    def at(self, tokens: float) -> float:
        """All work at a token count, us."""
        return interpolate(self.total_us, tokens)


def interpolate(values: FloatArray, tokens: float) -> float:
    """A grid of prices at any token count: linear between grid points, proportional beyond the last."""
    last = float(TOKEN_GRID[-1])
    if tokens > last:
        return float(values[-1]) * tokens / last
    position = bisect_left(TOKEN_GRID, tokens)
    if position == 0 or TOKEN_GRID[position] == tokens:
        return float(values[position])
    low, high = TOKEN_GRID[position - 1], TOKEN_GRID[position]
    share = (tokens - low) / (high - low)
    return float(values[position - 1]) * (1.0 - share) + float(values[position]) * share


def curve(context: PriceContext, ops: tuple[StepOp, ...], phase: Phase) -> Curve:
    """Sum of the operations' prices."""
    launch_us = 0.0
    terms: dict[str, FloatArray] = {}
    for op in ops:
        price = op_price(context, op, phase)
        launch_us += price.launch_us
        held = terms.get(price.term)
        terms[price.term] = price.work_us if held is None else held + price.work_us
    total = np.zeros(len(TOKEN_GRID))
    for values in terms.values():
        total = total + values
    return Curve(launch_us, terms, total)


def kernel_view(deployment: Deployment) -> Deployment:
    """The deployment without what no kernel sees: candidates that differ in it share all prices."""
    return replace(
        deployment,
        engine_version="",
        scheduler=SchedulerSettings(),
        speculation=Speculation(),
        replicas=1,
        prefill=None,
        host_kv_gb=0.0,
    )


@lru_cache(maxsize=1024)
def price_context(card: ModelCard, platform: Platform, deployment: Deployment, layout: Layout) -> PriceContext:
    """Everything prices depend on besides the operations; ``deployment`` as :func:`kernel_view` leaves it."""
    gpu = gpu_of(platform)
    return PriceContext(
        gpu=gpu,
        platform=platform,
        facts=deployment_facts(card, gpu, deployment),
        attn_dp=layout.attn_dp,
        tp=layout.tp,
        ep=layout.ep,
        nodes=max(1, -(-layout.tp // platform.gpus_per_node)),
        redundant=deployment.eplb_redundant if layout.ep > 1 else 0,
        router_family=router_family(card.name),
        allreduce=variant_named(deployment.kernels.allreduce),
    )


def deployment_facts(card: ModelCard, gpu: Gpu, deployment: Deployment) -> EngineFacts:
    """Facts of the kernels this deployment runs."""
    mxfp4 = card.fp4_format == "mxfp4"
    return engine_facts(deployment.engine, gpu.generation, deployment.precision, deployment.kernels, mxfp4)


@lru_cache(maxsize=1024)
def deployment_ops(card: ModelCard, platform: Platform, deployment: Deployment, layout: Layout) -> StepOps:
    """Operations of a forward pass at a layout; memoised, since candidates share them."""
    fusions = price_context(card, platform, deployment, layout).facts.fusions
    return step_ops(card, layout, deployment.precision, deployment.kernels, deployment.engine, fusions)


@dataclass(frozen=True, slots=True)
class DecodeWork:
    """Decode step of one deployment. Batch and context are those of one attention-DP rank."""

    queries: float  # tokens verified for each request: 1 + draft depth
    layers: Curve
    head: Curve
    attention: tuple[DecodeAttention, ...]

    @property
    def reads(self) -> tuple[ContextRead, ...]:
        """Context reads of all kinds of attention."""
        return tuple(read for part in self.attention for read in part.reads)

    @property
    def launch_us(self) -> float:
        """Minimum cost of all kernels of a step."""
        return self.layers.launch_us + self.head.launch_us + sum(part.launch_us for part in self.attention)

    def work_us(self, batch: float) -> float:
        """Work above the floors before any context is read."""
        tokens = batch * self.queries
        attention = sum(part.work_us(batch) for part in self.attention)
        return self.layers.at(tokens) + self.head.at(tokens) + attention

    def terms_us(self, batch: float, context_tokens: float, requests: float) -> dict[str, float]:
        """Work by term. ``batch`` may be padded; ``requests`` are the ones whose context is read."""
        tokens = batch * self.queries
        terms: dict[str, float] = {}
        for part in (self.layers, self.head):
            for name, values in part.terms_us.items():
                terms[name] = terms.get(name, 0.0) + interpolate(values, tokens)
        reads = sum(read_us(read, context_tokens, requests) for read in self.reads)
        terms["attention"] = sum(part.work_us(batch) for part in self.attention) + reads
        return terms


def read_us(read: ContextRead, context_tokens: float, requests: float) -> float:
    """Time of one context read, capped at what its requests may read."""
    return read.us_per_token * min(context_tokens, read.cap_tokens * requests)


@lru_cache(maxsize=1024)
def decode_work(
    card: ModelCard, platform: Platform, deployment: Deployment, layout: Layout, queries: float
) -> DecodeWork:
    """Price the decode operations of a deployment (its :func:`kernel_view`) at a layout; memoised."""
    context = price_context(card, platform, deployment, layout)
    ops = deployment_ops(card, platform, deployment, layout)
    return DecodeWork(
        queries=queries,
        layers=curve(context, ops.decode, "decode"),
        head=curve(context, ops.head, "decode"),
        attention=tuple(decode_attention(context.gpu, context.facts, op, queries) for op in ops.attention),
    )
