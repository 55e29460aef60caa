"""The run-planning scheduler of engines whose prefill goes first and alone (SGLang, ATOM).

While any prompt can be prefilled, decode stalls; the stalled decoders' next gap spans those steps.
"""

from collections import deque

from predictor.des.pages import Pool
from predictor.des.request import Gap, PrefixCache, Request
from predictor.des.rules import Admission, QueuePolicy, SchedulerRules, Victim
from predictor.des.runs import RunScheduler


class PrefillFirstScheduler(RunScheduler):
    """See :class:`RunScheduler`; steps hold prompt chunks or decode rows, never both."""

    def __init__(
        self,
        rules: SchedulerRules,
        pool: Pool,
        *,
        grow: int = 1,
        unit: int = 1,
        prefix_cache: PrefixCache | None = None,
        poll_interval_steps: int = 0,
        queue: deque[Request] | None = None,
        prefill_only: bool = False,
        ample_pool: bool = False,
    ) -> None:
        super().__init__(
            rules,
            pool,
            grow=grow,
            unit=unit,
            prefix_cache=prefix_cache,
            poll_interval_steps=poll_interval_steps,
            queue=queue,
            prefill_only=prefill_only,
            ample_pool=ample_pool,
        )
        self.hold = False  # set from outside: no prefill in the next plan
        self._estimates = rules.admission is Admission.ESTIMATE_RATIO
        self._full = False  # an admission failed, and the batch has not shrunk since
        self._shrunk = False
        self._ratio_units = rules.ratio.start_units
        self._ratio_step = 0  # decode step at which the ratio had that value
        self._left_at_zero = 0  # sum over decoders of outputs to come, as if counted at decode step 0
        self._long = 0  # decoders whose output exceeds the clip
        self._clipped = 0  # sum over decoders of the clipped outputs to come when they began
        self._last_decode = 0  # stamp of the last decode step
        self._new: list[tuple[int, int]] = []  # (stamp of the first token, rows) of decoders that have not decoded yet

    def set_cap(self, cap: int) -> None:
        """See :class:`RunScheduler`; a try that failed at a lower cap is forgotten."""
        if cap > self.cap:
            self._full = False
        self.cap = cap

    def may_admit(self) -> bool:
        """See :class:`RunScheduler`; a failed try, at the running cap too, is remembered until the batch shrinks."""
        if self._estimates and not self._poll:
            return not self._full
        return super().may_admit()

    # Planning

    def plan(self, stamp: int, seen: int) -> int:
        """See :class:`RunScheduler`."""
        if self._chunks:
            self._no_prompts()
        if self.inbox or self._poll:
            self.receive(seen)
        if not self.decoders:
            self._full = self._shrunk = False
        if self.waiting and self.waiting[0].kv_ready:
            self.admit_ready(stamp)
        if not self.hold and (self._partials or (self.waiting and not self._full)):
            self._plan_prefill(stamp)
            if self.prompt_tokens:
                self._elders = bool(self.waiting)
                self.steps = 1 if self._ended else self._run_of_chunks(self.rules.prompt_budget)
                self.batch = self.weight = self.late_weight = self.context = self.growth = 0
                return self.steps
        if not self.decoders:
            return self._rows(0)
        steps = self._until_end()
        if self._counts:
            steps = self.pages.limit(self._step, steps)
        if not steps:
            self._retract()
            steps = 1 if self.decoders else 0
        if self._shrunk and self._full:  # noticed when decode is prepared: prefill may enter at the next boundary
            self._full = False
            steps = 1
        self._shrunk = False
        self._rows(steps)
        if self._new or self._last_decode != stamp:
            self._tell_stalled(stamp)
        else:
            self.late_weight = 0
        return self.steps

    def _tell_stalled(self, stamp: int) -> None:
        """Gaps of decoders whose last token did not come at the boundary just reached."""
        fresh = sum([rows for _, rows in self._new])
        others = self.decoders - len(self._ended) - fresh
        self.late_weight = 0
        if all([token == stamp for token, _ in self._new]) and (not others or self._last_decode == stamp):
            self._new.clear()
            return
        self.weight, self.late_weight = 0, self.weight
        if others:
            self.gaps.append(Gap(self._last_decode, stamp, others, True))
        self.gaps.extend([Gap(token, stamp, rows, True) for token, rows in self._new if rows])
        self._new.clear()

    def _plan_prefill(self, stamp: int) -> None:
        chunks, more, budget = self._next_chunks(self.rules.prompt_budget)
        if not self._available(more):
            if self._partials and not self.decoders:  # other micro-batches hold the pool
                self._preempt(self._partials[-1])
            return  # decode goes on until the next chunk fits
        self._resume(chunks)
        if self._estimates:
            self._admit_by_estimate(stamp, budget)
        else:
            self._admit(stamp, budget, 0)

    # What a prefill delayer asks

    def admit_ready(self, stamp: int) -> None:
        """Let requests in whose KV is there; they are no prefill work."""
        if self.waiting and self.waiting[0].kv_ready and not self._full:
            self._admit_ready(stamp)

    @property
    def partial(self) -> bool:
        """Whether a prompt is half prefilled."""
        return bool(self._partials)

    @property
    def free_blocks(self) -> int:
        """Free KV blocks, exact."""
        self.pages.settle()
        return self.pages.available()

    def head_gate(self) -> int | None:
        """Blocks that the head of the queue needs free; None where no request could enter."""
        if not self.waiting or len(self.running) >= self.cap:
            return None
        return self.rules.blocks(self._gate_tokens(self.waiting[0])) + (self._watermark if self.running else 0)

    def pending_tokens(self) -> int:
        """Prompt tokens that wait, up to one step's budget."""
        budget, pending = self.rules.prompt_budget, 0
        for request in self._partials:
            pending += request.tokens - request.computed
        for request in self.waiting:
            if pending >= budget:
                break
            pending += request.tokens
        return min(pending, budget)

    def steps_leaving(self, steps: int, spare: int) -> int:
        """How many of the next decode steps leave so many blocks free."""
        return self.pages.limit(self._step, steps, spare) if self.decoders else steps

    # SGLang admission

    def _admit_by_estimate(self, stamp: int, chunk: int) -> None:
        """Admit while prompt plus clipped output stays below what the running requests are estimated to leave."""
        if chunk <= 0:  # the chunked request took it all
            return
        rules, running = self.rules, self.running
        if rules.queue_policy is not QueuePolicy.FCFS:
            self._order_queue()
        scale = rules.ratio.denominator
        inputs = rules.token_budget - self.prompt_tokens
        promised = sum([self._clip(request.left) * scale for request in self._starting])
        waiting = self.waiting
        while waiting:
            if len(running) >= self.cap:
                self._full = True
                return
            request = waiting[0]
            cached = self._resident(request)
            rest = request.tokens - cached
            total = request.tokens + self._clip(
                request.left
            )  # a cached prefix is locked before the check, so it counts
            if not self._leaves_beside_decoders(total * scale + promised):
                self._full = True
                return
            paged = rules.blocks(rest) * rules.block_tokens
            if paged >= inputs and self.prompt_tokens:
                return
            whole = paged <= chunk
            tokens = rest if whole else chunk - chunk % rules.block_tokens
            if tokens <= 0:
                return
            waiting.popleft()
            self._enter(request, stamp, cached)
            if self._counts:
                request.held = rules.blocks(cached + tokens)
                self.pages.take(request.held)
            self._add_chunk(request, tokens)
            if not whole:
                self._partials.append(request)
                return
            promised += self._clip(request.left) * scale
            inputs -= paged
            chunk -= paged
            if not self._leaves_beside_decoders(promised):
                self._full = True
                return
            if inputs <= 0 or chunk <= 0:
                return

    def _clip(self, tokens: int) -> int:
        return min(tokens, self.rules.clip_max_new_tokens)

    def _leaves_more_than(self, units: int) -> bool:
        """Whether the free KV exceeds so many token units."""
        if not self._counts:
            return True
        scale = self.rules.ratio.denominator * self.rules.block_tokens
        pages = self.pages
        return pages.available() * scale > units or (pages.settle() and pages.available() * scale > units)

    def _leaves_beside_decoders(self, units: int) -> bool:
        """Whether the free KV exceeds so many token units and what the decoders are estimated to need still.

        What they needed when they began bounds that, and settles the question unless the pool is tight.
        """
        if not self._counts:
            return True
        most = self._clipped * self.rules.ratio.denominator
        return self._leaves_more_than(units + most) or self._leaves_more_than(units + self._estimated_units())

    def _estimated_units(self) -> int:
        """KV the decoders are estimated to need still: the ratio times their clipped outstanding output."""
        rules = self.rules
        if self._long or self._grow != self._unit:
            left = sum(
                [self._clip(self._left_of(request)) for request in self.running.values() if request.start_step >= 0]
            )
        else:
            left = self._left_at_zero - self.decoders * self._step
        if rules.ignore_eos:
            return left * rules.ratio.denominator
        return left * self._ratio()

    def _ratio(self) -> int:
        ratio = self.rules.ratio
        return max(self._ratio_units - ratio.decay_units * (self._step - self._ratio_step), ratio.floor_units)

    def _known(self, request: Request) -> int:
        """Tokens a decoder's sequence has by now."""
        return (request.context + (self._step - request.start_step) * request.grow) // self._unit

    def _left_of(self, request: Request) -> int:
        return max(0, request.left - (self._known(request) - request.tokens - 1))

    # Out of KV in decode

    def _retract(self) -> None:
        """Free KV until the next decode step fits; at least one request survives."""
        pages, step = self.pages, self._step
        pages.settle()
        last = self.rules.victim is Victim.LAST
        victims = list(self.running.values())
        if not last:
            victims = [request for request in victims if request.start_step >= 0]
            victims.sort(key=lambda request: (self._generated(request), -request.prompt_tokens), reverse=True)
        while len(victims) > 1 and pages.need(step) > pages.available():
            self._preempt(victims.pop())
        while self._partials and pages.need(step) > pages.available():
            self._preempt(self._partials[-1])
        if pages.need(step) > pages.available():  # other micro-batches hold the pool
            self._preempt(next(reversed(self.running.values())))
        if self._estimates:
            survivors = [request for request in self.running.values() if request.start_step >= 0]
            generated = sum(self._generated(request) for request in survivors)
            asked = sum(request.output_tokens for request in survivors)
            self._ratio_units = self.rules.ratio.after_retraction(generated, len(survivors), asked)
            self._ratio_step = step + 1  # the step that retracts does not decay

    def _generated(self, request: Request) -> int:
        return min(self._known(request) - request.prompt_tokens, request.output_tokens)

    def _last_token_stamp(self, victim: Request) -> int:
        if victim.start_step < self._step:
            return self._last_decode
        self._new = [(token, rows - (token == victim.last_token)) for token, rows in self._new]
        return victim.last_token

    # What was done

    def commit(self, steps: int, stamp: int) -> list[Request]:
        """See :class:`RunScheduler`."""
        if self.batch:
            self._last_decode = stamp
        return super().commit(steps, stamp)

    def _forget(self, request: Request) -> None:
        super()._forget(request)
        self._shrunk = True
        self._left_at_zero -= request.end_step
        left, clip = request.left, self.rules.clip_max_new_tokens
        self._long -= left > clip
        self._clipped -= left if left < clip else clip

    def _start(self, stamp: int, finished: list[Request]) -> None:
        before = len(finished)
        super()._start(stamp, finished)
        if len(finished) > before:
            self._full = False

    def _begin_decode(self, request: Request, stamp: int) -> None:
        super()._begin_decode(request, stamp)
        request.last_token = stamp
        request.end_step = self._step + request.left
        self._left_at_zero += request.end_step
        left, clip = request.left, self.rules.clip_max_new_tokens
        self._long += left > clip
        self._clipped += left if left < clip else clip
        if self._new and self._new[-1][0] == stamp:
            self._new[-1] = (stamp, self._new[-1][1] + 1)
        else:
            self._new.append((stamp, 1))

    def _ready_fits(self, request: Request) -> bool:
        if not self._estimates:
            return super()._ready_fits(request)
        scale = self.rules.ratio.denominator
        return self._leaves_beside_decoders((request.tokens + self._clip(request.left)) * scale)
