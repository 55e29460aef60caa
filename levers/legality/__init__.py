"""Legality: named predicates, per engine and release, that each say what to do instead.

:func:`illegal_reasons` asks them all and returns every reason, sorted by rule, so that the answer does not depend on
the order in which levers were set.
"""

from functools import lru_cache

from levers.context import SearchContext
from levers.legality import kernels, notices, parallel, precision, serving
from levers.legality.memory import log_notices, memory_fits, memory_notices, memory_reasons
from levers.legality.rule import Rule, pools
from levers.reasons import Reason
from predictor.types import Deployment, Workload

__all__ = [
    "NOTICES",
    "RULES",
    "deployment_notices",
    "illegal_reasons",
    "log_notices",
    "memory_fits",
    "memory_notices",
    "memory_reasons",
]

RULES: tuple[Rule, ...] = (*parallel.RULES, *precision.RULES, *kernels.RULES, *serving.RULES)
NOTICES: tuple[Rule, ...] = notices.RULES


def illegal_reasons(deployment: Deployment, workload: Workload, context: SearchContext) -> tuple[Reason, ...]:
    """Every reason the deployment is not legal; empty means legal."""
    reasons = malformed(deployment)
    if reasons:
        return reasons
    return asked(RULES, deployment, workload, context)


def deployment_notices(deployment: Deployment, workload: Workload, context: SearchContext) -> tuple[Reason, ...]:
    """What to know about a legal deployment; nothing here refuses it."""
    return asked(NOTICES, deployment, workload, context)


def asked(
    rules: tuple[Rule, ...], deployment: Deployment, workload: Workload, context: SearchContext
) -> tuple[Reason, ...]:
    """The answers of all rules that concern the engine and release, each once, in rule order."""
    concerned = applicable(rules, context.engine.name, context.engine_version)
    found = (reason for rule in concerned for reason in rule.check(deployment, workload, context))
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=64)
def applicable(rules: tuple[Rule, ...], engine: str, version: str) -> tuple[Rule, ...]:
    """Rules that concern an engine and release, in order."""
    return tuple(rule for rule in rules if rule.applies(engine, version))


def malformed(deployment: Deployment) -> tuple[Reason, ...]:
    """Widths and counts below one: no other rule can be asked about them."""
    bad = [
        Reason("width", f"{pool.label}every width and the number of replicas must be at least 1")
        for pool in pools(deployment)
        if pool.replicas < 1 or not parallel.positive_widths(pool.layout)
    ]
    return tuple(bad)
