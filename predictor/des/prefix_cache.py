"""Block-level prefix cache: longest leading run, leaf-first LRU (paper A.1).

Every use of a prompt touches its whole prefix, so along a prompt the last users get older with depth, and what one use
was the last to touch is one stretch of its path. The cache keeps those stretches, not blocks: a lookup or an insertion
costs the number of *branch points* on the path, whatever the prompt's length.

- *Leaf-first LRU* drops the block with the oldest last user from which no resident block continues: the tail of the
  oldest stretch. It equals LRU over blocks with each prompt touched tail first. Every resident block's predecessor is
  resident too.
- *Flat LRU* (head touched first) drops the head of the oldest stretch, which leaves holes; kept for comparison.

Blocks of running requests can be pinned: they are skipped, as reference-counted blocks are in the engines.
"""

from bisect import insort
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from predictor.errors import BadInput
from predictor.workload.blocks import Line, Prompt

_TIDY_USES = 1024  # spent uses are swept out when they outnumber live stretches by this many


class Eviction(StrEnum):
    """Which block goes first."""

    LEAF_LRU = "leaf_lru"
    FLAT_LRU = "flat_lru"


class Stretch(NamedTuple):
    """Blocks ``start <= depth < end`` of one line."""

    line: Line
    start: int
    end: int

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Used:
    """What one use did: leading blocks found, blocks newly made resident, stretches evicted, oldest first."""

    hit_blocks: int
    inserted_blocks: int
    evicted: tuple[Stretch, ...]


class _Held:
    """Resident blocks ``lo <= depth < hi`` of a line with one last user."""

    __slots__ = ("hi", "line", "lo")

    def __init__(self, line: Line, lo: int, hi: int) -> None:
        self.line, self.lo, self.hi = line, lo, hi


class PrefixCache:
    """Resident prompt blocks of one replica or one memory tier. ``capacity_blocks`` None: nothing is ever evicted."""

    def __init__(self, capacity_blocks: int | None, eviction: Eviction = Eviction.LEAF_LRU) -> None:
        _check_capacity(capacity_blocks)
        self.capacity_blocks = capacity_blocks
        self.eviction = eviction
        self.resident_blocks = 0
        self.evicted_blocks = 0
        self._held: dict[Line, list[_Held]] = {}  # per line, deepest (oldest) first
        self._uses: deque[list[_Held]] = deque()  # oldest first; in each the next victim is last
        self._live = 0
        self._pins: dict[Line, list[int]] = {}

    def resident_prefix(self, prompt: Prompt) -> int:
        """Length of the longest leading run of resident blocks; touches nothing."""
        if self.eviction is Eviction.LEAF_LRU:
            return self._closed_prefix(prompt)
        hit, end, line = 0, prompt.blocks, prompt.line
        while line is not None:
            run = line.start
            for held in reversed(self._held.get(line, ())):
                if held.lo > run or held.lo >= end:
                    break
                run = min(held.hi, end)
            hit = max(hit, end) if run == end else run
            end, line = line.start, line.parent
        return hit

    def _closed_prefix(self, prompt: Prompt) -> int:
        end, line = prompt.blocks, prompt.line
        while line is not None:
            held = self._held.get(line)
            if held:
                return min(end, held[0].hi)
            end, line = line.start, line.parent
        return 0

    def use(self, prompt: Prompt) -> Used:
        """Touch the whole prompt: all its blocks become resident with this as their last use, then evict the excess.

        The prompt's own blocks may go too, where it alone exceeds the capacity.
        """
        hit = self.resident_prefix(prompt)
        inserted = self._touch(prompt)
        return Used(hit, inserted, self._evict_excess())

    def resize(self, capacity_blocks: int | None) -> tuple[Stretch, ...]:
        """Change the capacity, as when running requests take or free blocks of the pool; returns what had to go."""
        _check_capacity(capacity_blocks)
        self.capacity_blocks = capacity_blocks
        return self._evict_excess()

    def pin(self, prompt: Prompt) -> None:
        """Keep the prompt's resident blocks until :meth:`unpin`. Leaf-first LRU only."""
        if self.eviction is not Eviction.LEAF_LRU:
            raise BadInput(
                "blocks can be pinned under leaf-first LRU only: flat LRU drops heads under running requests"
            )
        end, line = prompt.blocks, prompt.line
        while line is not None:
            insort(self._pins.setdefault(line, []), end)
            end, line = line.start, line.parent

    def unpin(self, prompt: Prompt) -> Used:
        """Undo :meth:`pin` when the request ends: its blocks are released together, which makes this their last use."""
        end, line = prompt.blocks, prompt.line
        while line is not None:
            self._pins[line].remove(end)
            if not self._pins[line]:
                del self._pins[line]
            end, line = line.start, line.parent
        return self.use(prompt)

    def _touch(self, prompt: Prompt) -> int:
        """Make this the last use of the prompt's blocks; returns how many were not resident."""
        new = prompt.blocks
        use: list[_Held] = []
        end, line = prompt.blocks, prompt.line
        while line is not None:
            stack = self._held.setdefault(line, [])
            while stack and stack[-1].hi <= end:
                held = stack.pop()
                new -= held.hi - held.lo
                held.lo = held.hi
                self._live -= 1
            if stack and stack[-1].lo < end:
                new -= end - stack[-1].lo
                stack[-1].lo = end
            mine = _Held(line, line.start, end)
            stack.append(mine)
            use.append(mine)
            end, line = line.start, line.parent
        self.resident_blocks += new
        self._live += len(use)
        if use:
            if self.eviction is Eviction.LEAF_LRU:
                use.reverse()
            self._uses.append(use)
            if len(self._uses) > 2 * self._live + _TIDY_USES:
                self._uses = deque(old for old in self._uses if any(held.lo < held.hi for held in old))
        return new

    def _evict_excess(self) -> tuple[Stretch, ...]:
        if self.capacity_blocks is None or self.resident_blocks <= self.capacity_blocks:
            return ()
        evicted: list[Stretch] = []
        uses, excess = self._uses, self.resident_blocks - self.capacity_blocks
        while excess > 0 and uses:
            oldest = uses[0]
            if not oldest:
                uses.popleft()
                continue
            held = oldest[-1]
            gone = self._drop(held, excess)
            if gone is None:
                oldest.pop()
                continue
            evicted.append(gone)
            excess -= gone.blocks
        dropped = sum(stretch.blocks for stretch in evicted)
        self.resident_blocks -= dropped
        self.evicted_blocks += dropped
        return tuple(evicted)

    def _drop(self, held: _Held, excess: int) -> Stretch | None:
        """Drop up to ``excess`` blocks of an oldest stretch; None where nothing in it may go.

        What a pin keeps leaves the eviction order here and returns to it with the touch that :meth:`unpin` makes.
        """
        line = held.line
        if self.eviction is Eviction.FLAT_LRU:
            start = held.lo
            end = held.lo = min(held.hi, start + excess)
        else:
            pinned = self._pins.get(line)
            floor = max(held.lo, pinned[-1]) if pinned else held.lo
            end = held.hi
            start = max(floor, end - excess)
            if start >= end:
                return None
            held.hi = start
        if start == end:
            return None
        if held.lo == held.hi:
            self._held[line].pop(0)
            self._live -= 1
            if not self._held[line]:
                del self._held[line]
        return Stretch(line, start, end)


def _check_capacity(capacity_blocks: int | None) -> None:
    if capacity_blocks is not None and capacity_blocks < 0:
        raise BadInput(f"capacity_blocks {capacity_blocks}: not negative, or None for no limit")
