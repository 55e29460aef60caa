"""Fleets: replicas behind a router, attention-DP ranks, pipelines, and prefill and decode pools with a hand-off."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from predictor.des.clients import check_acceptance, source_for
from predictor.des.clock import Clock, TickPrices, units_of
from predictor.des.hub import Hub, Replica, Router, Source
from predictor.des.metrics import HostTimes, SimulationResult
from predictor.des.pages import Pool, ample
from predictor.des.pipeline import PipelineReplica, PipelineShape, RoundModel
from predictor.des.planner import scheduler_for
from predictor.des.ranks import RankGroup
from predictor.des.recorder import Recorder
from predictor.des.replica import RunReplica
from predictor.des.request import PrefixCache, Request
from predictor.des.routers import router_named
from predictor.des.rules import SchedulerRules
from predictor.des.schedule import warm_requests
from predictor.des.serial_host import SerialHost
from predictor.des.stepwise import StepScheduler
from predictor.des.stepwise_pipeline import StepPipeline
from predictor.des.stepwise_prefill_first import PrefillFirstSteps
from predictor.des.stepwise_replica import StepReplica
from predictor.des.stepwise_state import StepRecorder
from predictor.errors import BadInput
from predictor.step.model import StepModel
from predictor.types import Arrival, Workload


class TimeEngine(StrEnum):
    """How simulated time advances; all give the same result."""

    RUNS = "runs"  # closed form between events
    TIMED_RUNS = "timed_runs"  # the same, on the simulation's clock even where nothing reads it
    LEAN = "lean"  # runs of one step
    STEPWISE = "stepwise"  # the reference: every running request at every step


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """Like replicas of one pool.

    ``kv_blocks`` is the pool of one attention-DP rank, or of the whole pipeline (its smallest stage). ``ranks`` > 1 run
    in lockstep; ``rules`` are those of one rank. ``rounds`` simulates a pipeline by the round rule instead of stage by
    stage. ``prefix_cache`` makes one cache a rank.
    """

    step_model: StepModel
    rules: SchedulerRules
    kv_blocks: int
    replicas: int = 1
    ranks: int = 1
    pipeline: PipelineShape | None = None
    rounds: bool = False
    prefix_cache: Callable[[], PrefixCache] | None = None
    router: str | Router = "least_loaded"

    def __post_init__(self) -> None:
        for name in ("kv_blocks", "replicas", "ranks"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} is {getattr(self, name)}, must be at least 1")
        if self.pipeline is not None and self.ranks > 1:
            raise BadInput(f"ranks is {self.ranks}: attention DP inside a pipeline is not simulated")


@dataclass(frozen=True, slots=True)
class HandoffTimes:
    """A request's KV between pools: a floor plus exposed bytes over each prefill GPU's own link (paper D.4).

    ``kv_bytes_per_token`` is one prefill GPU's part. A layer-streamed backend exposes the last of ``layers`` only.
    """

    floor_ms: float
    bandwidth_bytes_per_ms: float
    kv_bytes_per_token: float
    layers: int = 1
    layer_streamed: bool = False

    def handoff_ms(self, prompt_tokens: int) -> float:
        """From the end of prefill until the decode pool holds the cache.

        >>> HandoffTimes(0.12, 47.9e6, 100_000.0, 61, layer_streamed=True).handoff_ms(8192) < 0.5
        True
        """
        exposed = self.kv_bytes_per_token * prompt_tokens / (self.layers if self.layer_streamed else 1)
        return self.floor_ms + exposed / self.bandwidth_bytes_per_ms


class _TickHandoff:
    def __init__(self, times: HandoffTimes, clock: Clock) -> None:
        self._times = times
        self._clock = clock

    def ticks(self, request: Request) -> int:
        return self._clock.ticks(self._times.handoff_ms(request.prompt_tokens))


def simulate_fleet(
    decode: ReplicaSpec,
    workload: Workload | None = None,
    *,
    source: Callable[[Clock], Source] | None = None,
    prefill: ReplicaSpec | None = None,
    handoff: HandoffTimes | None = None,
    prefill_host_ms: float = 0.0,
    engine: str = "timed_runs",
    host: HostTimes = HostTimes(),
    seed: int = 0,
    acceptance: tuple[float, ...] = (),
    progress: Callable[[int], None] | None = None,
) -> SimulationResult:
    """Simulate replicas, with ``prefill`` as a split deployment.

    Traffic is a synthetic ``workload``, or a ``source`` made for the simulation's clock. In a split, ``decode`` is the
    decode pool: a request is prefilled in the other one, its KV handed over, and its first token stamped when a decode
    replica admits it. ``prefill_host_ms`` is host time a prompt that is serial on its prefill step.
    ``acceptance``: see :func:`predictor.des.simulator.simulate`. ``progress`` is told now and then how many requests
    have finished.
    """
    kind = TimeEngine(engine)
    if (workload is None) == (source is None):
        raise BadInput("give either a workload or a source of requests")
    if (prefill is None) != (handoff is None):
        raise BadInput("a split deployment needs both a prefill pool and a hand-off")
    if workload is not None and workload.arrival is Arrival.TRACE:
        raise BadInput("workload.arrival is 'trace': give the trace's requests as a source")
    check_acceptance(acceptance, decode.step_model, decode.rules)
    pools = [decode] if prefill is None else [_with_serial_host(prefill, prefill_host_ms), decode]
    units = max(units_of(spec.step_model) for spec in pools)
    prices = [TickPrices(_priced_model(spec), units) for spec in pools]
    clock = prices[0].clock
    warm = warm_requests(workload) if workload is not None else 0
    traffic = source(clock) if source is not None else None
    if traffic is None and workload is not None:
        traffic = source_for(workload, pools[0].step_model, clock, seed, acceptance)
    if traffic is None:
        raise BadInput("no traffic")
    recorder = (StepRecorder if kind is TimeEngine.STEPWISE else Recorder)(clock, warm, progress)
    routers = [spec.router if not isinstance(spec.router, str) else router_named(spec.router, seed) for spec in pools]
    ticks = None if handoff is None else _TickHandoff(handoff, clock)
    hub = Hub(traffic, routers[0], recorder, routers[-1], ticks)
    stall = clock.ticks(host.first_wave_stall_ms)
    for number, (spec, spec_prices) in enumerate(zip(pools, prices, strict=True)):
        prefill_only = prefill is not None and number == 0
        build = _Builder(hub, spec, spec_prices, kind, host.poll_interval_steps, stall, prefill_only, workload)
        for _ in range(spec.replicas):
            (hub.replicas if number == 0 else hub.decoders).append(build.one())
    hub.run()
    return recorder.result(host, kind.value)


def _with_serial_host(spec: ReplicaSpec, serial_ms: float) -> ReplicaSpec:
    return replace(spec, step_model=SerialHost(spec.step_model, serial_ms)) if serial_ms else spec


def _priced_model(spec: ReplicaSpec) -> StepModel:
    if spec.pipeline is not None and spec.rounds:
        return RoundModel(spec.step_model, spec.pipeline)
    return spec.step_model


class _Builder:
    """Makes the replicas of one pool."""

    def __init__(
        self,
        hub: Hub,
        spec: ReplicaSpec,
        prices: TickPrices,
        engine: TimeEngine,
        poll_interval_steps: int,
        stall: int,
        prefill_only: bool,
        workload: Workload | None,
    ) -> None:
        self._hub, self._spec, self._prices, self._engine = hub, spec, prices, engine
        self._poll, self._stall, self._prefill_only = poll_interval_steps, stall, prefill_only
        self._workload = workload  # None where lengths are not known beforehand

    def one(self) -> Replica:
        """The next replica."""
        hub, spec = self._hub, self._spec
        index = len(hub.replicas) + len(hub.decoders)
        if spec.pipeline is not None and not spec.rounds:
            stepwise = self._engine is TimeEngine.STEPWISE
            return (self._stepwise_pipeline if stepwise else self._pipeline)(index, spec.pipeline)
        return self._stepwise(index) if self._engine is TimeEngine.STEPWISE else self._runs(index)

    def _rank_count(self) -> int:
        return self._spec.pipeline.stages if self._spec.pipeline is not None else self._spec.ranks

    def _rank_rules(self) -> tuple[SchedulerRules, int]:
        """Rules and blocks of one rank: a micro-batch of the round rule has its share of both."""
        spec = self._spec
        if spec.pipeline is None:
            return spec.rules, spec.kv_blocks
        return _share_of(spec.rules, spec.pipeline.stages), max(1, spec.kv_blocks // spec.pipeline.stages)

    def _cache(self) -> PrefixCache | None:
        return self._spec.prefix_cache() if self._spec.prefix_cache is not None else None

    def _ample(self, rules: SchedulerRules, blocks: int) -> bool:
        if self._workload is None:
            return False
        tokens = self._spec.step_model.tokens_per_step
        return ample(rules, blocks, self._workload, tokens_per_step=tokens, keeps_finished=self._prefill_only)

    def _runs(self, index: int) -> RunReplica:
        rules, blocks = self._rank_rules()
        ranks = [
            scheduler_for(
                rules,
                Pool(blocks),
                grow=self._prices.grow,
                unit=self._prices.context_units,
                prefix_cache=self._cache(),
                poll_interval_steps=self._poll,
                prefill_only=self._prefill_only,
                ample_pool=self._ample(rules, blocks),
            )
            for _ in range(self._rank_count())
        ]
        group = ranks[0] if len(ranks) == 1 else RankGroup(ranks, self._prices, rules.rank_routing)
        longest = 1 if self._engine is TimeEngine.LEAN else None
        return RunReplica(self._hub, index, group, self._prices, longest, self._stall)

    def _stepwise(self, index: int) -> StepReplica:
        rules, blocks = self._rank_rules()
        recorder = self._step_recorder()
        ranks = [self._step_scheduler(rules, blocks, self._cache(), self._poll) for _ in range(self._rank_count())]
        return StepReplica(self._hub, index, ranks, recorder, self._prices, self._stall)

    def _stepwise_pipeline(self, index: int, shape: PipelineShape) -> StepPipeline:
        rules, cache = _share_of(self._spec.rules, shape.stages), self._cache()
        micro_batches = [self._step_scheduler(rules, self._spec.kv_blocks, cache, 0) for _ in range(shape.stages)]
        return StepPipeline(self._hub, index, micro_batches, self._step_recorder(), self._prices, shape, self._stall)

    def _step_recorder(self) -> StepRecorder:
        recorder = self._hub.recorder
        if not isinstance(recorder, StepRecorder):
            raise TypeError("the reference engine keeps its own record")
        return recorder

    def _step_scheduler(
        self, rules: SchedulerRules, blocks: int, cache: PrefixCache | None, poll_interval_steps: int
    ) -> StepScheduler:
        return (StepScheduler if rules.mixed_steps else PrefillFirstSteps)(
            rules,
            blocks,
            self._step_recorder(),
            grow=self._prices.grow,
            unit=self._prices.context_units,
            prefix_cache=cache,
            poll_interval_steps=poll_interval_steps,
            prefill_only=self._prefill_only,
        )

    def _pipeline(self, index: int, shape: PipelineShape) -> PipelineReplica:
        spec = self._spec
        pool = Pool(spec.kv_blocks)
        queue: deque[Request] = deque()
        cache = self._cache()
        micro_batches = [
            scheduler_for(
                _share_of(spec.rules, shape.stages),
                pool,
                grow=self._prices.grow,
                unit=self._prices.context_units,
                prefix_cache=cache,
                queue=queue,
                prefill_only=self._prefill_only,
            )
            for _ in range(shape.stages)
        ]
        longest = None if self._engine in (TimeEngine.RUNS, TimeEngine.TIMED_RUNS) else 1
        return PipelineReplica(self._hub, index, micro_batches, queue, pool, self._prices, shape, self._stall, longest)


def _share_of(rules: SchedulerRules, stages: int) -> SchedulerRules:
    """Rules of one micro-batch: its share of the running cap, and nothing planned ahead of its own result."""
    return replace(rules, max_running=max(1, -(-rules.max_running // stages)), overlap_depth=0)
