"""The phases of the deterministic search, each a generator of rounds that is sent the rounds' results.

Seeds; a greedy combination of those that helped; a polish round that descends block by block, restarts from the best
results elsewhere, and at last moves several blocks at once.
"""

import math
from collections.abc import Generator, Iterable, Iterator
from itertools import combinations

from levers.board import Board, Candidate, Offer, Result
from levers.context import LeverValue
from levers.neighbours import Changes, blocks_of, combined, levers_of, neighbours
from levers.seeds import Seed, Skipped, legal_or_skipped
from levers.space import Setting, merge

Plan = Generator[list[Candidate], list[Result], None]
Descent = Generator[list[Candidate], list[Result], Result]

SEED_SHARE = 0.5  # of the budget, at most
MOVED_TOGETHER = 4  # levers of a block changed at once, at most
RESTART_BLOCKS, RESTARTS = 3, 4  # the most telling blocks, and values of each, that a search starts again from
JOINT = {2: 10, 3: 5}  # blocks moved at once when nothing else helps -> how many of the most telling take part
KEPT_VALUES = 3  # of each block then
NEAR_MISS = 0.1  # share of its bounds by which a result may miss them and still be worth a descent of its own


def choose_seeds(board: Board) -> tuple[list[Seed], list[Skipped]]:
    """As many values a lever as the seeds' share of the budget allows, in order; and all seeds that are skipped."""
    share = max(1, int(board.budget * SEED_SHARE))
    seeds: list[Seed] = []
    skipped: list[Skipped] = []
    for per_lever in (None, 4, 3, 2, 1):
        found = list(legal_or_skipped(board.context, board.base, per_lever, board.refuse))
        seeds = [seed for seed in found if isinstance(seed, Seed)]
        skipped = skipped or [seed for seed in found if isinstance(seed, Skipped)]
        if len(seeds) <= share:
            break
    return spread(seeds, share), skipped


def spread(seeds: list[Seed], count: int) -> list[Seed]:
    """``count`` seeds in the list's order, every lever once before any is tried twice: all of them where they fit."""
    turns: dict[frozenset[str], int] = {}
    places = []
    for place, seed in enumerate(seeds):
        moved = frozenset(name for name, _ in seed.changes)
        turns[moved] = turns.get(moved, 0) + 1
        places.append((turns[moved], place))
    return [seeds[place] for place in sorted(place for _, place in sorted(places)[:count])]


def whole_search(board: Board, seeds: list[Seed]) -> Plan:
    """All phases in order."""
    yield from ask_all(board, [("baseline", "baseline", board.base)])
    yield from ask_all(board, [("seed", seed.name, seed.setting) for seed in seeds])
    yield from combine(board, seeds)
    forget_unpriced(board)
    yield from polish(board)


def ask_all(board: Board, offers: list[Offer]) -> Plan:
    """One round of all offers."""
    new, _ = board.round(offers, len(offers))
    if new:
        yield new


def combine(board: Board, seeds: list[Seed]) -> Plan:
    """From the best seed on: each round tries every other helpful block on the best and keeps those that help again."""
    start = board.result_of(board.base)
    if start is None or board.best is None:
        return
    scored = [(result, seed) for seed in seeds if (result := board.result_of(seed.setting))]
    helped = [(result, seed) for result, seed in scored if result.rank > start.rank]
    waiting: dict[frozenset[str], Seed] = {}
    for _, seed in sorted(helped, key=lambda pair: pair[0].rank, reverse=True):
        waiting.setdefault(blocks_of(name for name, _ in seed.changes), seed)
    while waiting:
        top = board.best
        names = {blocks: f"{top.candidate.name} + {seed.name}" for blocks, seed in waiting.items()}
        offers: list[Offer] = [("combine", names[blocks], _on(board, top, seed)) for blocks, seed in waiting.items()]
        new, _ = board.round(offers, len(offers))
        if not new:
            return
        results = yield new
        better = {result.candidate.name for result in results if result.rank > top.rank}
        chosen = board.best.candidate.name
        waiting = {b: seed for b, seed in waiting.items() if names[b] in better and names[b] != chosen}


