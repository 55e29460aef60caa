"""What a legality rule is: a named predicate over a whole deployment."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from levers.context import SearchContext, version_key
from levers.reasons import Reason
from predictor.types import Deployment, Layout, SchedulerSettings, Workload

Check = Callable[[Deployment, Workload, SearchContext], Iterator[Reason]]


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """One predicate, for which engines it holds, and where it comes from."""

    name: str
    summary: str
    source: str
    check: Check
    engines: tuple[str, ...] = ()  # empty: all
    before: str = ""  # holds for releases before this one; empty: all

    def applies(self, engine: str, version: str) -> bool:
        """Whether the rule concerns this engine and release."""
        if self.engines and engine not in self.engines:
            return False
        return not self.before or version_key(version) < version_key(self.before)


class Pool(NamedTuple):
    """One pool of a deployment, as the rules see it."""

    label: str  # "" for the colocated or decode pool, "prefill pool: " for the other
    layout: Layout
    replicas: int
    scheduler: SchedulerSettings

    @property
    def attn_tp(self) -> int:
        """GPUs that share one request's attention; 1 where there are more attention ranks than GPUs."""
        return max(1, self.layout.attn_tp)


def pools(deployment: Deployment) -> tuple[Pool, ...]:
    """The colocated pool, or the decode and prefill pools."""
    main = Pool("", deployment.layout, deployment.replicas, deployment.scheduler)
    if deployment.prefill is None:
        return (main,)
    prefill = deployment.prefill
    return main, Pool("prefill pool: ", prefill.layout, prefill.replicas, prefill.scheduler)
