"""A pipeline simulated stage by stage: micro-batches follow one another through ``p`` equal stages (paper B.4).

A step's forward time is divided over the stages. A stage starts a micro-batch when it is free and the activation has
come one hop from the stage before; the last stage's token takes a hop back before the micro-batch can be planned again.
Host time that the engine stops hiding is paid at every stage as soon as another micro-batch is in flight. So bubbles
behind prefill chunks come out of the simulation; with equal micro-batches a cycle takes what Eq. 4 says.

Requests are admitted from one queue into the micro-batch that is planned, and each micro-batch takes at most its share
of the requests present, so that the clients split into ``p`` micro-batches. All share one KV pool.

A micro-batch is planned once for a run of steps and then only timed, step by step, until the run ends or something
changed that could let a request in. Between two events of the simulation's clock these steps need no timer.
"""

from collections import deque
from dataclasses import dataclass

import simpy

from predictor.des.clock import TickPrices
from predictor.des.hub import END, Hub
from predictor.des.pages import Pool
from predictor.des.request import Gap, Request
from predictor.des.runs import RunScheduler
from predictor.errors import BadInput
from predictor.step.model import DecodeLine, PrefillCurve, StepModel


@dataclass(frozen=True, slots=True)
class PipelineShape:
    """Stages and what a pipeline adds to the forward time of the whole depth.

    ``hop_ms``: transfer and engine overhead of one hop; a step makes ``stages`` of them. ``host_ms`` and
    ``host_ms_per_request``: host time of a stage and step that is not hidden, paid with two or more micro-batches.
    """

    stages: int
    hop_ms: float = 0.0
    host_ms: float = 0.0
    host_ms_per_request: float = 0.0

    def __post_init__(self) -> None:
        if self.stages < 1:
            raise BadInput(f"pipeline stages is {self.stages}, must be at least 1")


class RoundModel:
    """The round rule: all micro-batches take one lockstep step of ``p`` stage times, hops and host times.

    A named approximation of the stage-by-stage pipeline for ``p`` ranks in lockstep: bubbles behind prefill chunks last
    a whole round.
    """

    def __init__(self, model: StepModel, shape: PipelineShape) -> None:
        self._model = model
        self._shape = shape
        self.tokens_per_step = model.tokens_per_step
        curve = model.prefill
        self.prefill = PrefillCurve(
            curve.fixed_ms + self._added_ms(0),
            curve.per_token_ms,
            curve.per_token2_ms,
            curve.mixed_fixed_ms,
            curve.per_request_ms,
        )

    def _added_ms(self, batch: int) -> float:
        shape = self._shape
        host_ms = shape.host_ms + shape.host_ms_per_request * batch if shape.stages > 1 else 0.0
        return shape.stages * (shape.hop_ms + host_ms)

    def decode_line(self, batch: int, context_tokens: float = 0.0) -> DecodeLine:
        """See :class:`predictor.step.model.StepModel`."""
        line = self._model.decode_line(batch, context_tokens)
        return DecodeLine(line.intercept_ms + self._added_ms(batch), line.slope_ms_per_token, line.end_context_tokens)


class _MicroBatch:
    """One micro-batch: its scheduler, the run it is planned for, and the step it is in."""

    __slots__ = ("back_at", "changes", "done", "first", "fresh", "growth", "late_gaps", "scheduler", "started", "steps")

    def __init__(self, scheduler: RunScheduler) -> None:
        self.scheduler = scheduler
        self.steps = self.done = 0  # of the run: planned, ended
        self.first = self.growth = 0  # forward ticks of its first step, and what each step adds
        self.changes = 0  # of the replica when it was planned
        self.fresh = False  # the next step is the first since it was planned
        self.started = self.back_at = 0  # of the step in flight
        self.late_gaps: list[Gap] = []

    def sync(self) -> None:
        """Tell the scheduler of the steps that ended, none of which ends a request."""
        if self.done:
            self.scheduler.commit(self.done, self.scheduler.last_commit)
            self.first += self.done * self.growth
            self.steps -= self.done
            self.done = 0


