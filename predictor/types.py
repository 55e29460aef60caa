"""The words of the core: deployments, workloads, steps and predictions.

Frozen dataclasses without behaviour beyond derived counts. Times are ms, sizes bytes, lengths tokens; the unit ends the
name. Model cards, platforms and engine profiles, which are read from files, live in :mod:`predictor.cards`.
"""

from dataclasses import dataclass, field
from enum import StrEnum


class Dtype(StrEnum):
    """Number formats a checkpoint, GEMM or KV cache may use."""

    BF16 = "bf16"
    FP8 = "fp8"
    FP4 = "fp4"


class Mode(StrEnum):
    """How a prediction was made."""

    ANCHORED = "anchored"  # from a measured step of the same kernel set
    SIMULATE = "simulate"  # from kernel models alone: for ranking only


class Coverage(StrEnum):
    """Whether the anchor covers the target (paper §5.1)."""

    COVERED = "covered"
    PROJECTED = "projected"  # from the nearest anchor of the model: for ranking only
    NONE = "none"  # no anchor was used


class Arrival(StrEnum):
    """How requests come."""

    CLOSED = "closed"
    POISSON = "poisson"
    CONSTANT = "constant"
    GAMMA = "gamma"
    TRACE = "trace"


class StartMode(StrEnum):
    """How a closed loop begins; it decides a recorded mean TTFT."""

    BURST = "burst"  # all clients at t = 0, as benchmark harnesses do
    STAGGERED = "staggered"
    WARM = "warm"  # the first wave is left out of the statistics


@dataclass(frozen=True, slots=True)
class Layout:
    """Parallel widths of one replica.

    ``tp`` counts the GPUs that share a layer (attention DP included: tp8 with attn_dp8 has eight ranks of whole-head
    attention over eight GPUs); ``ep`` of them hold whole experts; ``pp`` stages of ``tp`` GPUs each.
    """

    tp: int = 1
    ep: int = 1
    pp: int = 1
    attn_dp: int = 1
    dcp: int = 1
    nodes: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp

    @property
    def attn_tp(self) -> int:
        """Width over which one request's attention is split."""
        return self.tp // self.attn_dp

    def label(self) -> str:
        """Short name, leaving out widths of one.

        >>> Layout(tp=8, ep=8, attn_dp=8).label()
        'tp8-ep8-dpa8'
        """
        parts = [f"tp{self.tp}"]
        parts += [f"ep{self.ep}"] if self.ep > 1 else []
        parts += [f"pp{self.pp}"] if self.pp > 1 else []
        parts += [f"dpa{self.attn_dp}"] if self.attn_dp > 1 else []
        parts += [f"dcp{self.dcp}"] if self.dcp > 1 else []
        parts += [f"n{self.nodes}"] if self.nodes > 1 else []
        return "-".join(parts)


@dataclass(frozen=True, slots=True)
class Precision:
    """Number formats of the four parts that may differ."""

    weight: Dtype = Dtype.BF16
    linear: Dtype = Dtype.BF16  # activations entering the dense GEMMs
    expert: Dtype = Dtype.BF16
    kv: Dtype = Dtype.BF16


@dataclass(frozen=True, slots=True)
class Kernels:
    """Kernel choices; each one is anchor-defining. ``"auto"`` means the engine's own default."""

    attention: str = "auto"
    sparse_topk: int = 0  # 0: as trained
    moe: str = "auto"
    a2a: str = "none"
    allreduce: str = "custom"
    graph_mode: str = "full"  # none, piecewise, full
    fusions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Scheduler limits; None means the engine's default for this version and GPU."""

    max_running: int | None = None
    token_budget: int | None = None
    chunk_size: int | None = None
    kv_mem_fraction: float | None = None
    block_size: int | None = None
    graph_max_bs: int | None = None
    prefix_cache: bool = True
    mixed_steps: bool | None = None
    queue_policy: str = "fcfs"


@dataclass(frozen=True, slots=True)
class Speculation:
    """Drafting method and depth; depth 0 or method ``"none"`` means no speculation."""

    method: str = "none"  # none, mtp, eagle3, dspark, ngram
    depth: int = 0

    @property
    def active(self) -> bool:
        """Whether any token is drafted."""
        return self.method != "none" and self.depth > 0


@dataclass(frozen=True, slots=True)
class PrefillPool:
    """The prefill side of a disaggregated deployment."""

    layout: Layout
    replicas: int
    handoff: str  # nixl, mooncake, mori
    scheduler: SchedulerSettings = SchedulerSettings()


