"""The ordered seed list (paper App. J): one lever at a time from the baseline, so that each gain has a clear cause.

Order: TP, attention DP, replicas and stages, precision, load, scheduler, speculation, EP and MoE options, collectives,
kernels, disaggregation, fusions. A lever that is legal only beside another (attention DP needs width, an all-to-all
needs EP) carries what it needs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from levers.catalog import BY_NAME
from levers.context import LeverValue, SearchContext
from levers.fusions import bf16_safe, legal_fusions
from levers.legality import illegal_reasons
from levers.lever import Group, show
from levers.neighbours import Changes
from levers.reasons import Reason
from levers.space import Setting, merge, to_deployment
from predictor.types import Deployment, Dtype, Precision, Workload

Check = Callable[[Deployment, Workload], tuple[Reason, ...]]


@dataclass(frozen=True, slots=True)
class Seed:
    """One named setting of the list; ``changes`` is what it changes in the baseline."""

    name: str
    setting: Setting
    changes: tuple[tuple[str, LeverValue], ...]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A seed that is not legal: what it would have changed, and its reasons."""

    name: str
    reasons: tuple[Reason, ...]
    changes: tuple[tuple[str, LeverValue], ...]


def seed_settings(
    context: SearchContext, base: Setting, limit: int | None = None, per_lever: int | None = None
) -> Iterator[Seed]:
    """The first ``limit`` legal seeds that launch different deployments; at most ``per_lever`` values of one lever."""
    found = 0
    for seed in legal_or_skipped(context, base, per_lever):
        if isinstance(seed, Skipped):
            continue
        if limit is not None and found >= limit:
            return
        found += 1
        yield seed


def legal_or_skipped(
    context: SearchContext, base: Setting, per_lever: int | None = None, check: Check | None = None
) -> Iterator[Seed | Skipped]:
    """Every distinct seed in order: legal ones as settings, the others with their reasons.

    ``check`` says what else refuses a deployment; structure alone where it is not given.
    """
    refuse = check or partial(illegal_reasons, context=context)
    seen = {to_deployment(base, context)}
    for changes in moves(context, base, per_lever):
        name = " ".join(f"{lever}={show(value)}" for lever, value in changes.items())
        merged = merge(changes, base, context)
        if merged.setting is None:
            yield Skipped(name, merged.reasons, tuple(changes.items()))
            continue
        launched = to_deployment(merged.setting, context)
        if launched in seen:
            continue
        seen.add(launched)
        reasons = refuse(*launched)
        if reasons:
            yield Skipped(name, reasons, tuple(changes.items()))
        else:
            yield Seed(name, merged.setting, tuple(merged.setting.differences(base).items()))


def moves(context: SearchContext, base: Setting, per_lever: int | None = None) -> Iterator[Changes]:
    """The changes of App. J's list in its order, legal or not.

    With ``per_lever`` set, attention DP and EP are tried over the whole width only.
    """
    wide = [tp for tp in _ints(context, "tp") if tp > 1]
    yield from _width_moves(context, base)
    yield from (
        {"tp": tp, "attn_dp": ranks}
        for tp in wide
        for ranks in _ints(context, "attn_dp")
        if 1 < ranks <= tp and (per_lever is None or ranks == tp)
    )
    yield from _replica_moves(context)
    yield from _single(context, base, Group.PRECISION, per_lever)
    yield from _single(context, base, Group.LOAD, per_lever)
    yield from _single(context, base, Group.SCHEDULER, per_lever)
    yield from _single(context, base, Group.MEMORY, per_lever)
    yield from _speculation(context, per_lever)
    yield from _experts(context, base, wide, per_lever)
    yield from _collectives(context, base, wide)
    yield from _kernels(context, base, per_lever)
    yield from _disaggregation(context)
    yield from _fusions(context, base)


def _values(context: SearchContext, name: str, per_lever: int | None = None) -> tuple[LeverValue, ...]:
    return thinned(BY_NAME[name].values(context), per_lever)


def _ints(context: SearchContext, name: str) -> tuple[int, ...]:
    return tuple(value for value in _values(context, name) if isinstance(value, int))


