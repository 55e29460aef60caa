"""What a scheduler does, as parameters: one frozen record covers vLLM, SGLang, ATOM and TensorRT-LLM.

The engines differ in few ways: whether prompt chunks share a step with decode, what KV a request must find free to be
admitted, how chunks are cut, and who goes when KV runs out. Each engine's file in :mod:`predictor.des.schedulers` fills
this record for a release.
"""

from dataclasses import dataclass
from enum import StrEnum

from predictor.errors import BadInput


class Admission(StrEnum):
    """What must be free before a waiting request may enter."""

    FITS_FULL_ISL = "fits_full_isl"  # vLLM: the whole current sequence must fit; blocks are taken chunk by chunk
    TAKE_FULL_PROMPT = "take_full_prompt"  # ATOM: all blocks of the prompt are taken at once
    RESERVE_MAX_OUTPUT = "reserve_max_output"  # TensorRT-LLM GUARANTEED_NO_EVICT: prompt and full output are taken
    ESTIMATE_RATIO = "estimate_ratio"  # SGLang: prompt plus clipped output against an estimate of what others need


class Victim(StrEnum):
    """Who loses its KV when decode runs out of blocks."""

    LAST = "last"  # the request admitted last
    FEWEST_GENERATED = "fewest_generated"  # then the longest prompt, then the one admitted last


class QueuePolicy(StrEnum):
    """Order of the waiting queue."""

    FCFS = "fcfs"
    LPM = "lpm"  # longest resident prefix first, fcfs while the queue is longer than the limit
    SHORTEST_PREFILL = "shortest-prefill-first"
    LONGEST_OUTPUT = "lof"


class RankRouting(StrEnum):
    """Which attention-DP rank of a replica takes a request."""

    ROUND_ROBIN = "round_robin"
    LEAST_REQUESTS = "least_requests"


RATIO_SCALE = 1_000_000  # the new-token ratio is kept in millionths of a decay step's 600th, so that sums stay exact


@dataclass(frozen=True, slots=True)
class RatioSchedule:
    """SGLang's new-token ratio: the share of outstanding output assumed to need KV.

    It starts at ``start``, falls linearly over ``decay_steps`` decode steps to ``start · floor_frac``, and after a
    retraction becomes (generated + ``retract_steps`` · n) / (sum of max_new + 1).
    """

    start: float = 0.7
    floor_frac: float = 0.14
    decay_steps: int = 600
    retract_steps: int = 20

    @property
    def denominator(self) -> int:
        """Integer units of a ratio of one."""
        return RATIO_SCALE * self.decay_steps

    @property
    def start_units(self) -> int:
        """First ratio in units."""
        return round(self.start * RATIO_SCALE) * self.decay_steps

    @property
    def floor_units(self) -> int:
        """Lowest ratio in units."""
        return round(self.start * self.floor_frac * RATIO_SCALE) * self.decay_steps

    @property
    def decay_units(self) -> int:
        """Fall a decode step in units."""
        return (self.start_units - self.floor_units) // self.decay_steps

    def after_retraction(self, generated: int, count: int, max_new: int) -> int:
        """Ratio in units when ``count`` requests remain, which generated so many of ``max_new`` tokens."""
        return min((generated + self.retract_steps * count) * self.denominator // (max_new + 1), self.denominator)


@dataclass(frozen=True, slots=True)
class PrefillDelayer:
    """ATOM under attention DP: hold prefill back so that short prompts share a step; ticks are engine steps.

    It is let through when no rank decodes, a rank that could prefill uses ``kv_frac`` of its KV, it was held for
    ``wait_ticks`` (``partial_ticks`` with a prompt half prefilled), or all ranks could prefill and either
    ``fill_frac`` of their budgets is pending or nothing was added for ``stalled_ticks``.
    source: ROCm/ATOM atom/utils/envs.py, ATOM_PREFILL_DELAYER_* defaults
    """

    fill_frac: float = 0.9
    kv_frac: float = 0.9
    wait_ticks: int = 200
    partial_ticks: int = 100
    stalled_ticks: int = 10


@dataclass(frozen=True, slots=True)
class SchedulerRules:
    """Scheduler of one engine release; limits are those of one attention-DP rank."""

    engine: str
    max_running: int
    token_budget: int  # tokens a step may hold; prompt tokens only where prefill runs alone
    block_tokens: int
    version: str = ""
    chunk_tokens: int | None = None  # prompt tokens a prefill step may hold where that differs from the budget
    mixed_steps: bool = True  # prompt chunks and decode share a step; else prefill goes first, alone
    chunked_prefill: bool = True
    single_chunked_request: bool = False  # the request cut off by the budget ends the batch (SGLang)
    chunk_floor_tokens: int = 1  # a cut chunk is a multiple of this
    admission: Admission = Admission.FITS_FULL_ISL
    watermark_frac: float = 0.0  # share of blocks kept free at admission while something runs
    victim: Victim = Victim.LAST
    requeue_front: bool = True
    keep_hash_on_preempt: bool = True  # a preempted request may find its own prefix again
    clip_max_new_tokens: int = 4096
    ratio: RatioSchedule = RatioSchedule()
    ignore_eos: bool = True  # outputs run to their asked length, so SGLang reserves them in full (ratio 1)
    overlap_depth: int = 0  # steps by which the scheduler learns of a finished request late: one wasted row each
    long_prefill_tokens: int = 0  # most tokens of one prompt in a step; 0: no cap
    queue_policy: QueuePolicy = QueuePolicy.FCFS
    lpm_queue_limit: int = 128
    draft_tokens: int = 0  # drafted tokens a decode row carries, which count against the budget
    delayer: PrefillDelayer | None = None
    rank_routing: RankRouting = RankRouting.LEAST_REQUESTS

    def __post_init__(self) -> None:
        for name, low in (("max_running", 1), ("token_budget", 1), ("block_tokens", 1), ("chunk_floor_tokens", 1)):
            if getattr(self, name) < low:
                raise BadInput(f"scheduler rules: {name} is {getattr(self, name)}, must be at least {low}")
        if self.chunk_tokens is not None and self.chunk_tokens < 1:
            raise BadInput(f"scheduler rules: chunk_tokens is {self.chunk_tokens}, must be positive or None")
        if self.overlap_depth not in (0, 1):
            raise BadInput(f"scheduler rules: overlap_depth is {self.overlap_depth}, must be 0 or 1")
        if self.mixed_steps and (self.admission is Admission.ESTIMATE_RATIO or self.victim is not Victim.LAST):
            raise BadInput("scheduler rules: estimate_ratio and fewest_generated belong to engines without mixed steps")
        if not 0.0 <= self.watermark_frac < 1.0:
            raise BadInput(f"scheduler rules: watermark_frac is {self.watermark_frac}, must be in [0, 1)")

    @property
    def row_tokens(self) -> int:
        """Budget tokens of one decode row."""
        return 1 + self.draft_tokens

    @property
    def running_cap(self) -> int:
        """Most requests at once: the limit, and in mixed steps no more than the budget can decode together."""
        return min(self.max_running, self.token_budget // self.row_tokens) if self.mixed_steps else self.max_running

    @property
    def prompt_budget(self) -> int:
        """Prompt tokens a step may hold."""
        return min(self.token_budget, self.chunk_tokens or self.token_budget)

    def blocks(self, tokens: int) -> int:
        """KV blocks that hold so many tokens."""
        return -(-tokens // self.block_tokens)
