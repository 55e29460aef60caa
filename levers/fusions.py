"""Fused-kernel patterns (paper Table 21) as values of the ``fusions`` lever, and their three legality rules.

A value is a tuple of names in table order. The generic flag stands for "whatever the engine's own fusion pass does",
and is never combined with named patterns. What a pattern saves is priced in :mod:`predictor.fusion`.
"""

from itertools import combinations

from levers.reasons import Reason
from predictor.cards import ModelCard
from predictor.fusion import FUSION_NAMES, FUSIONS, illegal_fusions
from predictor.types import Precision

GENERIC = "generic"
QUANT_FED = frozenset(fusion.name for fusion in FUSIONS if fusion.low_precision)


def legal_fusions(card: ModelCard, precision: Precision) -> tuple[str, ...]:
    """Named patterns that exist for this model at these formats."""
    return tuple(name for name in FUSION_NAMES if not illegal_fusions(card, precision, (name,)))


def bf16_safe(names: tuple[str, ...]) -> tuple[str, ...]:
    """The patterns that need no low-precision activations.

    >>> bf16_safe(FUSION_NAMES)
    ('add_rmsnorm', 'moe_expert', 'moe_routing', 'rope_kvstore')
    """
    return tuple(name for name in names if name not in QUANT_FED)


def fusion_reasons(names: tuple[str, ...], card: ModelCard, precision: Precision) -> tuple[Reason, ...]:
    """Why a list of fusions is not legal: patterns that do not exist here, repetition, and the generic flag in a "
    "list."""
    named = tuple(dict.fromkeys(name for name in names if name != GENERIC))
    reasons = [Reason("fusion", message) for message in illegal_fusions(card, precision, named)]
    if len(set(names)) != len(names):
        repeated = ", ".join(sorted({name for name in names if names.count(name) > 1}))
        reasons.append(Reason("fusion_repeated", f"fusions repeat {repeated}: name each once"))
    if GENERIC in names and named:
        reasons.append(Reason("fusion_generic", f"{GENERIC} already covers the named fusions: use one or the other"))
    return tuple(reasons)


def canonical(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names in table order, unknown and repeated ones kept so that the rules can name them.

    >>> canonical(("rope_kvstore", "norm_quant"))
    ('norm_quant', 'rope_kvstore')
    """
    order = {name: position for position, name in enumerate((*FUSION_NAMES, GENERIC))}
    return tuple(sorted(names, key=lambda name: (order.get(name, len(order)), name)))


def every_subset(names: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """All lists without repetition: the empty one first, then by length.

    >>> every_subset(("a", "b"))
    ((), ('a',), ('b',), ('a', 'b'))
    """
    return tuple(subset for size in range(len(names) + 1) for subset in combinations(names, size))
