"""The run-planning scheduler of engines that mix prompt chunks into decode steps (vLLM, TensorRT-LLM)."""

from predictor.des.request import Request
from predictor.des.runs import RunScheduler


class MixedScheduler(RunScheduler):
    """See :class:`RunScheduler`: every step holds all decoders, and prompt chunks under what is left of the budget."""

    def plan(self, stamp: int, seen: int) -> int:
        """See :class:`RunScheduler`."""
        if self._chunks:
            self._no_prompts()
        if self.inbox or self._poll:
            self.receive(seen)
        waiting = self.waiting
        if waiting and waiting[0].kv_ready:
            self._admit_ready(stamp)
        decoders = self.decoders
        if self._partials or (waiting and len(self.running) < self.cap):
            budget = whole = self.rules.token_budget - decoders * self.rules.row_tokens
            need = self.pages.need(self._step) if decoders and self._counts else 0
            if self._partials:
                chunks, more, budget = self._next_chunks(budget)
                if not self._available(need + more):
                    return self._plan_tight()
                self._resume(chunks)
            elif not self._available(need):
                return self._plan_tight()
            self._admit(stamp, budget, need)
            if self.prompt_tokens:
                return self._rows(self._run_of_chunks(whole))
        if not decoders:
            return self._rows(0)
        steps = self._until_end()
        if self._counts:
            steps = self.pages.limit(self._step, steps)
        return self._rows(steps) if steps else self._plan_tight()

    def _plan_tight(self) -> int:
        """One step in list order with preemption: decoders first, then partial prompts; nobody is admitted."""
        running, pages, step = self.running, self.pages, self._step
        pages.settle()
        free = pages.available()
        taken: dict[int, int] = {}  # blocks promised to decoders in this step

        def make_room(request: Request, blocks: int) -> bool:
            nonlocal free
            while blocks > free:
                victim = next(reversed(running.values()))
                free += self._preempt(victim) + taken.pop(victim.id, 0)
                if victim is request:
                    return False
            free -= blocks
            return True

        for request in list(running.values()):
            if request.start_step < 0:
                continue
            blocks = pages.request_need(request, step)
            if request.id not in running or not make_room(request, blocks):
                break
            taken[request.id] = blocks
        for chunk in self._next_chunks(self.rules.token_budget - self.decoders * self.rules.row_tokens)[0]:
            request, _, blocks = chunk
            if request.id not in running or not make_room(request, blocks):
                break
            self._resume([chunk])
        return self._rows(1 if running else 0)
