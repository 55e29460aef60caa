"""The prefix cache against LRU over single blocks, and reported problems of other caches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.prefix_cache import OrderedMapCache
from predictor.des.prefix_cache import Eviction, PrefixCache, Stretch
from predictor.errors import BadInput
from predictor.workload.blocks import BlockForest, Prompt

# Contents over a small alphabet, so that prompts share prefixes of all lengths.
contents = st.lists(st.integers(0, 2), max_size=9).map(tuple)
sequences = st.lists(contents, max_size=30)
capacities = st.integers(0, 25)

Block = tuple[int, ...]  # a block is its whole prefix


def blocks_of(content: tuple[int, ...]) -> list[Block]:
    return [content[: depth + 1] for depth in range(len(content))]


def place(forest: BlockForest, content: tuple[int, ...]) -> Prompt:
    return forest.named([str(block) for block in blocks_of(content)])


class FlatLru:
    """LRU over single blocks, a prompt touched head first."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.resident = capacity, dict[Block, int]()
        self.clock = 0

    def use(self, blocks: list[Block]) -> int:
        hit = next((n for n, block in enumerate(blocks) if block not in self.resident), len(blocks))
        for block in blocks:
            self.clock += 1
            self.resident[block] = self.clock
        while len(self.resident) > self.capacity:
            del self.resident[min(self.resident, key=lambda block: self.resident[block])]
        return hit


