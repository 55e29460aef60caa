"""The safe baseline: the narrowest legal layout that fits, with the engine's own defaults for everything else."""

from collections.abc import Callable, Iterator
from functools import partial

from levers.catalog import BY_NAME
from levers.context import LeverValue, SearchContext
from levers.legality import illegal_reasons, memory_fits
from levers.reasons import Reason
from levers.space import Merged, Setting, canonical, defaults, to_deployment, with_followers
from predictor.errors import Refusal
from predictor.types import Deployment, Workload

Fits = Callable[[Deployment, Workload], tuple[Reason, ...]]  # why a legal deployment does not fit; empty if it does

# what the defaults of an engine may lack for a workload, and the setting that mends it
REPAIRS: dict[str, dict[str, LeverValue]] = {"prompt_over_budget": {"chunk_size": 8192}}


def find_baseline(context: SearchContext, fits: Fits | None = None) -> Merged:
    """The first layout, narrowest first, that is legal and fits; else the reasons of the widest layout tried.

    Where the weight format is open and the first checkpoint fits nowhere, the next one is tried.
    """
    start = defaults(context)
    check = fits or partial(memory_fits, context=context)
    reasons: tuple[Reason, ...] = ()
    for weight in BY_NAME["weight_dtype"].values(context):
        for widths in layouts(context):
            changed = with_followers({"weight_dtype": weight, **widths}, start, context)
            setting = canonical(changed, context)
            reasons = _reasons(setting, context, check)
            repair = _repair(reasons, context)
            if repair:
                setting = setting.changed(repair)
                reasons = _reasons(setting, context, check)
            if not reasons:
                return Merged(setting)
    return Merged(None, reasons or (Reason("no_layout", "no layout is within the pins and the cluster"),))


def baseline(context: SearchContext, fits: Fits | None = None) -> Setting:
    """The baseline; :class:`predictor.errors.Refusal` with the reasons where no layout is legal and fits."""
    found = find_baseline(context, fits)
    if found.setting is None:
        reasons = "; ".join(reason.message for reason in found.reasons)
        others = context.card.weight_dtypes[1:]
        hint = f"; there are checkpoints in {', '.join(others)}: pin weight_dtype or free precision" if others else ""
        where = f"{context.cluster.gpus} {context.platform.name}"
        raise Refusal(f"no legal deployment of {context.card.name} on {where}: {reasons}{hint}")
    return found.setting


def _reasons(setting: Setting, context: SearchContext, fits: Fits) -> tuple[Reason, ...]:
    launched = to_deployment(setting, context)
    return illegal_reasons(*launched, context) or fits(*launched)


def _repair(reasons: tuple[Reason, ...], context: SearchContext) -> dict[str, LeverValue]:
    """Settings that mend the reasons, where every one of them can be mended and nothing is pinned."""
    if not reasons or any(reason.code not in REPAIRS for reason in reasons):
        return {}
    changes = {name: value for reason in reasons for name, value in REPAIRS[reason.code].items()}
    return {} if set(changes) & set(context.pinned) else changes


def layouts(context: SearchContext) -> Iterator[dict[str, LeverValue]]:
    """Layouts the cluster can hold, in the baseline's order: fewest GPUs, fewest stages, split before whole experts."""
    stages, widths, experts = ([int(str(x)) for x in BY_NAME[name].values(context)] for name in ("pp", "tp", "ep"))
    found = [
        (tp * pp, pp, ep, tp)
        for pp in stages
        for tp in widths
        for ep in dict.fromkeys((experts[0], *(value for value in experts if value == tp)))
        if tp * pp <= context.cluster.gpus
    ]
    for _, pp, ep, tp in sorted(found):
        yield {"tp": tp, "pp": pp, "ep": ep}