def thinned(values: tuple[LeverValue, ...], count: int | None) -> tuple[LeverValue, ...]:
    """At most ``count`` values, evenly spaced and with both ends; one value is the middle one.

    >>> thinned((1, 2, 4, 8, 16), 3)
    (1, 4, 16)
    """
    if count is None or len(values) <= count:
        return values
    if count == 1:
        return (values[len(values) // 2],)
    step = (len(values) - 1) / (count - 1)
    return tuple(values[round(index * step)] for index in range(count))


def _width_moves(context: SearchContext, base: Setting) -> Iterator[Changes]:
    """Other widths, keeping experts whole where the baseline does."""
    whole = base["ep"] == base["tp"] and base["ep"] != 1
    for tp in _ints(context, "tp"):
        yield {"tp": tp, "ep": tp} if whole else {"tp": tp}


def _replica_moves(context: SearchContext) -> Iterator[Changes]:
    """Replicas of each width up to the cluster, fullest first, then stages."""
    for tp in _ints(context, "tp"):
        room = context.cluster.gpus // tp
        counts = [count for count in _ints(context, "replicas") if 1 < count <= room]
        yield from ({"tp": tp, "replicas": count} for count in reversed(counts))
    yield from ({"pp": pp} for pp in _ints(context, "pp") if pp > 1)


def _single(context: SearchContext, base: Setting, group: Group, per_lever: int | None) -> Iterator[Changes]:
    """Every other value of every lever of a group."""
    for lever in BY_NAME.values():
        if lever.group is not group:
            continue
        others = tuple(value for value in lever.values(context) if value != base[lever.name])
        yield from ({lever.name: value} for value in thinned(others, per_lever))


def _speculation(context: SearchContext, per_lever: int | None) -> Iterator[Changes]:
    depths = _values(context, "spec_depth", per_lever)
    for method in _values(context, "spec_method"):
        if method != "none":
            yield from ({"spec_method": method, "spec_depth": depth} for depth in depths)


def _experts(context: SearchContext, base: Setting, wide: list[int], per_lever: int | None) -> Iterator[Changes]:
    """EP, EP under attention DP, then MoE backends, all-to-alls and redundant experts on the widest of them."""
    if not context.card.is_moe:
        return
    parts = [(tp, ep) for tp in wide for ep in _ints(context, "ep") if 1 < ep <= tp and (per_lever is None or ep == tp)]
    yield from ({"tp": tp, "ep": ep} for tp, ep in parts)
    yield from ({"tp": tp, "ep": ep, "attn_dp": tp} for tp, ep in parts)
    backends = [value for value in _values(context, "moe_backend") if value != base["moe_backend"]]
    yield from ({"moe_backend": value} for value in backends)
    for tp in reversed(wide):
        whole = {"tp": tp, "ep": tp}
        yield from (
            whole | {"attn_dp": tp, "a2a_backend": a2a} for a2a in _values(context, "a2a_backend") if a2a != "none"
        )
        extra = [value for value in _values(context, "eplb_redundant", per_lever) if value]
        yield from (whole | {"eplb_redundant": redundant} for redundant in extra)


def _collectives(context: SearchContext, base: Setting, wide: list[int]) -> Iterator[Changes]:
    """Other all-reduces, at the baseline's width or the narrowest that needs one."""
    width = base["tp"] if base["tp"] != 1 else next(iter(wide), None)
    if width is not None:
        yield from (
            {"tp": width, "allreduce": kind} for kind in _values(context, "allreduce") if kind != base["allreduce"]
        )


def _kernels(context: SearchContext, base: Setting, per_lever: int | None) -> Iterator[Changes]:
    for name in ("attn_backend", "sparse_topk", "graph_mode", "graph_max_bs", "dcp"):
        others = tuple(value for value in BY_NAME[name].values(context) if value != base[name])
        yield from ({name: value} for value in thinned(others, per_lever))


def _disaggregation(context: SearchContext) -> Iterator[Changes]:
    """Equal pools, then more prefill or decode replicas while the cluster has room."""
    for handoff in _values(context, "disagg"):
        if handoff == "off":
            continue
        yield from ({"disagg": handoff, "tp": tp, "prefill_tp": tp} for tp in _ints(context, "tp"))
        for count in _ints(context, "prefill_replicas"):
            if count > 1:
                yield {"disagg": handoff, "prefill_replicas": count}
                yield {"disagg": handoff, "replicas": count}


def _fusions(context: SearchContext, base: Setting) -> Iterator[Changes]:
    """The full legal set, then its BF16-safe subset."""
    formats = (Dtype(str(base[f"{part}_dtype"])) for part in ("weight", "linear", "expert", "kv"))
    names = legal_fusions(context.card, Precision(*formats))
    yield {"fusions": names}
    yield {"fusions": bf16_safe(names)}
