"""Simulate mode: a step model from the model card, the layout and kernel models alone (paper §3).

No measurement of the deployment enters, so predictions are for ranking. Token-priced operations are arrays over one
token grid, memoised by operation; a model is their sum. Attention is exactly linear in total context on pieces whose
ends are windows and sparse top-k widths, so :meth:`SimulateStepModel.decode_line` is exact.

What stays when a width grows is kept apart: launch floors, host time and sampling (:data:`FIXED_TERMS`). The ratio of
what is above them between two deployments, :func:`work_ratio`, moves an anchor where no named law does.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from predictor.cards import ModelCard, Platform
from predictor.engines import Settings
from predictor.errors import BadInput
from predictor.kernels.engine_facts import EngineFacts
from predictor.kernels.gpu import gpu_of
from predictor.step.attention_price import ContextRead, prefill_attention
from predictor.step.decode_work import (
    DecodeWork,
    curve,
    decode_work,
    deployment_ops,
    interpolate,
    kernel_view,
    price_context,
    read_us,
)
from predictor.step.model import INFINITE_CONTEXT, DecodeLine, PrefillCurve
from predictor.step.op_price import TOKEN_GRID, FloatArray
from predictor.types import Deployment, Flag, Layout, Speculation

if TYPE_CHECKING:
    from predictor.speculation import Drafter, Method

# Host time the GPU waits for once a step, besides sampling kernels: 6% of a modelled 70B FP8 TP8 step at batch 16 on
# H100 (7 ms). Assumed for every engine; no public measurement separates it.
HOST_STEP_MS = 0.4
# The host issues a kernel that no graph replays in about this time (PyTorch dispatch and launch, assumed). It runs
# ahead of the GPU, so an eager step takes the longer of the two, not their sum.
HOST_ISSUE_US = 10.0
_METHODS: dict[str, "Method"] = {"mtp": "mtp", "eagle3": "eagle3", "dspark": "dspark", "ngram": "ngram"}
FIXED_TERMS = ("launch", "host", "sampling")

_SHORTEST_PROMPT_TOKENS = 256  # prefill curves are fitted from here to the largest chunk
_GRID_ARRAY = np.asarray(TOKEN_GRID, dtype=np.float64)


@dataclass(slots=True)
class SimulateStepModel:
    """See :class:`~predictor.step.model.StepModel`; build it with :func:`simulate_step_model`.

    ``cycle_ms`` turns the step of one micro-batch into what a token waits for under pipeline stages (paper Eq. 4).
    """

    work: DecodeWork
    prefill: PrefillCurve
    settings: Settings
    issue: "HostIssue"
    tokens_per_step: float = 1.0
    draft: "DraftCost | None" = None
    cycle_ms: Callable[[float, int], float] | None = None
    flags: tuple[Flag, ...] = ()
    _lines: dict[int, tuple[DecodeLine, ...]] = field(default_factory=dict)

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
        padded = self.settings.padded_batch(batch) or batch
        terms = self.work.terms_us(float(padded), context_tokens, float(batch))
        terms["launch"] = self.work.launch_us
        result = {name: value / 1000.0 for name, value in terms.items()}
        if self.draft is not None:
            reads = sum(read_us(read, context_tokens, float(batch)) for read in self.work.reads)
            result["draft"] = self.draft.ms(padded) + reads * self.draft.context_share / 1000.0
        result["host"] = HOST_STEP_MS + max(0.0, self._issue_ms(batch) - sum(result.values()))
        if self.cycle_ms is not None:
            step = sum(result.values())
            result["pipeline"] = self.cycle_ms(step, batch) - step
        return result

    def fixed_ms(self, batch: int) -> float:
        """Part of the step that no width shrinks: launch floors, host, sampling."""
        terms = self.breakdown_ms(batch)
        return sum(terms[name] for name in FIXED_TERMS)

    def whole_depth(self) -> "SimulateStepModel":
        """The forward through all stages alone, for a simulation that follows micro-batches from stage to stage."""
        return replace(self, cycle_ms=None, _lines={})

    def _issue_ms(self, batch: int) -> float:
        """Time the host needs to issue the step's kernels: nothing where a full graph replays them."""
        return self.issue.eager_ms if self.settings.padded_batch(batch) is None else self.issue.captured_ms

    def _pieces(self, batch: int) -> tuple[DecodeLine, ...]:
        padded = float(self.settings.padded_batch(batch) or batch)
        gpu_ms = (self.work.work_us(padded) + self.work.launch_us) / 1000.0
        if self.draft is not None:
            gpu_ms += self.draft.ms(int(padded))
        lines = at_least(decode_pieces(gpu_ms, self._reads(), batch), self._issue_ms(batch))
        return tuple(self._cycled(line, batch) for line in lines)

    def _cycled(self, line: DecodeLine, batch: int) -> DecodeLine:
        """The line of a step with its host time, under pipeline stages."""
        intercept_ms = line.intercept_ms + HOST_STEP_MS
        if self.cycle_ms is not None:
            intercept_ms = self.cycle_ms(intercept_ms, batch)
        return replace(line, intercept_ms=intercept_ms)

    def _reads(self) -> tuple[ContextRead, ...]:
        """Context reads of the target's layers and of the drafter's."""
        if self.draft is None:
            return self.work.reads
        share = 1.0 + self.draft.context_share
        return tuple(ContextRead(read.us_per_token * share, read.cap_tokens) for read in self.work.reads)


