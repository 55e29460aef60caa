"""The prefix cache of one replica in a timed simulation, as the engines run it.

It answers a scheduler's two questions, ``lookup`` and ``insert``, in admission order, and holds three things an untimed
replay leaves out:

- *visibility*: a block can be reused once it is scheduled (vLLM), computed (SGLang, ATOM) or its request has finished
  (TensorRT-LLM), not when it is asked for;
- *references*: blocks of running requests stay; all are released together, which is their last use;
- *room*: the pool also holds answers and partial blocks of running requests, so the cache has what those leave.

Hits are counted as engines do: full blocks, and the last prompt token is computed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from predictor.des.prefix_cache import PrefixCache
from predictor.des.replay import engine_hit_tokens
from predictor.des.tiers import TierCache
from predictor.errors import BadInput, unknown_name
from predictor.profiles.loader import engine_profile
from predictor.workload.blocks import NO_BLOCKS, Prompt
from predictor.workload.trace import TraceRequest


class Visible(StrEnum):
    """When a request's blocks can be found by others."""

    SCHEDULED = "scheduled"
    COMPUTED = "computed"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class ReuseRules:
    """How one engine reuses prefixes. ``answers``: blocks that decode filled are kept too."""

    visible: Visible
    answers: bool
    source: str


REUSE_RULES: dict[str, ReuseRules] = {
    "vLLM": ReuseRules(Visible.SCHEDULED, True, "vLLM 0.33.0: a block is hashed when it fills, prompt and output"),
    "SGLang": ReuseRules(Visible.COMPUTED, True, "SGLang 0.5.23: inserted at each chunk and at finish"),
    "ATOM": ReuseRules(Visible.COMPUTED, True, "ATOM ffdf3bb5: inserted when a block is computed"),
    "TensorRT-LLM": ReuseRules(
        Visible.COMPLETED, True, "TensorRT-LLM 002f3cc3: stored at completion, decode blocks too"
    ),
}


def reuse_rules(engine: str) -> ReuseRules:
    """Rules of an engine by its name or an alias.

    >>> reuse_rules("trtllm").visible
    <Visible.COMPLETED: 'completed'>
    """
    name = engine_profile(engine).name
    if name not in REUSE_RULES:
        raise unknown_name("engine with a prefix cache", engine, REUSE_RULES)
    return REUSE_RULES[name]


class Admitted(Protocol):
    """What the cache reads of a scheduler's request; ``payload`` is the trace's request."""

    id: int
    payload: Any
    first: int  # stamp of the first token, negative before


@dataclass(slots=True)
class _Running:
    """A request that holds blocks of the pool."""

    request: Admitted
    prompt: Prompt
    hit_blocks: int
    visible: bool


