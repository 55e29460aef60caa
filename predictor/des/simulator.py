"""The discrete-event simulator: requests through an engine's scheduler, priced by a step model (paper §3.4, A.1)."""

from predictor.des.clients import check_acceptance
from predictor.des.metrics import HostTimes, SimulationResult
from predictor.des.request import PrefixCache
from predictor.des.rules import SchedulerRules
from predictor.des.schedule import RunLog, cached_schedule, clockless, price, schedule
from predictor.step.model import StepModel
from predictor.types import Workload


def _log(
    tokens_per_step: float,
    workload: Workload,
    rules: SchedulerRules,
    kv_blocks: int,
    prefix_cache: PrefixCache | None,
    host: HostTimes,
    seed: int,
    acceptance: tuple[float, ...],
) -> RunLog:
    """The schedule; remembered unless a prefix cache, which the simulation changes, is part of it."""
    poll = host.poll_interval_steps
    if prefix_cache is None:
        return cached_schedule(workload, rules, kv_blocks, tokens_per_step, poll, seed, acceptance)
    return schedule(
        workload,
        rules,
        kv_blocks=kv_blocks,
        tokens_per_step=tokens_per_step,
        poll_interval_steps=poll,
        prefix_cache=prefix_cache,
        seed=seed,
        acceptance=acceptance,
    )


def simulate(
    step_model: StepModel,
    workload: Workload,
    scheduler: SchedulerRules,
    *,
    kv_blocks: int,
    engine: str = "runs",
    prefix_cache: PrefixCache | None = None,
    host: HostTimes = HostTimes(),
    seed: int = 0,
    acceptance: tuple[float, ...] = (),
) -> SimulationResult:
    """Simulate one replica under a workload.

    ``kv_blocks`` is the KV pool in blocks of ``scheduler.block_tokens``. The same arguments give the same result to the
    last bit. A closed loop that never reads the clock is scheduled once and priced (:mod:`predictor.des.schedule`).
    With speculation every verify step commits ``step_model.tokens_per_step`` for each request, or with ``acceptance``
    (conditional rates of the drafted tokens) each request draws its number of steps.
    Raises :class:`predictor.errors.DoesNotFit` for a request the pool or the step budget can never hold.
    """
    check_acceptance(acceptance, step_model, scheduler)
    if engine == "runs" and clockless(workload):
        log = _log(step_model.tokens_per_step, workload, scheduler, kv_blocks, prefix_cache, host, seed, acceptance)
        return price(log, step_model, host)
    from predictor.des.fleet import ReplicaSpec, TimeEngine, simulate_fleet  # loaded where a clock runs

    spec = ReplicaSpec(
        step_model, scheduler, kv_blocks, prefix_cache=None if prefix_cache is None else lambda: prefix_cache
    )
    return simulate_fleet(spec, workload, engine=TimeEngine(engine).value, host=host, seed=seed, acceptance=acceptance)
