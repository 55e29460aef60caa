"""The reference pipeline: every stage, hop and step is an event of its own, and every step is planned.

It exists to check :mod:`predictor.des.pipeline`, which books a step's way through the stages at once and plans a run of
steps together. Its micro-batches are the reference schedulers of :mod:`predictor.des.stepwise`.
"""

import simpy

from predictor.des.clock import TickPrices
from predictor.des.hub import END, Hub
from predictor.des.pipeline import PipelineShape
from predictor.des.request import Request
from predictor.des.stepwise import StepScheduler
from predictor.des.stepwise_state import StepRecorder


class _Step:
    """A micro-batch on its way through the stages."""

    def __init__(self, micro_batch: StepScheduler, started: int, stays: list[int]) -> None:
        self.micro_batch, self.started = micro_batch, started
        self.stays = stays  # ticks in each stage
        self.stage = 0


class StepPipeline:
    """Stages with a queue each; a micro-batch enters the first when that is free and the batch has something to do."""

    def __init__(
        self,
        hub: Hub,
        index: int,
        micro_batches: list[StepScheduler],
        recorder: StepRecorder,
        prices: TickPrices,
        shape: PipelineShape,
        first_step_stall: int = 0,
    ) -> None:
        self.index = index
        self.load = 0
        self._hub, self._recorder, self._prices, self._shape = hub, recorder, prices, shape
        self._stall = first_step_stall
        self._cap = micro_batches[0].rules.running_cap
        first = micro_batches[0]
        for each in micro_batches[1:]:  # one queue and one pool
            each.waiting, each.free_blocks, each.prefilled = first.waiting, first.free_blocks, first.prefilled
        self._micro_batches = micro_batches
        self._ready = list(micro_batches)
        self._last_back = {id(each): 0 for each in micro_batches}
        self._queues: list[list[_Step]] = [[] for _ in range(shape.stages)]
        self._busy = [False] * shape.stages
        self._in_flight = 0

    def submit(self, request: Request, now: int) -> None:
        """Take a request into the shared queue."""
        self.load += 1
        self._micro_batches[0].submit(request, now)

    def release(self, request: Request) -> None:
        """The KV of a request prefilled here has left."""
        self._micro_batches[0].release(request)

    def measure_from(self, now: int) -> None:
        """Steps are written down when they end, so there is nothing to leave out."""

    def wake(self, now: int) -> None:
        """Send a micro-batch into the first stage if that is free."""
        if self._busy[0] or self._queues[0]:
            return
        for micro_batch in self._ready:
            share = -(-self.load // self._shape.stages)
            micro_batch.set_cap(min(self._cap, max(1, share)))
            before = micro_batch.preemptions
            planned = micro_batch.plan(now, now)
            self._recorder.preempted(micro_batch.preemptions - before)
            if planned:
                self._ready.remove(micro_batch)
                self._enter(_Step(micro_batch, now, self._stays(micro_batch)), now)
                return

    def _stays(self, micro_batch: StepScheduler) -> list[int]:
        """Ticks in each stage: an equal share of the forward time, and host time beside another micro-batch."""
        prices, shape, stages = self._prices, self._shape, self._shape.stages
        forward, rows = self._stall, len(micro_batch.rows)
        self._stall = 0
        if rows:
            forward += prices.decode(rows, sum(live.context_units for live in micro_batch.rows))
        if micro_batch.chunks:
            tokens = sum(tokens for _, tokens, _ in micro_batch.chunks)
            area = sum((before + tokens) ** 2 - before**2 for _, tokens, before in micro_batch.chunks)
            done = sum(before + tokens == live.target for live, tokens, before in micro_batch.chunks)
            forward += prices.prompts(rows > 0, tokens, area, done)
        ticks = prices.clock.ticks
        host = ticks(shape.host_ms) + ticks(shape.host_ms_per_request) * rows if self._in_flight else 0
        stays = [forward // stages + host for _ in range(stages)]
        stays[0] += forward % stages
        return stays

    # Stages

    def _enter(self, step: _Step, now: int) -> None:
        if step.stage == 0:
            self._in_flight += 1
        self._queues[step.stage].append(step)
        self._serve(step.stage)

    def _serve(self, stage: int) -> None:
        if self._busy[stage] or not self._queues[stage]:
            return
        step = self._queues[stage].pop(0)
        self._busy[stage] = True

        def leave(event: simpy.Event) -> None:
            self._busy[stage] = False
            self._hub.at(self._prices.clock.ticks(self._shape.hop_ms), END, arrive)
            self._serve(stage)
            if stage == 0:
                self._hub.ended(self, [])

        def arrive(event: simpy.Event) -> None:
            step.stage += 1
            now = int(event.env.now)
            if step.stage == self._shape.stages:
                self._come_back(step, now)
            else:
                self._enter(step, now)

        self._hub.at(step.stays[stage], END, leave)

    def _come_back(self, step: _Step, now: int) -> None:
        micro_batch, recorder = step.micro_batch, self._recorder
        decoding = sum(live.decoding for live in micro_batch.running)
        rows = len(micro_batch.rows)
        recorder.step(now - step.started, 0, rows, bool(micro_batch.chunks))
        recorder.decoding(decoding, now - self._last_back[id(micro_batch)])
        self._last_back[id(micro_batch)] = now
        finished = micro_batch.finish(now)
        self.load -= len(finished)
        self._in_flight -= 1
        self._ready.append(micro_batch)
        self._hub.ended(self, finished)
