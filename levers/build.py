"""Build a search context from names, refusing pins that no deployment could have."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from levers.catalog import BY_NAME, lever
from levers.context import Cluster, SearchContext
from levers.lever import PINNED_GROUPS
from levers.space import normalised
from predictor.errors import BadInput, unknown_name
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.types import Dtype, Workload


def search_context(
    *,
    model: str,
    gpu: str,
    engine: str,
    workload: Workload,
    engine_version: str = "",
    gpus_per_node: int | None = None,
    nodes: int = 1,
    pins: Mapping[str, Any] | None = None,
    free: Iterable[str] = (),
    validated: Iterable[Dtype] = (),
) -> SearchContext:
    """A context from names; the newest known engine release and whole nodes unless said otherwise.

    Raises :class:`predictor.errors.UnknownName` for a name in no catalogue, and :class:`predictor.errors.BadInput` for
    an engine that does not run on the GPU, a cluster without GPUs, and a pin outside its lever's legal set.
    """
    card, node, profile = model_card(model), platform(gpu), engine_profile(engine)
    if node.vendor not in profile.vendors:
        runs_on = " and ".join(vendor.upper() for vendor in profile.vendors)
        raise BadInput(f"engine {profile.name} runs on {runs_on} GPUs, not on {node.name}")
    per_node = node.gpus_per_node if gpus_per_node is None else gpus_per_node
    if per_node < 1 or nodes < 1:
        raise BadInput(f"cluster {node.name}:{per_node}x{nodes}: it needs at least one GPU and one node")
    context = SearchContext(
        card=card,
        platform=node,
        engine=profile,
        engine_version=engine_version or profile.version().version,
        cluster=Cluster(per_node, nodes),
        workload=workload,
        free=frozenset(known_openings(free)),
        validated=tuple(validated),
    )
    return with_pins(context, pins or {})


def with_pins(context: SearchContext, pins: Mapping[str, Any]) -> SearchContext:
    """The context with the operator's pins, each checked against its lever's legal set."""
    fixed = []
    for name, raw in pins.items():
        value = normalised(name, raw)
        reason = lever(name).illegal(context, value)
        if reason:
            raise BadInput(f"pin {reason.message}")
        fixed.append((name, value))
    return replace(context, pins=tuple(sorted((*context.pins, *fixed), key=lambda pin: pin[0])))


def known_openings(names: Iterable[str]) -> tuple[str, ...]:
    """Levers or groups that may be freed; anything else is an unknown name."""
    legal = (*(str(group) for group in PINNED_GROUPS), *(x.name for x in BY_NAME.values() if x.group in PINNED_GROUPS))
    wanted = tuple(names)
    for name in wanted:
        if name not in legal:
            raise unknown_name("lever to free", name, legal)
    return wanted
