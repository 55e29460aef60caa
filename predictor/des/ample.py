"""The mixed scheduler of a pool that never runs short, with a request's begin and end written out.

Random lengths leave about three runs a request, so most of a schedule's time goes into what happens at their edges. An
ample pool (:func:`predictor.des.pages.ample`) asks for no gates, pages or preemptions there; what is left fits in two
methods. They decide what :class:`MixedScheduler` decides, and hand the rare cases to it.
"""

from heapq import heappop, heappush

from predictor.des.mixed import MixedScheduler
from predictor.des.request import Request
from predictor.des.rules import QueuePolicy, SchedulerRules


def takes(rules: SchedulerRules, *, polls: bool, caches: bool, prefill_only: bool) -> bool:
    """Whether :class:`AmpleScheduler` knows these rules, given an ample pool."""
    plain = rules.queue_policy is QueuePolicy.FCFS and not rules.long_prefill_tokens
    return rules.mixed_steps and plain and not (polls or caches or prefill_only)


class AmpleScheduler(MixedScheduler):
    """See :class:`RunScheduler`: first come first served, blocks uncounted, no cache, no polling."""

    def plan(self, stamp: int, seen: int) -> int:
        """See :class:`RunScheduler`."""
        waiting, running, inbox = self.waiting, self.running, self.inbox
        while inbox and (inbox[0].queued <= seen or not running):
            waiting.append(inbox.popleft())
        if waiting and waiting[0].kv_ready:
            return super().plan(stamp, seen)
        if self._chunks:
            self._no_prompts()
        decoders = self.batch = self.weight = self.decoders
        if self._partials or (waiting and len(running) < self.cap):
            budget = self.rules.token_budget - decoders * self.rules.row_tokens
            self._fill(stamp, budget)
            if self.prompts_done:
                self._closed = False
                return self._rows(1)
            if self.prompt_tokens:
                return self._rows(self._run_of_chunks(budget))
        ended = len(self._ended)
        if ended:
            self.weight = decoders - ended
            steps = 1
        elif not decoders:
            steps = 0
        elif inbox and not self._closed:
            steps = 1
        else:
            steps = self._until_end()
        self._elders = bool(waiting)
        self.context = self._context
        self.growth = self._growing
        self.steps = steps
        return steps

    def _fill(self, stamp: int, budget: int) -> None:
        """The next chunk of the one prompt that may be partial, then requests until the budget cuts one or is spent."""
        waiting, running, cap = self.waiting, self.running, self.cap
        partials, pool, floor = self._partials, self.pages.pool, self.rules.chunk_floor_tokens
        while budget > 0:
            if partials:
                request = partials[0]
                rest = request.tokens - request.computed
                tokens = rest if rest <= budget else budget - budget % floor
                if tokens <= 0:
                    return
                if tokens == rest:
                    partials.clear()
            elif waiting and len(running) < cap:
                request = waiting[0]
                rest = request.tokens
                tokens = rest if rest <= budget else budget - budget % floor
                if tokens <= 0 or (tokens < rest and not self.rules.chunked_prefill):
                    return
                waiting.popleft()
                request.admitted = stamp
                request.computed = 0
                pool.admissions = request.seq = pool.admissions + 1
                running[request.id] = request
                if tokens < rest:
                    partials.append(request)
            else:
                return
            before = request.computed
            request.computed = before + tokens
            self._chunks.append((request, tokens))
            self.prompt_tokens += tokens
            self.prompt_area += tokens * (tokens + 2 * before)
            if tokens < rest:
                return
            self._starting.append(request)
            self.prompts_done += 1
            budget -= tokens

    def commit(self, steps: int, stamp: int) -> list[Request]:
        """See :class:`RunScheduler`."""
        finished: list[Request] = []
        self.last_commit = stamp
        if steps > 1 and self._chunks:
            self._compute_on(steps - 1)
        running, step, ended = self.running, self._step, self._ended
        if self.batch:
            self._step = step = step + steps
            self._context += self.growth * steps
            if ended:
                for request in ended:
                    self._drop(request, step)
                ended.clear()
            ends = self._ends
            while ends and ends[0][0] <= step:
                request = heappop(ends)[2]
                request.finished = stamp
                finished.append(request)
                if self._late:
                    ended.append(request)
                else:
                    self._drop(request, step)
        if self._starting:
            unit = self._unit
            for request in self._starting:
                request.first = stamp
                request.left = left = request.left - 1
                if not left:
                    request.finished = stamp
                    finished.append(request)
                    del running[request.id]
                    continue
                request.grow = grow = request.grow or self._grow
                request.start_step = step
                request.context = context = (request.tokens + 1) * unit
                self.decoders += 1
                self._context += context
                self._growing += grow
                heappush(self._ends, (step - (-left * unit // grow), request.seq, request))
            self._starting.clear()
        if finished:
            self.load -= len(finished)
        return finished

    def _drop(self, request: Request, step: int) -> None:
        """A decoder leaves."""
        del self.running[request.id]
        grow = request.grow
        self.decoders -= 1
        self._context -= request.context + (step - request.start_step) * grow
        self._growing -= grow
