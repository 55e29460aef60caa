"""Levers 25–33: scheduler limits, speculation and memory tiers."""

from levers.catalog.common import ATOM, SGLANG, TRTLLM, VLLM, always, constant, flags, title
from levers.context import GB, LeverValue, SearchContext
from levers.lever import Group, Kind, Lever, Range
from levers.reasons import Reason

SCHEDULER = "scheduler"
MAX_DRAFT_DEPTH = 8  # paper Table 4: depth 0-8
HOST_DRAM_SHARE = 0.8  # SGLang keeps its host pool below 0.8 of the node's memory when it sizes it itself
ALL_BLOCKS = (None, 1, 16, 32, 64, 128, 256)
# page or block sizes each engine's flag accepts
ENGINE_BLOCKS: dict[str, tuple[int, ...]] = {
    VLLM: (1, 16, 32, 64, 128, 256),
    SGLANG: (1, 16, 32, 64, 128, 256),
    ATOM: (16, 32, 64, 128, 256),
    TRTLLM: (16, 32, 64, 128),
}


def block_listed(context: SearchContext, value: LeverValue) -> Reason | None:
    """The engine's flag must accept the size."""
    sizes = ENGINE_BLOCKS.get(context.engine.name, ())
    if value is None or value in sizes:
        return None
    listed = ", ".join(str(size) for size in sizes)
    return Reason("block_size_engine", f"block_size={value}: {title(context)} accepts {listed}")


def spec_candidates(context: SearchContext) -> tuple[LeverValue, ...]:
    """Methods of paper Table 4."""
    return ("none", "mtp", "eagle3", "dspark", "ngram")


def spec_listed(context: SearchContext, value: LeverValue) -> Reason | None:
    """The engine must have the method, and the model its drafter."""
    if value == "none":
        return None
    if value not in context.engine.spec_methods:
        have = ", ".join(context.engine.spec_methods) or "none"
        return Reason("spec_engine", f"spec_method={value}: {title(context)} does not offer it; it has {have}")
    if value == "mtp" and not context.card.mtp_layers:
        return Reason("spec_mtp", f"spec_method=mtp: {context.card.name} has no MTP layers; use ngram or a draft model")
    if value in ("eagle3", "dspark") and value not in context.card.drafters:
        return Reason("spec_drafter", f"spec_method={value}: no published {value} drafter for {context.card.name}")
    return None


def depth_candidates(context: SearchContext) -> tuple[LeverValue, ...]:
    """Every depth of paper Table 4 that drafts something."""
    return tuple(range(1, MAX_DRAFT_DEPTH + 1))


def depth_allowed(context: SearchContext, value: LeverValue) -> Reason | None:
    """ATOM drafts 1 to 4 tokens; each engine says its own range."""
    assert isinstance(value, int)
    low, high = context.engine.spec_depth_range
    if value == 0 or low <= value <= high:
        return None
    return Reason("spec_depth_engine", f"spec_depth={value}: {title(context)} drafts {low} to {high} tokens")


def host_node_gb(context: SearchContext) -> float:
    """Host memory of one node that KV may use, GB."""
    return HOST_DRAM_SHARE * context.platform.host_dram_bytes / GB


def host_candidates(context: SearchContext) -> tuple[LeverValue, ...]:
    """None, and an eighth, a quarter, half, all and twice of a GPU's part of its node, in whole GB.

    Twice its part is legal where half of a node's GPUs are used.
    """
    part_gb = host_node_gb(context) / context.cluster.gpus_per_node
    sizes = {float(int(part_gb * share)) for share in (0.125, 0.25, 0.5, 1.0, 2.0)}
    return (0.0, *sorted(size for size in sizes if size > 0))


def host_fits(context: SearchContext, value: LeverValue) -> Reason | None:
    """One GPU's host pool lies on its node; what all of a node's ask for depends on the layout."""
    assert isinstance(value, int | float)
    limit = host_node_gb(context)
    if value <= limit:
        return None
    return Reason(
        "host_dram",
        f"host_kv_gb={value:g} a GPU exceeds {HOST_DRAM_SHARE:.0%} of the host memory of a {context.platform.name} "
        f"node ({context.platform.host_dram_bytes / GB:,.0f} GB): use at most {limit:.0f}",
    )


def chunk_candidates(context: SearchContext) -> tuple[LeverValue, ...]:
    """The engine's default and usual chunks; "no limit" where it is not the default already (SGLang)."""
    sizes = (1024, 2048, 4096, 8192, 16384)
    return (None, 0, *sizes) if context.engine.name == SGLANG else (None, *sizes)


def trtllm_chunk(context: SearchContext, value: LeverValue) -> Reason | None:
    """TensorRT-LLM chunks or not: there is no third state."""
    if value == 0 and context.engine.name == TRTLLM:
        return Reason(
            "chunk_off", "chunk_size=0: TensorRT-LLM starts with chunking off; leave chunk_size at its default"
        )
    return None


