"""What any benchmark file comes down to: served runs, or step times taken without a server.

Times are ms here; every reader converts from its tool's own units. ``recorded`` keeps what the file itself says about
the deployment and the load, under the names of the command's flags, so that a missing or contradicting fact can be
named. Nothing in it is filled in by a default.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Fact = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Latency:
    """Summary of one latency over a run, ms; None where the tool did not write the statistic."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None

    @property
    def typical(self) -> float | None:
        """The mean, else the median."""
        return self.mean if self.mean is not None else self.p50

    def scaled(self, factor: float) -> "Latency":
        """All statistics times ``factor``."""
        return Latency(*(None if v is None else v * factor for v in (self.mean, self.p50, self.p90, self.p99)))


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """One request of a detailed file."""

    prompt_tokens: int
    output_tokens: int
    ttft_ms: float
    e2e_ms: float | None = None


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One load of one served benchmark.

    ``concurrency`` None: no cap on requests in flight. ``request_rate_per_s`` None: requests are sent as soon as a
    client is free. ``requests`` completed, ``failed`` did not.
    """

    origin: str
    tool: str
    concurrency: int | None
    requests: int
    ttft: Latency
    tpot: Latency
    itl: Latency = Latency()
    e2e: Latency = Latency()
    failed: int = 0
    request_rate_per_s: float | None = None
    burstiness: float = 1.0  # gamma shape of the arrivals, 1 is Poisson
    duration_s: float | None = None
    mean_prompt_tokens: float | None = None
    mean_output_tokens: float | None = None
    requests_per_s: float | None = None
    output_tok_s: float | None = None
    total_tok_s: float | None = None
    tokens_per_step: float | None = None  # mean tokens a verify step commits, where the run speculated
    cached_prompt_frac: float | None = None
    prompt_range: tuple[float, float] | None = None  # shortest and longest prompt of the run
    details: tuple[RequestTimes, ...] = ()
    recorded: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepRun:
    """Steps timed without server and scheduler: one batch prefilled in one step, then decoded."""

    origin: str
    tool: str
    batch: int
    prompt_tokens: int
    output_tokens: int
    prefill_ms: float
    decode_step_ms: float
    recorded: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """Everything one file holds."""

    tool: str
    runs: tuple[BenchRun, ...] = ()
    steps: tuple[StepRun, ...] = ()
