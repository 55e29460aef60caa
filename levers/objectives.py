"""The 24 objectives a search may optimise (paper App. K), and service-level bounds on any metric.

An objective reads one number from a :class:`predictor.types.Prediction`. Where a prediction does not hold it, the score
is None and :meth:`Objective.missing` says which part would yield it: nothing is approximated silently.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from levers.reasons import Reason
from predictor.errors import BadInput, unknown_name
from predictor.types import Distribution, Prediction

GIB = 2.0**30


class Direction(StrEnum):
    """Which way is better."""

    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class Objective:
    """One objective: what it is, and how to read it from a prediction."""

    number: int
    name: str
    unit: str
    direction: Direction
    definition: str
    computed_by: str  # the part of the predictor that yields it
    read: Callable[[Prediction], float | None]

    def score(self, prediction: Prediction) -> float | None:
        """The objective's value in its own unit, or None where the prediction does not hold it."""
        return self.read(prediction)

    def signed(self, prediction: Prediction) -> float | None:
        """The value with the sign that makes larger better."""
        value = self.read(prediction)
        return None if value is None else value if self.direction is Direction.MAX else -value

    def missing(self, prediction: Prediction) -> Reason | None:
        """Why the prediction has no score, or None if it has one."""
        if self.read(prediction) is not None:
            return None
        return Reason(
            "objective_unavailable",
            f"{self.name} is not in this prediction (mode {prediction.mode}, method {prediction.method}); it comes from "
            f"the {self.computed_by}",
        )


def extra(name: str) -> Callable[[Prediction], float | None]:
    """Read a named metric that only some methods yield."""
    return lambda prediction: prediction.extras.get(name)


def decode_step_ms(prediction: Prediction) -> float | None:
    """A decode step at the served batch with no prefill in it: named, or the sum of its terms."""
    named = prediction.extras.get("decode_step_ms")
    return named if named is not None else sum(prediction.step_ms.values()) if prediction.step_ms else None


def tpot_pollution(prediction: Prediction) -> float | None:
    """Loaded TPOT over the TPOT of uncontended steps, ``TPOT · L / step`` with L tokens committed a step."""
    step_ms = decode_step_ms(prediction)
    if not step_ms:
        return None
    return prediction.tpot_ms.mean * prediction.extras.get("tokens_per_step", 1.0) / step_ms


def request_tok_s(prediction: Prediction) -> float | None:
    """Output tokens of a request over its E2E, tok/s.

    A closed form knows only means, for which ``tokens = 1 + (E2E − TTFT)/TPOT`` is the definition of TPOT; a simulation
    averages over its requests and names the result.
    """
    named = prediction.extras.get("request_tok_s")
    if named is not None or prediction.method != "analytic":
        return named
    tokens = 1.0 + (prediction.e2e_ms.mean - prediction.ttft_ms.mean) / prediction.tpot_ms.mean
    return 1000.0 * tokens / prediction.e2e_ms.mean


def communication_ms(
    named: str, terms: Callable[[Prediction], dict[str, float]]
) -> Callable[[Prediction], float | None]:
    """Communication of a step: named, or the sum of the step's communication terms (``comm…``)."""

    def read(prediction: Prediction) -> float | None:
        if named in prediction.extras:
            return prediction.extras[named]
        parts = [value for term, value in terms(prediction).items() if term.startswith("comm")]
        return sum(parts) if parts else None

    return read


CLOSED, DES, STEP, MEMORY = "closed form or simulator", "simulator", "step model", "memory model"
UP, DOWN = Direction.MAX, Direction.MIN

