"""Legality: named predicates, per engine and release, that each say what to do instead.

:func:`illegal_reasons` asks them all and returns every reason, sorted by rule, so that the answer does not depend on
the order in which levers were set.
"""

from levers.context import SearchContext
from levers.legality import kernels, parallel, precision, serving
from levers.legality.rule import Rule, pools
from levers.reasons import Reason
from predictor.types import Deployment, Workload

RULES: tuple[Rule, ...] = (*parallel.RULES, *precision.RULES, *kernels.RULES, *serving.RULES)


def illegal_reasons(deployment: Deployment, workload: Workload, context: SearchContext) -> tuple[Reason, ...]:
    """Every reason the deployment is not legal; empty means legal."""
    reasons = malformed(deployment)
    if reasons:
        return reasons
    found = (r for rule in RULES if rule.applies(context) for r in rule.check(deployment, workload, context))
    return tuple(dict.fromkeys(found))


def malformed(deployment: Deployment) -> tuple[Reason, ...]:
    """Widths and counts below one: no other rule can be asked about them."""
    bad = [
        Reason("width", f"{pool.label}every width and the number of replicas must be at least 1")
        for pool in pools(deployment)
        if pool.replicas < 1 or not parallel.positive_widths(pool.layout)
    ]
    return tuple(bad)
