"""Model cards, platforms and engine profiles: data read from files, validated at the edge.

A card describes a checkpoint as groups of like layers, so that dense, MoE, sliding-window, hybrid linear-attention and
compressed-attention models are all one list. Figures carry a ``source``. Files lie in :mod:`predictor.profiles`.
"""

from functools import cached_property
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from predictor.types import Dtype


class Card(BaseModel):
    """Common settings of every validated record."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Attention(Card):
    """One attention kind. Heads and dims are of the whole model, before any sharding.

    ``gqa``: heads, kv_heads, head_dim (v_head_dim if it differs), window (0: full).
    ``mla``: heads, q_lora_rank, kv_lora_rank, nope_dim, rope_dim, v_head_dim; an indexer (index_*) makes it sparse.
    ``linear``: gated delta net or Mamba-like: key_heads, value_heads, key_dim, value_dim, conv_kernel; state a request.
    ``compressed``: DeepSeek-V4-like sliding window plus compressed pools: ``kv_elements_per_token`` as published.
    """

    kind: Literal["gqa", "mla", "linear", "compressed"]
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    v_head_dim: int = 0
    window: int = 0
    gated_output: bool = False  # a gate projection as wide as q (Qwen3.5)
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    nope_dim: int = 0
    rope_dim: int = 0
    o_lora_rank: int = 0
    o_groups: int = 1
    index_heads: int = 0
    index_head_dim: int = 0
    index_topk: int = 0
    index_stored: bool = True  # False where this layer reuses another layer's index
    key_heads: int = 0
    value_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    conv_kernel: int = 0
    state_dtype_bytes: int = 4
    compress_ratio: float = 0.0  # compressed: tokens a compressed entry stands for
    kv_elements_per_token: float = 0.0  # compressed: stored elements a token, averaged, when not derivable
    bias: bool = False
    qk_norm: bool = False


class Ffn(Card):
    """One feed-forward kind; a MoE layer has ``experts > 0``."""

    intermediate: int = 0  # dense width (0 for pure MoE layers)
    experts: int = 0
    topk: int = 0
    moe_intermediate: int = 0
    shared_experts: int = 0
    shared_intermediate: int = 0
    gated: bool = True  # three matrices (gate, up, down); False: two
    latent_dim: int = 0  # experts work in a projected space of this width (0: hidden)


class LayerGroup(Card):
    """``count`` like layers."""

    count: int = Field(gt=0)
    attention: Attention
    ffn: Ffn


class Published(Card):
    """Figures the makers published, for tests; None where none was found."""

    total_params: float | None = None
    active_params: float | None = None
    kv_bytes_per_token_bf16: float | None = None
    source: str = ""


class ModelCard(Card):
    """Architecture record of one checkpoint family."""

    name: str
    hf_ids: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    hidden: int = Field(gt=0)
    vocab: int = Field(gt=0)
    tied_embeddings: bool = False
    groups: tuple[LayerGroup, ...]
    mtp_layers: int = 0
    max_context_tokens: int = Field(gt=0)
    weight_dtypes: tuple[Dtype, ...] = (Dtype.BF16,)  # checkpoints on hand, the maker's own first
    expert_dtype: Dtype | None = None  # where the maker's experts differ from its weights (gpt-oss: fp4)
    quant_block: int = 0  # weight quantisation block of the FP8 checkpoint, columns
    drafters: tuple[str, ...] = ()  # speculation methods with a published head: mtp, eagle3, dspark
    published: Published = Published()
    source: str

    @cached_property
    def layers(self) -> int:
        """Layers of the main model, drafter layers apart."""
        return sum(group.count for group in self.groups)

    @cached_property
    def is_moe(self) -> bool:
        """Whether any layer routes to experts."""
        return any(group.ffn.experts for group in self.groups)

    @cached_property
    def attention(self) -> Attention:
        """The attention kind of most softmax layers: the one legality asks about."""
        softmax = [group for group in self.groups if group.attention.kind != "linear"] or list(self.groups)
        return max(softmax, key=lambda group: group.count).attention

    @cached_property
    def moe(self) -> Ffn | None:
        """The MoE kind, or None."""
        return next((group.ffn for group in self.groups if group.ffn.experts), None)


class Collective(Card):
    """``t = α + m/B`` of one collective on one tier (paper B.2, Table 19)."""

    op: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
    variant: str  # custom_one_shot, custom_two_shot, quick, fused_rms, rccl, nccl, ...
    tier: Literal["node", "network"]
    gpus: int = Field(gt=1)
    alpha_us: float = Field(ge=0)
    bandwidth_gb_s: float = Field(gt=0)
    min_bytes: float = 0.0
    max_bytes: float | None = None
    source: str


class Handoff(Card):
    """KV hand-off backend: a floor plus exposed bytes over each prefill GPU's link (paper D.4)."""

    backend: str
    floor_us: float
    bandwidth_gb_s: float
    layer_streamed: bool
    source: str