OBJECTIVES = (
    Objective(1, "total_tok_s_per_gpu", "tok/s/GPU", UP, "prompt and output tokens a second over the GPUs of both pools",
              CLOSED, lambda p: p.total_tok_s_per_gpu),
    Objective(2, "output_tok_s_per_gpu", "tok/s/GPU", UP, "output tokens a second over the GPUs of both pools", CLOSED,
              lambda p: p.output_tok_s_per_gpu),
    Objective(3, "prefill_tok_s_per_gpu", "tok/s/GPU", UP, "prompt tokens a second over the GPUs of both pools", CLOSED,
              lambda p: (p.total_tok_s - p.output_tok_s) / p.gpus),
    Objective(4, "total_tok_s", "tok/s", UP, "prompt and output tokens a second of the fleet", CLOSED,
              lambda p: p.total_tok_s),
    Objective(5, "output_tok_s", "tok/s", UP, "output tokens a second of the fleet", CLOSED, lambda p: p.output_tok_s),
    Objective(6, "prefill_tok_s", "tok/s", UP, "prompt tokens a second of the fleet", CLOSED,
              lambda p: p.total_tok_s - p.output_tok_s),
    Objective(7, "ttft_ms", "ms", DOWN, "mean time from sending a request to its first token", CLOSED,
              lambda p: p.ttft_ms.mean),
    Objective(8, "tpot_ms", "ms", DOWN, "mean of (E2E - TTFT) / (output tokens - 1)", CLOSED, lambda p: p.tpot_ms.mean),
    Objective(9, "e2e_ms", "ms", DOWN, "mean time from sending a request to its last token", CLOSED,
              lambda p: p.e2e_ms.mean),
    Objective(10, "decode_step_ms", "ms", DOWN, "decode step at the served batch with no prefill in it", STEP,
              decode_step_ms),
    Objective(11, "interactivity_tok_s_user", "tok/s/user", UP, "tokens a second one user sees, 1000 / TPOT", CLOSED,
              lambda p: p.interactivity_tok_s_user),
    Objective(12, "request_tok_s", "tok/s", UP, "output tokens of a request over its E2E", CLOSED, request_tok_s),
    Objective(13, "max_concurrency", "sequences", UP, "sequences that fit in memory at once", MEMORY,
              lambda p: float(p.max_concurrency)),
    Objective(14, "sustainable_concurrency", "sequences", UP, "most clients that fit in memory and meet the SLO",
              "search over load under an SLO", extra("sustainable_concurrency")),
    Objective(15, "memory_gib", "GiB", DOWN, "memory of the busiest GPU", MEMORY, lambda p: p.memory.total_bytes / GIB),
    Objective(16, "kv_cache_gib", "GiB", DOWN, "KV pool of the busiest GPU", MEMORY,
              lambda p: p.memory.kv_pool_bytes / GIB),
    Objective(17, "weights_gib", "GiB", DOWN, "weights of the busiest GPU", MEMORY,
              lambda p: p.memory.weights_bytes / GIB),
    Objective(18, "activations_gib", "GiB", DOWN, "peak activations of the busiest GPU", MEMORY,
              lambda p: p.memory.activation_bytes / GIB),
    Objective(19, "mixed_step_frac", "0-1", DOWN, "share of steps that hold prefill and decode", DES,
              extra("mixed_step_frac")),
    Objective(20, "tpot_pollution", "ratio", DOWN, "loaded TPOT over the TPOT of uncontended decode steps", STEP,
              tpot_pollution),
    Objective(21, "mixed_step_ms", "ms", DOWN, "mean time of a step that holds prefill and decode", DES,
              extra("mixed_step_ms")),
    Objective(22, "comm_prefill_ms", "ms", DOWN, "communication in the prefill of one prompt", STEP,
              communication_ms("comm_prefill_ms", lambda p: p.prefill_step_ms)),
    Objective(23, "comm_decode_ms", "ms", DOWN, "communication in one decode step", STEP,
              communication_ms("comm_decode_ms", lambda p: p.step_ms)),
    Objective(24, "gpus", "GPUs", DOWN, "GPUs of the deployment, both pools", "deployment", lambda p: float(p.gpus)),
)  # fmt: skip
BY_NAME = {objective.name: objective for objective in OBJECTIVES}


def objective(name: str) -> Objective:
    """The objective of this name; :class:`predictor.errors.UnknownName` with near matches otherwise."""
    if name not in BY_NAME:
        raise unknown_name("objective", name, BY_NAME)
    return BY_NAME[name]


