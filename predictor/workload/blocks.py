"""Prompts as places in a forest of prefix blocks.

A block id stands for one fixed-size block of tokens *and everything before it*, so the ids of a trace form a forest:
each id has one predecessor. The forest is kept as *lines*: unbranched stretches of blocks. A prompt is then one line
and a number of blocks, however long it is, and a turn that continues an earlier one extends that line in place. A trace
of 94 million block references with 49 thousand prompts becomes 49 thousand pairs.

Lines are plain linked objects: what no request, record or cache refers to any more is freed by the interpreter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Line:
    """An unbranched stretch of blocks, ``start <= depth < end``; the first follows block ``start - 1`` of ``parent``.

    Compared and hashed by identity. ``serial`` is the order of creation. ``ids`` are the blocks' own ids where the
    trace names them, None where it only counts them.
    """

    serial: int
    parent: "Line | None"
    start: int
    end: int
    ids: "list[int | str] | None" = field(default=None, repr=False)
    last_row: int = -1  # of the records that used it; a parent's is never older than its child's

    @property
    def root(self) -> "Line":
        """The line at the head of every prompt that reaches this one."""
        line = self
        while line.parent is not None:
            line = line.parent
        return line


@dataclass(frozen=True, slots=True)
class Prompt:
    """The blocks of one prompt: all that precede depth ``blocks`` on ``line``. No blocks: no line."""

    line: Line | None
    blocks: int

    def head(self, blocks: int) -> "Prompt":
        """The first ``blocks`` blocks of this prompt.

        >>> trunk = Line(0, None, 0, 4)
        >>> branch = Line(1, trunk, 3, 9)
        >>> Prompt(branch, 9).head(2) == Prompt(trunk, 2)
        True
        """
        if blocks >= self.blocks:
            return self
        line = self.line
        while line is not None and blocks <= line.start:
            line = line.parent
        return Prompt(line, blocks)

    def shared_blocks(self, other: "Prompt") -> int:
        """Length of the common leading run of two prompts, in blocks."""
        reach: dict[Line, int] = {}
        line, end = self.line, self.blocks
        while line is not None:
            reach[line] = end
            end, line = line.start, line.parent
        line, end = other.line, other.blocks
        while line is not None:
            if line in reach:
                return min(end, reach[line])
            end, line = line.start, line.parent
        return 0


NO_BLOCKS = Prompt(None, 0)


class ChainViolation(Exception):
    """An id follows another predecessor than before, or occurs twice in one prompt."""


class BlockForest:
    """Interns the block ids of a trace, of any width or type, and checks that each keeps its predecessor.

    ``forget`` drops what no record since a given row has used; an id that returns after that is new content.
    """

    def __init__(self) -> None:
        self._line_of: dict[int | str, Line] = {}
        self._lines: list[Line] = []
        self._made = 0

    @property
    def distinct_ids(self) -> int:
        """Ids now remembered."""
        return len(self._line_of)

    def fresh(self, prefix: Prompt, new_blocks: int, row: int = 0) -> Prompt:
        """The prompt that has ``new_blocks`` never-seen, unnamed blocks behind ``prefix``."""
        line = prefix.line
        if line is not None and line.ids is None and prefix.blocks == line.end:
            line.end += new_blocks
        elif new_blocks:
            line = self._new_line(prefix, new_blocks, None)
        self._touch(line, row)
        return Prompt(line, prefix.blocks + new_blocks)

    def named(self, ids: Sequence[int | str], prefix: Prompt = NO_BLOCKS, row: int = 0) -> Prompt:
        """The prompt whose blocks behind ``prefix`` have these ids. Raises :class:`ChainViolation`."""
        ids = list(ids)
        prompt, taken = self._follow(ids, prefix)
        rest = ids[taken:]
        if rest:
            self._check_unseen(rest, prompt)
            prompt = self._append(prompt, rest)
        self._touch(prompt.line, row)
        return prompt

    def forget(self, before_row: int) -> None:
        """Drop the lines that no record from ``before_row`` on has used."""
        kept = []
        for line in self._lines:
            if line.last_row >= before_row:
                kept.append(line)
                continue
            for block_id in line.ids or ():
                del self._line_of[block_id]
        self._lines = kept

    def _follow(self, ids: list[int | str], prefix: Prompt) -> tuple[Prompt, int]:
        """Walk known lines as far as ``ids`` goes; returns where that ends and how many ids it took."""
        line, depth, taken = prefix.line, prefix.blocks, 0
        while taken < len(ids):
            if line is not None and line.ids is not None and depth < line.end:
                run = _common_run(line.ids, depth - line.start, ids, taken)
                depth, taken = depth + run, taken + run
                if run:
                    continue
            child = self._line_of.get(ids[taken])
            if child is None:
                break
            if child.parent is not line or child.start != depth or child.ids is None or child.ids[0] != ids[taken]:
                raise ChainViolation(self._where(ids[taken], _before(line, depth), depth))
            line = child
        return Prompt(line, depth), taken

    def _append(self, prompt: Prompt, rest: list[int | str]) -> Prompt:
        line = prompt.line
        if line is not None and line.ids is not None and prompt.blocks == line.end:
            line.ids.extend(rest)
            line.end += len(rest)
        else:
            line = self._new_line(prompt, len(rest), rest)
        for block_id in rest:
            self._line_of[block_id] = line
        return Prompt(line, line.end)

    def _new_line(self, prefix: Prompt, blocks: int, ids: list[int | str] | None) -> Line:
        line = Line(self._made, prefix.line, prefix.blocks, prefix.blocks + blocks, ids)
        self._made += 1
        if ids is not None:
            self._lines.append(line)
        return line

    def _check_unseen(self, rest: list[int | str], prompt: Prompt) -> None:
        if not self._line_of.keys().isdisjoint(rest):
            at = next(index for index, block_id in enumerate(rest) if block_id in self._line_of)
            before = rest[at - 1] if at else _before(prompt.line, prompt.blocks)
            raise ChainViolation(self._where(rest[at], before, prompt.blocks + at))
        if len(set(rest)) < len(rest):
            twice = next(block_id for block_id in rest if rest.count(block_id) > 1)
            raise ChainViolation(f"block id {twice!r} occurs twice in one prompt")

    def _where(self, block_id: int | str, predecessor: int | str | None, depth: int) -> str:
        known = self._line_of[block_id]
        assert known.ids is not None
        earlier = known.start + known.ids.index(block_id)
        return (
            f"block id {block_id!r} is block {depth} here (after {_named(predecessor)}) and was block {earlier} "
            f"(after {_named(_before(known, earlier))}) in an earlier record; an id stands for its whole prefix"
        )

    @staticmethod
    def _touch(line: Line | None, row: int) -> None:
        while line is not None and line.last_row < row:
            line.last_row = row
            line = line.parent


def _common_run(known: list[int | str], at: int, ids: list[int | str], taken: int) -> int:
    """Length of the common run of ``known[at:]`` and ``ids[taken:]``: whole slices first, they compare at C speed."""
    length = min(len(known) - at, len(ids) - taken)
    if known[at : at + length] == ids[taken : taken + length]:
        return length
    low, high = 0, length  # the first difference lies in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        if known[at + low : at + middle] == ids[taken + low : taken + middle]:
            low = middle
        else:
            high = middle
    return low


def _before(line: Line | None, depth: int) -> int | str | None:
    """Id of the block before ``depth`` on the way through ``line``, None at the head or for unnamed blocks."""
    while line is not None and depth <= line.start:
        line = line.parent
    return None if line is None or line.ids is None else line.ids[depth - 1 - line.start]


def _named(block_id: int | str | None) -> str:
    return "nothing named" if block_id is None else repr(block_id)
