"""KV below HBM: a host-memory tier per replica (paper §3.5, B.6).

A tier answers how much of a prompt it adds to what HBM holds, takes copies by the write policy of the offload engine,
and queues loads on the host link of its rank, where they delay only the request they belong to.

Write policies:

- *write back*: blocks move down when HBM evicts them and back up when they are used: the tiers are exclusive. Under
  leaf-first LRU that pair needs no list of its own: HBM is a cache of C1 blocks, HBM and tier together one of C1 + C2.
- *write through*: every computed prompt is copied at once, so the tier is an LRU of its own over the same uses.
- *write through, selective*: only what was found again, i.e. the hit part of a prompt, is copied.
"""

from dataclasses import dataclass
from enum import StrEnum

from predictor.des.prefix_cache import PrefixCache
from predictor.errors import BadInput, unknown_name
from predictor.workload.blocks import Prompt


class WritePolicy(StrEnum):
    """When blocks are copied into the tier."""

    WRITE_BACK = "write_back"
    WRITE_THROUGH = "write_through"
    SELECTIVE = "write_through_selective"


@dataclass(frozen=True, slots=True)
class OffloadEngine:
    """Rules of one offload engine. ``chunk_tokens``: granularity of copies and hits, None for the cache's own blocks.

    ``least_load_tokens``: a smaller find in the tier is recomputed. ``layerwise``: the load runs beside the prefill,
    layer by layer, and only what exceeds it delays the request.
    """

    name: str
    write: WritePolicy
    chunk_tokens: int | None
    least_load_tokens: int
    layerwise: bool
    source: str


OFFLOAD_ENGINES = (
    OffloadEngine(
        name="hicache",
        write=WritePolicy.WRITE_THROUGH,
        chunk_tokens=None,
        least_load_tokens=10,
        layerwise=True,
        source="SGLang 0.5.23 wheel: --hicache-write-policy write_through (default), load-back from 10 host tokens",
    ),
    OffloadEngine(
        name="hicache-selective",
        write=WritePolicy.SELECTIVE,
        chunk_tokens=None,
        least_load_tokens=10,
        layerwise=True,
        source="SGLang 0.5.23 wheel: write_through_selective, backed up from the second use",
    ),
    OffloadEngine(
        name="hicache-write-back",
        write=WritePolicy.WRITE_BACK,
        chunk_tokens=None,
        least_load_tokens=10,
        layerwise=True,
        source="SGLang 0.5.23 wheel: write_back, backed up at eviction",
    ),
    OffloadEngine(
        name="lmcache",
        write=WritePolicy.WRITE_THROUGH,
        chunk_tokens=256,
        least_load_tokens=256,
        layerwise=False,
        source="LMCache 0.5.6 wheel: chunks of 256 tokens, partial chunks and decode KV not saved, LRU",
    ),
    OffloadEngine(
        name="vllm-native",
        write=WritePolicy.WRITE_THROUGH,
        chunk_tokens=None,
        least_load_tokens=1,
        layerwise=False,
        source="vLLM 0.33.0 wheel: native offload, prompt blocks stored when complete, LRU, a hit waits outside the batch",
    ),
    OffloadEngine(
        name="umbp",
        write=WritePolicy.WRITE_THROUGH,
        chunk_tokens=None,
        least_load_tokens=256,
        layerwise=False,
        source="SGLang 0.5.23 wheel: HiCache storage backend mori (UMBP), prefetch from 256 tokens",
    ),
    OffloadEngine(
        name="trtllm-host",
        write=WritePolicy.WRITE_BACK,
        chunk_tokens=None,
        least_load_tokens=1,
        layerwise=False,
        source="TensorRT-LLM main@002f3cc3: host_cache_size, blocks are copied out at eviction",
    ),
)


