"""Memory of one GPU: weights, KV pool, recurrent state, activations, graphs; and how many requests that holds.

Each engine divides the GPU by its own rule, and its memory fraction means something else (all terms of one GPU)::

    vLLM          pool = f·total − weights − other − activations − graphs (graphs since 0.21)
    SGLang        pool = f·free before loading − weights − loading extra; activations and graphs live in the rest
    ATOM          pool = f·total − weights − other − activations − graphs − 2% of total − states of max_running
    TensorRT-LLM  pool = f·(total − weights − other − activations − graphs)

A start log replaces the pool (:class:`predictor.pool_logs.PoolLog`). Constants that are no arithmetic of the card are
named below with what they were set on; ``evals/memory.py`` scores the whole against recorded starts.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import floor
from typing import TYPE_CHECKING, Literal

from predictor.cards import Ffn, ModelCard, Platform
from predictor.engines import GIB, Pool, Settings
from predictor.errors import BadInput, DoesNotFit
from predictor.kv_cache import (
    MAMBA_FULL_MEMORY_RATIO,
    SWA_FULL_TOKENS_RATIO,
    KvCost,
    kv_bytes_per_token,
    kv_cost,
    stage_share,
    state_bytes_per_sequence,
)
from predictor.params import Fp4Format, WeightBytes, WeightPadding, weight_bytes
from predictor.types import Deployment, Dtype, Layout, MemoryBreakdown, Precision

if TYPE_CHECKING:
    from predictor.pool_logs import PoolLog

__all__ = [
    "activation_bytes",
    "fits",
    "graph_bytes",
    "kv_bytes_per_token",
    "max_concurrency",
    "memory",
    "pool_weights",
    "state_bytes_per_sequence",
]

# Set on start logs of gpt-oss-120b (H200, TP1) and MiniMax-M2.5 (GB300, TP1 and TP4), vLLM 0.21 and 0.22.
OTHER_GIB = 0.5  # device context and library workspaces beyond torch's tensors
COMMUNICATION_GIB = 3.0  # more with TP > 1: NCCL, custom all-reduce and fused all-reduce buffers
GRAPH_MIB_PER_LAYER = 0.2  # one captured batch size, one layer
# Set on start logs of MiniMax-M2.5 (GB300, TP1 and TP2), SGLang.
SGLANG_CONTEXT_GIB = 1.0  # gone before the free memory is read
SGLANG_COMMUNICATION_GIB = 1.2  # more with TP > 1
SGLANG_LOADING_GIB = 1.0  # what loading takes beyond the weights

EngineFamily = Literal["vLLM", "SGLang", "ATOM", "TensorRT-LLM"]
_FAMILIES: dict[str, EngineFamily] = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "atom": "ATOM",
    "tensorrt-llm": "TensorRT-LLM",
    "trtllm": "TensorRT-LLM",
    "trt-llm": "TensorRT-LLM",
    "trt": "TensorRT-LLM",
    "tensorrt": "TensorRT-LLM",
}

SAMPLER_BYTES = 12  # logits of one sequence and token: fp32, three copies alive at the peak
BF16_BYTES = 2


def memory(
    card: ModelCard,
    platform: Platform,
    deployment: Deployment,
    settings: Settings,
    log: "PoolLog | None" = None,
    *,
    pool: Pool = "main",
) -> MemoryBreakdown:
    """Breakdown of the busiest GPU; the pool is that of one scheduler (one attention-DP rank).

    Raises DoesNotFit where no block of KV is left, with the numbers.
    """
    return _memory(card, platform, deployment, settings, log, pool)


@lru_cache(maxsize=1024)
def _memory(
    card: ModelCard,
    platform: Platform,
    deployment: Deployment,
    settings: Settings,
    log: "PoolLog | None",
    pool: Pool,
) -> MemoryBreakdown:
    case = _Case(card, platform, deployment, settings, _layout(deployment, pool), log, engine_family(deployment.engine))
    cost = case.cost()
    parts = case.parts()
    budget = case.budget_bytes(parts)
    state, slots = case.separate_state(budget)
    pool_bytes = budget - state
    source = "model"
    if log is not None and (log.kv_gib is not None or log.tokens is not None):
        pool_bytes, source = case.logged_pool_bytes(log, cost), "engine log"
    if pool_bytes < cost.request_bytes(1):
        raise DoesNotFit(_shortage(case, cost, parts, state, pool_bytes))
    tokens = log.tokens if log is not None and log.tokens is not None else case.pool_tokens(pool_bytes, cost)
    return MemoryBreakdown(
        weights_bytes=parts.weights,
        kv_pool_bytes=pool_bytes,
        state_bytes=state,
        activation_bytes=parts.activation,
        graph_bytes=parts.graph,
        total_bytes=parts.total + state + pool_bytes,
        hbm_bytes=platform.hbm_bytes,
        kv_bytes_per_token=cost.per_token,
        kv_pool_tokens=tokens,
        pool_source=source,
        other_bytes=parts.other,
        block_tokens=cost.block_tokens,
        window_tokens=cost.window_tokens,
        window_bytes_per_token=cost.window_per_token,
        window_in_flight_tokens=cost.in_flight_tokens,
        sequence_bytes=cost.per_sequence,
        sequence_slots=slots,
    )


def max_concurrency(memory: MemoryBreakdown, tokens_per_request: int, layout: Layout) -> int:
    """Requests of ``tokens_per_request`` whose KV and state fit at once, over all attention-DP ranks of a replica.

    Attention DP multiplies it, since each rank holds other requests; tensor parallelism beyond the KV heads does not.
    """
    if tokens_per_request < 1:
        raise BadInput(f"tokens_per_request is {tokens_per_request!r}; it must be 1 or more")
    cost = KvCost(
        memory.kv_bytes_per_token,
        memory.window_bytes_per_token,
        memory.window_tokens,
        memory.sequence_bytes,
        memory.block_tokens,
        memory.window_in_flight_tokens,
    )
    held = cost.requests_held(memory.kv_pool_bytes, tokens_per_request)
    if memory.sequence_slots is not None:
        held = min(held, memory.sequence_slots)
    return held * layout.attn_dp


def fits(memory: MemoryBreakdown, cap_frac: float = 0.90, kv_needed_bytes: float = 0.0) -> bool:
    """Whether what must be resident, and the KV that the load needs, stays within ``cap_frac`` of the GPU's memory.

    The pool itself is no criterion: engines size it to fill whatever their memory fraction leaves.
    """
    return memory.total_bytes - memory.kv_pool_bytes + kv_needed_bytes <= cap_frac * memory.hbm_bytes


# --- one case -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Parts:
    weights: float
    activation: float
    graph: float
    other: float

    @property
    def total(self) -> float:
        return self.weights + self.activation + self.graph + self.other


def _layout(deployment: Deployment, pool: Pool) -> Layout:
    if pool == "main":
        return deployment.layout
    if deployment.prefill is None:
        raise BadInput("pool 'prefill' was asked of a deployment without a prefill pool")
    return deployment.prefill.layout


@dataclass(frozen=True, slots=True)
class _Case:
    card: ModelCard
    platform: Platform
    deployment: Deployment
    settings: Settings
    layout: Layout
    log: "PoolLog | None"
    engine: EngineFamily

    @property
    def draft_tokens(self) -> int:
        speculation = self.deployment.speculation
        return speculation.depth if speculation.active else 0

    @property
    def drafter(self) -> str:
        speculation = self.deployment.speculation
        return speculation.method if speculation.active and speculation.method != "ngram" else "none"

    def cost(self) -> KvCost:
        """What a request keeps in this engine's pool."""
        version = self.deployment.engine_version
        batches = 2 if self.engine == "vLLM" and at_least(version, (0, 30)) else 1
        return kv_cost(
            self.card,
            self.layout,
            self.deployment.precision.kv,
            self.engine,
            vendor=self.platform.vendor,
            block_tokens=self.settings.block_size,
            in_flight_tokens=self.settings.token_budget * batches
            if self.engine == "vLLM"
            else self.settings.chunk_size,
            draft_tokens=self.draft_tokens,
            drafter=self.drafter,
            prefix_cache=self.settings.prefix_cache,
        )

    def parts(self) -> _Parts:
        logged = self.log.weights_gib if self.log else None
        weights = pool_weights(self.card, self.platform, self.deployment, self.layout).total
        communicates = self.layout.tp * self.layout.pp > 1
        if self.engine == "SGLang":
            other = SGLANG_CONTEXT_GIB + SGLANG_LOADING_GIB + SGLANG_COMMUNICATION_GIB * communicates
            if logged is not None:  # SGLang prints the free memory that loading took, its extra included
                logged -= SGLANG_LOADING_GIB
        else:
            other = OTHER_GIB + COMMUNICATION_GIB * communicates
        tokens = max(self.settings.chunk_size, self.settings.max_running * (1 + self.draft_tokens))
        tokens = min(tokens, self.settings.token_budget) if self.engine != "SGLang" else self.settings.chunk_size
        return _Parts(
            weights=weights if logged is None else logged * GIB,
            activation=activation_bytes(self.card, self.layout, tokens, self._sampled),
            graph=graph_bytes(self.card, self.layout, len(self.settings.capture_sizes)),
            other=other * GIB,
        )

    @property
    def _sampled(self) -> int:
        """Rows of logits at the peak: vLLM profiles all sequences it may run, the others capture a largest batch."""
        rows = self.settings.max_running * (1 + self.draft_tokens)
        if self.engine == "vLLM":
            return min(rows, self.settings.token_budget)
        return min(rows, max(self.settings.capture_sizes, default=256) * (1 + self.draft_tokens))

    def budget_bytes(self, parts: _Parts) -> float:
        """Bytes that the engine's rule leaves for KV and recurrent state."""
        f, total = self.settings.kv_mem_fraction, self.platform.hbm_bytes
        if self.engine == "SGLang":
            loading = SGLANG_LOADING_GIB * GIB
            return f * (total - parts.other + loading) - parts.weights - loading
        if self.engine == "TensorRT-LLM":
            return f * (total - parts.total)
        if self.engine == "ATOM":
            return min(f * total - parts.total - 0.02 * total, total - parts.total)
        graph = parts.graph if at_least(self.deployment.engine_version, (0, 21)) else 0.0
        return f * total - parts.weights - parts.activation - parts.other - graph

    def separate_state(self, budget: float) -> tuple[float, int | None]:
        """Bytes and sequences of a state pool apart from the KV pool; none in vLLM and TensorRT-LLM."""
        one = state_bytes_per_sequence(
            self.card, self.layout, self.engine, self.draft_tokens, self.settings.prefix_cache
        )
        if not one or self.engine not in ("SGLang", "ATOM"):
            return 0.0, None
        if self.engine == "ATOM":
            return one * self.settings.max_running, self.settings.max_running
        share = max(0.0, budget) * MAMBA_FULL_MEMORY_RATIO / (1 + MAMBA_FULL_MEMORY_RATIO)
        return share, floor(share / one)

    def pool_tokens(self, pool_bytes: float, cost: KvCost) -> int:
        """Tokens as the engine prints them: vLLM as concurrency at the longest context, SGLang of the full pool."""
        if self.engine == "SGLang" and cost.window_per_token:
            per_token = cost.per_token + SWA_FULL_TOKENS_RATIO * cost.window_per_token
            return floor(pool_bytes / per_token / cost.block_tokens) * cost.block_tokens
        if cost.window_per_token or cost.per_sequence:
            longest = self.card.max_context_tokens
            return floor(pool_bytes / cost.request_bytes(longest) * longest)
        return floor(pool_bytes / cost.per_token / cost.block_tokens) * cost.block_tokens

    def logged_pool_bytes(self, log: "PoolLog", cost: KvCost) -> float:
        """Pool of the log: its GiB, else its tokens at their cost (vLLM: at the context they were printed for)."""
        if log.kv_gib is not None:
            return log.kv_gib * GIB
        tokens = log.tokens or 0
        at = log.tokens_at_context
        return tokens / at * cost.request_bytes(at) if at else tokens * cost.per_token


