"""The scheduler of one replica (or one attention-DP rank) that plans runs of like steps.

Between two events that change the batch, decode steps differ only by their growing context. So a request is touched
when it begins and when it ends, never in between: its end is known as a decode-step number the moment it begins, and
its context is a difference of step numbers. The scheduler knows no time: ``plan`` says what the next run is and how
long it may last, ``commit`` says how many of its steps were done and at which stamp they ended. A stamp is a clock
tick, or the index of a run where nothing depends on the clock.
"""

from collections import deque
from heapq import heappop, heappush

from predictor.des.chunks import PromptWork
from predictor.des.pages import Pool, pages_for
from predictor.des.request import Gap, PrefixCache, Request
from predictor.des.rules import Admission, QueuePolicy, SchedulerRules
from predictor.errors import DoesNotFit


class RunScheduler(PromptWork):
    """Queue, KV pool and running requests of an engine; :mod:`mixed` and :mod:`prefill_first` plan its runs.

    After ``plan`` these describe the run: ``steps`` (most it may last; 0: nothing to do), ``batch`` decode rows that
    read ``context`` units in all, growing by ``growth`` units a step, the rows that yield a token (``weight``, and
    ``late_weight`` those whose first gap is told in ``gaps`` instead), and what prompts add: ``prompt_tokens`` new
    tokens a step, ``prompt_area`` (sum of n² + 2np over the first step's chunks), which grows by ``area_growth`` a
    step, and ``prompts_done`` prompts that end. A run holds prompt work in more than one step where each of them holds
    chunks of the same prompts and sizes, and none ends its prompt.
    """

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
            pages_for(rules, pool, grow, unit, ample_pool),
            counts_blocks=not ample_pool,
            frees_late=prefill_only and not ample_pool,
            polls=poll_interval_steps > 0,
        )
        self.waiting: deque[Request] = deque() if queue is None else queue  # micro-batches share one
        self.running: dict[int, Request] = {}  # in order of admission
        self.load = 0  # requests sent and not finished
        self.preemptions = 0
        self.gaps: list[Gap] = []
        self.last_commit = 0  # stamp at which the last run ended
        self.steps = self.batch = self.context = self.growth = self.weight = self.late_weight = 0
        self._prefill_only = prefill_only  # the answer is decoded in another pool
        self._cache = prefix_cache
        self._grow, self._unit = grow, unit
        self.cap = rules.running_cap  # most requests at once; a pipeline lowers it to balance micro-batches
        self._reserves = rules.admission is Admission.RESERVE_MAX_OUTPUT
        self._checked = (0, 0)  # whole and prompt tokens of a request that fits, hence of all smaller ones
        self._watermark = int(rules.watermark_frac * pool.total)
        self._context = 0  # context units the next decode step reads
        self._growing = 0  # context units a decode step adds
        self._late = rules.overlap_depth > 0
        self._elders = False  # requests were waiting when the run began
        self._poll = poll_interval_steps
        self._polled = 0  # steps since the engine last received requests
        if rules.queue_policy is QueuePolicy.LPM and prefix_cache is not None:
            self.chunk_runs = False  # the queue is ordered anew between the steps of a prompt

    # Requests coming in

    def submit(self, request: Request, stamp: int) -> None:
        """A request reaches the engine."""
        self.load += 1
        request.queued = stamp
        if request.kv_ready:  # it may join decode at any boundary
            self.chunk_runs = False
        if self._poll or self._late:
            self.inbox.append(request)
        else:
            self.waiting.append(request)

    def check(self, request: Request) -> None:
        """Refuse a request that could never be served."""
        whole = request.prompt_tokens + request.output_tokens
        if whole <= self._checked[0] and request.prompt_tokens <= self._checked[1]:
            return
        rules, total = self.rules, self.pages.pool.total
        last = whole - 1 + rules.overlap_depth
        if self._grow != self._unit or rules.draft_tokens:
            last += self._grow // self._unit + rules.draft_tokens + 1
        need = rules.blocks(whole if rules.admission is Admission.RESERVE_MAX_OUTPUT else last)
        if rules.admission is Admission.ESTIMATE_RATIO:
            clipped = min(request.output_tokens, rules.clip_max_new_tokens)
            need = max(need, rules.blocks(request.prompt_tokens + clipped + 1))
        if need > total:
            raise DoesNotFit(
                f"request {request.id}: {request.prompt_tokens} prompt and {request.output_tokens} output tokens need "
                f"{need} KV blocks of {rules.block_tokens} tokens, the pool holds {total}"
            )
        if not rules.chunked_prefill and request.prompt_tokens > rules.prompt_budget:
            raise DoesNotFit(
                f"request {request.id}: a prompt of {request.prompt_tokens} tokens exceeds the step budget of "
                f"{rules.prompt_budget}, and chunked prefill is off"
            )
        self._checked = whole, request.prompt_tokens

    def set_cap(self, cap: int) -> None:
        """Most requests at once from now on."""
        self.cap = cap

    def may_admit(self) -> bool:
        """Whether a request that arrives inside the planned run might enter at one of its boundaries.

        Where elders wait in a first-come queue it may not: they did not fit when the run began, and less is free now.
        An engine that polls must stop where it polls, whoever may enter. Where the chunks of each step fill the budget
        nobody may.
        """
        if self._closed:
            return False
        if self._poll:
            return True
        if len(self.running) >= self.cap:
            return False
        return not self._elders or self.rules.queue_policy is not QueuePolicy.FCFS

    def seen_at(self, steps: int) -> int:
        """Boundary of the run at which a request is seen that arrived after ``steps`` - 1 and up to ``steps`` steps."""
        if not self.running:  # an idle rank of a busy group
            return steps
        if self._poll:
            return steps + -(self._polled + steps) % self._poll
        return steps + 1 if self._late else steps

    def receive(self, seen: int) -> None:
        """Move what the scheduler sees at this boundary into the queue; an idle engine sees all."""
        inbox = self.inbox
        if self._poll:
            self._polled %= self._poll
            if not self._polled or not self.running:
                self._polled = 0
                self.waiting.extend(inbox)
                inbox.clear()
            return
        while inbox and (not self.running or inbox[0].queued <= seen):
            self.waiting.append(inbox.popleft())

    # Planning

    def plan(self, stamp: int, seen: int) -> int:
        """Decide the run that begins at ``stamp``; returns the most steps it may last, 0 when there is nothing to do.

        A scheduler that works a step ahead of the GPU has seen what was sent by ``seen``, the start of the last step.
        """
        raise NotImplementedError

    def _rows(self, steps: int) -> int:
        """Describe a run in which all decoders take part; what waits to be seen or released bounds it to one step."""
        rows = self.batch = self.weight = self.decoders
        if self._ended:
            self.weight = rows - len(self._ended)
            if steps > 1:
                steps = 1
        elif self.inbox and steps > 1 and not self._closed:
            if self._late:
                steps = 1
            elif self._poll:
                steps = min(steps, self.seen_at(1))
        self._elders = bool(self.waiting)
        self.context = self._context
        self.growth = self._growing
        self.steps = steps
        return steps

    def promised_blocks(self) -> int:
        """Blocks that the planned step's decoders will take when it is committed."""
        return self.pages.need(self._step) if self.batch else 0

    def _preempt(self, victim: Request) -> int:
        """Take all KV of a request and put it back into the queue; returns the blocks it held."""
        del self.running[victim.id]
        if victim.start_step >= 0:
            freed = self.pages.held(victim, self._step)
            self._forget(victim)
            if victim.finished >= 0:
                self._ended.remove(victim)
                return freed
            self._rewind(victim)
        else:
            freed = victim.held
            self.pages.give(freed)
            self._partials.remove(victim)
        victim.seq = -1
        victim.computed = 0
        victim.preemptions += 1
        self.preemptions += 1
        if self.rules.requeue_front:
            self.waiting.appendleft(victim)
        else:
            self.waiting.append(victim)
        return freed

    def _rewind(self, victim: Request) -> None:
        """Generated tokens of a decoder become part of what must be prefilled again."""
        known = (victim.context + (self._step - victim.start_step) * victim.grow) // self._unit
        victim.left -= known - victim.tokens - 1
        victim.tokens = known
        victim.gap_from = self._last_token_stamp(victim)
        victim.start_step = -1

    def _last_token_stamp(self, victim: Request) -> int:
        """Where every step decodes, every decoder got a token when the last one ended."""
        return self.last_commit

    # Admission

    def _admit(self, stamp: int, budget: int, promised: int) -> None:
        """Let requests in, in queue order, until one does not fit; ``promised`` blocks go to this step's decoders."""
        running, rules, waiting = self.running, self.rules, self.waiting
        if rules.queue_policy is not QueuePolicy.FCFS:
            self._order_queue()
        block, longest = rules.block_tokens, rules.long_prefill_tokens
        reserve, chunkwise = self._reserves, rules.admission is Admission.FITS_FULL_ISL
        while waiting and budget > 0 and len(running) < self.cap:
            request = waiting[0]
            whole = request.tokens
            gate = -(-(whole + request.left if reserve else whole) // block)
            if self._counts and not self._available(gate + promised + (self._watermark if running else 0)):
                break
            cached = self._resident(request) if self._cache is not None else 0
            rest = whole - cached
            wanted = longest if 0 < longest < rest else rest
            tokens = wanted if wanted <= budget else budget - budget % rules.chunk_floor_tokens
            if tokens <= 0 or (tokens < wanted and not rules.chunked_prefill):
                break
            waiting.popleft()
            self._enter(request, stamp, cached)
            if self._counts:
                request.held = -(-(cached + tokens) // block) if chunkwise else gate
                self.pages.take(request.held)
            self._add_chunk(request, tokens)
            budget -= tokens
            if tokens < rest:
                self._partials.append(request)
            if tokens < wanted:
                break

    def _admit_ready(self, stamp: int) -> None:
        """Requests whose KV came by a hand-off join decode at this boundary; their first token is shown now."""
        waiting = self.waiting
        while waiting and waiting[0].kv_ready and len(self.running) < self.cap and self._ready_fits(waiting[0]):
            request = waiting.popleft()
            request.kv_ready = False
            pool = self.pages.pool
            pool.admissions += 1
            request.seq = pool.admissions
            self.running[request.id] = request
            request.held = self.rules.blocks(self._gate_tokens(request))
            self.pages.take(request.held)
            request.first = stamp
            request.left -= 1
            self._begin_decode(request, stamp)

    def _ready_fits(self, request: Request) -> bool:
        promised = self.pages.need(self._step) if self.decoders else 0
        spare = self._watermark if self.running else 0
        return self._available(self.rules.blocks(self._gate_tokens(request)) + promised + spare)

    def _gate_tokens(self, request: Request) -> int:
        """Tokens whose blocks must be free for the request to enter."""
        return request.tokens + request.left if self._reserves else request.tokens

    def _resident(self, request: Request) -> int:
        """Prefix found in the cache; the last token is always computed."""
        if self._cache is None or (request.preemptions and not self.rules.keep_hash_on_preempt):
            return 0
        return min(self._cache.lookup(request), request.tokens - 1)

    def _enter(self, request: Request, stamp: int, cached: int) -> None:
        if self._cache is not None:
            self._cache.insert(request)
        if request.admitted < 0:
            request.admitted = stamp
            request.cached_tokens = cached
        request.computed = cached
        pool = self.pages.pool
        pool.admissions += 1
        request.seq = pool.admissions
        self.running[request.id] = request

    def _order_queue(self) -> None:
        """Sort the queue by its policy; equal keys keep their order."""
        policy = self.rules.queue_policy
        if policy is QueuePolicy.LPM:
            if self._cache is None or len(self.waiting) > self.rules.lpm_queue_limit:
                return
            lookup = self._cache.lookup
            ordered = sorted(self.waiting, key=lambda request: -lookup(request))
        elif policy is QueuePolicy.SHORTEST_PREFILL:
            ordered = sorted(self.waiting, key=lambda request: request.tokens)
        else:
            ordered = sorted(self.waiting, key=lambda request: -request.left)
        self.waiting.clear()
        self.waiting.extend(ordered)

    # What was done

    def commit(self, steps: int, stamp: int) -> list[Request]:
        """``steps`` steps of the planned run ended at ``stamp``; returns the requests that got their last token."""
        finished: list[Request] = []
        self.last_commit = stamp
        if self._poll:  # polls again right after prompt work
            self._polled = 0 if self._chunks else self._polled + steps
        if steps > 1 and self._chunks:
            self._compute_on(steps - 1)
        batch, step = self.batch, self._step
        if batch:
            if self._counts:
                self.pages.advance(step, steps)
            self._step = step = step + steps
            self._context += self.growth * steps
        if self._ended:
            self._release_ended()
        if batch:
            ends = self._ends
            while ends and ends[0][0] <= step:
                _, seq, request = heappop(ends)
                if request.seq != seq:
                    continue
                request.finished = stamp
                finished.append(request)
                if self._late:
                    self._ended.append(request)
                else:
                    del self.running[request.id]
                    self._forget(request)
        if self._starting:
            self._start(stamp, finished)
        if finished:
            self.load -= len(finished)
        return finished

    def _release_ended(self) -> None:
        for request in self._ended:
            del self.running[request.id]
            self._forget(request)
        self._ended.clear()

    def _forget(self, request: Request) -> None:
        """A decoder leaves the sums."""
        step, grow = self._step, request.grow
        self.decoders -= 1
        self._context -= request.context + (step - request.start_step) * grow
        self._growing -= grow
        if self._counts:
            self.pages.leave(request, step)

    def _start(self, stamp: int, finished: list[Request]) -> None:
        """Prompts that ended in the step yield a token and begin to decode."""
        for request in self._starting:
            if self._prefill_only:
                finished.append(request)
                del self.running[request.id]
                continue
            if request.first < 0:
                request.first = stamp
            elif request.gap_from >= 0:
                self.gaps.append(Gap(request.gap_from, stamp, 1, False))
                request.gap_from = -1
            request.left -= 1
            if request.left == 0:
                request.finished = stamp
                finished.append(request)
                del self.running[request.id]
                self.pages.give(request.held)
            else:
                self._begin_decode(request, stamp)
        self._starting.clear()

    def _begin_decode(self, request: Request, stamp: int) -> None:
        """A request that just got a token joins the decoders."""
        step, unit, grow = self._step, self._unit, request.grow or self._grow
        request.start_step = step
        request.context = context = (request.tokens + 1) * unit
        request.grow = grow
        if self._counts:
            self.pages.enter(request, step)
        self.decoders += 1
        self._context += context
        self._growing += grow
        heappush(self._ends, (step - (-request.left * unit // grow), request.seq, request))

    def release(self, request: Request) -> None:
        """The KV of a prefilled request has left for another pool."""
        self.pages.give(request.held)