def decode_pieces(intercept_ms: float, reads: tuple[ContextRead, ...], batch: int) -> tuple[DecodeLine, ...]:
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


def at_least(pieces: tuple[DecodeLine, ...], floor_ms: float) -> tuple[DecodeLine, ...]:
    """The longer of a rising piecewise line and a constant: flat up to where the line passes it.

    >>> [line.end_context_tokens for line in at_least((DecodeLine(1.0, 0.5),), 3.0)]
    [4.0, inf]
    """
    if pieces[0].intercept_ms >= floor_ms:
        return pieces
    for index, line in enumerate(pieces):
        if line.at(line.end_context_tokens) > floor_ms and line.slope_ms_per_token > 0.0:
            crossing = (floor_ms - line.intercept_ms) / line.slope_ms_per_token
            return (DecodeLine(floor_ms, 0.0, crossing), *pieces[index:])
    return (DecodeLine(floor_ms, 0.0),)


@dataclass(frozen=True, slots=True)
class HostIssue:
    """Time the host needs to issue one step: kernel by kernel, or the pieces between what a graph leaves out."""

    eager_ms: float
    captured_ms: float


def host_issue(card: ModelCard, platform: Platform, deployment: Deployment, work: DecodeWork) -> HostIssue:
    """Launches of a step times what the host needs for each; piecewise graphs leave attention out, one a layer."""
    launches = work.launch_us / gpu_of(platform).constants.launch_us
    pieces = 2.0 * card.layers if deployment.kernels.graph_mode == "piecewise" else 0.0
    return HostIssue(launches * HOST_ISSUE_US / 1000.0, pieces * HOST_ISSUE_US / 1000.0)


# ---- drafting ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DraftCost:
    """Time to draft for a batch: layers like the target's, one token a request each, and the head (paper A.2)."""

    drafter: "Drafter"
    depth: int
    plain: DecodeWork  # one token a request
    layers: int  # of the target

    @property
    def passes(self) -> float:
        """Drafter layers run in a step."""
        return float(self.drafter.layers * (self.depth if self.drafter.serial else 1))

    @property
    def context_share(self) -> float:
        """Context reads of the drafter over the target's: its layers keep a cache of their own."""
        return self.passes / self.layers

    def ms(self, batch: int) -> float:
        """Draft time of a step besides context reads. A dense layer is one of the target's without its experts."""
        plain = self.plain
        attention_us = sum(part.work_us(batch) + part.launch_us for part in plain.attention)
        layers_us = plain.layers.at(batch) + plain.layers.launch_us + attention_us
        routed = [values for name, values in plain.layers.terms_us.items() if name in ("experts", "router")]
        routed_us = sum(interpolate(values, batch) for values in routed)
        head_us = plain.head.at(batch) + plain.head.launch_us
        from predictor.speculation import draft_cost_ratio

        return draft_cost_ratio(
            self.drafter,
            self.depth,
            layer_ms=layers_us / self.layers / 1000.0,
            dense_layer_ms=(layers_us - routed_us) / self.layers / 1000.0,
            head_ms=head_us / 1000.0,
            step_ms=1.0,
        )