LATENCIES: dict[str, Callable[[Prediction], Distribution]] = {
    "ttft_ms": lambda p: p.ttft_ms,
    "tpot_ms": lambda p: p.tpot_ms,
    "itl_ms": lambda p: p.itl_ms,
    "e2e_ms": lambda p: p.e2e_ms,
}
STATISTICS = ("mean", "p50", "p90", "p99")
SLO_METRICS = (*dict.fromkeys((*LATENCIES, *(f"{x}_{s}" for x in LATENCIES for s in STATISTICS), *BY_NAME)),)
SLO_FORM = re.compile(r"\s*([A-Za-z0-9_]+)\s*(<=|>=)\s*([^\s<>=]+)\s*")


@dataclass(frozen=True, slots=True)
class Slo:
    """A bound on one metric."""

    metric: str
    upper: bool  # True: at most the bound
    bound: float

    @property
    def text(self) -> str:
        """As it is written on the command line."""
        return f"{self.metric}{'<=' if self.upper else '>='}{self.bound:g}"

    def read(self, prediction: Prediction) -> float | None:
        """The metric's predicted value, or None where the prediction does not hold it."""
        name, _, statistic = self.metric.rpartition("_")
        if name in LATENCIES and statistic in STATISTICS:
            value: float | None = getattr(LATENCIES[name](prediction), statistic)
            return value
        if self.metric in LATENCIES:
            return LATENCIES[self.metric](prediction).mean
        return BY_NAME[self.metric].score(prediction)


def parse_slo(text: str) -> Slo:
    """Read ``METRIC<=NUMBER`` or ``METRIC>=NUMBER``: a latency's mean or percentile, or any objective.

    >>> parse_slo("ttft_ms_p99<=2000")
    Slo(metric='ttft_ms_p99', upper=True, bound=2000.0)
    """
    match = SLO_FORM.fullmatch(text)
    if match is None:
        raise BadInput(f"slo {text!r}: write METRIC<=NUMBER or METRIC>=NUMBER, such as ttft_ms_p99<=2000")
    metric, relation, number = match.groups()
    if metric not in SLO_METRICS:
        raise unknown_name("slo metric", metric, SLO_METRICS)
    try:
        bound = float(number)
    except ValueError:
        raise BadInput(f"slo {text!r}: {number!r} is not a number") from None
    if not 0 <= bound < float("inf"):
        raise BadInput(f"slo {text!r}: the bound must be 0 or more")
    return Slo(metric, relation == "<=", bound)


def violations(prediction: Prediction, slos: Iterable[Slo]) -> tuple[Reason, ...]:
    """Every bound the prediction misses, with its value and the bound; an unknown value is a miss."""
    return tuple(reason for slo in slos if (reason := _violation(prediction, slo)))


def _violation(prediction: Prediction, slo: Slo) -> Reason | None:
    value = slo.read(prediction)
    if value is None:
        return Reason(
            f"slo_{slo.metric}_unknown",
            f"{slo.text} cannot be checked: a {prediction.method} prediction does not yield {slo.metric}; simulate it",
        )
    if (value <= slo.bound) if slo.upper else (value >= slo.bound):
        return None
    side = "over" if slo.upper else "under"
    return Reason(f"slo_{slo.metric}", f"{slo.metric} is {value:,.4g}, {side} the bound of {slo.bound:,g}")


def shortfall(prediction: Prediction, slos: Iterable[Slo]) -> float:
    """How far a prediction is from meeting its bounds: the sum of relative misses; 0 when all are met.

    An unknown value counts as a miss by its whole bound.
    """
    return sum(_miss(slo.read(prediction), slo) for slo in slos)


def _miss(value: float | None, slo: Slo) -> float:
    if value is None:
        return 1.0
    over = value - slo.bound if slo.upper else slo.bound - value
    return max(0.0, over) / max(abs(slo.bound), 1e-12)
