"""Model cards, platforms and engine profiles: data read from files, validated at the edge.

A card describes a checkpoint as groups of like layers, so that dense, MoE, sliding-window, hybrid linear-attention and
compressed-attention models are all one list. Figures carry a ``source``. Files lie in :mod:`predictor.profiles`, whose
loader checks every field's type; ranges are checked here, so that a record built by hand is checked as well. Change a
record with :func:`dataclasses.replace`. The three top records hash by name, which keeps them cheap as cache keys.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from predictor.errors import BadInput
from predictor.types import Dtype


def _require(record: object, condition: bool, name: str, legal: str) -> None:
    """Raise :class:`BadInput` naming the field, its value and what is legal."""
    if not condition:
        raise BadInput(f"{type(record).__name__}.{name} is {getattr(record, name)!r}; it must be {legal}")


def _require_positive(record: object, *names: str) -> None:
    for name in names:
        _require(record, getattr(record, name) > 0, name, "above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One attention kind. Heads and dims are of the whole model, before any sharding.

    ``gqa``: heads, kv_heads, head_dim (v_head_dim if it differs), window (0: full); index_* make it block-sparse.
    ``mla``: heads, q_lora_rank, kv_lora_rank, nope_dim, rope_dim, v_head_dim; an indexer (index_*) makes it sparse.
    ``linear``: gated delta net or Mamba-like: key_heads, value_heads, key_dim, value_dim, conv_kernel; state a request.
    ``compressed``: DeepSeek-V4-like: heads, head_dim (one shared KV head), window, and pools in which one entry stands
    for ``compress_ratio`` tokens; an indexer where index_heads > 0.
    """

    kind: Literal["gqa", "mla", "linear", "compressed"]
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    v_head_dim: int = 0
    window: int = 0
    gated_output: bool = False  # a gate projection as wide as the attention output (Qwen3.5, Kimi-K3)
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    nope_dim: int = 0
    rope_dim: int = 0
    o_lora_rank: int = 0
    o_groups: int = 1
    index_heads: int = 0
    index_head_dim: int = 0
    index_topk: int = 0  # tokens
    index_block: int = 1  # tokens selected together (MiniMax-M3: 128)
    index_stored: bool = True  # False where this layer reuses another layer's index
    key_heads: int = 0
    value_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    conv_kernel: int = 0
    channel_decay: bool = False  # linear: a decay per channel (Kimi delta attention), else one per head
    state_dtype_bytes: int = 4
    compress_ratio: float = 0.0  # compressed: tokens a compressed entry stands for; 0: the window only
    kv_elements_per_token: float = 0.0  # compressed: stored elements a token, averaged, when not derivable
    bias: bool = False
    qk_norm: bool = False

    @property
    def value_head_dim(self) -> int:
        """Width of one head's value vector."""
        return self.v_head_dim or self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Ffn:
    """One feed-forward kind; a MoE layer has ``experts > 0``."""

    intermediate: int = 0  # dense width (0 for pure MoE layers)
    experts: int = 0
    topk: int = 0
    moe_intermediate: int = 0
    shared_experts: int = 0
    shared_intermediate: int = 0  # of one shared expert
    gated: bool = True  # three matrices (gate, up, down); False: two
    latent_dim: int = 0  # experts work in a projected space of this width (0: hidden)
    bias: bool = False

    @property
    def matrices(self) -> int:
        """Weight matrices of one expert or of the dense block."""
        return 3 if self.gated else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """``count`` like layers."""

    count: int
    attention: Attention
    ffn: Ffn

    def __post_init__(self) -> None:
        _require_positive(self, "count")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Figures the makers published, for tests; None where none was found."""

    total_params: float | None = None
    active_params: float | None = None
    kv_bytes_per_token_bf16: float | None = None
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """Architecture record of one checkpoint family."""

    name: str
    hf_ids: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    hidden: int
    vocab: int
    tied_embeddings: bool = False
    groups: tuple[LayerGroup, ...]
    mtp_layers: int = 0
    max_context_tokens: int
    weight_dtypes: tuple[Dtype, ...] = (Dtype.BF16,)  # checkpoints on hand, the maker's own first
    expert_dtype: Dtype | None = None  # where the maker's experts differ from its weights (gpt-oss: fp4)
    fp4_format: Literal["mxfp4", "nvfp4", "int4"] | None = None  # of the maker's own 4-bit checkpoint
    fp4_attention: Dtype = Dtype.BF16  # what 4-bit checkpoints of a MoE model keep attention in
    fp4_shared: Dtype = Dtype.BF16  # and what they keep dense layers and shared experts in
    quant_block: int = 0  # weight quantisation block of the FP8 checkpoint, columns
    drafters: tuple[str, ...] = ()  # speculation methods with a published head: mtp, eagle3, dspark
    vision_layers: int = 0  # of the vision tower, as engines size it; 0: text only
    vision_hidden: int = 0
    residual_streams: int = 1  # hyper-connections keep several residual vectors a token (DeepSeek-V4: 4)
    extra_params: float = 0.0  # loaded, in no layer: vision tower and projector, hyper-connections
    assumed: tuple[str, ...] = ()  # fields that no public source states
    published: Published = field(default_factory=Published)
    source: str

    def __post_init__(self) -> None:
        _require_positive(self, "hidden", "vocab", "max_context_tokens")
        _require(self, bool(self.groups), "groups", "at least one group of layers")

    def __hash__(self) -> int:
        return hash(self.name)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """``t = α + m/B`` of one collective on one tier (paper B.2, Table 19)."""

    op: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
    variant: str  # custom_one_shot, custom_two_shot, quick, fused_rms, rccl, nccl, ...
    tier: Literal["node", "network"]
    gpus: int
    alpha_us: float
    bandwidth_gb_s: float
    min_bytes: float = 0.0
    max_bytes: float | None = None
    source: str

    def __post_init__(self) -> None:
        _require(self, self.gpus > 1, "gpus", "2 or more")
        _require(self, self.alpha_us >= 0, "alpha_us", "0 or more")
        _require_positive(self, "bandwidth_gb_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff:
    """KV hand-off backend: a floor plus exposed bytes over each prefill GPU's link (paper D.4)."""

    backend: str
    floor_us: float
    bandwidth_gb_s: float
    layer_streamed: bool
    source: str

    def __post_init__(self) -> None:
        _require_positive(self, "bandwidth_gb_s")