def with_sparse_width(card: ModelCard, tokens: int) -> ModelCard:
    """The card with another number of tokens read by its sparse attention; 0 leaves it as trained."""
    if not tokens or all(group.attention.index_topk in (0, tokens) for group in card.groups):
        return card
    groups = (
        replace(group, attention=replace(group.attention, index_topk=tokens)) if group.attention.index_topk else group
        for group in card.groups
    )
    return replace(card, groups=tuple(groups))


# ---- building ------------------------------------------------------------------------------------------------------


def simulate_step_model(
    card: ModelCard,
    platform: Platform,
    deployment: Deployment,
    settings: Settings,
    *,
    prefill_settings: Settings | None = None,
    tokens_per_step: float = 1.0,
    per_request_ms: float = 0.0,
    cycle_ms: Callable[[float, int], float] | None = None,
) -> SimulateStepModel:
    """Build the model of one candidate: about a millisecond once its matrices have been priced before.

    ``settings`` are the resolved ones of the decode (or only) pool, ``prefill_settings`` of the prefill pool where the
    deployment is split. ``tokens_per_step`` is L(k) where it speculates; drafting is priced here.
    """
    layout, speculation, pool = deployment.layout, deployment.speculation, deployment.prefill
    card = with_sparse_width(card, deployment.kernels.sparse_topk)
    kernels = kernel_view(deployment)
    work, draft = decode_work(card, platform, kernels, layout, 1.0), None
    if speculation.active:
        draft = _draft(card, speculation, work)
        work = decode_work(card, platform, kernels, layout, 1.0 + speculation.depth)
    return SimulateStepModel(
        work=work,
        prefill=prefill_curve(
            card,
            platform,
            kernels,
            pool.layout if pool else layout,
            (prefill_settings or settings).chunk_size,
            per_request_ms,
        ),
        settings=settings,
        issue=host_issue(card, platform, deployment, work),
        tokens_per_step=tokens_per_step,
        draft=draft,
        cycle_ms=cycle_ms,
        flags=_flags(platform, price_context(card, platform, kernels, layout).facts),
    )


def _flags(platform: Platform, facts: EngineFacts) -> tuple[Flag, ...]:
    """What the reader should know about the kernel facts used."""
    found = []
    if facts.assumed:
        message = f"no public kernel table covers {facts.engine} on {platform.name}; its kernel facts are assumed"
        found.append(Flag("kernel_facts_assumed", message))
    if facts.untold:
        message = f"{' and '.join(facts.untold)}: in no kernel table of {platform.name}, priced as the usual kernels"
        found.append(Flag("kernel_backend_untold", message))
    return tuple(found)


def _draft(card: ModelCard, speculation: Speculation, plain: DecodeWork) -> DraftCost:
    method = _METHODS.get(speculation.method)
    if method is None:
        raise BadInput(f"speculation method {speculation.method!r}: legal is {', '.join(_METHODS)}")
    from predictor.speculation import drafter  # only where tokens are drafted

    return DraftCost(drafter(card, method), speculation.depth, plain, card.layers)


