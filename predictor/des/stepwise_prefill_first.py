"""The reference scheduler of engines whose prefill goes first and alone (SGLang, ATOM)."""

from predictor.des.rules import Admission, Victim
from predictor.des.stepwise import StepScheduler
from predictor.des.stepwise_state import Live


class PrefillFirstSteps(StepScheduler):
    """See :class:`StepScheduler`; a step holds prompt chunks or decode rows."""

    def _plan_step(self, now: int) -> None:
        """Prompts alone while there are any, else decode."""
        if not any(live.decoding for live in self.running):
            self._full = self._shrunk = False
        if not self._full:
            self.admit_ready(now)
        partials = [live for live in self.running if not live.decoding]
        if not self.hold and (partials or (self.waiting and not self._full)):
            self._plan_prefill(now, partials)
            if self.chunks:
                return
        self.rows = [live for live in self.running if live.decoding]
        if not self.rows:
            return
        if self._decode_need() > len(self.free_blocks):
            self._retract()
        elif self.rules.admission is Admission.ESTIMATE_RATIO:
            ratio = self.rules.ratio
            self._ratio_units = max(self._ratio_units - ratio.decay_units, ratio.floor_units)
        if self._shrunk:
            self._full = self._shrunk = False
        self.rows = [live for live in self.running if live.decoding]
        for live in self.rows:
            self._take(live, self._decode_blocks(live))

    def _retract(self) -> None:
        victims = list(self.running)
        if self.rules.victim is Victim.FEWEST_GENERATED:
            victims = [live for live in victims if live.decoding]
            victims.sort(key=lambda live: (-live.outputs(self._unit), live.request.prompt_tokens))
        while len(victims) > 1 and self._decode_need() > len(self.free_blocks):
            self._preempt(victims.pop())
            self._shrunk = True
        while self._decode_need() > len(self.free_blocks):
            partials = [live for live in self.running if not live.decoding]
            self._preempt((partials or self.running)[-1])  # none partial: other micro-batches hold the pool
        if self.rules.admission is Admission.ESTIMATE_RATIO:
            left = [live for live in self.running if live.decoding]
            generated = sum(live.outputs(self._unit) for live in left)
            asked = sum(live.request.output_tokens for live in left)
            self._ratio_units = self.rules.ratio.after_retraction(generated, len(left), asked)

    def _plan_prefill(self, now: int, partials: list[Live]) -> None:
        budget = self.rules.prompt_budget
        planned: list[tuple[Live, int]] = []
        need = 0
        for live in partials:
            tokens, budget = self._chunk(live, budget)
            if tokens > 0:
                planned.append((live, tokens))
                need += max(0, self._blocks_for(live.computed + tokens) - len(live.blocks))
        if need > len(self.free_blocks):
            if partials and not any(live.decoding for live in self.running):  # other micro-batches hold the pool
                self._preempt(partials[-1])
            return
        for live, tokens in planned:
            self._take(live, self._blocks_for(live.computed + tokens))
            self.chunks.append((live, tokens, live.computed))
        if self.rules.admission is Admission.ESTIMATE_RATIO:
            self._admit_by_estimate(now, budget)
        else:
            self._admit(now, budget)

    def _estimated_room(self) -> int:
        """Free KV less what decoders are estimated to need, in ratio units."""
        scale = self.rules.ratio.denominator
        ratio = scale if self.rules.ignore_eos else self._ratio_units
        units = len(self.free_blocks) * self.rules.block_tokens * scale
        for live in self.running:
            if live.decoding:
                outstanding = live.request.output_tokens - live.outputs(self._unit)
                units -= min(outstanding, self.rules.clip_max_new_tokens) * ratio
        return units

    def _admit_by_estimate(self, now: int, chunk: int) -> None:
        if chunk <= 0:
            return
        rules = self.rules
        scale = rules.ratio.denominator
        page = rules.block_tokens
        clip = rules.clip_max_new_tokens
        self._sort_queue()
        rest_units = self._estimated_room()
        for live, tokens, before in self.chunks:
            if before + tokens == live.target:
                rest_units -= min(live.request.output_tokens - live.generated, clip) * scale
        inputs = rules.token_budget - sum(tokens for _, tokens, _ in self.chunks)
        while self.waiting:
            if len(self.running) >= rules.running_cap:
                self._full = True
                return
            live = self.waiting[0]
            cached = self._cached(live)
            tokens = live.target - cached
            outstanding = min(live.request.output_tokens - live.generated, clip)
            if (live.target + outstanding) * scale >= rest_units:
                self._full = True
                return
            paged = self._blocks_for(tokens) * page
            if paged >= inputs and self.chunks:
                return
            if paged > chunk:
                tokens = chunk // page * page
                if tokens <= 0:
                    return
            before = len(self.free_blocks)
            self._start_prefill(live, now, cached)
            self._take(live, self._blocks_for(cached + tokens))
            self.chunks.append((live, tokens, cached))
            rest_units -= (before - len(self.free_blocks)) * page * scale
            if cached + tokens < live.target:
                return
            rest_units -= outstanding * scale
            inputs -= paged
            chunk -= paged
            if rest_units <= 0:
                self._full = True
                return
            if inputs <= 0 or chunk <= 0:
                return

    def _ready_fits(self, live: Live, tokens: int) -> bool:
        if self.rules.admission is not Admission.ESTIMATE_RATIO:
            return super()._ready_fits(live, tokens)
        clipped = min(live.request.output_tokens, self.rules.clip_max_new_tokens)
        return (tokens + clipped) * self.rules.ratio.denominator < self._estimated_room()
