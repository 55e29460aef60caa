"""One request as the simulator sees it, and the hook a prefix cache answers."""

from typing import Any, Protocol


class Request:
    """Lengths of a request and its state in a replica. Plain slots: one is made for each request simulated.

    ``arrival``, ``admitted``, ``first`` and ``finished`` are stamps: clock ticks in a timed simulation, indices of run
    boundaries in a clockless schedule. ``tokens`` is what must be prefilled at the next admission (the prompt, and
    after a preemption also what was generated); ``left`` is how many output tokens are still to come.
    """

    __slots__ = (
        "admitted",
        "arrival",
        "cached_tokens",
        "client",
        "computed",
        "context",
        "end_step",
        "finished",
        "first",
        "gap_from",
        "grow",
        "held",
        "id",
        "kv_ready",
        "last_token",
        "left",
        "output_tokens",
        "payload",
        "preemptions",
        "prompt_tokens",
        "queued",
        "rank",
        "replica",
        "seq",
        "start_step",
        "tokens",
    )

    def __init__(self, id: int, prompt_tokens: int, output_tokens: int, client: int = -1, payload: Any = None) -> None:
        self.id = id
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.client = client
        self.payload = payload  # what the traffic source and the prefix cache know about it; opaque here
        self.arrival = 0
        self.queued = 0  # stamp at which it reached this replica
        self.admitted = -1
        self.first = -1
        self.finished = -1
        self.tokens = prompt_tokens
        self.left = output_tokens
        self.computed = 0  # tokens whose KV exists, while the prompt is partial
        self.held = 0  # KV blocks taken when it was admitted or its last chunk was
        self.seq = -1  # admission order; changes at every admission, so that old heap entries show
        self.start_step = -1  # decode step of the scheduler at which it began to decode
        self.end_step = -1
        self.context = 0  # context of its first decode step, in context units of the scheduler
        self.last_token = -1  # stamp of its latest token, where the scheduler must remember it
        self.gap_from = -1  # stamp of the last token before a preemption
        self.cached_tokens = 0  # prefix found at the first admission
        self.preemptions = 0
        self.grow = 0  # context units a decode step adds to it; 0: what the step model commits on average
        self.replica = 0
        self.rank = 0
        self.kv_ready = False  # its KV arrives by a hand-off: it joins decode without a prefill step


Sent = tuple[int, Request]  # ticks at which it is sent, request


class Gap:
    """Inter-token gaps that span other steps: ``weight`` of them from stamp ``start`` to stamp ``end``.

    With ``first_step`` the gap also holds the first decode step of the run that begins at ``end``.
    """

    __slots__ = ("end", "first_step", "start", "weight")

    def __init__(self, start: int, end: int, weight: int, first_step: bool) -> None:
        self.start, self.end, self.weight, self.first_step = start, end, weight, first_step


class PrefixCache(Protocol):
    """What a replica asks of a prefix cache, once for each admission and in admission order."""

    def lookup(self, request: Request) -> int:
        """Tokens of the request's leading blocks that are resident."""
        ...

    def insert(self, request: Request) -> None:
        """Make the request's blocks resident; called right after ``lookup`` when the request is admitted."""
        ...