@lru_cache(maxsize=1024)
def prefill_curve(
    card: ModelCard,
    platform: Platform,
    deployment: Deployment,
    layout: Layout,
    chunk_tokens: int,
    per_request_ms: float = 0.0,
) -> PrefillCurve:
    """``F + c1·n + c2·n²`` of a prompt: c2 and part of c1 from attention, the rest fitted to the operations' sum.

    ``deployment`` as :func:`~predictor.step.decode_work.kernel_view` leaves it; memoised.
    Under attention DP ``n`` are the tokens of one rank, all ranks taken as equally loaded.
    """
    context = price_context(card, platform, deployment, layout)
    ops = deployment_ops(card, platform, deployment, layout)
    layers, head = curve(context, ops.prefill, "prefill"), curve(context, ops.head, "prefill")
    attention = [prefill_attention(context.gpu, context.facts, op) for op in ops.attention]
    fixed_us, per_token_us = _fit_line(layers.total_us, chunk_tokens)
    attention_floor_us = sum(part.launch_us for part in attention)
    launch_us = layers.launch_us + head.launch_us + attention_floor_us
    # Prefill runs outside full graphs: kernels are issued by the host, which waits behind the GPU on long prompts.
    return PrefillCurve(
        fixed_ms=(fixed_us + launch_us + float(head.total_us[0])) / 1000.0 + HOST_STEP_MS,
        per_token_ms=(per_token_us + sum(part.us_per_token for part in attention)) / 1000.0,
        per_token2_ms=sum(part.us_per_pair for part in attention) / 2000.0,
        mixed_fixed_ms=attention_floor_us / 1000.0,
        per_request_ms=per_request_ms,
    )


def _fit_line(values: FloatArray, chunk_tokens: int) -> tuple[float, float]:
    """``a + b·n`` through the grid up to the chunk: least squares of relative errors, no negative coefficient."""
    first = bisect_left(TOKEN_GRID, min(_SHORTEST_PROMPT_TOKENS, chunk_tokens))
    last = max(first + 1, bisect_right(TOKEN_GRID, chunk_tokens))
    inverse, cost = 1.0 / _GRID_ARRAY[first:last], values[first:last] / _GRID_ARRAY[first:last]
    count, s1, s2 = float(len(cost)), float(inverse.sum()), float((inverse * inverse).sum())
    y0, y1 = float(cost.sum()), float((cost * inverse).sum())
    spread = count * s2 - s1 * s1
    if spread <= 1e-12 * count * s2:  # one grid point: all of it is proportional
        return 0.0, y0 / count
    intercept, slope = (count * y1 - s1 * y0) / spread, (s2 * y0 - s1 * y1) / spread
    if intercept < 0.0:
        return 0.0, y0 / count
    return (intercept, slope) if slope >= 0.0 else (y1 / s2, 0.0)


# ---- ratio of work -------------------------------------------------------------------------------------------------


def decode_work_ms(
    card: ModelCard, platform: Platform, deployment: Deployment, batch: int, context_tokens: float
) -> float:
    """Work of a decode step above its fixed cost (launch floors, host, sampling), ms, without padding.

    ``batch`` requests and ``context_tokens`` of context over the whole replica; the largest rank is priced.
    """
    layout = deployment.layout
    rank_batch = -(-batch // layout.attn_dp)
    rank_context = context_tokens * rank_batch / batch
    queries = 1.0 + deployment.speculation.depth if deployment.speculation.active else 1.0
    work = decode_work(card, platform, kernel_view(deployment), layout, queries)
    terms = work.terms_us(float(rank_batch), rank_context, float(rank_batch))
    return sum(us for name, us in terms.items() if name not in FIXED_TERMS) / 1000.0


def work_ratio(
    card: ModelCard, platform: Platform, source: Deployment, target: Deployment, batch: int, context_tokens: float
) -> float:
    """Simulated decode work of ``target`` over that of ``source``, above the fixed cost, at one replica batch.

    For choices that no named law covers: apply it to the part of a measured step above its fixed part. A deployment
    against itself is 1; drafters are left out (:mod:`predictor.speculation` prices them).
    """
    if source == target:
        return 1.0
    before = decode_work_ms(card, platform, replace(source, speculation=Speculation()), batch, context_tokens)
    after = decode_work_ms(card, platform, replace(target, speculation=Speculation()), batch, context_tokens)
    return after / before
