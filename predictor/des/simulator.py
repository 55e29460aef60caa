"""The discrete-event simulator: requests through an engine's scheduler, priced by a step model (paper §3.4, A.1)."""

from enum import StrEnum

from predictor.des.clients import source_for
from predictor.des.clock import TickPrices
from predictor.des.hub import Hub
from predictor.des.metrics import HostTimes, SimulationResult
from predictor.des.prefill_first import scheduler_for
from predictor.des.recorder import Recorder
from predictor.des.replica import RunReplica
from predictor.des.request import PrefixCache, Request
from predictor.des.rules import SchedulerRules
from predictor.des.schedule import RunLog, cached_schedule, clockless, price, schedule, warm_requests
from predictor.des.stepwise import StepRecorder, StepReplica, StepScheduler
from predictor.errors import BadInput
from predictor.step.model import StepModel
from predictor.types import Arrival, Workload


class TimeEngine(StrEnum):
    """How simulated time advances; all give the same result."""

    RUNS = "runs"  # closed form between events
    TIMED_RUNS = "timed_runs"  # the same, on the simulation's clock even where nothing reads it
    LEAN = "lean"  # the same, one step at a time
    STEPWISE = "stepwise"  # the reference: every running request at every step


class FirstReplica:
    """Routing of a single replica."""

    def pick(self, request: Request, replicas: object) -> int:
        """Always the first."""
        return 0


def _log(
    tokens_per_step: float,
    workload: Workload,
    rules: SchedulerRules,
    kv_blocks: int,
    prefix_cache: PrefixCache | None,
    host: HostTimes,
    seed: int,
) -> RunLog:
    """The schedule; remembered unless a prefix cache, which the simulation changes, is part of it."""
    poll = host.poll_interval_steps
    if prefix_cache is None:
        return cached_schedule(workload, rules, kv_blocks, tokens_per_step, poll, seed)
    return schedule(
        workload,
        rules,
        kv_blocks=kv_blocks,
        tokens_per_step=tokens_per_step,
        poll_interval_steps=poll,
        prefix_cache=prefix_cache,
        seed=seed,
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
) -> SimulationResult:
    """Simulate one replica under a workload.

    ``kv_blocks`` is the KV pool in blocks of ``scheduler.block_tokens``. The same arguments give the same result to the
    last bit. A closed loop that never reads the clock is scheduled once and priced (:mod:`predictor.des.schedule`).
    Raises :class:`predictor.errors.DoesNotFit` for a request the pool or the step budget can never hold.
    """
    kind = TimeEngine(engine)
    if workload.arrival is Arrival.TRACE:
        raise BadInput("workload.arrival is 'trace': give the trace's requests, a Workload describes synthetic traffic")
    if kind is TimeEngine.RUNS and clockless(workload):
        log = _log(step_model.tokens_per_step, workload, scheduler, kv_blocks, prefix_cache, host, seed)
        return price(log, step_model, host)
    prices = TickPrices(step_model)
    source = source_for(workload, step_model, prices, seed)
    warm = warm_requests(workload)
    stall = prices.clock.ticks(host.first_wave_stall_ms)
    options = {"grow": prices.grow, "unit": prices.context_units}
    if kind is TimeEngine.STEPWISE:
        step_recorder = StepRecorder(prices.clock, warm)
        hub = Hub(source, FirstReplica(), step_recorder)
        reference = StepScheduler(
            scheduler,
            kv_blocks,
            step_recorder,
            **options,
            prefix_cache=prefix_cache,
            poll_interval_steps=host.poll_interval_steps,
        )
        hub.replicas.append(StepReplica(hub, 0, reference, step_recorder, prices, stall))
        hub.run()
        return step_recorder.result(host, kind.value)
    recorder = Recorder(prices.clock, warm)
    hub = Hub(source, FirstReplica(), recorder)
    planner = scheduler_for(
        scheduler, kv_blocks, **options, prefix_cache=prefix_cache, poll_interval_steps=host.poll_interval_steps
    )
    longest = 1 if kind is TimeEngine.LEAN else None
    hub.replicas.append(RunReplica(hub, 0, planner, prices, longest, stall))
    hub.run()
    return recorder.result(host, kind.value)