@dataclass(frozen=True, kw_only=True)
class Platform:
    """One GPU type in its usual node, with measured constants where somebody measured them.

    Fitted or measured constants say so in ``sources``, keyed by field name.
    """

    name: str
    vendor: Literal["amd", "nvidia"]
    aliases: tuple[str, ...] = ()
    gpus_per_node: int
    hbm_bytes: float  # what the driver reports as total, not the label on the box
    hbm_bytes_per_s: float
    peak_bf16_flops: float
    peak_fp8_flops: float | None = None
    peak_fp4_flops: float | None = None
    compute_units: int
    l2_bytes: float = 0.0
    clock_ghz: float
    link_bytes_per_s: float  # one GPU, one way, inside the node
    link_domain_gpus: int | None = None  # GPUs joined by that link; None: those of a node (GB200, GB300: a rack)
    node_mesh_bytes_per_s: float | None = None  # B_node of the large-message mesh law, where measured
    nic_bytes_per_s: float  # one GPU's network card
    nic_efficiency: float = 0.8
    host_link_bytes_per_s: float = 64e9
    host_dram_bytes: float = 2e12
    kernel_launch_us: float  # minimum cost of a kernel inside a step
    hbm_efficiency: float
    gemm_efficiency: dict[str, float] = field(default_factory=dict)
    expert_read_curve: dict[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    # dtype -> (experts, share of HBM peak)
    collectives: tuple[Collective, ...] = ()
    handoffs: tuple[Handoff, ...] = ()
    price_usd_per_gpu_h: float | None = None
    sources: dict[str, str]

    def __post_init__(self) -> None:
        _require_positive(
            self,
            "gpus_per_node",
            "hbm_bytes",
            "hbm_bytes_per_s",
            "peak_bf16_flops",
            "compute_units",
            "clock_ghz",
            "link_bytes_per_s",
            "nic_bytes_per_s",
            "kernel_launch_us",
        )
        _require(self, 0 < self.hbm_efficiency <= 1, "hbm_efficiency", "above 0 and at most 1")

    def __hash__(self) -> int:
        return hash(self.name)

    def peak_flops(self, dtype: Dtype) -> float:
        """Dense peak at a precision; formats the GPU lacks run at the next wider one."""
        fp8 = self.peak_fp8_flops or self.peak_bf16_flops
        return {Dtype.BF16: self.peak_bf16_flops, Dtype.FP8: fp8, Dtype.FP4: self.peak_fp4_flops or fp8}[dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineVersion:
    """Defaults of one release; what depends on GPU and layout is decided by :mod:`predictor.engines`."""

    version: str
    max_running: int
    token_budget: int
    chunk_size: int = 0
    kv_mem_fraction: float
    block_size: int
    graph_max_bs: int
    notes: str = ""


@dataclass(frozen=True, kw_only=True)
class EngineProfile:
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
    attention_backends: dict[str, tuple[str, ...]] = field(default_factory=dict)
    host_us_per_prompt_token: float = 0.0
    host_ms_per_request: float = 0.0
    pp_hop_us: float | None = None  # per-hop overhead o; None: not measured for this engine
    pp_host_ms: tuple[float, float] | None = None  # H(b) = a + b·batch, ms
    poll_interval_steps: int = 0
    first_wave_stall_ms: float = 0.0
    caps_per_rank: bool = True  # under attention DP max_running and the chunk are each rank's; False: of all ranks
    dense_dp_lockstep: bool = True  # DP ranks of a dense model step together, as those of MoE do; False: plain replicas
    prefill_delayer: bool = False  # under attention DP, hold prefill until every rank has some
    watermark_frac: float = 0.0  # share of KV blocks kept free at admission
    estimate_ratio: tuple[float, float, int] | None = None  # start, floor as a share of it, decode steps between
    sources: dict[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.name)

    def version(self, name: str = "") -> EngineVersion:
        """The named release, or the newest known (listed first) for an empty name."""
        if not name:
            return self.versions[0]
        for release in self.versions:
            if release.version == name:
                return release
        known = ", ".join(release.version for release in self.versions)
        raise BadInput(f"engine_version {name!r} of {self.name} has no defaults table; known: {known}")
