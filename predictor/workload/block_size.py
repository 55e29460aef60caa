"""Block size of a trace, inferred from prompt lengths and block counts.

A trace stores no block size. With ``n`` ids for a prompt of ``L`` tokens and blocks of ``B``:

- *ceil* tail (the partial last block has an id): ``(n-1)·B < L <= n·B``;
- *floor* tail (only full blocks have ids): ``n·B <= L < (n+1)·B``.

Each record leaves an interval of ``B`` for either convention; their intersection over the records leaves one of them.
"""

from dataclasses import dataclass
from enum import StrEnum


class Tail(StrEnum):
    """Whether a partial last block has an id."""

    CEIL = "ceil"
    FLOOR = "floor"


_UNBOUNDED = 1 << 62


@dataclass(frozen=True, slots=True)
class BlockSize:
    """Tokens a block and what happens to the tail of a prompt."""

    tokens: int
    tail: Tail

    def blocks(self, prompt_tokens: int) -> int:
        """Number of ids a prompt of this length must have.

        >>> BlockSize(512, Tail.CEIL).blocks(6758), BlockSize(64, Tail.FLOOR).blocks(71175)
        (14, 1112)
        """
        return -(-prompt_tokens // self.tokens) if self.tail is Tail.CEIL else prompt_tokens // self.tokens


def _interval(tail: Tail, prompt_tokens: int, blocks: int) -> tuple[int, int]:
    """Smallest and largest block size that one record allows; empty where the first exceeds the second."""
    if tail is Tail.FLOOR:
        return prompt_tokens // (blocks + 1) + 1, prompt_tokens // blocks if blocks else _UNBOUNDED
    if blocks == 0:
        return 1, 0
    return -(-prompt_tokens // blocks), (prompt_tokens - 1) // (blocks - 1) if blocks > 1 else _UNBOUNDED


@dataclass(frozen=True, slots=True)
class Candidates:
    """Block sizes that every record so far allows, as one interval a convention."""

    ceil: tuple[int, int] = (1, _UNBOUNDED)
    floor: tuple[int, int] = (1, _UNBOUNDED)

    def narrowed(self, prompt_tokens: int, blocks: int) -> "Candidates":
        """What is left after one more record."""
        ceil, floor = (_interval(tail, prompt_tokens, blocks) for tail in (Tail.CEIL, Tail.FLOOR))
        return Candidates(
            (max(self.ceil[0], ceil[0]), min(self.ceil[1], ceil[1])),
            (max(self.floor[0], floor[0]), min(self.floor[1], floor[1])),
        )

    @property
    def none_left(self) -> bool:
        """Whether the records contradict each other."""
        return self.ceil[0] > self.ceil[1] and self.floor[0] > self.floor[1]

    @property
    def only(self) -> BlockSize | None:
        """The one block size and convention left, if it is one."""
        left = [(tail, span) for tail, span in ((Tail.CEIL, self.ceil), (Tail.FLOOR, self.floor)) if span[0] <= span[1]]
        if len(left) == 1 and left[0][1][0] == left[0][1][1]:
            return BlockSize(left[0][1][0], left[0][0])
        return None

    @property
    def exact_multiple(self) -> BlockSize | None:
        """The size where both conventions leave the same one: every prompt was whole blocks, so either will do."""
        if self.ceil == self.floor and self.ceil[0] == self.ceil[1]:
            return BlockSize(self.ceil[0], Tail.CEIL)
        return None

    def __str__(self) -> str:
        spans = (("ceil", self.ceil), ("floor", self.floor))
        shown = [
            f"{low}..{high if high < _UNBOUNDED else 'any'} ({name} tail)" for name, (low, high) in spans if low <= high
        ]
        return " or ".join(shown) or "none"
