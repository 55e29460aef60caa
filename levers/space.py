"""Lever settings: complete, hashable, mergeable with partial ones, and turned into a deployment and its workload.

A :class:`Setting` holds one value for each of the 36 levers. A *partial* configuration names only what it changes; the
rest comes from a base, normally the baseline. Unknown levers, values outside a legal set and levers that have no effect
are refused by reasons, never by exceptions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from levers.catalog import BY_NAME, LEVERS
from levers.catalog.common import SGLANG
from levers.catalog.precision import expert_for, linear_for
from levers.context import LeverValue, SearchContext
from levers.fusions import canonical as canonical_fusions
from levers.lever import Group, Lever, show
from levers.reasons import Reason
from predictor.errors import unknown_name
from predictor.types import (
    Arrival,
    Deployment,
    Dtype,
    Kernels,
    Layout,
    Precision,
    PrefillPool,
    SchedulerSettings,
    Speculation,
    Workload,
)

SGLANG_UNCHUNKED = -1  # SGLang reads 0 as unset and -1 as "no chunking"
POSITION = {lever.name: position for position, lever in enumerate(LEVERS)}
FLOAT_LEVERS = frozenset({"kv_mem_fraction", "host_kv_gb", "request_rate"})
# levers with a governor: the lever, the governor's position, and the governor's value that idles it
GOVERNED = tuple((x, POSITION[x.governor[0]], x.governor[1]) for x in LEVERS if x.governor is not None)
LEADERS = frozenset({"weight_dtype", "disagg"})  # levers that others follow
DTYPE_LEVERS = frozenset(lever.name for lever in LEVERS if lever.group is Group.PRECISION)


@dataclass(frozen=True, slots=True)
class Setting(Mapping[str, LeverValue]):
    """One value for each lever, in catalogue order; equal settings are equal and hash alike."""

    values_in_order: tuple[LeverValue, ...]

    def __getitem__(self, name: str) -> LeverValue:
        return self.values_in_order[POSITION[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(POSITION)

    def __len__(self) -> int:
        return len(POSITION)

    def changed(self, changes: Mapping[str, LeverValue]) -> "Setting":
        """This setting with other values for some levers; nothing is checked."""
        values = list(self.values_in_order)
        for name, value in changes.items():
            values[POSITION[name]] = value
        return Setting(tuple(values))

    def differences(self, base: "Setting") -> dict[str, LeverValue]:
        """The levers whose values differ from the base's, with this setting's values."""
        pairs = zip(POSITION, self.values_in_order, base.values_in_order, strict=True)
        return {name: mine for name, mine, theirs in pairs if mine != theirs}

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON: tuples as lists, formats as their names."""
        return {name: as_json_value(value) for name, value in self.items()}


def as_json_value(value: LeverValue) -> Any:
    """A lever value as JSON holds it.

    >>> as_json_value(("norm_quant",)), as_json_value(Dtype.FP8)
    (['norm_quant'], 'fp8')
    """
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class Merged:
    """A partial configuration on its base: a setting, or the reasons there is none."""

    setting: Setting | None
    reasons: tuple[Reason, ...] = ()


def defaults(context: SearchContext) -> Setting:
    """Every lever at its default or pin: the engine's own settings at the narrowest layout, which may not fit."""
    pinned = context.pinned
    return Setting(tuple(normalised(x.name, pinned.get(x.name, x.default(context))) for x in LEVERS))


def normalised(name: str, value: Any) -> LeverValue:
    """A value as the catalogue holds it: JSON lists become tuples in table order, formats become :class:`Dtype`.

    >>> normalised("fusions", ["rope_kvstore", "add_rmsnorm"])
    ('add_rmsnorm', 'rope_kvstore')
    >>> normalised("fusions", "none"), normalised("fusions", "act_quant")  # as typed, and as refusals list them
    ((), ('act_quant',))
    >>> normalised("host_kv_gb", 64), normalised("disagg", False)
    (64.0, 'off')
    """
    if name == "disagg" and value is False:
        return "off"  # typed "off", which reads as a switch: this lever holds the word
    if name == "fusions" and isinstance(value, str):
        value = () if value == "none" else (value,)
    if isinstance(value, list | tuple):
        return canonical_fusions(tuple(str(item) for item in value))
    if name in FLOAT_LEVERS and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if name in DTYPE_LEVERS and value in tuple(Dtype):
        return Dtype(value)
    if name == "arrival_process" and value in tuple(Arrival):
        return Arrival(value)
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


def canonical(setting: Setting, context: SearchContext) -> Setting:
    """The setting with levers that have no effect put back to their defaults."""
    values = setting.values_in_order
    idle = {lever.name: lever.default(context) for lever, governor, off in GOVERNED if values[governor] == off}
    return setting.changed(idle) if idle else setting