class PipelineReplica:
    """An engine whose micro-batches are under way at once, each planned by its own scheduler.

    ``longest_run`` = 1 plans every step.
    """

    def __init__(
        self,
        hub: Hub,
        index: int,
        schedulers: list[RunScheduler],
        queue: deque[Request],
        pool: Pool,
        prices: TickPrices,
        shape: PipelineShape,
        first_step_stall: int = 0,
        longest_run: int | None = None,
    ) -> None:
        ticks = prices.clock.ticks
        self.index = index
        self.load = 0
        self._hub = hub
        self._record = hub.recorder
        self._micro_batches = [_MicroBatch(scheduler) for scheduler in schedulers]
        for scheduler in schedulers:  # micro-batches take turns on one pool, step by step
            scheduler.chunk_runs = False
        self._queue = queue
        self._pool = pool
        self._prices = prices
        self._stages = shape.stages
        self._hop, self._host = ticks(shape.hop_ms), ticks(shape.host_ms)
        self._host_per_request = ticks(shape.host_ms_per_request)
        self._stall = first_step_stall
        self._longest = longest_run
        self._cap = schedulers[0].cap
        self._free_at = [0] * shape.stages  # when each stage has done what was sent to it
        self._ready = list(self._micro_batches)  # back from the last stage, or empty; longest waiting first
        self._flying: deque[_MicroBatch] = deque()  # in the stages; they come back in order
        self._changes = 0  # requests sent, finished or preempted: what may let one in
        self._preemptions = 0
        self._version = 0  # of the timer that counts

    def submit(self, request: Request, now: int) -> None:
        """Take a request into the shared queue."""
        self._micro_batches[0].scheduler.check(request)
        self.load += 1
        self._changes += 1
        request.queued = now
        self._queue.append(request)

    def release(self, request: Request) -> None:
        """The KV of a request prefilled here has left."""
        self._changes += 1
        self._micro_batches[0].scheduler.release(request)

    def measure_from(self, now: int) -> None:
        """Steps are written down when they end, so there is nothing to leave out."""

    def wake(self, now: int) -> None:
        """Send what can enter into the first stage, and run on."""
        self._run_on(now)

    def _goes_on(self, micro_batch: _MicroBatch) -> bool:
        """Whether its run stands: steps are left, and nobody could have been let in since it was planned."""
        if micro_batch.done >= micro_batch.steps:
            return False
        return not self._queue or micro_batch.changes == self._changes

    # Planning

    def _plan(self, micro_batch: _MicroBatch, now: int) -> bool:
        scheduler, pool = micro_batch.scheduler, self._pool
        for each in self._micro_batches:
            each.sync()
        promised = sum([each.scheduler.promised_blocks() for each in self._flying])
        pool.free -= promised
        scheduler.set_cap(min(self._cap, -(-self.load // self._stages)))
        steps = scheduler.plan(now, now)
        pool.free += promised
        self._note_preemptions()
        micro_batch.steps = micro_batch.done = 0
        if not steps:
            return False
        micro_batch.changes = self._changes
        micro_batch.fresh = True
        micro_batch.late_gaps = scheduler.gaps[:]
        scheduler.gaps.clear()
        self._price(micro_batch, steps if self._longest is None else min(steps, self._longest))
        if not self._ample():
            for each in self._micro_batches:
                each.steps = min(each.steps, each.done + (each in self._flying))
            micro_batch.steps = 1
        return True

    def _ample(self) -> bool:
        """Whether all runs find their blocks and nobody waits for some; else every step is planned."""
        if self._queue and any([len(each.scheduler.running) < each.scheduler.cap for each in self._micro_batches]):
            return False
        need = sum([each.scheduler.pages.most(each.steps - each.done + 1) for each in self._micro_batches])
        return self._micro_batches[0].scheduler.pages.available() >= need

    def _note_preemptions(self) -> None:
        preemptions = sum([each.scheduler.preemptions for each in self._micro_batches])
        if preemptions != self._preemptions:
            self._record.preempted(preemptions - self._preemptions)
            self._preemptions = preemptions
            self._changes += 1

    def _price(self, micro_batch: _MicroBatch, steps: int) -> None:
        scheduler, prices = micro_batch.scheduler, self._prices
        first = growth = 0
        if scheduler.batch:
            intercept, slope, end = prices.line(scheduler.batch, scheduler.context)
            first = intercept + slope * scheduler.context
            if steps > 1:
                growth = slope * scheduler.growth
                if end is not None:
                    steps = min(steps, -((scheduler.context - end) // scheduler.growth))
        if scheduler.prompt_tokens:
            first += prices.prompts(
                scheduler.batch > 0, scheduler.prompt_tokens, scheduler.prompt_area, scheduler.prompts_done
            )
        if self._stall:
            first, growth, steps, self._stall = first + self._stall, 0, 1, 0
        micro_batch.first, micro_batch.growth, micro_batch.steps = first, growth, steps

    # Through the stages

    def _send(self, micro_batch: _MicroBatch, now: int) -> None:
        """One step through all stages; books each on the way."""
        forward = micro_batch.first + micro_batch.done * micro_batch.growth
        host = self._host + self._host_per_request * micro_batch.scheduler.batch if self._flying else 0
        share, rest = divmod(forward, self._stages)
        free_at, at = self._free_at, now
        stay = share + host
        for stage in range(self._stages):
            free = free_at[stage]
            at = (at if at > free else free) + stay + rest
            rest = 0
            free_at[stage] = at
            at += self._hop
        micro_batch.started, micro_batch.back_at = now, at
        self._flying.append(micro_batch)

    def _run_on(self, now: int) -> None:
        """Go on until the clock's next event or a step that may end a request, and set a timer for that."""
        horizon, flying, free_at = self._hub.env.peek(), self._flying, self._free_at
        self._version += 1
        while True:
            if free_at[0] <= now and self._enter_first(now):
                continue
            after = flying[0].back_at if flying else None
            if free_at[0] > now and (after is None or free_at[0] < after) and self._somebody_waits():
                after = free_at[0]
            if after is None:
                return
            back = bool(flying) and flying[0].back_at == after
            if after >= horizon or (back and flying[0].done + 1 >= flying[0].steps):
                self._hub.at(after - now_of(self._hub), END, self._on_timer, self._version)
                return
            now = after
            if back:
                self._come_back(now)

    def _enter_first(self, now: int) -> bool:
        """Send the micro-batch that waited longest of those with work."""
        for micro_batch in self._ready:
            if self._goes_on(micro_batch) or self._plan(micro_batch, now):
                self._ready.remove(micro_batch)
                self._send(micro_batch, now)
                return True
        return False

    def _somebody_waits(self) -> bool:
        return bool(self._ready) and (bool(self._queue) or any([each.scheduler.running for each in self._ready]))

    def _on_timer(self, event: simpy.Event) -> None:
        if event.value != self._version:
            return
        now = int(event.env.now)
        finished: list[Request] = []
        while self._flying and self._flying[0].back_at == now:
            finished += self._come_back(now)
        self.load -= len(finished)
        self._changes += bool(finished)
        self._hub.ended(self, finished)

    def _come_back(self, now: int) -> list[Request]:
        """The token of the oldest step in flight is back at the scheduler."""
        micro_batch = self._flying.popleft()
        self._ready.append(micro_batch)
        scheduler, record = micro_batch.scheduler, self._record
        fresh, micro_batch.fresh = micro_batch.fresh, False
        prompt = fresh and scheduler.prompt_tokens > 0
        last, rows = scheduler.last_commit, scheduler.decoders
        record.run(now - micro_batch.started, 0, 1, 0, prompt, prompt and scheduler.batch > 0)
        if rows:
            record.decoding(rows, now - last)
        weight = scheduler.weight if fresh else scheduler.weight + scheduler.late_weight
        if weight:  # a row's gap also holds the wait for the first stage
            record.gaps_of_run(now - last, 0, 1, weight)
        if fresh:
            for gap in micro_batch.late_gaps:
                record.gap(gap.end - gap.start + now - micro_batch.started, gap.weight)
        micro_batch.done += 1
        if micro_batch.done < micro_batch.steps:
            scheduler.last_commit = now
            return []
        done, micro_batch.done, micro_batch.steps = micro_batch.done, 0, 0
        finished = scheduler.commit(done, now)
        for gap in scheduler.gaps:
            record.gap(gap.end - gap.start, gap.weight)
        scheduler.gaps.clear()
        return finished


def now_of(hub: Hub) -> int:
    """The simulation's clock."""
    return int(hub.env.now)
