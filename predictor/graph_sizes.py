"""Batch sizes that the engines capture graphs for, restated from the engines' own lists (:mod:`predictor.engines`)."""

from functools import lru_cache
from itertools import chain

ATOM_CAPTURE = (1, 2, 4, 8, 16, 32, 48, 64, 128, 256, 512)


@lru_cache(maxsize=1024)
def vllm_capture_sizes(
    max_seqs: int, token_budget: int, decode_tokens: int, ceiling_tokens: int | None, wide: bool
) -> tuple[int, ...]:
    """Decode batches with a graph. The engine's list is in tokens: 1, 2, 4, by 8 below 256, then by 16 to the ceiling.

    The default ceiling is ``min(2·max_seqs·(1+k), 512)``, 1024 on SM100 GPUs (``wide``). Decode steps of ``1+k`` tokens
    a request use multiples of ``1+k``, and ``max_seqs`` itself where it fits.

    >>> vllm_capture_sizes(1024, 8192, 1, None, False)[:6], vllm_capture_sizes(1024, 8192, 1, None, False)[-1]
    ((1, 2, 4, 8, 16, 24), 512)
    """
    top = ceiling_tokens or min(2 * max_seqs * decode_tokens, 1024 if wide else 512)
    top = min(top, token_budget)
    tokens = chain((1, 2, 4), range(8, min(top + 1, 256), 8), range(256, top + 1, 16))
    batches = {size if decode_tokens == 1 else -(-size // decode_tokens) for size in tokens if size <= top}
    batches |= {max_seqs, ceiling_tokens // decode_tokens if ceiling_tokens else 1}
    return tuple(sorted(size for size in batches if size * decode_tokens <= top))


@lru_cache(maxsize=1024)
def sglang_capture_sizes(max_bs: int, speculative: bool) -> tuple[int, ...]:
    """Decode batches with a graph; ``max_bs`` is always one of them.

    >>> sglang_capture_sizes(28, False), sglang_capture_sizes(12, True)
    ((1, 2, 4, 8, 12, 16, 24, 28), (1, 2, 3, 4, 5, 6, 7, 8, 10, 12))
    """
    plain = ((16, 257, 8), (272, 512, 16), (512, max_bs + 1, 32))
    drafted = ((1, 9, 1), (10, 33, 2), (40, 65, 4), (72, 257, 8), (272, max_bs + 1, 16))
    sizes = set() if speculative else {1, 2, 4, 8, 12}
    sizes |= {size for span in (drafted if speculative else plain) for size in range(*span)}
    return tuple(sorted({size for size in sizes if size <= max_bs} | {max_bs}))


def prefill_graph_count(max_tokens: int) -> int:
    """Prefill graphs by tokens: 4-32 by 4, to 256 by 16, to 512 by 32, to 1024 by 64, to 4096 by 256, then by 512."""
    spans = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256), (4608, max_tokens + 1, 512))
    return sum(size <= max_tokens for span in spans for size in range(*span))


@lru_cache(maxsize=1024)
def trtllm_capture_sizes(max_bs: int, padding: bool) -> tuple[int, ...]:
    """Decode batches with a graph: 1-31 and powers of two without padding; 1, 2, 4, by 8 to 128, then by 64 with it.

    >>> trtllm_capture_sizes(128, False)[-4:], trtllm_capture_sizes(256, True)[-3:]
    ((31, 32, 64, 128), (128, 192, 256))
    """
    if padding:
        sizes = {1, 2, 4, *range(8, 129, 8), *range(192, max_bs + 1, 64)}
    else:
        sizes = {*range(1, 32), *(2**power for power in range(5, 16))}
    return tuple(sorted({size for size in sizes if size <= max_bs} | {max_bs}))
