"""The deterministic search as ask and tell: seeds, a greedy combination of those that helped, then a polish round.

:class:`SeedSearch` prices nothing. It is asked for candidates and told their scores. It works in rounds: all candidates
of a round are decided before any of them is scored, so that serial and parallel evaluation give the same trials in the
same order. Structure and memory are checked before a candidate is offered; latency is judged by whoever prices.
"""

import math

from levers.baseline import Fits, baseline
from levers.board import Board, Candidate, Result
from levers.context import SearchContext
from levers.phases import choose_seeds, whole_search
from levers.space import Setting

__all__ = ["Candidate", "Result", "SeedSearch"]


class SeedSearch:
    """Ask for candidates, tell their scores; deterministic in what was told, whatever the order.

    ``ask`` returns None while a round still waits for scores and when the search is over; ``done`` tells them apart.
    ``skipped`` lists the seeds that are not legal or do not fit, with their reasons. Raises
    :class:`predictor.errors.Refusal` where not even a baseline is legal.
    """

    def __init__(self, context: SearchContext, budget: int, fits: Fits | None = None) -> None:
        self.context = context
        self.base = baseline(context, fits)
        self.done = False
        self._board = Board(context, budget, self.base, fits)
        seeds, self.skipped = choose_seeds(self._board)
        self._plan = whole_search(self._board, seeds)
        self._open: list[Candidate] = []  # candidates of the current round, in order
        self._queue: list[Candidate] = []
        self._advance(None)

    @property
    def best(self) -> Result | None:
        """The best result told so far, the earlier of equals; it may be illegal where none was legal."""
        return self._board.best

    def ask(self) -> Candidate | None:
        """The next candidate of the round, or None."""
        return self._queue.pop(0) if self._queue else None

    def tell(self, candidate: Candidate, score: float | None, legal: bool, shortfall: float = math.inf) -> None:
        """Score a candidate: larger is better. An illegal one may say how far it is from legal."""
        self._board.results[candidate.number] = self._result(candidate, score, legal, shortfall)
        if not self._queue and all(asked.number in self._board.results for asked in self._open):
            self._advance([self._board.results[asked.number] for asked in self._open])

    def allow(self, more: int) -> None:
        """Offer at most ``more`` further candidates, whatever the budget was."""
        self._board.budget = len(self._board.asked) + max(0, more)

    def learn(
        self, setting: Setting, name: str, score: float | None, legal: bool, shortfall: float = math.inf, *, origin: str
    ) -> None:
        """Take in a setting somebody else proposed and scored: it is not offered again, and may become the best."""
        candidate = self._board.enter(origin, name, setting)
        if candidate is None:
            return
        result = self._result(candidate, score, legal, shortfall)
        self._board.results[candidate.number] = result
        self._board.told([result])

    def _result(self, candidate: Candidate, score: float | None, legal: bool, shortfall: float) -> Result:
        legal = legal and score is not None
        value = -math.inf if score is None else score
        return Result(candidate, legal, value, 0.0 if legal else shortfall)

    def _advance(self, told: list[Result] | None) -> None:
        """Send the finished round to the plan and queue the next one that has anything to ask."""
        self._board.told(told or ())
        try:
            self._open = next(self._plan) if told is None else self._plan.send(told)
        except StopIteration:
            self._open, self.done = [], True
        self._queue = list(self._open)
