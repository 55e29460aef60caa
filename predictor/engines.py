"""What an engine really runs with: defaults that depend on GPU, layout, model and speculation, resolved to numbers.

Rules restated from the engines' own argument handling: vLLM 0.30 and 0.33 (`engine/arg_utils.py`, `config/vllm.py`),
SGLang 0.5.19 and 0.5.23 (`arg_groups/memory_hook.py`, `cuda_graph_hook.py`), ATOM ffdf3bb5, TensorRT-LLM main 002f3cc3
(`llm_args.py`). An explicit setting of the deployment wins over every rule, as it does in the engines.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from predictor.cards import EngineProfile, EngineVersion, ModelCard, Platform
from predictor.errors import BadInput
from predictor.graph_sizes import (
    ATOM_CAPTURE,
    prefill_graph_count,
    sglang_capture_sizes,
    trtllm_capture_sizes,
    vllm_capture_sizes,
)
from predictor.types import Deployment, Layout, SchedulerSettings

GIB = 2**30
MIB = 2**20

Pool = Literal["main", "prefill"]
Role = Literal["prefill", "decode", "both"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Resolved settings of one scheduler: the whole replica, or one attention-DP rank of it.

    ``token_budget`` counts decode tokens where the engine's profile says so; ``chunk_size`` is the most prompt tokens
    of one step. ``capture_sizes`` are decode batches (requests) that have a graph; a batch between two of them is
    padded up where ``graph_padding`` is set and runs eager where not, and above the last it runs eager. Under pipeline
    parallelism each micro-batch holds at most ``micro_batch_running`` requests.
    """

    max_running: int
    token_budget: int
    chunk_size: int
    kv_mem_fraction: float
    block_size: int
    capture_sizes: tuple[int, ...]
    graph_padding: bool
    mixed_steps: bool
    chunked_prefill: bool
    prefix_cache: bool
    micro_batch_running: int

    def padded_batch(self, batch: int) -> int | None:
        """Batch that the graph for ``batch`` requests was captured at; None where the step runs eager."""
        fitting = [size for size in self.capture_sizes if size >= batch]
        if not fitting or (not self.graph_padding and fitting[0] != batch):
            return None
        return fitting[0]


# A search of 300 trials asks for about a hundred; those of ten searches are enough for a process that serves many.
@lru_cache(maxsize=1024)
def effective_settings(
    profile: EngineProfile,
    version: str,
    platform: Platform,
    card: ModelCard,
    deployment: Deployment,
    pool: Pool = "main",
) -> Settings:
    """Settings of the named pool: the replica (``main``; the decode pool of a split deployment) or the prefill pool.

    Raises BadInput where the engine would refuse to start with these settings.
    """
    release = profile.version(version)
    prefill = deployment.prefill
    if pool == "prefill" and prefill is None:
        raise BadInput("pool 'prefill' was asked of a deployment without a prefill pool")
    layout = prefill.layout if pool == "prefill" and prefill else deployment.layout
    wanted = prefill.scheduler if pool == "prefill" and prefill else deployment.scheduler
    role: Role = "prefill" if pool == "prefill" else "decode" if prefill else "both"
    resolve = {"vLLM": _vllm, "SGLang": _sglang, "ATOM": _atom, "TensorRT-LLM": _trtllm}.get(profile.name)
    if resolve is None:
        raise BadInput(f"engine {profile.name!r} has no rules for its defaults")
    case = _Case(profile, release, platform, card, deployment, layout, wanted, role)
    return resolve(case)


