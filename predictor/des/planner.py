"""The run-planning scheduler for given rules."""

from collections import deque

from predictor.des.ample import AmpleScheduler, takes
from predictor.des.mixed import MixedScheduler
from predictor.des.pages import Pool
from predictor.des.prefill_first import PrefillFirstScheduler
from predictor.des.request import PrefixCache, Request
from predictor.des.rules import SchedulerRules
from predictor.des.runs import RunScheduler


def scheduler_for(
    rules: SchedulerRules,
    pool: Pool,
    *,
    grow: int = 1,
    unit: int = 1,
    prefix_cache: PrefixCache | None = None,
    poll_interval_steps: int = 0,
    queue: deque[Request] | None = None,
    prefill_only: bool = False,
    ample_pool: bool = False,
) -> RunScheduler:
    """Mixed steps or prefill first; ``grow`` / ``unit`` tokens a decode step. Micro-batches share ``queue``.

    ``ample_pool``: the pool never runs short (:func:`predictor.des.pages.ample`) and is not counted.
    """
    kind: type[RunScheduler] = MixedScheduler if rules.mixed_steps else PrefillFirstScheduler
    if ample_pool and takes(
        rules, polls=poll_interval_steps > 0, caches=prefix_cache is not None, prefill_only=prefill_only
    ):
        kind = AmpleScheduler
    return kind(
        rules,
        pool,
        grow=grow,
        unit=unit,
        prefix_cache=prefix_cache,
        poll_interval_steps=poll_interval_steps,
        queue=queue,
        prefill_only=prefill_only,
        ample_pool=ample_pool,
    )
