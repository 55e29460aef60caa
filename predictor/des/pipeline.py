"""A pipeline simulated stage by stage: micro-batches follow one another through ``p`` equal stages (paper B.4).

A step's forward time is divided over the stages. A stage starts a micro-batch when it is free and the activation has
come one hop from the stage before; the last stage's token takes a hop back before the micro-batch can be planned again.
Host time that the engine stops hiding is paid at every stage as soon as another micro-batch is in flight. So bubbles
behind prefill chunks come out of the simulation; with equal micro-batches a cycle takes what Eq. 4 says.

Requests are admitted from one queue into the micro-batch that is planned, and each micro-batch takes at most its share
of the requests present, so that the clients split into ``p`` micro-batches. All share one KV pool.
"""

from collections import deque
from dataclasses import dataclass

import simpy

from predictor.des.clock import TickPrices
from predictor.des.hub import END, Hub
from predictor.des.pages import Pool
from predictor.des.request import Request
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


class PipelineReplica:
    """An engine whose micro-batches are under way at once, each planned by its own scheduler."""

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
    ) -> None:
        ticks = prices.clock.ticks
        self.index = index
        self.load = 0
        self._hub = hub
        self._record = hub.recorder
        self._micro_batches = schedulers
        self._queue = queue
        self._pool = pool
        self._prices = prices
        self._stages = shape.stages
        self._hop, self._host = ticks(shape.hop_ms), ticks(shape.host_ms)
        self._host_per_request = ticks(shape.host_ms_per_request)
        self._stall = first_step_stall
        self._cap = schedulers[0].cap
        self._free_at = [0] * shape.stages  # when each stage has done what was sent to it
        self._idle = list(range(len(schedulers)))  # micro-batches that may be planned, longest idle first
        self._preemptions = 0

    def submit(self, request: Request, now: int) -> None:
        """Take a request into the shared queue."""
        self._micro_batches[0].check(request)
        self.load += 1
        request.queued = now
        self._queue.append(request)

    def release(self, request: Request) -> None:
        """The KV of a request prefilled here has left."""
        self._micro_batches[0].release(request)

    def wake(self, now: int) -> None:
        """Send the longest idle micro-batch with work into the first stage, if that is free."""
        if self._free_at[0] > now:
            return
        share = -(-self.load // self._stages)
        for number in self._idle:
            scheduler = self._micro_batches[number]
            scheduler.cap = min(self._cap, share)
            if scheduler.plan(now, now):
                self._idle.remove(number)
                self._start(number, scheduler, now)
                return

    def _start(self, number: int, scheduler: RunScheduler, now: int) -> None:
        prices = self._prices
        preemptions = sum(each.preemptions for each in self._micro_batches)
        self._record.preempted(preemptions - self._preemptions)
        self._preemptions = preemptions
        forward = prices.decode(scheduler.batch, scheduler.context) if scheduler.batch else 0
        if scheduler.prompt_tokens:
            forward += prices.prompts(
                scheduler.batch > 0, scheduler.prompt_tokens, scheduler.prompt_area, scheduler.prompts_done
            )
        forward += self._stall
        self._stall = 0
        others = len(self._micro_batches) - len(self._idle) > 1
        host = self._host + self._host_per_request * scheduler.batch if others else 0
        done = self._pass_stages(now, forward, host)
        promised = scheduler.promised_blocks()
        self._pool.free -= promised
        rows = scheduler.decoders
        late_gaps = scheduler.gaps[:]
        scheduler.gaps.clear()

        def end(event: simpy.Event) -> None:
            self._pool.free += promised
            for gap in late_gaps:
                self._record.gap(gap.end - gap.start + done - now, gap.weight)
            self._end(number, scheduler, now, rows, int(event.env.now))

        self._hub.at(done - now, END, end)
        if self._stages > 1:  # the next micro-batch may enter when the first stage is free
            self._hub.at(self._free_at[0] - now, END, lambda _: self._hub.ended(self, []))

    def _pass_stages(self, now: int, forward: int, host: int) -> int:
        """When the token is back at the scheduler; books every stage on the way."""
        share, rest = divmod(forward, self._stages)
        at = now
        for stage in range(self._stages):
            begin = max(at, self._free_at[stage])
            leave = begin + share + (rest if stage == 0 else 0) + host
            self._free_at[stage] = leave
            at = leave + self._hop
        return at

    def measure_from(self, now: int) -> None:
        """Steps are written down when they end, so there is nothing to leave out."""

    def _end(self, number: int, scheduler: RunScheduler, start: int, rows: int, now: int) -> None:
        prompt = scheduler.prompt_tokens > 0
        self._record.run(now - start, 0, 1, 0, prompt, prompt and scheduler.batch > 0)
        self._record.decoding(rows, now - scheduler.last_commit if rows else 0)
        if scheduler.weight:  # a row's gap also holds the wait for the first stage
            self._record.gaps_of_run(now - scheduler.last_commit, 0, 1, scheduler.weight)
        finished = scheduler.commit(1, now)
        for gap in scheduler.gaps:
            self._record.gap(gap.end - gap.start, gap.weight)
        scheduler.gaps.clear()
        self.load -= len(finished)
        self._idle.append(number)
        self._hub.ended(self, finished)
