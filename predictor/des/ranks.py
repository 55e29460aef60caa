"""Attention-DP ranks in lockstep: parallel schedulers whose common step costs its slowest rank (paper A.1).

The shared part of a decode step is that of the largest rank's batch; the part that grows with context is the upper
envelope of the ranks' lines, so a run also ends where another rank's context overtakes.
"""

from collections.abc import Sequence

from predictor.des.clock import TickPrices
from predictor.des.delayer import Holdback
from predictor.des.prefill_first import PrefillFirstScheduler
from predictor.des.request import Gap, Request
from predictor.des.rules import RankRouting
from predictor.des.runs import RunScheduler


class RankRouter:
    """Picks the rank of a request inside one replica."""

    def __init__(self, routing: RankRouting) -> None:
        self._routing = routing
        self._next = 0

    def pick(self, loads: Sequence[int]) -> int:
        """Next in turn, or the least loaded, lowest index first."""
        if self._routing is RankRouting.ROUND_ROBIN:
            rank = self._next
            self._next = (rank + 1) % len(loads)
            return rank
        return loads.index(min(loads))


class RankGroup:
    """Ranks as one scheduler: what :class:`predictor.des.replica.RunReplica` runs."""

    def __init__(self, ranks: Sequence[RunScheduler], prices: TickPrices, routing: RankRouting) -> None:
        self.ranks = list(ranks)
        self.gaps: list[Gap] = []
        for rank in self.ranks:
            rank.gaps = self.gaps
        self.steps = self.batch = self.context = self.growth = self.weight = self.late_weight = 0
        self.prompt_tokens = self.prompt_area = self.prompts_done = self.area_growth = 0
        self._prices = prices
        self._router = RankRouter(routing)
        self._touched: set[int] = set()  # ranks that got a request since the run began
        delayer = self.ranks[0].rules.delayer
        self._delayed = [rank for rank in self.ranks if isinstance(rank, PrefillFirstScheduler)]
        self._holdback = Holdback(delayer) if delayer is not None and self._delayed else None
        for rank in self.ranks:  # a delayer decides before every prompt step; blocks freed late may let another rank in
            if self._holdback is not None or rank.frees_late:
                rank.chunk_runs = False

    @property
    def load(self) -> int:
        """Requests sent and not finished."""
        return sum(rank.load for rank in self.ranks)

    @property
    def decoders(self) -> int:
        """Requests in decode."""
        return sum(rank.decoders for rank in self.ranks)

    @property
    def preemptions(self) -> int:
        """Preemptions so far."""
        return sum(rank.preemptions for rank in self.ranks)

    def check(self, request: Request) -> None:
        """Refuse a request that no rank could ever serve."""
        self.ranks[0].check(request)

    def submit(self, request: Request, stamp: int) -> None:
        """Route a request to a rank."""
        index = self._router.pick([rank.load for rank in self.ranks])
        request.rank = index
        self._touched.add(index)
        self.ranks[index].submit(request, stamp)

    def release(self, request: Request) -> None:
        """The KV of a prefilled request has left."""
        self.ranks[request.rank].release(request)

    def may_admit(self) -> bool:
        """Whether a rank that got a request inside the run might admit it there."""
        if self._holdback is not None:
            return bool(self._touched)
        return any(self.ranks[index].may_admit() for index in self._touched)

    def seen_at(self, steps: int) -> int:
        """First boundary at which one of those ranks sees its request."""
        return min(self.ranks[index].seen_at(steps) for index in self._touched)

    def plan(self, stamp: int, seen: int) -> int:
        """Plan all ranks; the run lasts as the shortest of theirs."""
        self._touched.clear()
        if self._holdback is not None:
            for delayed in self._delayed:
                delayed.receive(seen)
                delayed.admit_ready(stamp)
            hold = not self._holdback.decide(self._delayed)
            for delayed in self._delayed:
                delayed.hold = hold
        steps = 0
        self.batch = self.weight = self.late_weight = 0
        decoding: list[RunScheduler] = []
        prefilling: list[RunScheduler] = []
        for rank in self.ranks:
            planned = rank.plan(stamp, seen)
            if not planned:
                continue
            steps = min(steps, planned) if steps else planned
            if rank.batch:
                decoding.append(rank)
                self.batch = max(self.batch, rank.batch)
                self.weight += rank.weight
                self.late_weight += rank.late_weight
            if rank.prompt_tokens:
                prefilling.append(rank)
        steps = self._join_prompts(prefilling, steps)
        self.context = self.growth = 0
        if decoding:
            longest = max(decoding, key=lambda rank: (rank.context, rank.growth))
            self.context, self.growth = longest.context, longest.growth
            if steps > 1:
                steps = self._until_overtaken(steps, decoding)
        if self._holdback is not None and steps > 1:
            steps = self._holdback.bound(steps)
        self.steps = steps
        return steps

    def _join_prompts(self, prefilling: Sequence[RunScheduler], steps: int) -> int:
        """The prompt work of the rank whose chunks cost most; returns the steps in which it stays the costliest."""
        self.prompt_tokens = self.prompt_area = self.prompts_done = self.area_growth = 0
        if not prefilling:
            return steps
        prices = self._prices

        def cost(rank: RunScheduler) -> tuple[int, int]:
            """Ticks of the first step, and what each step adds."""
            first = prices.prompts(False, rank.prompt_tokens, rank.prompt_area, rank.prompts_done)
            return first, prices.area * rank.area_growth

        slowest = max(prefilling, key=cost)
        self.prompt_tokens, self.prompt_area = slowest.prompt_tokens, slowest.prompt_area
        self.prompts_done, self.area_growth = slowest.prompts_done, slowest.area_growth
        if steps > 1:
            first, growth = cost(slowest)
            for other_first, other_growth in map(cost, prefilling):
                if other_growth > growth:
                    steps = min(steps, (first - other_first) // (other_growth - growth) + 1)
        return steps

    def _until_overtaken(self, steps: int, decoding: Sequence[RunScheduler]) -> int:
        """Steps in which the longest context stays the longest."""
        for rank in decoding:
            faster = rank.growth - self.growth
            if faster > 0:
                steps = min(steps, (self.context - rank.context) // faster + 1)
        return steps

    def commit(self, steps: int, stamp: int) -> list[Request]:
        """All ranks that took part did these steps."""
        finished: list[Request] = []
        for rank in self.ranks:
            if rank.steps:
                finished += rank.commit(steps, stamp)
        if self._holdback is not None:
            self._holdback.done(steps)
        return finished
