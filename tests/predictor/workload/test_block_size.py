"""Block size from lengths and counts."""

from hypothesis import given
from hypothesis import strategies as st

from predictor.workload.block_size import BlockSize, Candidates, Tail

lengths = st.lists(st.integers(1, 200_000), min_size=1, max_size=40)


@given(lengths, st.integers(1, 1024), st.sampled_from(Tail))
def test_the_true_size_is_never_ruled_out(prompts: list[int], tokens: int, tail: Tail) -> None:
    size = BlockSize(tokens, tail)
    left = Candidates()
    for prompt_tokens in prompts:
        left = left.narrowed(prompt_tokens, size.blocks(prompt_tokens))
        assert not left.none_left
    low, high = left.ceil if tail is Tail.CEIL else left.floor
    assert low <= tokens <= high
    if left.only is not None:
        assert left.only == size


@given(lengths, st.integers(1, 1024), st.sampled_from(Tail))
def test_every_size_left_explains_every_record(prompts: list[int], tokens: int, tail: Tail) -> None:
    size = BlockSize(tokens, tail)
    left = Candidates()
    for prompt_tokens in prompts:
        left = left.narrowed(prompt_tokens, size.blocks(prompt_tokens))
    for other_tail, (low, high) in ((Tail.CEIL, left.ceil), (Tail.FLOOR, left.floor)):
        for other in {low, min(high, low + 3)} if low <= high else set():
            assert all(BlockSize(other, other_tail).blocks(n) == size.blocks(n) for n in prompts)


def test_one_long_prompt_is_enough() -> None:
    # source: first record of the agentic coding trace
    assert Candidates().narrowed(71_175, 1112).only == BlockSize(64, Tail.FLOOR)


def test_whole_blocks_fit_either_convention() -> None:
    left = Candidates()
    for blocks in (1, 2, 3, 600):
        left = left.narrowed(512 * blocks, blocks)
    assert left.exact_multiple is None or left.exact_multiple.tokens == 512
    assert left.narrowed(511, 1).only == BlockSize(512, Tail.CEIL)


def test_contradiction() -> None:
    left = Candidates().narrowed(71_175, 1112).narrowed(1000, 3)
    assert left.none_left
    assert str(left) == "none"