LEVERS = (
    Lever(
        number=25,
        name="max_running",
        group=Group.SCHEDULER,
        kind=Kind.SCHEDULER,
        what="cap on running requests",
        owner=SCHEDULER,
        field="max_running",
        candidates=constant(None, 8, 16, 32, 48, 64, 128, 256, 512, 1024),
        default=always(None),
        flags=flags(
            "--max-num-seqs (by GPU)",
            "--max-running-requests (auto)",
            "--max-num-seqs (512)",
            "max_batch_size (2048)",
            {
                VLLM: "for each attention-DP rank",
                SGLANG: "over all attention-DP ranks",
                ATOM: "for each rank",
                TRTLLM: "for each rank",
            },
        ),
        exclusions=(),
        accepts=Range(1, 4096, default_allowed=True),
    ),
    Lever(
        number=26,
        name="token_budget",
        group=Group.SCHEDULER,
        kind=Kind.SCHEDULER,
        what="tokens one step may process",
        owner=SCHEDULER,
        field="token_budget",
        candidates=constant(None, 2048, 4096, 8192, 16384, 32768, 65536),
        default=always(None),
        flags=flags(
            "--max-num-batched-tokens (by GPU)",
            "--max-prefill-tokens (16384)",
            "--max-num-batched-tokens (16384)",
            "max_num_tokens (8192)",
        ),
        exclusions=(),
        accepts=Range(512, 65536, default_allowed=True),
    ),
    Lever(
        number=27,
        name="chunk_size",
        group=Group.SCHEDULER,
        kind=Kind.SCHEDULER,
        what="prompt tokens of one request in a step (0: no limit)",
        owner=SCHEDULER,
        field="chunk_size",
        candidates=chunk_candidates,
        default=always(None),
        flags=flags(
            "--long-prefill-token-threshold (0)",
            "--chunked-prefill-size (by GPU)",
            "--long-prefill-token-threshold (0)",
            "enable_chunked_prefill (false)",
            {
                SGLANG: "divided by attention DP: multiply it; -1 for no limit",
                TRTLLM: "a switch; the chunk is what is left of max_num_tokens",
            },
        ),
        exclusions=(trtllm_chunk,),
        accepts=Range(0, 65536, default_allowed=True),
    ),
    Lever(
        number=28,
        name="kv_mem_fraction",
        group=Group.SCHEDULER,
        kind=Kind.SCHEDULER,
        what="share of memory for weights and KV (each engine its own base)",
        owner=SCHEDULER,
        field="kv_mem_fraction",
        candidates=constant(None, 0.8, 0.85, 0.9, 0.92, 0.95),
        default=always(None),
        flags=flags(
            "--gpu-memory-utilization (0.92)",
            "--mem-fraction-static (by GPU)",
            "--gpu-memory-utilization (0.9)",
            "kv_cache_config.free_gpu_memory_fraction (0.9)",
        ),
        exclusions=(),
        accepts=Range(0.5, 0.97, integer=False, default_allowed=True),
    ),
    Lever(
        number=29,
        name="block_size",
        group=Group.SCHEDULER,
        kind=Kind.SCHEDULER,
        what="tokens of one KV block",
        owner=SCHEDULER,
        field="block_size",
        candidates=constant(*ALL_BLOCKS),
        default=always(None),
        flags=flags(
            "--block-size (16 or the backend's)",
            "--page-size (1 or the backend's)",
            "--block-size (16)",
            "kv_cache_config.tokens_per_block (32)",
        ),
        exclusions=(block_listed,),
    ),
    Lever(
        number=30,
        name="spec_method",
        group=Group.SPECULATION,
        kind=Kind.ANCHOR,
        what="how tokens are drafted",
        owner="speculation",
        field="method",
        candidates=spec_candidates,
        default=always("none"),
        flags=flags("--speculative-config", "--speculative-algorithm", "--method", "speculative_config.decoding_type"),
        exclusions=(spec_listed,),
    ),
    Lever(
        number=31,
        name="spec_depth",
        group=Group.SPECULATION,
        kind=Kind.TRANSFERABLE,
        what="drafted tokens a step",
        owner="speculation",
        field="depth",
        candidates=depth_candidates,
        default=always(1),
        flags=flags(
            "num_speculative_tokens in --speculative-config",
            "--speculative-num-steps",
            "--num-speculative-tokens (1)",
            "max_draft_len or num_nextn_predict_layers",
            {SGLANG: "with --speculative-eagle-topk 1 and --speculative-num-draft-tokens depth + 1"},
        ),
        exclusions=(depth_allowed,),
        accepts=Range(0, MAX_DRAFT_DEPTH),
        governor=("spec_method", "none"),
    ),
    Lever(
        number=32,
        name="prefix_cache",
        group=Group.MEMORY,
        kind=Kind.SCHEDULER,
        what="whether prompts reuse cached blocks",
        owner=SCHEDULER,
        field="prefix_cache",
        candidates=constant(True, False),
        default=always(True),
        flags=flags(
            "--[no-]enable-prefix-caching (on)",
            "--disable-radix-cache (on)",
            "--[no-]enable_prefix_caching (on)",
            "kv_cache_config.enable_block_reuse (true)",
        ),
    ),
    Lever(
        number=33,
        name="host_kv_gb",
        group=Group.MEMORY,
        kind=Kind.TRANSFERABLE,
        what="host memory for evicted KV, GB a GPU",
        owner="",
        field="host_kv_gb",
        candidates=host_candidates,
        default=always(0.0),
        flags=flags(
            "--kv-offloading-size (0)",
            "--enable-hierarchical-cache --hicache-size (off)",
            "--kv-transfer-config lmcache_offload (off)",
            "kv_cache_config.host_cache_size (0)",
            {
                VLLM: "GiB of all TP ranks together: GB a GPU times its attention's tp",
                SGLANG: "GB of each rank",
                ATOM: "LMCACHE_MAX_LOCAL_CPU_SIZE, GB of each process",
                TRTLLM: "bytes of each rank",
            },
        ),
        exclusions=(host_fits,),
        accepts=Range(0, 100000.0, integer=False),
    ),
)