@dataclass(frozen=True, slots=True)
class _Case:
    profile: EngineProfile
    release: EngineVersion
    platform: Platform
    card: ModelCard
    deployment: Deployment
    layout: Layout
    wanted: SchedulerSettings
    role: Role

    @property
    def decode_tokens(self) -> int:
        """Tokens of one request in a decode step, ``1 + k``."""
        speculation = self.deployment.speculation
        return 1 + speculation.depth if speculation.active else 1

    @property
    def hbm_gib(self) -> float:
        return self.platform.hbm_bytes / GIB

    @property
    def graphs(self) -> bool:
        return self.deployment.kernels.graph_mode != "none"

    @property
    def attention(self) -> str:
        """Attention backend as asked."""
        return self.deployment.kernels.attention

    def fraction(self, default: float) -> float:
        """The memory fraction as given, else ``default``."""
        return default if self.wanted.kv_mem_fraction is None else self.wanted.kv_mem_fraction

    def settings(
        self,
        *,
        max_running: int,
        token_budget: int,
        chunk_size: int,
        kv_mem_fraction: float,
        block_size: int,
        capture_sizes: tuple[int, ...],
        graph_padding: bool = True,
        chunked_prefill: bool = True,
        micro_batches: int = 1,
    ) -> Settings:
        """Check ranges and apply the choices that mean the same in every engine."""
        if not 0.0 < kv_mem_fraction <= 1.0:
            raise BadInput(f"kv_mem_fraction is {kv_mem_fraction!r}; it must be above 0 and at most 1")
        for name, value in (("max_running", max_running), ("token_budget", token_budget), ("block_size", block_size)):
            if value < 1:
                raise BadInput(f"{name} is {value!r}; it must be 1 or more")
        mixed = self.wanted.mixed_steps
        return Settings(
            max_running=max_running,
            token_budget=token_budget,
            chunk_size=chunk_size if chunked_prefill else token_budget,
            kv_mem_fraction=kv_mem_fraction,
            block_size=block_size,
            capture_sizes=capture_sizes if self.graphs else (),
            graph_padding=graph_padding,
            mixed_steps=self.profile.mixed_steps if mixed is None else mixed,
            chunked_prefill=chunked_prefill,
            prefix_cache=self.wanted.prefix_cache,
            micro_batch_running=max(1, max_running // micro_batches),
        )


# --- vLLM -----------------------------------------------------------------------------------------------------------

# as the levers name them, and as vLLM does
LOW_LATENCY_A2A = ("deepep_ll", "mori_ll", "nixl_ep", "deepep_low_latency", "mori_low_latency")


def _vllm(case: _Case) -> Settings:
    seqs, tokens = vllm_batch_defaults(case.hbm_gib)
    layout, wanted = case.layout, case.wanted
    if case.deployment.kernels.a2a in LOW_LATENCY_A2A and layout.ep > 1 and layout.attn_dp > 1:
        seqs = 256
    budget = wanted.token_budget or tokens
    if wanted.max_running and wanted.token_budget and wanted.token_budget < wanted.max_running:
        raise BadInput(
            f"token_budget {wanted.token_budget} is below max_running {wanted.max_running}; vLLM does not start so"
        )
    running = wanted.max_running or min(seqs, budget)
    ceiling = wanted.graph_max_bs * case.decode_tokens if wanted.graph_max_bs else None
    return case.settings(
        max_running=running,
        token_budget=budget,
        chunk_size=min(wanted.chunk_size or budget, budget),
        kv_mem_fraction=case.fraction(case.release.kv_mem_fraction),
        block_size=wanted.block_size or _vllm_block(case),
        capture_sizes=vllm_capture_sizes(running, budget, case.decode_tokens, ceiling, blackwell(case.platform)),
    )


def vllm_batch_defaults(hbm_gib: float) -> tuple[int, int]:
    """Default ``max_num_seqs`` and ``max_num_batched_tokens`` of the API server.

    >>> vllm_batch_defaults(192.0), vllm_batch_defaults(79.1), vllm_batch_defaults(44.0)
    ((1024, 16384), (1024, 8192), (256, 2048))
    """
    return (1024, 16384) if hbm_gib >= 160 else (1024, 8192) if hbm_gib >= 70 else (256, 2048)


def _vllm_block(case: _Case) -> int:
    """Block size the attention backend prefers where none is given."""
    kind = case.card.attention.kind
    if kind == "compressed":
        return 256
    if kind == "mla":
        return 1 if case.platform.vendor == "amd" else 64
    return 128 if case.card.attention.index_heads else case.release.block_size


def blackwell(platform: Platform) -> bool:
    """SM100 family: NVIDIA with FP4 tensor cores."""
    return platform.vendor == "nvidia" and platform.peak_fp4_flops is not None


# --- SGLang ---------------------------------------------------------------------------------------------------------


def _sglang(case: _Case) -> Settings:
    layout, wanted, dp = case.layout, case.wanted, case.layout.attn_dp
    default_chunk, default_graph = sglang_memory_tier(case.hbm_gib, layout.tp)
    chunk_all = wanted.chunk_size or default_chunk
    page = wanted.block_size or _sglang_page(case)
    chunked = chunk_all > 0
    chunk = max(page, chunk_all // dp // page * page) if chunked else 0
    explicit = wanted.max_running
    if explicit is None and case.deployment.speculation.active:
        explicit = case.profile.spec_max_running
    running = max(1, explicit // dp) if explicit else case.release.max_running
    graph_bs = wanted.graph_max_bs or min(default_graph, running)
    budget = wanted.token_budget or case.release.token_budget
    fraction = case.fraction(
        sglang_mem_fraction(
            case.platform,
            case.card,
            layout,
            graph_bs=graph_bs if case.graphs and case.role != "prefill" else 0,
            activation_tokens=running * case.decode_tokens if case.role == "decode" else chunk or budget,
            prefill_graphs=case.graphs and case.role != "decode",
            deepep=case.deployment.kernels.a2a.startswith("deepep"),
        )
    )
    if case.card.max_context_tokens > 8192 and sglang_uses_aiter(case.platform, case.card, layout, case.attention):
        fraction *= 0.85
    return case.settings(
        max_running=running,
        token_budget=budget if chunked else max(budget, case.card.max_context_tokens),
        chunk_size=chunk,
        kv_mem_fraction=fraction,
        block_size=page,
        capture_sizes=sglang_capture_sizes(graph_bs, case.deployment.speculation.active),
        chunked_prefill=chunked,
        micro_batches=layout.pp,
    )


def sglang_memory_tier(hbm_gib: float, tp: int) -> tuple[int, int]:
    """Default ``chunked_prefill_size`` and decode graph maximum by GPU memory.

    >>> sglang_memory_tier(288.0, 8), sglang_memory_tier(139.8, 2), sglang_memory_tier(79.1, 4)
    ((16384, 512), (8192, 256), (8192, 512))
    """
    if hbm_gib < 20:
        return 2048, 8
    if hbm_gib < 35:
        return 4096, 48 if tp < 4 else 160
    if hbm_gib < 60:
        return 4096, 32 if tp < 4 else 160
    return (16384, 512) if hbm_gib >= 160 else (8192, 256 if tp < 4 else 512)


def sglang_mem_fraction(
    platform: Platform,
    card: ModelCard,
    layout: Layout,
    *,
    graph_bs: int,
    activation_tokens: int,
    prefill_graphs: bool,
    deepep: bool,
) -> float:
    """Default ``mem_fraction_static``: 1 less the share reserved for activations and graphs (MiB terms, SGLang 0.5.23).

    On CUDA without MLA and with prefill graphs the pool is sized after capture, so only 1536 MiB and the parallel slack
    are reserved. Multimodal checkpoints reserve more: 8 GiB after capture, else a factor by the vision tower's size.
    """
    total_mib = platform.hbm_bytes / MIB
    slack = 1024 * layout.tp * layout.pp / 8
    mla = card.attention.kind in ("mla", "compressed")
    if platform.vendor == "nvidia" and not mla and prefill_graphs and layout.dcp == 1:
        vision = 8192.0 if card.vision_layers else 0.0
        return round((total_mib - 1536 - slack) / total_mib, 3) - vision / total_mib
    attn_dp = layout.attn_dp if layout.attn_dp > 1 else 0
    reserve = 512 + 1.5 * max(activation_tokens, 2048) + slack
    reserve += graph_bs * (2 + attn_dp * (4.5 if graph_bs > 300 else 3.0))
    if prefill_graphs:
        reserve += 1536 if mla else 8 * prefill_graph_count(activation_tokens)
    if total_mib > 60 * 1024:
        reserve = max(reserve, 10 * 1024)
    fraction = round((total_mib - reserve - (2048 if deepep else 0)) / total_mib, 3)
    return fraction * _vision_factor(card)


def _vision_factor(card: ModelCard) -> float:
    """Share left to a multimodal model: 0.95 for a ViT-L/14 (24 layers of 1024), less 10% for each doubling of it."""
    if not card.vision_layers:
        return 1.0
    ratio = card.vision_layers * card.vision_hidden**2 / (24 * 1024**2)
    return 0.95 * min(1.05, max(0.8, 1.0 - 0.1 * (ratio - 1.0)))


def sglang_uses_aiter(platform: Platform, card: ModelCard, layout: Layout, attention: str) -> bool:
    """Whether AITER attention serves this model on ROCm: as asked, else GQA, and MLA at 16 or 128 local heads."""
    if platform.vendor != "amd":
        return False
    if attention != "auto":
        return attention == "aiter"
    kind, local = card.attention.kind, card.attention.heads // layout.attn_tp
    return local in (16, 128) if kind == "mla" else kind == "gqa"


def _sglang_page(case: _Case) -> int:
    attention = case.card.attention
    if attention.kind == "compressed":
        return 256
    if attention.kind == "gqa" and attention.index_heads:
        return attention.index_block
    return 64 if attention.index_heads and case.platform.vendor == "nvidia" else case.release.block_size


def sglang_max_running(settings: Settings, pool_tokens: int, context_tokens: int, explicit: bool) -> int:
    """Running limit once the pool is known: ``clamp(tokens/context·512, 2048, 4096)`` where unset, at most tokens/2.

    >>> bare = Settings(4096, 16384, 8192, 0.9, 1, (1,), True, False, True, True, 4096)
    >>> sglang_max_running(bare, 500_000, 131_072, False), sglang_max_running(bare, 3_000, 131_072, False)
    (2048, 1500)
    """
    estimate = max(min(int(pool_tokens / context_tokens * 512), 4096), 2048)
    return max(1, min(settings.max_running if explicit else estimate, pool_tokens // 2))


# --- ATOM and TensorRT-LLM ------------------------------------------------------------------------------------------


def _atom(case: _Case) -> Settings:
    wanted = case.wanted
    running, budget = wanted.max_running or case.release.max_running, wanted.token_budget or case.release.token_budget
    default_block = 256 if case.card.attention.kind == "compressed" else case.release.block_size
    top = wanted.graph_max_bs or case.release.graph_max_bs
    return case.settings(
        max_running=running,
        token_budget=budget,
        chunk_size=min(wanted.chunk_size or budget, budget),
        kv_mem_fraction=case.fraction(case.release.kv_mem_fraction),
        block_size=wanted.block_size or default_block,
        capture_sizes=tuple(sorted({size for size in ATOM_CAPTURE if size <= top} | {top})),
    )


def _trtllm(case: _Case) -> Settings:
    """Asking for a graph maximum also turns padding on: without it an unlisted batch runs eager."""
    wanted = case.wanted
    padding = wanted.graph_max_bs is not None
    return case.settings(
        max_running=wanted.max_running or case.release.max_running,
        token_budget=wanted.token_budget or case.release.token_budget,
        chunk_size=wanted.chunk_size or case.release.token_budget,
        kv_mem_fraction=case.fraction(case.release.kv_mem_fraction),
        block_size=wanted.block_size or case.release.block_size,
        capture_sizes=trtllm_capture_sizes(wanted.graph_max_bs or case.release.graph_max_bs, padding),
        graph_padding=padding,
        chunked_prefill=wanted.chunk_size is not None,
    )