@dataclass(frozen=True, slots=True)
class Deployment:
    """Everything an operator decides about one model on one cluster.

    With ``prefill`` set, ``layout`` and ``replicas`` describe the decode pool.
    """

    model: str
    gpu: str
    engine: str
    engine_version: str = ""
    layout: Layout = Layout()
    precision: Precision = Precision()
    kernels: Kernels = Kernels()
    scheduler: SchedulerSettings = SchedulerSettings()
    speculation: Speculation = Speculation()
    replicas: int = 1
    prefill: PrefillPool | None = None
    eplb_redundant: int = 0
    host_kv_gb: float = 0.0  # host memory for evicted KV, GB (10⁹ bytes) a GPU

    @property
    def gpus(self) -> int:
        """GPUs of both pools."""
        prefill = self.prefill.layout.gpus * self.prefill.replicas if self.prefill else 0
        return self.layout.gpus * self.replicas + prefill


@dataclass(frozen=True, slots=True)
class Workload:
    """Traffic: lengths, load and arrivals of one benchmark or service.

    Lengths are uniform on ``[length_range_frac · nominal, nominal]``; 1.0 means fixed. A closed loop of ``concurrency``
    clients sends ``requests_per_client · concurrency`` requests.
    """

    isl_tokens: int
    osl_tokens: int
    concurrency: int = 1
    arrival: Arrival = Arrival.CLOSED
    request_rate_per_s: float | None = None
    burstiness: float = 1.0  # gamma shape; 1 is Poisson
    length_range_frac: float = 1.0
    requests_per_client: int = 10
    start: StartMode = StartMode.BURST
    think_time_ms: float = 0.0
    prefix_hit_frac: float = 0.0  # share of the prompt already cached, for closed forms; the simulator computes its own
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Flag:
    """A caveat of a prediction: a stable code and a sentence."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Distribution:
    """Summary of a latency in ms; percentiles are None where the method yields only a mean."""

    mean: float
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryBreakdown:
    """Bytes of one GPU, the busiest, and what the KV pool holds."""

    weights_bytes: float
    kv_pool_bytes: float
    state_bytes: float
    activation_bytes: float
    graph_bytes: float
    total_bytes: float
    hbm_bytes: float
    kv_bytes_per_token: float
    kv_pool_tokens: int
    pool_source: str = "model"  # "model" or "engine log"
    other_bytes: float = 0.0  # device context and communication buffers
    block_tokens: int = 1
    window_tokens: int = 0  # tokens that window layers keep of a request, 0 without such layers
    window_bytes_per_token: float = 0.0
    window_in_flight_tokens: int = 0  # of the window's: tokens of the steps in flight, shared by all requests
    sequence_bytes: float = 0.0  # recurrent state of one sequence, where it lies in the KV pool
    sequence_slots: int | None = None  # sequences the separate state pool holds, where there is one


@dataclass(frozen=True, slots=True)
class Intervals:
    """80% intervals of a prediction's means by name, and the kind they were calibrated on; or why there is none.

    ``rows`` measured runs of ``stacks`` stacks (GPU, engine, model, precision, drafter) stand behind the kind.
    """

    kind: str = ""
    bounds: dict[str, tuple[float, float]] = field(default_factory=dict)
    outside: str = ""
    rows: int = 0
    stacks: int = 0


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one deployment does under one workload, how that was found, and how far to trust it."""

    mode: Mode
    anchor: str | None
    coverage: Coverage
    flags: tuple[Flag, ...]
    gpus: int
    ttft_ms: Distribution
    tpot_ms: Distribution
    itl_ms: Distribution
    e2e_ms: Distribution
    output_tok_s: float
    total_tok_s: float
    max_concurrency: int
    running: float  # requests in decode on average, after every cap
    memory: MemoryBreakdown
    step_ms: dict[str, float] = field(default_factory=dict)  # decode step by term
    prefill_step_ms: dict[str, float] = field(default_factory=dict)
    extras: dict[str, float] = field(default_factory=dict)  # named metrics that only some methods yield
    method: str = "analytic"  # analytic or des
    interval_80: Intervals | None = None

    @property
    def total_tok_s_per_gpu(self) -> float:
        """Prompt and output tokens a second over the GPUs of both pools."""
        return self.total_tok_s / self.gpus

    @property
    def output_tok_s_per_gpu(self) -> float:
        """Output tokens a second over the GPUs of both pools."""
        return self.output_tok_s / self.gpus

    @property
    def interactivity_tok_s_user(self) -> float:
        """Tokens a second one user sees while the answer streams, 1000 / TPOT."""
        return 1000.0 / self.tpot_ms.mean
