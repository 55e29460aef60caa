"""Graph capture: a decode batch is padded up to the next captured size (paper §3.1.2, the staircase)."""

from bisect import bisect_left


def padded_batch(batch: int, capture_sizes: tuple[int, ...]) -> int:
    """Next captured size at or above ``batch``; the batch itself in eager mode and above the largest graph.

    ``capture_sizes`` rise; empty means no graphs.

    >>> padded_batch(33, (1, 2, 4, 8, 16, 24, 32, 40))
    40
    >>> padded_batch(41, (1, 2, 4, 8, 16, 24, 32, 40))
    41
    """
    position = bisect_left(capture_sizes, batch)
    return capture_sizes[position] if position < len(capture_sizes) else batch
