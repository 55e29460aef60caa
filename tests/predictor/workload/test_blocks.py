"""The forest of prefix blocks against prompts written out block by block."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.workload.blocks import NO_BLOCKS, BlockForest, ChainViolation, Line, Prompt

# A prompt's content, block by block; an id is the whole prefix, so equal prefixes have equal ids and no others do.
contents = st.lists(st.integers(0, 2), max_size=8).map(tuple)


def ids_of(content: tuple[int, ...]) -> list[int | str]:
    return [f"{content[: depth + 1]}" for depth in range(len(content))]


def written_out(prompt: Prompt) -> list[tuple[int, int]]:
    blocks: list[tuple[int, int]] = []
    line, end = prompt.line, prompt.blocks
    while line is not None:
        blocks[:0] = [(line.serial, depth) for depth in range(line.start, end)]
        end, line = line.start, line.parent
    return blocks


def common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(st.lists(contents, max_size=12))
def test_named_prompts_share_exactly_their_common_prefix(prompts: list[tuple[int, ...]]) -> None:
    forest = BlockForest()
    placed = [forest.named(ids_of(content)) for content in prompts]
    for content, prompt in zip(prompts, placed, strict=True):
        assert prompt.blocks == len(content)
        assert len(written_out(prompt)) == len(content)
        for other, place in zip(prompts, placed, strict=True):
            shared = common(content, other)
            assert prompt.shared_blocks(place) == shared
            assert prompt.head(shared) == place.head(shared)
    assert forest.distinct_ids == len({name for content in prompts for name in ids_of(content)})


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 9), st.integers(0, 4)), max_size=20))
def test_counted_prompts_branch_where_they_leave_an_earlier_one(rows: list[tuple[int, int, int]]) -> None:
    forest, placed = BlockForest(), [NO_BLOCKS]
    naive: list[list[int]] = [[]]
    made = 0
    for source, wanted, new in rows:
        earlier = min(source, len(placed) - 1)
        prefix = min(wanted, len(naive[earlier]))
        placed.append(forest.fresh(placed[earlier].head(prefix), new))
        naive.append(naive[earlier][:prefix] + list(range(made, made + new)))
        made += new
    for mine, blocks in zip(placed, naive, strict=True):
        assert mine.blocks == len(blocks)
        for other, theirs in zip(placed, naive, strict=True):
            assert mine.shared_blocks(other) == common(tuple(blocks), tuple(theirs))


def test_a_turn_that_continues_extends_the_line_in_place() -> None:
    forest = BlockForest()
    first = forest.named([1, 2, 3])
    second = forest.named([1, 2, 3, 4, 5])
    assert first.line is second.line
    assert forest.named([1, 2, 9]).line is not first.line


def test_ids_wider_than_32_bits_stay_apart() -> None:
    forest = BlockForest()
    low, high = forest.named([7]), forest.named([7 + (1 << 32)])
    assert low.shared_blocks(high) == 0
    assert forest.named([(1 << 64) - 1]).shared_blocks(forest.named(["18446744073709551615"])) == 0


@pytest.mark.parametrize(
    ("earlier", "ids", "message"),
    [
        ([1, 2, 3], [2, 3], "block 0 here"),
        ([1, 2, 3], [9, 2], "block 1 here .after 9. and was block 1 .after 1."),
        ([1, 2, 3], [1, 3], "after 1"),
        ([1], [5, 6, 5], "occurs twice"),
    ],
)
def test_an_id_keeps_its_predecessor(earlier: list[int | str], ids: list[int | str], message: str) -> None:
    forest = BlockForest()
    forest.named(earlier)
    with pytest.raises(ChainViolation, match=message):
        forest.named(ids)


def test_named_blocks_may_follow_counted_ones() -> None:
    forest = BlockForest()
    head = forest.fresh(NO_BLOCKS, 3)
    named = forest.named(["a", "b"], head)
    assert named.blocks == 5
    assert forest.named(["a", "c"], head).shared_blocks(named) == 4
    assert forest.fresh(head, 1).shared_blocks(named) == 3


def test_what_no_recent_record_used_is_forgotten() -> None:
    forest = BlockForest()
    forest.named([1, 2], row=0)
    kept = forest.named([1, 3], row=5)
    forest.forget(before_row=5)
    assert forest.distinct_ids == 3  # block 2 shares the head's line, which is in use
    assert forest.named([1, 3], row=6).shared_blocks(kept) == 2
    forest.named([8], row=7)
    forest.forget(before_row=7)
    assert forest.distinct_ids == 1


def test_lines_hash_by_identity() -> None:
    assert Line(0, None, 0, 4) != Line(0, None, 0, 4)
