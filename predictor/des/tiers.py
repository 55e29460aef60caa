"""The host-memory tier of one replica, block by block (paper §3.5, B.6); sizes, links and prices: predictor.offload.

A tier answers how much of a prompt it adds to what HBM holds, takes copies by the write policy of the offload engine,
and queues loads on the host link of its rank, where they delay only the request they belong to.

Write policies:

- *write back*: blocks move down when HBM evicts them and back up when they are used: the tiers are exclusive. Under
  leaf-first LRU that pair needs no list of its own: HBM is a cache of C1 blocks, HBM and tier together one of C1 + C2.
- *write through*: every computed prompt is copied at once, so the tier is an LRU of its own over the same uses.
- *write through, selective*: only what was found again, i.e. the hit part of a prompt, is copied.
"""

from dataclasses import replace

from predictor.des.prefix_cache import PrefixCache
from predictor.errors import unknown_name
from predictor.offload import TIER_RULES, HostTier, TierRule, queue_load
from predictor.workload.blocks import Prompt

_HICACHE = TIER_RULES["SGLang"]

OFFLOAD_RULES: dict[str, TierRule] = {
    "vllm-native": TIER_RULES["vLLM"],
    "hicache": _HICACHE,
    "hicache-selective": replace(
        _HICACHE,
        write_policy="write_through_selective",
        source="SGLang 0.5.23 --hicache-write-policy write_through_selective: backed up from the second use",
    ),
    "hicache-write-back": replace(
        _HICACHE,
        write_policy="write_back",
        source="SGLang 0.5.23 --hicache-write-policy write_back: backed up at eviction",
    ),
    "umbp": replace(
        _HICACHE,
        min_load_tokens=256,
        overlaps_prefill=False,
        source="SGLang 0.5.23 HiCache storage backend mori (UMBP): prefetch from 256 tokens, before the prefill",
    ),
    "lmcache": TIER_RULES["ATOM"],
    "trtllm-host": TIER_RULES["TensorRT-LLM"],
}


def offload_rule(name: str) -> TierRule:
    """Rules of an offload engine by name.

    >>> offload_rule("lmcache").chunk_tokens
    256
    """
    if name not in OFFLOAD_RULES:
        raise unknown_name("offload engine", name, OFFLOAD_RULES)
    return OFFLOAD_RULES[name]


class TierCache:
    """What the second level of one replica's cache holds, and when its link is free."""

    def __init__(self, tier: HostTier, block_tokens: int, hbm_blocks: int) -> None:
        rule = tier.rule
        self.tier = tier
        self.tier_blocks = tier.capacity_tokens // block_tokens
        self._block_tokens = block_tokens
        self._chunk_blocks = max(1, rule.chunk_tokens // block_tokens)
        self._exclusive = rule.write_policy == "write_back"
        self._cache = PrefixCache(self.tier_blocks + (hbm_blocks if self._exclusive else 0))
        self._link_free_ms = 0.0

    def found_blocks(self, prompt: Prompt, hbm_hit_blocks: int) -> int:
        """Leading blocks in HBM or the tier; at least the HBM hit, and that alone where loading is not worth it."""
        run = self._cache.resident_prefix(prompt) // self._chunk_blocks * self._chunk_blocks
        more = run - hbm_hit_blocks
        return run if more > 0 and self.tier.worth_loading(more * self._block_tokens) else hbm_hit_blocks

    def used(self, prompt: Prompt, hit_blocks: int) -> None:
        """A prompt was served: copy by the write policy. ``hit_blocks`` were found in either level."""
        if self.tier.rule.write_policy == "write_through_selective":
            prompt = prompt.head(hit_blocks)
        elif not self._exclusive:
            prompt = prompt.head(prompt.blocks // self._chunk_blocks * self._chunk_blocks)
        self._cache.use(prompt)

    def hbm_resized(self, hbm_blocks: int) -> None:
        """HBM holds so many blocks now; what it gives up moves down in an exclusive pair."""
        if self._exclusive:
            self._cache.resize(self.tier_blocks + hbm_blocks)

    def load(self, now_ms: float, blocks: int) -> float:
        """Queue a load of so many blocks on the rank's link; returns when it is done, ms."""
        load_ms = self.tier.load_ms(blocks * self._block_tokens)
        self._link_free_ms, _ = queue_load(self._link_free_ms, now_ms, load_ms)
        return self._link_free_ms
