"""The reference engine in time: one timer a step, all attention-DP ranks together."""

import simpy

from predictor.des.clock import TickPrices
from predictor.des.hub import END, Hub
from predictor.des.request import Request
from predictor.des.rules import PrefillDelayer, RankRouting
from predictor.des.stepwise import StepScheduler
from predictor.des.stepwise_state import StepRecorder


class StepReplica:
    """The reference engine on the simulation's clock: one timer a step, which all attention-DP ranks take together."""

    def __init__(
        self,
        hub: Hub,
        index: int,
        ranks: list[StepScheduler],
        recorder: StepRecorder,
        prices: TickPrices,
        first_step_stall: int = 0,
    ) -> None:
        self.index = index
        self.ranks = ranks
        self._hub = hub
        self._recorder = recorder
        self._prices = prices
        self._stall = first_step_stall
        self._busy = False
        self._last_start = -1
        self._turn = 0
        self._working: list[StepScheduler] = []
        delayer = ranks[0].rules.delayer
        self._delayer = StepDelayer(delayer) if delayer is not None and len(ranks) > 1 else None

    @property
    def load(self) -> int:
        """Requests sent here and not finished."""
        return sum(rank.load for rank in self.ranks)

    def submit(self, request: Request, now: int) -> None:
        """Take a request into one rank."""
        if self.ranks[0].rules.rank_routing is RankRouting.ROUND_ROBIN:
            rank = self._turn % len(self.ranks)
            self._turn += 1
        else:
            rank = min(range(len(self.ranks)), key=lambda number: self.ranks[number].load)
        request.rank = rank
        self.ranks[rank].submit(request, now)

    def release(self, request: Request) -> None:
        """The KV of a request prefilled here has left."""
        self.ranks[request.rank].release(request)

    def wake(self, now: int) -> None:
        """Begin a step unless one is under way."""
        if self._busy:
            return
        if self._delayer is not None:
            for rank in self.ranks:
                rank.receive(self._last_start)
                rank.admit_ready(now)
            hold = not self._delayer.allows(self.ranks)
            for rank in self.ranks:
                rank.hold = hold
        before = sum(rank.preemptions for rank in self.ranks)
        self._working = [rank for rank in self.ranks if rank.plan(now, self._last_start)]
        self._recorder.preempted(sum(rank.preemptions for rank in self.ranks) - before)
        if not self._working:
            return
        duration = self._price() + self._stall
        self._stall = 0
        self._busy = True
        self._last_start = now
        self._hub.at(duration, END, self._end)

    def measure_from(self, now: int) -> None:
        """Steps are written down when they end, so there is nothing to leave out."""

    def _price(self) -> int:
        """The largest batch, the longest context and the costliest prompt work of any rank."""
        prices = self._prices
        rows = max(len(rank.rows) for rank in self._working)
        context = max(sum([live.context_units for live in rank.rows]) for rank in self._working)
        duration = prices.decode(rows, context) if rows else 0
        return duration + max((self._prompt_price(rank, rows > 0) for rank in self._working if rank.chunks), default=0)

    def _prompt_price(self, rank: StepScheduler, decoding: bool) -> int:
        tokens = sum(tokens for _, tokens, _ in rank.chunks)
        area = sum((before + tokens) ** 2 - before**2 for _, tokens, before in rank.chunks)
        done = sum(before + tokens == live.target for live, tokens, before in rank.chunks)
        return self._prices.prompts(decoding, tokens, area, done)

    def _end(self, event: simpy.Event) -> None:
        self._busy = False
        now = int(event.env.now)
        decoding = sum([live.decoding for rank in self.ranks for live in rank.running])
        rows = max(len(rank.rows) for rank in self._working)
        self._recorder.step(now - self._last_start, decoding, rows, any(rank.chunks for rank in self._working))
        finished = [request for rank in self._working for request in rank.finish(now)]
        self._hub.ended(self, finished)


class StepDelayer:
    """ATOM's prefill delayer, asked at every step."""

    def __init__(self, rules: PrefillDelayer) -> None:
        self._rules = rules
        self._started = False
        self._ticks_held = 0
        self._ticks_stalled = 0
        self._last_pending = -1

    def allows(self, ranks: list[StepScheduler]) -> bool:
        """Whether the ranks may prefill in this step."""
        if not self._started:
            self._started = True
            return True
        if self._lets_in(ranks):
            self._ticks_held = 0
            self._ticks_stalled = 0
            self._last_pending = -1
            return True
        self._ticks_held += 1
        return False

    def _lets_in(self, ranks: list[StepScheduler]) -> bool:
        rules = self._rules
        able = [rank for rank in ranks if self._able(rank)]
        if not able or not any(live.decoding for rank in ranks for live in rank.running):
            return True
        for rank in able:
            used = rank.total_blocks - len(rank.free_blocks)
            if used >= rules.kv_frac * rank.total_blocks:
                return True
        if self._ticks_held >= rules.wait_ticks:
            return True
        halfway = any(not live.decoding for rank in ranks for live in rank.running)
        if halfway and self._ticks_held >= rules.partial_ticks:
            return True
        if len(able) < len(ranks):
            return False
        pending = 0
        for rank in ranks:
            tokens = sum(live.target - live.computed for live in rank.running if not live.decoding)
            tokens += sum(live.target for live in rank.waiting)
            pending += min(tokens, rank.rules.prompt_budget)
        if pending >= rules.fill_frac * sum(rank.rules.prompt_budget for rank in ranks):
            return True
        if pending > self._last_pending:
            self._ticks_stalled = 0
        else:
            self._ticks_stalled += 1
        self._last_pending = pending
        return self._ticks_stalled >= rules.stalled_ticks

    def _able(self, rank: StepScheduler) -> bool:
        if any(not live.decoding for live in rank.running):
            return True
        if not rank.waiting or len(rank.running) >= rank.rules.running_cap:
            return False
        tokens = rank.waiting[0].target
        need = (tokens + rank.rules.block_tokens - 1) // rank.rules.block_tokens
        spare = int(rank.rules.watermark_frac * rank.total_blocks) if rank.running else 0
        return need + spare <= len(rank.free_blocks)
