"""The reference: a scheduler that touches every running request at every step.

It exists to check :mod:`predictor.des.runs` and to say what runs are worth. Every token is a line of Python: blocks are
taken one by one from a list, contexts are summed anew, completions are found by looking. It shares with the fast
scheduler the rules, the requests and the step prices, and nothing else.
"""

from dataclasses import replace

from predictor.des.request import PrefixCache, Request
from predictor.des.rules import Admission, QueuePolicy, SchedulerRules
from predictor.des.stepwise_state import Live, StepRecorder


class StepScheduler:
    """Queue, blocks and running list of one engine; one step at a time."""

    def __init__(
        self,
        rules: SchedulerRules,
        kv_blocks: int,
        recorder: StepRecorder,
        *,
        grow: int,
        unit: int,
        prefix_cache: PrefixCache | None,
        poll_interval_steps: int,
        prefill_only: bool = False,
    ) -> None:
        self.rules = rules
        self.hold = False  # no prefill in the next plan
        self._prefill_only = prefill_only
        self.prefilled: dict[int, list[int]] = {}  # blocks of requests whose KV is on its way to another pool
        self.total_blocks = kv_blocks
        self.free_blocks = list(range(kv_blocks))
        self.waiting: list[Live] = []
        self.inbox: list[tuple[int, Live]] = []
        self.running: list[Live] = []
        self.rows: list[Live] = []  # decode rows of the step under way
        self.chunks: list[tuple[Live, int, int]] = []  # request, new tokens, tokens before them
        self.preemptions = 0
        self.load = 0
        self._recorder = recorder
        self._grow, self._unit = grow, unit
        self._block, self._draft = rules.block_tokens, rules.draft_tokens
        self._reserves = rules.admission is Admission.RESERVE_MAX_OUTPUT
        self._cache = prefix_cache
        self._poll = poll_interval_steps
        self._steps_since_poll = 0
        self._full = False
        self._shrunk = False
        self._ratio_units = rules.ratio.start_units

    def set_cap(self, cap: int) -> None:
        """Most requests at once from now on; what failed at a lower cap is tried again."""
        self._full = self._full and cap <= self.rules.max_running
        self.rules = replace(self.rules, max_running=cap)

    def submit(self, request: Request, now: int) -> None:
        self.load += 1
        if self._poll or self.rules.overlap_depth:
            self.inbox.append((now, Live(request)))
        else:
            self.waiting.append(Live(request))

    # Blocks

    def _blocks_for(self, tokens: int) -> int:
        return (tokens + self._block - 1) // self._block

    def _take(self, live: Live, count: int) -> None:
        while len(live.blocks) < count:
            live.blocks.append(self.free_blocks.pop())

    def _decode_blocks(self, live: Live) -> int:
        """Blocks a decoder must hold in its next step."""
        if self._reserves:
            return len(live.blocks)
        return (live.context_units // self._unit + self._draft + self._block - 1) // self._block

    def _release(self, live: Live) -> None:
        self.free_blocks.extend(live.blocks)
        live.blocks = []
        self.running.remove(live)

    def _preempt(self, live: Live) -> None:
        self._release(live)
        if live.ended:
            return
        if live.decoding:
            live.generated = live.known(self._unit) - live.request.prompt_tokens
            live.target = live.request.prompt_tokens + live.generated
            live.decoding = False
        live.computed = 0
        live.request.preemptions += 1
        self.preemptions += 1
        if self.rules.requeue_front:
            self.waiting.insert(0, live)
        else:
            self.waiting.append(live)

    # Planning one step

    def plan(self, now: int, last_start: int) -> bool:
        """Fill ``rows`` and ``chunks``; False when there is nothing to do."""
        self.rows, self.chunks = [], []
        self.receive(last_start)
        self._plan_step(now)
        return bool(self.rows or self.chunks)

    def receive(self, last_start: int) -> None:
        if self._poll:
            if self._steps_since_poll % self._poll == 0 or not self.running:
                self.waiting.extend(live for _, live in self.inbox)
                self.inbox = []
                self._steps_since_poll = 0
        else:
            for entry in list(self.inbox):
                if entry[0] <= last_start or not self.running:
                    self.inbox.remove(entry)
                    self.waiting.append(entry[1])

    def _plan_step(self, now: int) -> None:
        """Decoders first, then prompts, all in one step."""
        self.admit_ready(now)
        evicted = False
        decoders = 0
        index = 0
        while index < len(self.running):  # preemption pops the tail, which may be the request looked at
            live = self.running[index]
            index += 1
            if not live.decoding:
                continue
            need = self._decode_blocks(live)
            while need - len(live.blocks) > len(self.free_blocks):
                evicted = True
                victim = self.running[-1]  # comes later in the list, so it has no place in this step yet
                self._preempt(victim)
                if victim is live:
                    break
            else:
                self._take(live, need)
                decoders += 1
        budget = self.rules.token_budget - self.rules.row_tokens * decoders
        index = 0
        while index < len(self.running) and decoders < len(self.running):
            live = self.running[index]
            index += 1
            if live.decoding:
                continue
            tokens, budget = self._chunk(live, budget)
            if tokens == 0:
                continue
            need = self._blocks_for(live.computed + tokens)
            while need - len(live.blocks) > len(self.free_blocks):
                evicted = True
                victim = self.running[-1]
                self._preempt(victim)
                if victim is live:
                    break
            else:
                self._take(live, need)
                self.chunks.append((live, tokens, live.computed))
        if not evicted:
            self._admit(now, budget)
        self.rows = [live for live in self.running if live.decoding]

    def _chunk(self, live: Live, budget: int) -> tuple[int, int]:
        """Tokens of a prompt in this step, and the budget left."""
        tokens = live.target - live.computed
        if self.rules.long_prefill_tokens > 0:
            tokens = min(tokens, self.rules.long_prefill_tokens)
        if tokens <= budget:
            return tokens, budget - tokens
        return budget - budget % self.rules.chunk_floor_tokens, 0

    def _sort_queue(self) -> None:
        policy = self.rules.queue_policy
        if policy is QueuePolicy.LPM and self._cache is not None and len(self.waiting) <= self.rules.lpm_queue_limit:
            cache = self._cache
            self.waiting.sort(key=lambda live: cache.lookup(live.request), reverse=True)
        if policy is QueuePolicy.SHORTEST_PREFILL:
            self.waiting.sort(key=lambda live: live.target)
        if policy is QueuePolicy.LONGEST_OUTPUT:
            self.waiting.sort(key=lambda live: live.request.output_tokens - live.generated, reverse=True)

    def _cached(self, live: Live) -> int:
        if self._cache is None:
            return 0
        if live.request.preemptions and not self.rules.keep_hash_on_preempt:
            return 0
        return min(self._cache.lookup(live.request), live.target - 1)

    def _start_prefill(self, live: Live, now: int, cached: int) -> None:
        self.waiting.remove(live)
        self.running.append(live)
        live.computed = cached
        if self._cache is not None:
            self._cache.insert(live.request)
        if live.request.admitted < 0:
            live.request.admitted = now
            live.request.cached_tokens = cached

    def _admit(self, now: int, budget: int) -> None:
        rules = self.rules
        if len(self.running) < rules.running_cap or any(not live.decoding for live in self.running):
            self._sort_queue()  # SGLang leaves a full batch at once, unless a prompt's next chunk is due
        while self.waiting and budget > 0 and len(self.running) < rules.running_cap:
            live = self.waiting[0]
            whole = live.target
            if rules.admission is Admission.RESERVE_MAX_OUTPUT:
                whole = live.request.prompt_tokens + live.request.output_tokens
            spare = int(rules.watermark_frac * self.total_blocks) if self.running else 0
            if self._blocks_for(whole) + spare > len(self.free_blocks):
                break
            cached = self._cached(live)
            live.computed = cached
            tokens, left = self._chunk(live, budget)
            if tokens <= 0:
                live.computed = 0
                break
            if not rules.chunked_prefill and left == 0 and tokens < live.target - cached:
                live.computed = 0
                break
            self._start_prefill(live, now, cached)
            if rules.admission is Admission.FITS_FULL_ISL:
                self._take(live, self._blocks_for(cached + tokens))
            else:
                self._take(live, self._blocks_for(whole))
            self.chunks.append((live, tokens, cached))
            budget = left

    # Requests whose KV comes from a prefill pool

    def release(self, request: Request) -> None:
        self.free_blocks.extend(self.prefilled.pop(request.id))

    def admit_ready(self, now: int) -> None:
        while self.waiting and self.waiting[0].request.kv_ready and len(self.running) < self.rules.running_cap:
            live = self.waiting[0]
            tokens = live.target
            if self.rules.admission is Admission.RESERVE_MAX_OUTPUT:
                tokens += live.request.output_tokens
            if not self._ready_fits(live, tokens):
                return
            self.waiting.pop(0)
            self.running.append(live)
            self._take(live, self._blocks_for(tokens))
            live.request.kv_ready = False
            live.request.first = now
            live.computed = live.target
            self._begin_decode(live, now)

    def _ready_fits(self, live: Live, tokens: int) -> bool:
        spare = int(self.rules.watermark_frac * self.total_blocks) if self.running else 0
        return self._blocks_for(tokens) + spare + self._decode_need() <= len(self.free_blocks)

    def _decode_need(self) -> int:
        decoders = [live for live in self.running if live.decoding]
        return sum(self._decode_blocks(live) - len(live.blocks) for live in decoders)

    def _begin_decode(self, live: Live, now: int) -> None:
        live.last_token = now
        live.generated += 1
        live.decoding = True
        live.context_units = (live.target + 1) * self._unit
        live.produced_units = 0
        live.to_produce_units = (live.request.output_tokens - live.generated) * self._unit

    # The step is done

    def finish(self, now: int) -> list[Request]:
        """Give every row its token; returns the requests that got their last one."""
        finished: list[Request] = []
        self._steps_since_poll = 0 if self.chunks else self._steps_since_poll + 1
        if self.rules.overlap_depth:
            for live in [live for live in self.running if live.ended]:
                self._release(live)
                self._shrunk = True
        for live in self.rows:
            if live.ended:
                continue
            grow = live.request.grow or self._grow
            live.context_units += grow
            live.produced_units += grow
            self._recorder.token_gap(now - live.last_token)
            live.last_token = now
            if live.produced_units >= live.to_produce_units:
                self._end(live, now, finished)
        for live, tokens, before in self.chunks:
            live.computed = before + tokens
            if live.computed < live.target:
                continue
            if self._prefill_only:
                self.prefilled[live.request.id] = live.blocks
                live.blocks = []
                self._release(live)
                finished.append(live.request)
                self._full = False
                continue
            if live.request.first < 0:
                live.request.first = now
            else:
                self._recorder.token_gap(now - live.last_token)
            if live.generated + 1 == live.request.output_tokens:
                live.request.finished = now
                finished.append(live.request)
                self._release(live)
                self._full = False
            else:
                self._begin_decode(live, now)
        self.load -= len(finished)
        return finished

    def _end(self, live: Live, now: int, finished: list[Request]) -> None:
        live.request.finished = now
        finished.append(live.request)
        if self.rules.overlap_depth:
            live.ended = True
        else:
            self._release(live)
            self._shrunk = True
