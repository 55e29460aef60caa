"""Host tiers: the exclusive pair is two leaf-first caches, write policies, and the link."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.des.prefix_cache import PrefixCache
from predictor.des.tiers import OFFLOAD_RULES, TierCache, offload_rule
from predictor.errors import UnknownName
from predictor.offload import HostTier
from predictor.workload.blocks import BlockForest, Prompt

Block = tuple[int, ...]
BLOCK_TOKENS = 64
contents = st.lists(st.integers(0, 2), max_size=8).map(tuple)


def blocks_of(content: Block) -> list[Block]:
    return [content[: depth + 1] for depth in range(len(content))]


def place(forest: BlockForest, content: Block) -> Prompt:
    return forest.named([str(block) for block in blocks_of(content)])


class ExclusivePair:
    """Block by block: HBM evicts leaves into DRAM, a use brings blocks up, DRAM drops the oldest leaf of both."""

    def __init__(self, hbm: int, dram: int) -> None:
        self.hbm_size, self.dram_size = hbm, dram
        self.hbm: dict[Block, int] = {}
        self.dram: dict[Block, int] = {}
        self.clock = 0

    def use(self, blocks: list[Block]) -> tuple[int, int]:
        upper = next((n for n, b in enumerate(blocks) if b not in self.hbm), len(blocks))
        either = next((n for n, b in enumerate(blocks) if b not in self.hbm and b not in self.dram), len(blocks))
        self.clock += 1
        for block in blocks:
            self.dram.pop(block, None)
            self.hbm[block] = self.clock
        while len(self.hbm) > self.hbm_size:
            victim = self._oldest_leaf(self.hbm, self.hbm)
            self.dram[victim] = self.hbm.pop(victim)
        while len(self.dram) > self.dram_size:
            del self.dram[self._oldest_leaf(self.dram, self.hbm | self.dram)]
        return upper, either

    @staticmethod
    def _oldest_leaf(among: dict[Block, int], resident: dict[Block, int]) -> Block:
        inner = {block[:-1] for block in resident}
        return min((block for block in among if block not in inner), key=lambda block: among[block])


def tier(name: str, dram_blocks: int, hbm_blocks: int = 0) -> TierCache:
    return TierCache(HostTier(dram_blocks * BLOCK_TOKENS, 10.0, 1e9, offload_rule(name)), BLOCK_TOKENS, hbm_blocks)


@given(st.lists(contents, max_size=25), st.integers(0, 12), st.integers(0, 12))
def test_an_exclusive_pair_is_two_leaf_first_caches(prompts: list[Block], hbm_blocks: int, dram_blocks: int) -> None:
    forest, reference = BlockForest(), ExclusivePair(hbm_blocks, dram_blocks)
    hbm = PrefixCache(hbm_blocks)
    host = tier("trtllm-host", dram_blocks, hbm_blocks)
    for content in prompts:
        prompt = place(forest, content)
        upper = hbm.resident_prefix(prompt)
        either = host.found_blocks(prompt, upper)
        assert (upper, either) == reference.use(blocks_of(content))
        hbm.use(prompt)
        host.used(prompt, either)


def test_a_tier_matches_what_it_stored() -> None:
    # sgl-project/sglang #33713: a tier stored, evicted and kept blocks, yet never matched them on return
    for name in OFFLOAD_RULES:
        forest, hbm, host = BlockForest(), PrefixCache(16), tier(name, dram_blocks=1000, hbm_blocks=16)
        session = [f"a{depth}" for depth in range(16)]
        for ids in (session, session, [f"b{depth}" for depth in range(16)], [f"c{depth}" for depth in range(16)]):
            prompt = forest.named(ids)
            hit = hbm.use(prompt).hit_blocks
            host.used(prompt, hit)
        returning = forest.named(session)
        assert hbm.resident_prefix(returning) == 0
        assert host.found_blocks(returning, 0) == 16, name


def test_selective_keeps_only_what_was_found_again() -> None:
    forest, host = BlockForest(), tier("hicache-selective", dram_blocks=100)
    prompt = forest.named([*range(10)])
    host.used(prompt, hit_blocks=0)
    assert host.found_blocks(prompt, 0) == 0
    host.used(prompt, hit_blocks=6)
    assert host.found_blocks(prompt, 0) == 6


def test_lmcache_works_in_chunks_of_256_tokens() -> None:
    forest, host = BlockForest(), tier("lmcache", dram_blocks=100)
    prompt = forest.named([*range(11)])  # 704 tokens: two whole chunks
    host.used(prompt, 0)
    assert host.found_blocks(prompt, 0) == 8
    assert host.found_blocks(prompt, 4) == 8
    assert host.found_blocks(prompt, 5) == 5  # less than a chunk would be loaded


def test_small_finds_are_recomputed() -> None:
    forest, host = BlockForest(), tier("umbp", dram_blocks=100)
    prompt = forest.named([*range(3)])
    host.used(prompt, 0)
    assert host.found_blocks(prompt, 0) == 0  # 192 tokens, below the 256 from which it prefetches


def test_a_full_tier_drops_the_oldest_tail() -> None:
    forest, host = BlockForest(), tier("vllm-native", dram_blocks=10)
    first, second = forest.named([*range(8)]), forest.named([*range(100, 106)])
    host.used(first, 0)
    host.used(second, 0)
    assert [host.found_blocks(prompt, 0) for prompt in (first, second)] == [4, 6]


def test_blocks_hbm_gives_up_move_down() -> None:
    forest, hbm, host = BlockForest(), PrefixCache(8), tier("trtllm-host", dram_blocks=4, hbm_blocks=8)
    prompt = forest.named([*range(8)])
    hbm.use(prompt)
    host.used(prompt, 0)
    hbm.resize(2)
    host.hbm_resized(2)
    assert hbm.resident_prefix(prompt) == 2
    assert host.found_blocks(prompt, 2) == 6


def test_loads_queue_on_the_link() -> None:
    host = tier("vllm-native", dram_blocks=100)
    ms_a_block = 64 * 10.0 / 1e6
    assert host.load(5.0, 100) == pytest.approx(5.0 + 100 * ms_a_block)
    assert host.load(5.0, 50) == pytest.approx(5.0 + 150 * ms_a_block)
    assert host.load(9.0, 50) == pytest.approx(9.0 + 50 * ms_a_block)


def test_rules_are_data_with_a_source() -> None:
    assert all(rule.source for rule in OFFLOAD_RULES.values())
    policies = {rule.write_policy for rule in OFFLOAD_RULES.values()}
    assert policies == {"write_through", "write_through_selective", "write_back"}
    with pytest.raises(UnknownName, match="nearest: lmcache"):
        offload_rule("lmcash")
