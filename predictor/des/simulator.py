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
from predictor.des.stepwise import StepRecorder, StepReplica, StepScheduler
from predictor.errors import BadInput
from predictor.step.model import StepModel
from predictor.types import Arrival, StartMode, Workload


class TimeEngine(StrEnum):
    """How simulated time advances; all three give the same result."""

    RUNS = "runs"  # closed form between events
    LEAN = "lean"  # the same, one step at a time
    STEPWISE = "stepwise"  # the reference: every running request at every step


class FirstReplica:
    """Routing of a single replica."""

    def pick(self, request: Request, replicas: object) -> int:
        """Always the first."""
        return 0


def _warm_requests(workload: Workload) -> int:
    """Requests of the first wave, which a warmed-up measurement leaves out."""
    if workload.arrival is not Arrival.CLOSED or workload.start is not StartMode.WARM:
        return 0
    if workload.requests_per_client < 2:
        raise BadInput(
            "requests_per_client is 1, must be at least 2 with start 'warm', which leaves the first wave out"
        )
    return workload.concurrency


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
    last bit. Raises :class:`predictor.errors.DoesNotFit` for a request the pool or the step budget can never hold.
    """
    kind = TimeEngine(engine)
    if workload.arrival is Arrival.TRACE:
        raise BadInput("workload.arrival is 'trace': give the trace's requests, a Workload describes synthetic traffic")
    prices = TickPrices(step_model)
    source = source_for(workload, step_model, prices, seed)
    warm = _warm_requests(workload)
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
