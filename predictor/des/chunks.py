"""Prompt work of a scheduler that plans runs: chunks of prompts under a budget, and runs of like chunks.

A chunk of n tokens after p costs c1·n + c2·(n² + 2np), so equal chunks of the same prompts, one after another, cost an
arithmetic series, as decode steps do.
"""

from collections import deque
from collections.abc import Sequence
from heapq import heappop

from predictor.des.pages import Pages
from predictor.des.request import Request
from predictor.des.rules import SchedulerRules

Chunk = tuple[Request, int, int]  # request, tokens, blocks it takes


class PromptWork:
    """What the prompts of a step add, and how many steps in a row add the same."""

    def __init__(
        self, rules: SchedulerRules, pages: Pages, *, counts_blocks: bool, frees_late: bool, polls: bool
    ) -> None:
        self.rules = rules
        self.pages = pages
        self.inbox: deque[Request] = deque()  # sent, but not yet seen by the scheduler
        self.decoders = 0
        self.prompt_tokens = self.prompt_area = self.prompts_done = self.area_growth = 0
        self.chunk_runs = True  # False where something looks between the steps of a prompt
        self.frees_late = frees_late  # a hand-off frees blocks at any time, which may let one in
        self._counts = counts_blocks
        self._polls = polls
        self._chunks: list[tuple[Request, int]] = []  # prompt work of a step of the planned run: request, tokens
        self._closed = False  # the planned chunks leave no room for another prompt
        self._partials: list[Request] = []
        self._starting: list[Request] = []  # prompts that end in the planned step
        self._step = 0  # decode steps done
        self._ends: list[tuple[int, int, Request]] = []  # (decode step at which it ends, admission number, request)
        self._ended: list[Request] = []  # finished, but the scheduler learns of it one step later

    def _available(self, blocks: int) -> bool:
        if not self._counts:
            return True
        pages = self.pages
        return blocks <= pages.available() or (pages.settle() and blocks <= pages.available())

    def _until_end(self) -> int:
        """Decode steps until the next request ends."""
        if self._ended:
            return 1
        ends = self._ends
        end, seq, request = ends[0]
        while request.seq != seq:  # preempted since
            heappop(ends)
            end, seq, request = ends[0]
        return end - self._step

    def _no_prompts(self) -> None:
        """A plan begins: no prompt work so far."""
        self.prompt_tokens = self.prompt_area = self.prompts_done = self.area_growth = 0
        self._closed = False
        self._chunks.clear()

    def _next_chunks(self, budget: int) -> tuple[list[Chunk], int, int]:
        """Next chunk of every partial prompt, the blocks they take, and the budget left for others."""
        chunks: list[Chunk] = []
        more = 0
        for request in self._partials:
            wanted = self._wanted(request.tokens - request.computed)
            tokens = self._cut(wanted, budget)
            if tokens > 0:
                blocks = self._chunk_blocks(request, tokens)
                chunks.append((request, tokens, blocks))
                more += blocks
            budget = budget - tokens if tokens == wanted else 0
        return chunks, more, budget

    def _wanted(self, remaining: int) -> int:
        """Tokens of a prompt that may enter a step."""
        cap = self.rules.long_prefill_tokens
        return min(remaining, cap) if cap else remaining

    def _cut(self, wanted: int, budget: int) -> int:
        """Tokens that do enter; a chunk cut by the budget is rounded down and ends the step's prompt work."""
        return wanted if wanted <= budget else budget - budget % self.rules.chunk_floor_tokens

    def _chunk_blocks(self, request: Request, tokens: int) -> int:
        if not self._counts:
            return 0
        return max(0, self.rules.blocks(request.computed + tokens) - request.held)

    def _resume(self, chunks: Sequence[Chunk]) -> None:
        """Schedule chunks of partial prompts."""
        for request, tokens, blocks in chunks:
            self.pages.take(blocks)
            request.held += blocks
            self._add_chunk(request, tokens)
            if request.computed == request.tokens:
                self._partials.remove(request)

    def _add_chunk(self, request: Request, tokens: int) -> None:
        self._chunks.append((request, tokens))
        before = request.computed
        self.prompt_tokens += tokens
        self.prompt_area += tokens * (tokens + 2 * before)
        request.computed = before = before + tokens
        if before == request.tokens:
            self.prompts_done += 1
            self._starting.append(request)

    def _run_of_chunks(self, budget: int) -> int:
        """How long the run may last that begins with the planned chunks; its pages are there in every step."""
        steps = self._like_steps(budget)
        if steps > 1 and self.rules.mixed_steps and self.decoders:
            steps = min(steps, self._until_end())
        while steps > 1 and not self._available(self._blocks_of_run(steps)):
            steps //= 2
        if steps > 1:
            self.area_growth = 2 * sum([tokens * tokens for _, tokens in self._chunks])
        else:
            self._closed = False
        return steps

    def _like_steps(self, budget: int) -> int:
        """Steps in a row that hold the planned chunks, this one included, if all get ``budget`` prompt tokens.

        Each must do so for the same reason as the first: the budget or the cap cuts the chunk off.
        """
        if self.prompts_done or not self.chunk_runs:
            return 1
        steps = 0
        matched = 0
        for request in self._partials:
            remaining = request.tokens - request.computed
            wanted = self._wanted(remaining)
            tokens = self._cut(wanted, budget)
            if tokens <= 0:
                break
            if tokens == remaining or matched == len(self._chunks) or self._chunks[matched] != (request, tokens):
                return 1
            stays_above = tokens if tokens == wanted else budget
            more = -((stays_above - remaining) // tokens)
            steps = min(steps, more) if matched else more
            matched += 1
            budget = budget - tokens if tokens == wanted else 0
        if matched < len(self._chunks) or (budget and (self._polls or self.inbox or self.frees_late)):
            return 1
        self._closed = budget == 0
        return 1 + steps

    def _blocks_of_run(self, steps: int) -> int:
        """Blocks that prompts take after the first step of the run, and at most those of its decoders."""
        prompts = sum([self._chunk_blocks(request, (steps - 1) * tokens) for request, tokens in self._chunks])
        return prompts + (self.pages.most(steps) if self.rules.mixed_steps else 0)

    def _compute_on(self, steps: int) -> None:
        """Prompts went on by so many more of the planned chunks."""
        for request, tokens in self._chunks:
            blocks = self._chunk_blocks(request, steps * tokens)
            self.pages.take(blocks)
            request.held += blocks
            request.computed += steps * tokens