class ReplicaCache:
    """See the module's text. ``kv_tokens`` is the replica's (or attention-DP rank's) pool."""

    def __init__(
        self,
        kv_tokens: int,
        block_tokens: int,
        rules: ReuseRules,
        tier: Callable[[int], TierCache | None] | None = None,
    ) -> None:
        if block_tokens < 1 or kv_tokens < block_tokens:
            raise BadInput(f"a pool of {kv_tokens} tokens holds no block of {block_tokens}")
        self.rules = rules
        self.block_tokens = block_tokens
        self.pool_blocks = kv_tokens // block_tokens
        self.cache = PrefixCache(self.pool_blocks)
        self.tier = tier(self.pool_blocks) if tier is not None else None
        self._kv_tokens = kv_tokens
        self._held_tokens: Callable[[], int] = int
        self._running: dict[int, _Running] = {}
        self._unseen: dict[int, _Running] = {}  # running, and not yet visible
        self._visible_blocks = 0  # of running prompts, each counted
        self._loaded: dict[int, int] = {}

    def attach(self, held_tokens: Callable[[], int]) -> None:
        """Tell where to read how many tokens of the pool running requests hold."""
        self._held_tokens = held_tokens

    # What a scheduler asks

    def lookup(self, request: Admitted) -> int:
        """Leading prompt tokens that need no computing: resident, or loaded from the tier for this request."""
        self._catch_up()
        trace = _trace(request)
        hit = max(self.cache.resident_prefix(self._prompt(trace)), self._loaded.get(request.id, 0))
        return engine_hit_tokens(hit, trace.input_tokens, self.block_tokens)

    def insert(self, request: Admitted) -> None:
        """The request was admitted; after a preemption it is so again and holds what it held."""
        if request.id in self._running:
            return
        self._catch_up()
        prompt = self._prompt(_trace(request))
        hit = max(self.cache.resident_prefix(prompt), self._loaded.pop(request.id, 0))
        running = _Running(request, prompt, hit, visible=False)
        self._running[request.id] = running
        self.cache.pin(prompt)
        if self.rules.visible is Visible.SCHEDULED:
            self._show(running)
        else:
            self._unseen[request.id] = running

    # What the simulation tells

    def remember(self, trace: TraceRequest) -> None:
        """The prompt was served before."""
        prompt = self._prompt(trace)
        hit = self.cache.use(prompt).hit_blocks
        if self.tier is not None:
            self.tier.used(prompt, hit)

    def finished(self, request: Admitted, following: TraceRequest | None = None) -> None:
        """The request ended: its blocks are released. ``following`` is the turn whose prompt contains the answer.

        The pool was fullest just before, so that is what the cache had to leave room for.
        """
        trace = _trace(request)
        self._catch_up(trace.input_tokens + trace.output_tokens)
        running = self._running.pop(request.id)
        if running.visible:
            self._visible_blocks -= running.prompt.blocks
        else:
            self._unseen.pop(request.id, None)
        self.cache.unpin(running.prompt)
        if not running.visible and self.tier is not None:
            self.tier.used(running.prompt, running.hit_blocks)
        if following is not None and self.rules.answers:
            self._keep_answer(trace, following)

    def found_below(self, request: Admitted) -> int:
        """Blocks the tier would add to what HBM holds."""
        if self.tier is None:
            return 0
        self._catch_up()
        prompt = self._prompt(_trace(request))
        hit = self.cache.resident_prefix(prompt)
        return self.tier.found_blocks(prompt, hit) - hit

    def load(self, request: Admitted, now_ms: float) -> float:
        """Queue the load of what the tier adds; the request may rely on it from the time returned, ms."""
        blocks = self.found_below(request)
        if not blocks or self.tier is None:
            return now_ms
        self._loaded[request.id] = self.cache.resident_prefix(self._prompt(_trace(request))) + blocks
        return self.tier.load(now_ms, blocks)

    def cached_tokens(self, trace: TraceRequest) -> int:
        """For routers: leading tokens found in HBM or the tier."""
        self._catch_up()
        prompt = self._prompt(trace)
        hit = self.cache.resident_prefix(prompt)
        found = self.tier.found_blocks(prompt, hit) if self.tier is not None else hit
        return engine_hit_tokens(found, trace.input_tokens, self.block_tokens)

    # Bookkeeping

    def _prompt(self, trace: TraceRequest) -> Prompt:
        """The full blocks of a prompt; engines hash no partial one. Without ids: none, which the caller flags."""
        if trace.prompt is None:
            return NO_BLOCKS
        return trace.prompt.head(trace.input_tokens // self.block_tokens)

    def _show(self, running: _Running) -> None:
        running.visible = True
        self._visible_blocks += running.prompt.blocks
        self.cache.use(running.prompt)
        if self.tier is not None:
            self.tier.used(running.prompt, running.hit_blocks)

    def _catch_up(self, just_freed_tokens: int = 0) -> None:
        """Show what was computed since the last call, and give the cache what running requests leave of the pool."""
        if self._unseen and self.rules.visible is Visible.COMPUTED:
            for number in [number for number, running in self._unseen.items() if running.request.first >= 0]:
                self._show(self._unseen.pop(number))
        private_tokens = max(0, self._held_tokens() + just_freed_tokens - self._visible_blocks * self.block_tokens)
        blocks = max(0, (self._kv_tokens - private_tokens) // self.block_tokens)
        if blocks != self.cache.capacity_blocks:
            self.cache.resize(blocks)
            if self.tier is not None:
                self.tier.hbm_resized(blocks)

    def _keep_answer(self, trace: TraceRequest, following: TraceRequest) -> None:
        """Blocks that prompt and answer filled, where the following prompt goes on from both."""
        mine, theirs = self._prompt(trace), self._prompt(following)
        if theirs.shared_blocks(mine) == mine.blocks:
            known_tokens = trace.input_tokens + trace.output_tokens - 1  # the last token's KV is never written
            answered = theirs.head(known_tokens // self.block_tokens)
            self.cache.use(answered)
            if self.tier is not None:
                self.tier.used(answered, mine.blocks)


def _trace(request: Admitted) -> TraceRequest:
    if not isinstance(request.payload, TraceRequest):
        raise BadInput(f"request {request.id} carries no trace request, so its prefix is unknown")
    return request.payload
