"""KV blocks of a scheduler that advances many decode steps at once.

Pages answer five questions: how many blocks are available, what the next decode step takes, how many steps can be
served, what one request holds, and what it needs next. None of them walks over the requests in the common case.
"""

from math import ceil
from typing import Protocol

from predictor.des.request import Request
from predictor.des.rules import Admission, SchedulerRules
from predictor.types import Arrival, Workload


class Pool:
    """Blocks of one KV pool, which several micro-batches may share, and a count of admissions to it."""

    __slots__ = ("admissions", "drafting", "free", "total")

    def __init__(self, blocks: int) -> None:
        self.total = blocks
        self.free = blocks
        self.admissions = 0
        self.drafting: list[DraftingPages] = []


class Pages(Protocol):
    """What the requests of one scheduler hold of a pool. ``step`` is the scheduler's count of decode steps done."""

    pool: Pool

    def available(self) -> int:
        """Free blocks, or fewer until the pool is next asked to ``settle``."""
        ...

    def settle(self) -> bool:
        """Make ``available`` exact; False when it was exact already."""
        ...

    def take(self, blocks: int) -> None:
        """Blocks leave the pool for a prompt."""
        ...

    def give(self, blocks: int) -> None:
        """Blocks of a prompt that never began to decode come back."""
        ...

    def need(self, step: int) -> int:
        """Blocks the decode step numbered ``step`` takes."""
        ...

    def limit(self, step: int, steps: int, spare: int = 0) -> int:
        """How many of the next ``steps`` decode steps find their blocks and leave ``spare`` free."""
        ...

    def most(self, steps: int) -> int:
        """Upper bound of the blocks that so many decode steps take."""
        ...

    def advance(self, step: int, steps: int) -> None:
        """Take the blocks of ``steps`` decode steps."""
        ...

    def enter(self, request: Request, step: int) -> None:
        """A request starts to decode at ``step``, its ``tokens`` being resident."""
        ...

    def held(self, request: Request, step: int) -> int:
        """Blocks of a decoder before ``step``."""
        ...

    def request_need(self, request: Request, step: int) -> int:
        """Blocks one decoder takes at ``step``."""
        ...

    def leave(self, request: Request, step: int) -> None:
        """A decoder ends, or is preempted, before ``step``; its blocks are free again."""
        ...


