"""Settings near a setting: one block of levers varied, or several blocks set to values that did well."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations, product

from levers.context import LeverValue, SearchContext
from levers.space import Setting, canonical, with_followers

Changes = Mapping[str, LeverValue]
Values = Mapping[str, tuple[LeverValue, ...]]

# levers that mean something only together are moved together
BLOCKS: dict[str, tuple[str, ...]] = {
    "layout": ("tp", "ep", "attn_dp", "pp", "dcp", "replicas"),
    "pools": ("disagg", "prefill_tp", "prefill_ep", "prefill_attn_dp", "prefill_replicas"),
    "precision": ("weight_dtype", "linear_dtype", "expert_dtype"),
    "speculation": ("spec_method", "spec_depth"),
    "arrivals": ("arrival_process", "request_rate"),
}
BLOCK_OF = {name: block for block, names in BLOCKS.items() for name in names}
NEAR = 2  # places along its values that a lever moves when it moves alone


def levers_of(block: str) -> tuple[str, ...]:
    """The levers of a block; a lever outside the table is its own block.

    >>> levers_of("speculation"), levers_of("max_running")
    (('spec_method', 'spec_depth'), ('max_running',))
    """
    return BLOCKS.get(block, (block,))


def blocks_of(names: Iterable[str]) -> frozenset[str]:
    """The blocks that hold the levers."""
    return frozenset(BLOCK_OF.get(name, name) for name in names)


def block_value(setting: Setting, block: str) -> tuple[LeverValue, ...]:
    """What a setting says about a block."""
    return tuple(setting[name] for name in levers_of(block))


def neighbours(
    setting: Setting, block: str, together: int, values: Values, context: SearchContext
) -> Iterator[tuple[Changes, Setting]]:
    """Settings that differ in at most ``together`` levers of one block: fewer and nearer ones first, lazily.

    Where levers move one at a time, each moves no more than ``NEAR`` places along its values in either direction.
    """
    others = {name: by_distance(values[name], setting[name]) for name in levers_of(block)}
    for size in range(1, together + 1):
        for names in combinations(others, size):
            reach = (others[name][: 2 * NEAR if together == 1 else None] for name in names)
            for chosen in product(*reach):
                changes = dict(zip(names, chosen, strict=True))
                yield changes, canonical(with_followers(changes, setting, context), context)


def by_distance(values: tuple[LeverValue, ...], held: LeverValue) -> list[LeverValue]:
    """The other values by their distance along the list, the lower place first.

    >>> by_distance((1, 2, 4, 8), 4)
    [2, 8, 1]
    """
    place = values.index(held) if held in values else 0
    order = sorted(range(len(values)), key=lambda index: (abs(index - place), index))
    return [values[index] for index in order if values[index] != held]


def combined(
    setting: Setting, choices: Iterable[list[Changes]], context: SearchContext
) -> Iterator[tuple[Changes, Setting]]:
    """The setting with one change from each list, every combination."""
    for chosen in product(*choices):
        changes = {name: value for part in chosen for name, value in part.items()}
        yield changes, canonical(with_followers(changes, setting, context), context)