def offload_engine(name: str) -> OffloadEngine:
    """Rules by name.

    >>> offload_engine("lmcache").chunk_tokens
    256
    """
    for engine in OFFLOAD_ENGINES:
        if engine.name == name:
            return engine
    raise unknown_name("offload engine", name, (engine.name for engine in OFFLOAD_ENGINES))


class HostLink:
    """Host-to-device copies of one rank, first come first served."""

    def __init__(self, bytes_per_s: float) -> None:
        if bytes_per_s <= 0:
            raise BadInput(f"host link bytes_per_s {bytes_per_s}: positive")
        self._bytes_per_ms = bytes_per_s / 1000.0
        self._free_at_ms = 0.0

    def load(self, now_ms: float, copied_bytes: float) -> float:
        """Queue a copy; returns when it is done, ms.

        >>> link = HostLink(1e9)
        >>> link.load(10.0, 5e6), link.load(11.0, 5e6), link.load(40.0, 5e6)
        (15.0, 20.0, 45.0)
        """
        self._free_at_ms = max(self._free_at_ms, now_ms) + copied_bytes / self._bytes_per_ms
        return self._free_at_ms


@dataclass(frozen=True, slots=True)
class TierSize:
    """Size and link of one rank's tier: its DRAM share, its share of a token's KV, and its host-to-device bandwidth."""

    dram_bytes: float
    kv_bytes_per_token: float
    link_bytes_per_s: float

    def blocks(self, block_tokens: int) -> int:
        """Blocks the tier holds."""
        return int(self.dram_bytes // (self.kv_bytes_per_token * block_tokens))


class HostTier:
    """The second level of one replica's block cache."""

    def __init__(self, size: TierSize, engine: OffloadEngine, block_tokens: int, hbm_blocks: int) -> None:
        self.engine = engine
        self.tier_blocks = size.blocks(block_tokens)
        self.link = HostLink(size.link_bytes_per_s)
        self._block_bytes = size.kv_bytes_per_token * block_tokens
        self._chunk_blocks = max(1, (engine.chunk_tokens or block_tokens) // block_tokens)
        self._least_blocks = -(-engine.least_load_tokens // block_tokens)
        self._exclusive = engine.write is WritePolicy.WRITE_BACK
        self._cache = PrefixCache(self.tier_blocks + (hbm_blocks if self._exclusive else 0))

    def found_blocks(self, prompt: Prompt, hbm_hit_blocks: int) -> int:
        """Leading blocks in HBM or the tier; at least the HBM hit, and that alone where loading is not worth it."""
        run = self._cache.resident_prefix(prompt) // self._chunk_blocks * self._chunk_blocks
        return run if run - hbm_hit_blocks >= self._least_blocks else hbm_hit_blocks

    def used(self, prompt: Prompt, hit_blocks: int) -> None:
        """A prompt was served: copy by the write policy. ``hit_blocks`` were found in either level."""
        if self.engine.write is WritePolicy.SELECTIVE:
            prompt = prompt.head(hit_blocks)
        elif not self._exclusive:
            prompt = prompt.head(prompt.blocks // self._chunk_blocks * self._chunk_blocks)
        self._cache.use(prompt)

    def hbm_resized(self, hbm_blocks: int) -> None:
        """HBM holds so many blocks now; what it gives up moves down in an exclusive pair."""
        if self._exclusive:
            self._cache.resize(self.tier_blocks + hbm_blocks)

    def load(self, now_ms: float, blocks: int) -> float:
        """Queue a load of so many blocks; returns when it is done, ms."""
        return self.link.load(now_ms, blocks * self._block_bytes)


def exposed_load_ms(load_ms: float, prefill_ms: float, layerwise: bool) -> float:
    """Part of a load that delays its request: all of it, or what exceeds the prefill it runs beside.

    >>> exposed_load_ms(50.0, 30.0, layerwise=False), exposed_load_ms(50.0, 30.0, layerwise=True)
    (50.0, 20.0)
    """
    return max(0.0, load_ms - prefill_ms) if layerwise else load_ms