class GrowingPages:
    """Pool whose decoders take blocks as they grow, one token a step.

    A request needs its next block every ``block`` steps, at a phase fixed when it began to decode: one counter a phase
    tells how many blocks any stretch of steps takes.
    """

    __slots__ = ("_decoders", "_phases", "block", "pool")

    def __init__(self, block_tokens: int, pool: Pool) -> None:
        self.block = block_tokens
        self.pool = pool
        self._phases = [0] * block_tokens
        self._decoders = 0

    def available(self) -> int:
        """Exact."""
        return self.pool.free

    def settle(self) -> bool:
        """Always settled."""
        return False

    def take(self, blocks: int) -> None:
        """See :class:`Pages`."""
        self.pool.free -= blocks

    def give(self, blocks: int) -> None:
        """See :class:`Pages`."""
        self.pool.free += blocks

    def need(self, step: int) -> int:
        """See :class:`Pages`."""
        return self._phases[step % self.block]

    def limit(self, step: int, steps: int, spare: int = 0) -> int:
        """See :class:`Pages`; walks one cycle of phases at most."""
        decoders, block, free = self._decoders, self.block, self.pool.free - spare
        if free >= decoders * (steps // block + 2):
            return steps
        cycles = max(0, min(free // decoders, steps // block))  # a full cycle takes one block a decoder
        free -= cycles * decoders
        done = cycles * block
        while done < steps:
            need = self._phases[(step + done) % block]
            if need > free:
                break
            free -= need
            done += 1
        return done

    def most(self, steps: int) -> int:
        """See :class:`Pages`."""
        return self._decoders * (steps // self.block + 1)

    def advance(self, step: int, steps: int) -> None:
        """See :class:`Pages`."""
        block, phases = self.block, self._phases
        if steps == 1:
            self.pool.free -= phases[step % block]
            return
        cycles, rest = divmod(steps, block)
        taken = cycles * self._decoders
        if rest:
            first = step % block
            last = first + rest
            taken += sum(phases[first:last]) if last <= block else sum(phases[first:]) + sum(phases[: last - block])
        self.pool.free -= taken

    def enter(self, request: Request, step: int) -> None:
        """See :class:`Pages`."""
        self._phases[(step - request.tokens) % self.block] += 1
        self._decoders += 1

    def held(self, request: Request, step: int) -> int:
        """See :class:`Pages`."""
        return -(-(request.tokens + step - request.start_step) // self.block)

    def request_need(self, request: Request, step: int) -> int:
        """See :class:`Pages`: one at a block's edge, else none."""
        return 0 if (request.tokens + step - request.start_step) % self.block else 1

    def leave(self, request: Request, step: int) -> None:
        """See :class:`Pages`."""
        self._phases[(request.start_step - request.tokens) % self.block] -= 1
        self._decoders -= 1
        self.pool.free += -(-(request.tokens + step - request.start_step) // self.block)


class ReservedPages:
    """Pool whose requests hold from admission on all the blocks they will ever need."""

    __slots__ = ("pool",)

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def available(self) -> int:
        """Exact."""
        return self.pool.free

    def settle(self) -> bool:
        """Always settled."""
        return False

    def take(self, blocks: int) -> None:
        """See :class:`Pages`."""
        self.pool.free -= blocks

    def give(self, blocks: int) -> None:
        """See :class:`Pages`."""
        self.pool.free += blocks

    def need(self, step: int) -> int:
        """Nothing: all was taken at admission."""
        return 0

    def limit(self, step: int, steps: int, spare: int = 0) -> int:
        """All of them, as nothing grows."""
        return steps if self.pool.free >= spare else 0

    def most(self, steps: int) -> int:
        """Nothing."""
        return 0

    def advance(self, step: int, steps: int) -> None:
        """Nothing to take."""

    def enter(self, request: Request, step: int) -> None:
        """Nothing to count."""

    def held(self, request: Request, step: int) -> int:
        """What admission took."""
        return request.held

    def request_need(self, request: Request, step: int) -> int:
        """Nothing."""
        return 0

    def leave(self, request: Request, step: int) -> None:
        """See :class:`Pages`."""
        self.pool.free += request.held


class DraftingPages:
    """Pages of decoders that grow by a fractional number of tokens a step and hold slots for drafted tokens.

    Block edges come at no fixed period, so the pool's free count leaves out what decoders took since they were last
    counted, and a bound on it stands in. They are counted only when the bound does not settle the question.
    ``request.held`` is what a request held when it was last counted.
    """

    __slots__ = ("_counted", "_decoders", "_draft", "_grow", "_step", "_unit", "block", "pool")

    def __init__(self, block_tokens: int, pool: Pool, grow: int, unit: int, draft_tokens: int) -> None:
        self.block = block_tokens
        self.pool = pool
        pool.drafting.append(self)
        self._counted = 0  # step of the last count
        self._step = 0
        self._decoders: dict[int, Request] = {}
        self._unit, self._draft = unit, draft_tokens
        self._grow = max(grow, (1 + draft_tokens) * unit)  # the most a request can grow in a step

    def _most_grown(self, steps: int) -> int:
        """Blocks a decoder can have taken at most in so many steps."""
        return 0 if steps == 0 else (steps * self._grow // self._unit + self._draft) // self.block + 2

    def _uncounted(self) -> int:
        """Blocks taken since the last count, at most."""
        return len(self._decoders) * self._most_grown(self._step - self._counted)

    def _count(self) -> None:
        step = self._step
        for request in self._decoders.values():
            held = self.held(request, step)
            self.pool.free -= held - request.held
            request.held = held
        self._counted = step

    def available(self) -> int:
        """A lower bound, exact right after ``settle``."""
        return self.pool.free - sum([pages._uncounted() for pages in self.pool.drafting])

    def settle(self) -> bool:
        """Count every decoder's blocks, those of other micro-batches on the pool too."""
        behind = [pages for pages in self.pool.drafting if pages._counted != pages._step]
        for pages in behind:
            pages._count()
        return bool(behind)

    def take(self, blocks: int) -> None:
        """See :class:`Pages`."""
        self.pool.free -= blocks

    def give(self, blocks: int) -> None:
        """See :class:`Pages`."""
        self.pool.free += blocks

    def need(self, step: int) -> int:
        """See :class:`Pages`; :meth:`request_need` written out, as all decoders are walked often."""
        block, unit, draft = self.block, self._unit, self._draft
        taken = 0
        for one in self._decoders.values():
            steps = step - one.start_step
            context = one.context + steps * one.grow  # after the step, in units
            before = (context - one.grow) // unit + draft if steps else one.tokens
            taken += -(-(context // unit + draft) // block) + -before // block
        return taken

    def limit(self, step: int, steps: int, spare: int = 0) -> int:
        """See :class:`Pages`; counts, and walks step by step, only when the pool is tight."""
        most = len(self._decoders) * self._most_grown(steps)
        if self.available() - spare >= most:
            return steps
        self.settle()
        free = self.pool.free - spare
        if free >= most:
            return steps
        done = 0
        while done < steps:
            need = self.need(step + done)
            if need > free:
                break
            free -= need
            done += 1
        return done

    def most(self, steps: int) -> int:
        """See :class:`Pages`."""
        return len(self._decoders) * self._most_grown(steps)

    def advance(self, step: int, steps: int) -> None:
        """See :class:`Pages`."""
        self._step = step + steps

    def enter(self, request: Request, step: int) -> None:
        """See :class:`Pages`."""
        self._decoders[request.id] = request

    def _after(self, request: Request, steps: int) -> int:
        """Blocks of a decoder after so many of its own steps: its context of the last one and the drafted slots."""
        if steps <= 0:
            return -(-request.tokens // self.block)
        context = (request.context + (steps - 1) * request.grow) // self._unit
        return -(-(context + self._draft) // self.block)

    def held(self, request: Request, step: int) -> int:
        """See :class:`Pages`."""
        return self._after(request, step - request.start_step)

    def request_need(self, request: Request, step: int) -> int:
        """See :class:`Pages`."""
        steps = step - request.start_step
        return self._after(request, steps + 1) - self._after(request, steps)

    def leave(self, request: Request, step: int) -> None:
        """See :class:`Pages`."""
        del self._decoders[request.id]
        self.pool.free += request.held


class AmplePages:
    """Pages of a pool that can never run short, so nothing is counted; see :func:`ample`."""

    __slots__ = ("pool",)

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def available(self) -> int:
        """More than anyone asks."""
        return _ENDLESS

    def settle(self) -> bool:
        """Always settled."""
        return False

    def take(self, blocks: int) -> None:
        """Nothing to count."""

    def give(self, blocks: int) -> None:
        """Nothing to count."""

    def need(self, step: int) -> int:
        """Nothing that matters."""
        return 0

    def limit(self, step: int, steps: int, spare: int = 0) -> int:
        """All of them."""
        return steps

    def most(self, steps: int) -> int:
        """Nothing that matters."""
        return 0

    def advance(self, step: int, steps: int) -> None:
        """Nothing to count."""

    def enter(self, request: Request, step: int) -> None:
        """Nothing to count."""

    def held(self, request: Request, step: int) -> int:
        """Asked at a preemption only, and nobody is preempted."""
        return 0

    def request_need(self, request: Request, step: int) -> int:
        """Nothing that matters."""
        return 0

    def leave(self, request: Request, step: int) -> None:
        """Nothing to count."""


_ENDLESS = 1 << 62


def most_blocks(rules: SchedulerRules, workload: Workload, tokens_per_step: float) -> int:
    """Blocks that one request of a workload can hold at most, with its last verify steps and a block's rounding."""
    last_steps = 2 * (ceil(tokens_per_step) + rules.draft_tokens)
    return rules.blocks(workload.isl_tokens + workload.osl_tokens + last_steps) + 1


def ample(
    rules: SchedulerRules,
    kv_blocks: int,
    workload: Workload,
    *,
    tokens_per_step: float = 1.0,
    keeps_finished: bool = False,
) -> bool:
    """Whether a pool holds all requests of a workload that can be there at once, each grown to its end.

    Then no admission fails for KV, nobody is preempted, and the pool need not be counted. A prefill pool
    (``keeps_finished``) holds requests beyond its running cap until they are handed over. A delayer looks at the pool.
    """
    closed = workload.arrival is Arrival.CLOSED
    if rules.delayer is not None or (keeps_finished and not closed):
        return False
    requests = workload.concurrency if closed else rules.running_cap
    if not keeps_finished:
        requests = min(requests, rules.running_cap)
    return requests * most_blocks(rules, workload, tokens_per_step) <= kv_blocks - int(rules.watermark_frac * kv_blocks)


def pages_for(rules: SchedulerRules, pool: Pool, grow: int, unit: int, ample_pool: bool = False) -> Pages:
    """Pages of a pool for these rules and this growth a step (``grow`` / ``unit`` tokens)."""
    if ample_pool:
        return AmplePages(pool)
    if rules.admission is Admission.RESERVE_MAX_OUTPUT:
        return ReservedPages(pool)
    if grow == unit and rules.draft_tokens == 0:
        return GrowingPages(rules.block_tokens, pool)
    return DraftingPages(rules.block_tokens, pool, grow, unit, rules.draft_tokens)
