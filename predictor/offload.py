"""Host memory as a second level of the KV cache: how much a rank holds, and how long a load keeps a request waiting.

Paper §3.5, App. B.6. Blocks evicted from HBM move to DRAM; a prefix found there is copied back over the rank's own
host link before the request is scheduled. A load adds to that request's TTFT and stalls nobody's step; loads on one
link queue behind each other::

    start = max(arrival, link free)        end = start + tokens · bytes a token of this rank / link rate

The tier's size is the DRAM the run hands its engine over its GPUs. MLA caches are replicated over TP: every rank then
stores and loads its own copy. What the engines' own flags mean is in :data:`TIER_RULES`.
"""

from dataclasses import dataclass
from typing import Literal

from predictor.cards import Platform
from predictor.errors import BadInput, unknown_name

SizeBasis = Literal["replica", "rank"]
WritePolicy = Literal["write_through", "write_through_selective", "write_back"]


@dataclass(frozen=True, slots=True)
class TierRule:
    """How one engine's host tier behaves."""

    size_basis: SizeBasis  # what its size flag counts: the replica's GPUs together, or each rank
    write_policy: WritePolicy
    min_load_tokens: int  # shorter hits are recomputed
    overlaps_prefill: bool  # loads layer by layer under the prefill, else before it
    source: str
    chunk_tokens: int = 1  # copies and hits are whole multiples of this


# By name of the engine profile. ATOM's tier is LMCache. write_back copies at the eviction and delays it.
TIER_RULES: dict[str, TierRule] = {
    "vLLM": TierRule("replica", "write_through", 1, False, "vLLM --kv-offloading-size, native backend"),
    "SGLang": TierRule("rank", "write_through", 10, True, "SGLang HiCache, load-back from 10 host tokens"),
    "ATOM": TierRule("rank", "write_through", 256, False, "LMCache 0.5.6 chunks of 256 tokens, size a process", 256),
    "TensorRT-LLM": TierRule("rank", "write_back", 1, False, "TensorRT-LLM kv_cache_config.host_cache_size"),
}


@dataclass(frozen=True, slots=True)
class HostTier:
    """The tier of one rank: capacity in tokens and the rate of its host link."""

    capacity_tokens: int
    bytes_per_token: float
    link_bytes_per_s: float
    rule: TierRule

    def load_ms(self, tokens: float) -> float:
        """Time to copy a prefix of ``tokens`` back to HBM on an idle link."""
        return tokens * self.bytes_per_token / self.link_bytes_per_s * 1e3

    def worth_loading(self, tokens: int) -> bool:
        """Whether the engine loads a hit of this length rather than recompute it."""
        return tokens >= self.rule.min_load_tokens


def tier_rule(engine: str) -> TierRule:
    """Rules of an engine's host tier."""
    for name, rule in TIER_RULES.items():
        if name.lower() == engine.lower():
            return rule
    raise unknown_name("host KV tier of engine", engine, TIER_RULES)


def host_tier(
    platform: Platform, engine: str, host_kv_gb: float, gpus: int, kv_bytes_per_token_rank: float
) -> HostTier:
    """Tier of each of ``gpus`` ranks that share ``host_kv_gb`` GB (10⁹ bytes) of DRAM evenly.

    Raises BadInput when the node's DRAM is smaller than what its ranks ask for.
    """
    if host_kv_gb < 0 or gpus < 1 or kv_bytes_per_token_rank <= 0:
        raise BadInput(
            f"host_kv_gb {host_kv_gb}, gpus {gpus}, bytes a token {kv_bytes_per_token_rank}: not a host tier"
        )
    nodes = -(-gpus // platform.gpus_per_node)
    if host_kv_gb * 1e9 > platform.host_dram_bytes * nodes:
        limit = platform.host_dram_bytes * nodes / 1e9
        raise BadInput(f"host_kv_gb is {host_kv_gb:g}; {nodes} {platform.name} node(s) have {limit:g} GB of DRAM")
    capacity = int(host_kv_gb * 1e9 / gpus / kv_bytes_per_token_rank)
    return HostTier(capacity, kv_bytes_per_token_rank, platform.host_link_bytes_per_s, tier_rule(engine))


def flag_gb(rule: TierRule, host_kv_gb: float, gpus: int) -> float:
    """Value of the engine's own size flag for ``host_kv_gb`` GB in all."""
    return host_kv_gb if rule.size_basis == "replica" else host_kv_gb / gpus


def queue_load(link_free_ms: float, arrival_ms: float, load_ms: float) -> tuple[float, float]:
    """First-come first-served on one link: when this load ends (and the link is free again), and how long it waited.

    >>> queue_load(10.0, 4.0, 3.0)
    (13.0, 6.0)
    """
    start = max(link_free_ms, arrival_ms)
    return start + load_ms, start - arrival_ms


def exposed_load_ms(rule: TierRule, load_ms: float, prefill_ms: float, layers: int) -> float:
    """Part of a load that delays the first token.

    Loaded before the prefill, all of it. Loaded layer by layer under it, layer 1 and then whatever the copy is behind.
    """
    if not rule.overlaps_prefill:
        return load_ms
    return max(load_ms / layers, load_ms - prefill_ms * (layers - 1) / layers)