def _shortage(case: _Case, cost: KvCost, parts: _Parts, state: float, pool_bytes: float) -> str:
    def gib(value: float) -> str:
        return f"{value / GIB:.1f} GiB"

    return (
        f"{case.card.name} at {case.layout.label()} does not fit {case.platform.name}: weights {gib(parts.weights)}, "
        f"activations {gib(parts.activation)}, graphs {gib(parts.graph)}, other {gib(parts.other)}, state {gib(state)} "
        f"leave {gib(pool_bytes)} of {gib(case.platform.hbm_bytes)} for KV at a memory fraction of "
        f"{case.settings.kv_mem_fraction:.3f}, and one block needs {gib(cost.request_bytes(1))}"
    )


# --- components -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=8192)
def activation_bytes(card: ModelCard, layout: Layout, step_tokens: int, sampled: int) -> float:
    """Peak of one forward pass over ``step_tokens``, bf16: four copies of the hidden vector and the widest block.

    Dense: gate, up and their product; MoE: the same for each chosen expert, and its output row. ``sampled`` rows of
    logits come on top.
    """
    attn_tp = layout.attn_tp
    widest = max(_ffn_elements(group.ffn, card.hidden, layout) for group in card.groups)
    elements = step_tokens * (4 * card.residual_streams * card.hidden + widest)
    return elements * BF16_BYTES + sampled * card.vocab * SAMPLER_BYTES / max(1, attn_tp if layout.attn_dp > 1 else 1)


