"""The six fused-kernel patterns of paper Table 21 as values of the ``fusions`` lever, and their three legality rules.

A value is a tuple of names in table order. The generic flag stands for "whatever the engine's own fusion pass does",
and is never combined with named patterns.
"""

from dataclasses import dataclass
from itertools import combinations

from levers.reasons import Reason
from predictor.types import Dtype

GENERIC = "generic"


@dataclass(frozen=True, slots=True)
class Fusion:
    """One pattern: what it replaces and when it exists."""

    name: str
    replaces: str
    quant_fed: bool = False  # ends in a quantisation, so it needs low-precision activations
    moe: bool = False


# paper Table 21
FUSIONS = (
    Fusion("norm_quant", "RMSNorm and the activation quant feeding the attention and MLP GEMMs", quant_fed=True),
    Fusion("add_rmsnorm", "residual add and the following RMSNorm, twice a layer"),
    Fusion("moe_expert", "expert gate/up, activation, quant and down in one kernel", moe=True),
    Fusion("moe_routing", "router top-k and permute", moe=True),
    Fusion("act_quant", "SiLU·mul and the quant feeding the down projection", quant_fed=True),
    Fusion("rope_kvstore", "rotary embedding into the KV-cache store"),
)
BY_NAME = {fusion.name: fusion for fusion in FUSIONS}
NAMES = tuple(BY_NAME)


def legal_fusions(activations: Dtype, moe: bool) -> tuple[str, ...]:
    """Named patterns that exist for these activations and this kind of model.

    >>> legal_fusions(Dtype.BF16, moe=False)
    ('add_rmsnorm', 'rope_kvstore')
    """
    quantised = activations is not Dtype.BF16
    return tuple(f.name for f in FUSIONS if (quantised or not f.quant_fed) and (moe or not f.moe))


def bf16_safe(names: tuple[str, ...]) -> tuple[str, ...]:
    """The patterns that do not end in a quantisation."""
    return tuple(name for name in names if not BY_NAME[name].quant_fed)


def fusion_reasons(names: tuple[str, ...], activations: Dtype, moe: bool) -> tuple[Reason, ...]:
    """Why a list of fusions is not legal: the three rules of App. J, and unknown names."""
    reasons = [
        Reason("fusion_unknown", f"fusion {name!r} is not known: {', '.join(NAMES)} or {GENERIC}")
        for name in dict.fromkeys(names)
        if name != GENERIC and name not in BY_NAME
    ]
    known = [BY_NAME[name] for name in dict.fromkeys(names) if name in BY_NAME]
    if activations is Dtype.BF16:
        reasons += [
            Reason(
                "fusion_quant",
                f"{f.name} ends in a quantisation, and activations are bf16: use linear_dtype fp8 or fp4",
            )
            for f in known
            if f.quant_fed
        ]
    if not moe:
        reasons += [
            Reason("fusion_moe", f"{f.name} fuses expert kernels, and the model has none") for f in known if f.moe
        ]
    if len(set(names)) != len(names):
        repeated = ", ".join(sorted({name for name in names if names.count(name) > 1}))
        reasons.append(Reason("fusion_repeated", f"fusions repeat {repeated}: name each once"))
    if GENERIC in names and known:
        reasons.append(Reason("fusion_generic", f"{GENERIC} already covers the named fusions: use one or the other"))
    return tuple(reasons)


def canonical(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names in table order, unknown and repeated ones kept so that the rules can name them.

    >>> canonical(("rope_kvstore", "norm_quant"))
    ('norm_quant', 'rope_kvstore')
    """
    order = {name: position for position, name in enumerate((*NAMES, GENERIC))}
    return tuple(sorted(names, key=lambda name: (order.get(name, len(order)), name)))


def every_subset(names: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """All lists without repetition: the empty one first, then by length.

    >>> every_subset(("a", "b"))
    ((), ('a',), ('b',), ('a', 'b'))
    """
    return tuple(subset for size in range(len(names) + 1) for subset in combinations(names, size))