class Platform(Card):
    """One GPU type in its usual node, with measured constants where somebody measured them.

    Fitted or measured constants say so in ``sources``, keyed by field name.
    """

    name: str
    vendor: Literal["amd", "nvidia"]
    aliases: tuple[str, ...] = ()
    gpus_per_node: int = Field(gt=0)
    hbm_bytes: float = Field(gt=0)
    hbm_bytes_per_s: float = Field(gt=0)
    peak_bf16_flops: float = Field(gt=0)
    peak_fp8_flops: float | None = None
    peak_fp4_flops: float | None = None
    compute_units: int = Field(gt=0)
    l2_bytes: float = 0.0
    clock_ghz: float = Field(gt=0)
    link_bytes_per_s: float = Field(gt=0)  # one GPU, one way, inside the node
    node_mesh_bytes_per_s: float | None = None  # B_node of the large-message mesh law, where measured
    nic_bytes_per_s: float = Field(gt=0)  # one GPU's network card
    nic_efficiency: float = 0.8
    host_link_bytes_per_s: float = 64e9
    host_dram_bytes: float = 2e12
    kernel_launch_us: float = Field(gt=0)  # minimum cost of a kernel inside a step
    hbm_efficiency: float = Field(gt=0, le=1)
    gemm_efficiency: dict[str, float] = {}
    expert_read_curve: dict[str, tuple[tuple[int, float], ...]] = {}  # dtype -> (experts, share of HBM peak)
    collectives: tuple[Collective, ...] = ()
    handoffs: tuple[Handoff, ...] = ()
    price_usd_per_gpu_h: float | None = None
    sources: dict[str, str]

    def peak_flops(self, dtype: Dtype) -> float:
        """Dense peak at a precision; formats the GPU lacks run at the next wider one."""
        fp8 = self.peak_fp8_flops or self.peak_bf16_flops
        return {Dtype.BF16: self.peak_bf16_flops, Dtype.FP8: fp8, Dtype.FP4: self.peak_fp4_flops or fp8}[dtype]


class EngineVersion(Card):
    """Defaults of one release; fields that are None are decided by :mod:`predictor.engines` from GPU and layout."""

    version: str
    max_running: int
    token_budget: int
    chunk_size: int = 0
    kv_mem_fraction: float
    block_size: int
    graph_max_bs: int
    notes: str = ""


class EngineProfile(Card):
    """Scheduler rules and host costs of one engine (``engines`` table of the documentation).

    Host costs are ms (per request, per step) or us per prompt token, each with its source.
    """

    name: str
    aliases: tuple[str, ...] = ()
    versions: tuple[EngineVersion, ...]
    vendors: tuple[Literal["amd", "nvidia"], ...]
    mixed_steps: bool
    prefill_first: bool
    chunked_prefill: bool
    single_chunked_request: bool = False
    chunk_floor_tokens: int = 0
    budget_counts_decode: bool = True
    admission: Literal["fits_full_isl", "estimate_ratio", "take_full_prompt", "reserve_max_output"]
    preempt_victim: Literal["last", "fewest_generated", "none"]
    requeue: Literal["front", "end"]
    keep_hash_on_preempt: bool = True
    clip_max_new_tokens: int = 4096
    overlap_depth: int = 1
    overlap_under_pp: bool = True
    queue_policies: tuple[str, ...] = ("fcfs",)
    lpm_queue_limit: int = 128
    spec_max_running: int | None = None  # SGLang: 48 when unset
    handoffs: tuple[str, ...] = ()
    spec_methods: tuple[str, ...] = ()
    spec_depth_range: tuple[int, int] = (1, 8)
    attention_backends: dict[str, tuple[str, ...]] = {}
    host_us_per_prompt_token: float = 0.0
    host_ms_per_request: float = 0.0
    pp_hop_us: float | None = None  # per-hop overhead o; None: not measured for this engine
    pp_host_ms: tuple[float, float] | None = None  # H(b) = a + b·batch, ms
    poll_interval_steps: int = 0
    first_wave_stall_ms: float = 0.0
    sources: dict[str, str] = {}