class LeafLru:
    """The definition: the victim has the oldest last user among resident blocks without a resident successor."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.last_user = capacity, dict[Block, int]()
        self.requests = 0

    def use(self, blocks: list[Block]) -> tuple[int, list[Block]]:
        hit = next((n for n, block in enumerate(blocks) if block not in self.last_user), len(blocks))
        self.requests += 1
        self.last_user |= dict.fromkeys(blocks, self.requests)
        gone = []
        while len(self.last_user) > self.capacity:
            inner = {block[:-1] for block in self.last_user}
            leaves = [block for block in self.last_user if block not in inner]
            victim = min(leaves, key=lambda block: self.last_user[block])
            del self.last_user[victim]
            gone.append(victim)
        return hit, gone


def resident(cache: PrefixCache, forest: BlockForest, content: tuple[int, ...]) -> int:
    return cache.resident_prefix(place(forest, content))


@given(sequences, capacities)
def test_leaf_first_is_the_definition_and_equals_tail_first_flat(prompts: list[tuple[int, ...]], capacity: int) -> None:
    forest, cache = BlockForest(), PrefixCache(capacity)
    definition, tail_first = LeafLru(capacity), OrderedMapCache(capacity)
    numbers: dict[Block, tuple[int, int]] = {}
    for content in prompts:
        blocks = blocks_of(content)
        used = cache.use(place(forest, content))
        hit, gone = definition.use(blocks)
        names = [numbers.setdefault(block, (len(numbers), 0)) for block in blocks]
        assert used.hit_blocks == hit == tail_first.use(names)
        assert sum(stretch.blocks for stretch in used.evicted) == len(gone)
        assert cache.resident_blocks == len(definition.last_user) == len(tail_first.blocks)
        for other in prompts:  # residency itself, not only hits
            count = resident(cache, forest, other)
            assert blocks_of(other)[:count] == [b for b in blocks_of(other) if b in definition.last_user]


@given(sequences, capacities)
def test_evicted_stretches_are_the_blocks_that_went(prompts: list[tuple[int, ...]], capacity: int) -> None:
    forest, cache, definition = BlockForest(), PrefixCache(capacity), LeafLru(capacity)
    for content in prompts:
        used = cache.use(place(forest, content))
        _, gone = definition.use(blocks_of(content))
        expected = [(len(block) - 1, forest.named([str(b) for b in blocks_of(block)])) for block in gone]
        found = [
            (depth, stretch.line) for stretch in used.evicted for depth in reversed(range(stretch.start, stretch.end))
        ]
        assert [(depth, prompt.line) for depth, prompt in expected] == found


@given(sequences, capacities)
def test_flat_lru_equals_an_lru_over_single_blocks(prompts: list[tuple[int, ...]], capacity: int) -> None:
    forest, cache, reference = BlockForest(), PrefixCache(capacity, Eviction.FLAT_LRU), FlatLru(capacity)
    for content in prompts:
        assert cache.use(place(forest, content)).hit_blocks == reference.use(blocks_of(content))
        assert cache.resident_blocks == len(reference.resident)
        for other in prompts:
            run = next((n for n, b in enumerate(blocks_of(other)) if b not in reference.resident), len(other))
            assert resident(cache, forest, other) == run


@given(sequences, capacities, st.integers(0, 10))
def test_a_bigger_cache_never_hits_less(prompts: list[tuple[int, ...]], capacity: int, more: int) -> None:
    # LRU is a stack algorithm, and leaf-first LRU is LRU with the tail touched first: true for every single request
    forest, small, large = BlockForest(), PrefixCache(capacity), PrefixCache(capacity + more)
    for content in prompts:
        prompt = place(forest, content)
        assert small.resident_prefix(prompt) <= large.resident_prefix(prompt)
        small.use(prompt)
        large.use(prompt)


@given(sequences, capacities, st.lists(st.integers(0, 25), max_size=30))
def test_resizing_keeps_what_a_smaller_cache_would_hold(
    prompts: list[tuple[int, ...]], capacity: int, sizes: list[int]
) -> None:
    forest, cache = BlockForest(), PrefixCache(capacity)
    for content, size in zip(prompts, sizes, strict=False):
        before = cache.resident_blocks
        gone = cache.resize(size)
        assert cache.resident_blocks == before - sum(stretch.blocks for stretch in gone) <= size
        cache.use(place(forest, content))
        assert cache.resident_blocks <= size


@given(sequences, st.integers(0, 12), st.lists(st.booleans(), min_size=30, max_size=30))
def test_pinned_blocks_stay(prompts: list[tuple[int, ...]], capacity: int, pins: list[bool]) -> None:
    forest, cache = BlockForest(), PrefixCache(capacity)
    pinned: list[tuple[Prompt, int]] = []
    for content, pin in zip(prompts, pins, strict=False):
        prompt = place(forest, content)
        cache.use(prompt)
        if pin:
            cache.pin(prompt)
            pinned.append((prompt, cache.resident_prefix(prompt)))
        elif pinned:
            cache.unpin(pinned.pop(0)[0])
        for kept, blocks in pinned:
            assert cache.resident_prefix(kept) >= blocks
        assert cache.resident_blocks <= max(capacity, sum(kept.blocks for kept, _ in pinned))
    for prompt, _ in pinned:
        cache.unpin(prompt)
    assert cache.resident_blocks <= capacity
    reference = {block for content in prompts for block in blocks_of(content)[: resident(cache, forest, content)]}
    assert cache.resident_blocks == len(reference)  # closed under predecessor, nothing lost or counted twice


def test_the_victim_is_reported_by_line_and_depth() -> None:
    forest, cache = BlockForest(), PrefixCache(4)
    old, new = forest.named(["a", "b", "c"]), forest.named(["x", "y"])
    assert cache.use(old).evicted == ()
    assert old.line is not None
    assert cache.use(new).evicted == (Stretch(old.line, 2, 3),)


def test_a_run_stops_at_the_first_missing_block() -> None:
    # llm-d/llm-d-inference-sim #701: blocks behind an evicted one were counted
    forest, cache = BlockForest(), PrefixCache(4, Eviction.FLAT_LRU)
    prompt = forest.named(["a", "b", "c"])
    cache.use(prompt)
    cache.use(forest.named(["x", "y"]))  # drops the head "a"; "b" and "c" stay resident
    assert cache.resident_blocks == 4
    assert cache.resident_prefix(prompt) == 0


def test_equal_times_do_not_drop_heads() -> None:
    # llm-d/llm-d-inference-sim #704: blocks released at one time were evicted in random order, heads among them
    forest, cache = BlockForest(), PrefixCache(8)
    prompts = [forest.named([f"{name}{depth}" for depth in range(4)]) for name in "pq"]
    for prompt in prompts:
        cache.use(prompt)
        cache.pin(prompt)
    for prompt in prompts:
        cache.unpin(prompt)
    cache.use(forest.named(["n0", "n1"]))
    assert [cache.resident_prefix(prompt) for prompt in prompts] == [2, 4]


def test_one_huge_prompt_keeps_its_own_head_last() -> None:
    # vllm-project/vllm #24394: one huge request flushes its neighbours; what is left is a usable head of the huge one
    forest, cache = BlockForest(), PrefixCache(10)
    small, huge = forest.named(["s0", "s1"]), forest.named([f"h{depth}" for depth in range(50)])
    cache.use(small)
    assert cache.use(huge).inserted_blocks == 50
    assert cache.resident_prefix(small) == 0
    assert cache.resident_prefix(huge) == 10


def test_pinned_neighbours_survive_a_huge_prompt() -> None:
    forest, cache = BlockForest(), PrefixCache(10)
    small, huge = forest.named(["s0", "s1"]), forest.named([f"h{depth}" for depth in range(50)])
    cache.use(small)
    cache.pin(small)
    cache.use(huge)
    assert (cache.resident_prefix(small), cache.resident_prefix(huge)) == (2, 8)


def test_text_that_changes_near_the_head_misses_everything_behind() -> None:
    # sgl-project/sglang #35129
    forest, cache = BlockForest(), PrefixCache(None)
    cache.use(forest.named(["sys", *range(100)]))
    changed = forest.named(["sys", "today", *range(1000, 1100)])
    assert cache.use(changed).hit_blocks == 1


def test_bad_use() -> None:
    with pytest.raises(BadInput, match="capacity_blocks -1"):
        PrefixCache(-1)
    with pytest.raises(BadInput, match="leaf-first"):
        PrefixCache(4, Eviction.FLAT_LRU).pin(BlockForest().named([1]))
