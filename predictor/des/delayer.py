"""ATOM's prefill delayer: one decision a step for all attention-DP ranks (ROCm/ATOM prefill_delayer.py, facts only).

Prefill is held back while decode runs, so that many short prompts share one step. It is let through when no rank
decodes, when a rank that could prefill has its KV nearly full, when it was held for long, when all ranks have prefill
and the step would be nearly full, or when all ranks have some and no more has come for a while. The first decision of
all lets it through.
"""

from collections.abc import Sequence
from math import ceil

from predictor.des.prefill_first import PrefillFirstScheduler
from predictor.des.rules import PrefillDelayer


class Holdback:
    """The delayer's state over runs: a decision at a boundary, and how long it stands while only decode goes on."""

    def __init__(self, rules: PrefillDelayer) -> None:
        self._rules = rules
        self._first = True
        self._held = 0  # decisions to hold in a row
        self._stalled = 0  # of those with all ranks ready, how many in a row saw no growth
        self._pending = -1
        self._aligned = False
        self._standing: int | None = None  # steps for which the last decision surely stands; None: prefill was let in

    def decide(self, ranks: Sequence[PrefillFirstScheduler]) -> bool:
        """Whether ranks may prefill at this boundary."""
        allowed = self._allowed(ranks)
        if allowed:
            self._held = self._stalled = 0
            self._pending = -1
            self._standing = None
        else:
            self._held += 1
            self._standing = self._stands_for(ranks)
        return allowed

    def _allowed(self, ranks: Sequence[PrefillFirstScheduler]) -> bool:
        rules = self._rules
        if self._first:
            self._first = False
            return True
        ready = [rank for rank in ranks if self._ready(rank)]
        if not ready or not any(rank.decoders for rank in ranks):
            return True
        if any(self._high_water(rank) < rank.pages.pool.total - rank.free_blocks for rank in ready):
            return True
        if self._held >= self._limit(ranks):
            return True
        self._aligned = len(ready) == len(ranks)
        if not self._aligned:
            return False
        pending = sum(rank.pending_tokens() for rank in ranks)
        if pending >= rules.fill_frac * sum(rank.rules.prompt_budget for rank in ranks):
            return True
        self._stalled = self._stalled + 1 if pending <= self._pending else 0
        self._pending = pending
        return self._stalled >= rules.stalled_ticks

    def _ready(self, rank: PrefillFirstScheduler) -> bool:
        gate = rank.head_gate()
        return rank.partial or (gate is not None and gate <= rank.free_blocks)

    def _high_water(self, rank: PrefillFirstScheduler) -> int:
        """Most blocks in use that do not count as nearly full."""
        return ceil(self._rules.kv_frac * rank.pages.pool.total) - 1

    def _limit(self, ranks: Sequence[PrefillFirstScheduler]) -> int:
        partial = any(rank.partial for rank in ranks)
        return min(self._rules.wait_ticks, self._rules.partial_ticks) if partial else self._rules.wait_ticks

    def _stands_for(self, ranks: Sequence[PrefillFirstScheduler]) -> int:
        """Steps until the decision may change though nothing but decode happens."""
        steps = self._limit(ranks) - self._held + 1
        if self._aligned:
            steps = min(steps, self._rules.stalled_ticks - self._stalled)
        for rank in ranks:
            if not self._ready(rank):
                continue
            spare = rank.pages.pool.total - self._high_water(rank)
            steps = min(steps, 1 + rank.steps_leaving(steps, spare))
            gate = rank.head_gate()
            if not rank.partial and gate is not None:
                steps = min(steps, 1 + rank.steps_leaving(steps, gate))
        return max(1, steps)

    def bound(self, steps: int) -> int:
        """The run, cut where the decision may change."""
        return steps if self._standing is None else min(steps, self._standing)

    def done(self, steps: int) -> None:
        """So many steps passed; at the boundaries inside the run the decision stood."""
        if self._standing is not None:
            self._held += steps - 1
            if self._aligned:
                self._stalled += steps - 1
