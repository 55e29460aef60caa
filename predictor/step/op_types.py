"""The operations of one step on one GPU: their types, and the helpers that every builder uses.

An :class:`Op` is one kernel kind with how often a step runs it. Its cost is a function of the tokens it sees: *rank*
tokens (those of this attention-DP rank) or *group* tokens (those of all ranks that share the layer). Attention and
state kernels are listed apart, since their cost depends on requests and context as well.
"""

from dataclasses import dataclass
from typing import Literal

from predictor.cards import Attention, ModelCard
from predictor.types import Dtype, Kernels, Layout, Precision

Scope = Literal["rank", "group"]


@dataclass(frozen=True, slots=True)
class Gemm:
    """A product ``(tokens, k) × (k, n)``; a batched one over heads counts as one of all heads' columns."""

    name: str
    n: int
    k: int
    dtype: Dtype  # activations and arithmetic
    weight: Dtype
    count: float = 1.0
    scope: Scope = "rank"
    term: str = "gemm"


@dataclass(frozen=True, slots=True)
class Stream:
    """A kernel that moves ``bytes_per_token`` for each token it sees."""

    name: str
    bytes_per_token: float
    count: float = 1.0
    scope: Scope = "rank"
    term: str = "elementwise"


@dataclass(frozen=True, slots=True)
class Quant:
    """Activation quantisation of rows of ``columns`` values."""

    name: str
    columns: int
    dtype: Dtype
    count: float = 1.0
    scope: Scope = "rank"
    fused: bool = False  # the launch is part of the kernel before it; only bytes remain


@dataclass(frozen=True, slots=True)
class Experts:
    """Routed experts of one layer kind."""

    experts: int
    topk: int
    hidden: int
    intermediate: int  # of one expert, before tensor sharding
    gated: bool
    dtype: Dtype
    count: float
    scope: Scope = "rank"
    fused: bool = False  # one kernel for gate, activation, quantisation and down


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective over ``gpus`` GPUs of ``bytes_per_token`` for each token."""

    name: str
    op: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
    gpus: int
    bytes_per_token: float
    count: float
    scope: Scope = "rank"
    topk: int = 1  # all_to_all: experts a token goes to


@dataclass(frozen=True, slots=True)
class AttentionOp:
    """Attention of ``count`` like layers on this rank."""

    card: Attention
    heads: int  # on this rank
    kv_heads: int
    kv: Dtype
    count: float
    context_share: float = 1.0  # decode context parallelism reads 1/dcp of the cache


StepOp = Gemm | Stream | Quant | Experts | Collective


@dataclass(frozen=True, slots=True)
class StepOps:
    """All operations of one forward pass: token-priced ones for each phase, and attention."""

    decode: tuple[StepOp, ...]
    prefill: tuple[StepOp, ...]
    attention: tuple[AttentionOp, ...]
    head: tuple[StepOp, ...]  # once a step, over requests: final norm, LM head, sampling


_WIDTH_ORDER = (Dtype.BF16, Dtype.FP8, Dtype.FP4)


def wider(first: Dtype, second: Dtype) -> Dtype:
    """The wider of two formats."""
    return min(first, second, key=_WIDTH_ORDER.index)


def shard(width: int, ways: int) -> int:
    """Columns of one rank; at least one, and padded up as engines do.

    >>> shard(1536, 8), shard(8, 16)
    (192, 1)
    """
    return max(1, -(-width // ways))


@dataclass(frozen=True, slots=True)
class Build:
    """What every builder needs; passed down, never changed."""

    card: ModelCard
    layout: Layout
    precision: Precision
    kernels: Kernels
    engine: str  # short name
    fusions: frozenset[str]

    @property
    def bf16(self) -> Dtype:
        """Format of the parts that no checkpoint quantises: router, absorbed products, LM head."""
        return Dtype.BF16

    @property
    def attention_weight(self) -> Dtype:
        """Format of attention projections: 4-bit checkpoints of MoE models keep them wider."""
        weight = self.precision.weight
        return self.card.fp4_attention if weight is Dtype.FP4 and self.card.is_moe else weight

    @property
    def ffn_weight(self) -> Dtype:
        """Format of dense feed-forward weights and shared experts."""
        return self.precision.weight

    def arithmetic(self, weight: Dtype) -> Dtype:
        """Format a dense GEMM runs in: the wider of its weights and the activations."""
        return wider(weight, self.precision.linear)


def layer_norms(build: Build, count: float, name: str) -> list[StepOp]:
    """Residual add and RMSNorm before a block: one kernel when fused, two otherwise."""
    hidden = build.card.hidden
    if "add_rmsnorm" in build.fusions:
        return [Stream(f"{name}_add_norm", 8.0 * hidden, count)]  # reads x and residual, writes both
    return [Stream(f"{name}_add", 6.0 * hidden, count), Stream(f"{name}_norm", 4.0 * hidden, count)]


def linear_ops(
    build: Build, name: str, n: int, k: int, weight: Dtype, count: float, fusion: str, scope: Scope = "rank"
) -> list[StepOp]:
    """A dense GEMM, and before it the quantisation of its input where it runs in low precision.

    ``fusion`` names the pattern that folds the quantisation into the kernel before it.
    """
    dtype = build.arithmetic(weight)
    gemm = Gemm(name, n, k, dtype, weight, count, scope)
    if dtype is Dtype.BF16:
        return [gemm]
    return [Quant(f"{name}_quant", k, dtype, count, scope, fused=fusion in build.fusions), gemm]
