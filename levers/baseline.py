"""The safe baseline: the narrowest legal layout that fits, with the engine's own defaults for everything else."""

from collections.abc import Callable, Iterator

from levers.catalog import BY_NAME
from levers.context import LeverValue, SearchContext
from levers.legality import illegal_reasons
from levers.reasons import Reason
from levers.space import Merged, Setting, canonical, defaults, to_deployment
from predictor.errors import Refusal
from predictor.types import Deployment, Workload

Fits = Callable[[Deployment, Workload], tuple[Reason, ...]]


def anything_fits(deployment: Deployment, workload: Workload) -> tuple[Reason, ...]:
    """No memory check: for callers that price memory themselves."""
    return ()


def find_baseline(context: SearchContext, fits: Fits = anything_fits) -> Merged:
    """The first layout, narrowest first, that is legal and fits; else every reason that came up, each once."""
    start = defaults(context)
    met: dict[Reason, None] = {}
    for widths in layouts(context):
        setting = canonical(start.changed(widths), context)
        deployment, workload = to_deployment(setting, context)
        reasons = illegal_reasons(deployment, workload, context) or fits(deployment, workload)
        if not reasons:
            return Merged(setting)
        met.update(dict.fromkeys(reasons))
    return Merged(None, tuple(met))


def baseline(context: SearchContext, fits: Fits = anything_fits) -> Setting:
    """The baseline; :class:`predictor.errors.Refusal` with the reasons where no layout is legal and fits."""
    found = find_baseline(context, fits)
    if found.setting is None:
        reasons = "; ".join(reason.message for reason in found.reasons)
        raise Refusal(
            f"no legal deployment of {context.card.name} on {context.cluster.gpus} {context.platform.name}: {reasons}"
        )
    return found.setting


def layouts(context: SearchContext) -> Iterator[dict[str, LeverValue]]:
    """Layouts in the order of the baseline: fewest GPUs first, one stage before several, whole experts last."""
    stages, widths, experts = (BY_NAME[name].values(context) for name in ("pp", "tp", "ep"))
    found = [
        {"tp": tp, "pp": pp, "ep": ep}
        for pp in stages
        for tp in widths
        for ep in dict.fromkeys((experts[0], *(value for value in experts if value == tp)))
    ]
    yield from sorted(found, key=_width)


def _width(layout: dict[str, LeverValue]) -> tuple[int, int, int]:
    tp, pp, ep = (int(str(layout[name])) for name in ("tp", "pp", "ep"))
    return tp * pp, pp, ep