def merge(partial: Mapping[str, Any], base: Setting, context: SearchContext) -> Merged:
    """Put a partial configuration on a base, refusing what no search may set.

    Levers that follow another take its value unless named: formats of activations and experts follow the weights'
    checkpoint, and a new prefill pool is laid out like the decode pool.
    """
    known: dict[str, LeverValue] = {}
    reasons: list[Reason] = []
    for name, raw in partial.items():
        if name not in BY_NAME:
            reasons.append(Reason("unknown_lever", str(unknown_name("lever", str(name), BY_NAME))))
            continue
        value = normalised(name, raw)
        reason = BY_NAME[name].refuse(context, value)
        if reason:
            reasons.append(reason)
        known[name] = value
    if reasons:
        return Merged(None, tuple(reasons))
    full = with_followers(known, base, context)
    reasons = [reason for name in known if (reason := no_effect(BY_NAME[name], full, context))]
    return Merged(None, tuple(reasons)) if reasons else Merged(canonical(full, context))


def with_followers(changes: Mapping[str, LeverValue], base: Setting, context: SearchContext) -> Setting:
    """The base with legal changes and the levers that follow them; nothing is checked."""
    full = base.changed(changes)
    return full if LEADERS.isdisjoint(changes) else full.changed(followers(changes, base, full, context))


def followers(
    named: Mapping[str, LeverValue], base: Setting, full: Setting, context: SearchContext
) -> dict[str, LeverValue]:
    """Values of levers that nobody named and that follow one that was."""
    follow: dict[str, LeverValue] = {}
    if full["weight_dtype"] != base["weight_dtype"]:
        weight = Dtype(str(full["weight_dtype"]))
        follow["linear_dtype"] = linear_for(context, weight)
        follow["expert_dtype"] = expert_for(context, weight)
    if full["disagg"] != "off" and base["disagg"] == "off":
        follow |= {f"prefill_{name}": full[name] for name in ("tp", "ep", "attn_dp")}
        if named.get("prefill_tp", full["tp"]) != full["tp"]:  # another width: ranks that suit the decode pool may not
            follow |= {"prefill_ep": 1, "prefill_attn_dp": 1}
    return {name: value for name, value in follow.items() if name not in named and name not in context.pinned}


def no_effect(lever: Lever, setting: Setting, context: SearchContext) -> Reason | None:
    """A reason if the lever does nothing in this setting and is not at its default."""
    if lever.governor is None or setting[lever.governor[0]] != lever.governor[1]:
        return None
    if setting[lever.name] == lever.default(context):
        return None
    governor, off = lever.governor
    return Reason("no_effect", f"{lever.name}={show(setting[lever.name])} has no effect while {governor}={show(off)}")


def to_deployment(setting: Setting, context: SearchContext) -> tuple[Deployment, Workload]:
    """The deployment and the workload of a complete setting. Nothing is checked here."""
    parts: dict[str, dict[str, Any]] = {owner: {} for owner in OWNERS}
    for lever, value in zip(LEVERS, setting.values_in_order, strict=True):
        parts[lever.owner][lever.field] = value
    if context.engine.name == SGLANG and parts["scheduler"]["chunk_size"] == 0:
        parts["scheduler"]["chunk_size"] = SGLANG_UNCHUNKED
    scheduler = SchedulerSettings(**parts["scheduler"])
    handoff = parts["prefill"].pop("handoff")
    pool = None
    if handoff != "off":
        pool = PrefillPool(_layout(parts["prefill_layout"], context), parts["prefill"]["replicas"], handoff, scheduler)
    deployment = Deployment(
        model=context.card.name,
        gpu=context.platform.name,
        engine=context.engine.name,
        engine_version=context.engine_version,
        layout=_layout(parts["layout"], context),
        precision=Precision(**parts["precision"]),
        kernels=Kernels(**parts["kernels"]),
        scheduler=scheduler,
        speculation=_speculation(parts["speculation"]),
        prefill=pool,
        **parts[""],
    )
    return deployment, replace(context.workload, **parts["workload"])


def _layout(widths: dict[str, int], context: SearchContext) -> Layout:
    """A layout with the nodes its GPUs need."""
    nodes = -(-widths["tp"] * widths.get("pp", 1) // context.cluster.gpus_per_node)
    return Layout(**widths, nodes=nodes)


def _speculation(parts: dict[str, Any]) -> Speculation:
    """No method has no depth, so that equal deployments are equal."""
    return Speculation() if parts["method"] == "none" or not parts["depth"] else Speculation(**parts)


OWNERS = ("", "layout", "prefill", "prefill_layout", "precision", "kernels", "scheduler", "speculation", "workload")