def _on(board: Board, top: Result, seed: Seed) -> Setting:
    """The seed's changes on another setting."""
    merged = merge(dict(seed.changes), top.candidate.setting, board.context)
    return merged.setting or seed.setting


def forget_unpriced(board: Board) -> None:
    """Drop values that nobody could price when they alone were changed."""
    for result in board.results.values():
        changed = result.candidate.setting.differences(board.base)
        if len(changed) == 1 and not math.isfinite(result.score):
            ((name, value),) = changed.items()
            board.values[name] = tuple(other for other in board.values[name] if other != value)


def polish(board: Board) -> Plan:
    """Improve the best until the last phase finds nothing, or the budget is used."""
    while board.best is not None:
        top = board.best
        yield from reach(board)
        yield from descend(board, board.best, 1)
        yield from restart(board)
        yield from descend(board, board.best, MOVED_TOGETHER)
        for size in JOINT:
            if board.best.rank == top.rank:
                yield from joint(board, size)
        if board.best.rank == top.rank:
            return


def reach(board: Board) -> Plan:
    """Descend towards the bounds from the nearest miss that scores better than the best legal result.

    Only what scores better still is followed, so whatever legal it finds is better than what there was. Without it a
    legal result far behind would hold the search where it lies, since what is legal comes first.
    """
    best = board.best
    assert best is not None
    if not best.legal:
        return
    misses = [result for result in board.ranked() if not result.legal and result.score > best.score]
    if misses and misses[0].shortfall <= NEAR_MISS:
        yield from descend(board, misses[0], 1, floor=best.score)


def descend(
    board: Board, start: Result, together: int, fixed: frozenset[str] = frozenset(), floor: float | None = None
) -> Descent:
    """Vary one block after another around a result, the most telling first, while a pass improves it.

    A block is tried again as long as it helps; ``together`` of its levers move at once at most. Blocks in ``fixed``
    stay, and results that score no better than ``floor`` are not followed. Returns the result it ends at.
    """
    top, improved = start, True
    while improved:
        improved = False
        for block in board.by_effect():
            while block not in fixed:
                around = neighbours(top.candidate.setting, block, together, board.values, board.context)
                new, known = board.round(polished(around))
                results = (yield new) if new else []
                found = (result for result in (*results, *known) if floor is None or result.score > floor)
                best = max(found, key=lambda result: result.rank, default=top)
                if best.rank <= top.rank:
                    break
                top, improved = best, True
    return top


def restart(board: Board) -> Plan:
    """Descend again from the best result of other values of the most telling blocks, those blocks fixed."""
    assert board.best is not None
    starts: dict[int, tuple[Result, str]] = {}
    for block in board.by_effect()[:RESTART_BLOCKS]:
        for result in board.best_with_other(block, RESTARTS):
            starts.setdefault(result.candidate.number, (result, block))
    for result, block in sorted(starts.values(), key=lambda pair: pair[0].rank, reverse=True):
        yield from descend(board, result, 1, frozenset({block}))


def joint(board: Board, size: int) -> Plan:
    """The best values seen of ``size`` blocks at once, for every choice of blocks, until one improves the best."""
    assert board.best is not None
    top = board.best
    values: dict[str, list[Changes]] = {}
    for block in board.by_effect():
        others = board.best_with_other(block, KEPT_VALUES)
        if others:
            values[block] = [held_by(result, block) for result in others]
    for blocks in combinations(list(values)[: JOINT[size]], size):
        together = combined(top.candidate.setting, [values[block] for block in blocks], board.context)
        new, _ = board.round(polished(together))
        if new:
            yield new
        if board.best.rank > top.rank:
            return


def held_by(result: Result, block: str) -> dict[str, LeverValue]:
    """What a result sets a block to."""
    return {name: result.candidate.setting[name] for name in levers_of(block)}


def polished(near: Iterable[tuple[Changes, Setting]]) -> Iterator[Offer]:
    """Offers of a polish round."""
    return (("polish", changes, setting) for changes, setting in near)