def _ffn_elements(ffn: Ffn, hidden: int, layout: Layout) -> float:
    dense = ffn.matrices * (ffn.intermediate + ffn.shared_experts * ffn.shared_intermediate) / layout.attn_tp
    if not ffn.experts:
        return dense
    columns = ffn.moe_intermediate / max(1, layout.tp // layout.ep)
    return dense + ffn.topk / layout.ep * (ffn.matrices * columns + (ffn.latent_dim or hidden))


def graph_bytes(card: ModelCard, layout: Layout, captured: int) -> float:
    """Memory of captured decode graphs: a share for each size and layer of the stage."""
    return captured * card.layers * stage_share(card, layout) * GRAPH_MIB_PER_LAYER * 2**20


def pool_weights(card: ModelCard, platform: Platform, deployment: Deployment, layout: Layout) -> WeightBytes:
    """Weight bytes as the deployment's engine loads them: its 4-bit format, its padding, its dense width."""
    engine = engine_family(deployment.engine)
    speculation = deployment.speculation
    fp4 = fp4_format(card, platform, deployment.precision)
    return weight_bytes(
        card,
        layout,
        deployment.precision,
        fp4=fp4,
        padding=expert_padding(engine, platform, card, deployment.precision.expert, fp4),
        dense_tp=layout.tp if engine == "SGLang" else None,
        redundant_experts=deployment.eplb_redundant,
        drafter=speculation.method if speculation.active else "none",
    )


def fp4_format(card: ModelCard, platform: Platform, precision: Precision) -> Fp4Format:
    """4-bit format of the checkpoint: the maker's own where experts alone are 4-bit, else the vendor's."""
    own = card.expert_dtype is Dtype.FP4 and precision.weight is not Dtype.FP4
    if own and card.fp4_format:
        return card.fp4_format
    return "nvfp4" if platform.vendor == "nvidia" else "mxfp4"


def expert_padding(engine: str, platform: Platform, card: ModelCard, expert: Dtype, fp4: Fp4Format) -> WeightPadding:
    """Padding of a rank's MXFP4 experts, hidden x intermediate: ATOM 256 x 256, vLLM 256 x 128 (or 256 on AMD).

    vLLM 0.33 ``fused_moe/oracle/mxfp4.py`` (experts with biases, gpt-oss, run another kernel), ATOM ffdf3bb5. Other
    formats and engines run unpadded.
    """
    if expert is not Dtype.FP4 or fp4 != "mxfp4" or engine not in ("ATOM", "vLLM"):
        return WeightPadding()
    biased = platform.vendor == "amd" and card.moe is not None and card.moe.bias
    return WeightPadding(256, 256 if engine == "ATOM" or biased else 128)


def engine_family(name: str) -> EngineFamily:
    """Engine of any spelling that the profiles accept."""
    try:
        return _FAMILIES[name.lower()]
    except KeyError:
        raise BadInput(
            f"engine {name!r} has no memory rule; known: {', '.join(sorted(set(_FAMILIES.values())))}"
        ) from None


def at_least(version: str, bound: tuple[int, int]) -> bool:
    """Whether a release is at or past ``bound``; an empty or unnumbered one counts as the newest.

    >>> at_least("0.21.0", (0, 21)), at_least("0.9.2.dev364", (0, 21)), at_least("", (0, 21))
    (True, False, True)
    """
    head = version.split(".")
    if len(head) < 2 or not (head[0].isdigit() and head[1].isdigit()):
        return True
    return (int(head[0]), int(head[1])) >= bound
