"""One replica in time: prices the runs its scheduler plans and ends them on the simulation's clock."""

from math import isqrt

import simpy

from predictor.des.clock import TickPrices
from predictor.des.hub import END, Hub
from predictor.des.ranks import RankGroup
from predictor.des.request import Gap, Request
from predictor.des.runs import RunScheduler


def steps_until(elapsed: int, first: int, growth: int) -> int:
    """Fewest steps n >= 1 whose time n·first + growth·n(n-1)/2 reaches ``elapsed`` (integers, so exact).

    >>> [steps_until(t, 10, 2) for t in (0, 10, 11, 22, 23)]
    [1, 1, 2, 2, 3]
    """
    if growth == 0:
        return max(1, -(-elapsed // first))
    half = 2 * first - growth  # n²·growth + n·half = 2·elapsed
    steps = max(1, (isqrt(half * half + 8 * growth * elapsed) - half) // (2 * growth))
    while steps * first + growth * (steps * (steps - 1) // 2) < elapsed:
        steps += 1
    while steps > 1 and (steps - 1) * first + growth * ((steps - 1) * (steps - 2) // 2) >= elapsed:
        steps -= 1
    return steps


class RunReplica:
    """An engine whose scheduler plans runs; a run ends with one timer, and an arrival may cut it short.

    ``longest_run`` = 1 makes it the best loop without runs.
    """

    def __init__(
        self,
        hub: Hub,
        index: int,
        scheduler: RunScheduler | RankGroup,
        prices: TickPrices,
        longest_run: int | None = None,
        first_step_stall: int = 0,
    ) -> None:
        self.index = index
        self.scheduler = scheduler
        self._hub = hub
        self._record = hub.recorder
        self._prices = prices
        self._longest = longest_run
        self._stall = first_step_stall
        self._busy = False
        self._version = 0  # of the planned end; a timer of an older one is void
        self._started = self._steps = self._first = self._growth = self._rows = self._preemptions = 0
        self._seen = -1  # start of the step that ended last
        self._unmeasured = 0  # steps of the run that ended before the measured time
        self._late_gaps: list[Gap] = []

    @property
    def load(self) -> int:
        """Requests sent here and not finished."""
        return self.scheduler.load

    def submit(self, request: Request, now: int) -> None:
        """Take a request; it is planned for at the next ``wake``."""
        self.scheduler.check(request)
        self.scheduler.submit(request, now)

    def release(self, request: Request) -> None:
        """The KV of a request prefilled here has left."""
        self.scheduler.release(request)

    def wake(self, now: int) -> None:
        """Begin a run, or cut the one under way at the first boundary that can serve what came in."""
        if not self._busy:
            self._begin(now)
            return
        if self._steps == 1 or not self.scheduler.may_admit():
            return
        steps = self.scheduler.seen_at(steps_until(now - self._started, self._first, self._growth))
        if steps >= self._steps:
            return
        self._steps = steps
        self._version += 1
        left = self._started + self._duration(steps) - now
        if left == 0:
            self._commit(now)
            self._begin(now)
        else:
            self._await_end(left)

    def _duration(self, steps: int) -> int:
        return steps * self._first + self._growth * (steps * (steps - 1) // 2)

    def _begin(self, now: int) -> None:
        scheduler, prices = self.scheduler, self._prices
        steps = scheduler.plan(now, self._seen)
        if scheduler.preemptions != self._preemptions:
            self._record.preempted(scheduler.preemptions - self._preemptions)
            self._preemptions = scheduler.preemptions
        if not steps:
            return
        batch, context, growth = scheduler.batch, scheduler.context, 0
        first = 0
        if batch:
            intercept, slope, end = prices.line(batch, context)
            first = intercept + slope * context
            if steps > 1:
                growth = slope * scheduler.growth
                if end is not None:
                    steps = min(steps, -((context - end) // scheduler.growth))
        if scheduler.prompt_tokens:
            first += prices.prompts(batch > 0, scheduler.prompt_tokens, scheduler.prompt_area, scheduler.prompts_done)
            if steps > 1:
                growth += prices.area * scheduler.area_growth
        if self._stall:
            first, growth, steps, self._stall = first + self._stall, 0, 1, 0
        if self._longest is not None:
            steps = min(steps, self._longest)
        if scheduler.gaps:
            self._late_gaps = scheduler.gaps[:]
            scheduler.gaps.clear()
        self._started, self._steps, self._first, self._growth = now, steps, first, growth
        self._rows = scheduler.decoders
        self._busy = True
        self._await_end(self._duration(steps))

    def _await_end(self, delay: int) -> None:
        self._hub.at(delay, END, self._on_end, self._version)

    def _on_end(self, event: simpy.Event) -> None:
        if event.value == self._version:
            self._hub.ended(self, self._commit(int(event.env.now)))

    def measure_from(self, now: int) -> None:
        """The measured time begins: steps that ended by now do not count."""
        if self._busy:
            elapsed, steps = now - self._started, self._steps
            done = min(steps, steps_until(elapsed, self._first, self._growth))
            self._unmeasured = done if self._duration(done) <= elapsed else done - 1

    def _commit(self, now: int) -> list[Request]:
        scheduler, steps = self.scheduler, self._steps
        self._record_run(self._unmeasured)
        self._unmeasured = 0
        self._seen = now - self._first - (steps - 1) * self._growth
        self._busy = False
        self._version += 1
        finished = scheduler.commit(steps, now)
        if scheduler.gaps:  # of requests that got a token again after a preemption
            for gap in scheduler.gaps:
                self._record.gap(gap.end - gap.start, gap.weight)
            scheduler.gaps.clear()
        return finished

    def _record_run(self, skipped: int) -> None:
        """Write down the run without its first ``skipped`` steps."""
        scheduler, growth, record = self.scheduler, self._growth, self._record
        first, steps = self._first + skipped * growth, self._steps - skipped
        prompt = scheduler.prompt_tokens > 0
        record.run(first, growth, steps, self._rows, prompt, prompt and scheduler.batch > 0)
        if scheduler.weight:
            record.gaps_of_run(first, growth, steps, scheduler.weight)
        if not scheduler.late_weight:
            return
        if skipped:
            record.gaps_of_run(first, growth, steps, scheduler.late_weight)
            return
        for gap in self._late_gaps:
            record.gap(gap.end - gap.start + first, gap.weight)
        if steps > 1:
            record.gaps_of_run(first + growth, growth, steps - 1, scheduler.late_weight)
