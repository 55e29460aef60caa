"""The 24 objectives a search may optimise (paper App. K), as data.

An objective reads one number from a :class:`predictor.types.Prediction`. Where a prediction does not hold it, the score
is None and :meth:`Objective.missing` says which part would yield it: nothing is approximated silently.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from levers.reasons import Reason
from predictor.errors import unknown_name
from predictor.types import Mode, Prediction

GIB = 2.0**30
COLLECTIVES = "collectives"  # the term of a step's breakdown


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
            f"{self.name} is not in this prediction (mode {prediction.mode}, method {prediction.method}); it comes "
            f"from the {self.computed_by}",
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
    """Communication of a step: named, or the collectives of its breakdown.

    A simulated step lists all its terms, so one without collectives has none; a measured step is not split that way.
    """

    def read(prediction: Prediction) -> float | None:
        if named in prediction.extras:
            return prediction.extras[named]
        parts = terms(prediction)
        none = 0.0 if parts and prediction.mode is Mode.SIMULATE else None
        return parts.get(COLLECTIVES, none)

    return read


CLOSED, DES, STEP, MEMORY = "closed form or simulator", "simulator", "step model", "memory model"
UP, DOWN = Direction.MAX, Direction.MIN

OBJECTIVES = (
    Objective(
        number=1,
        name="total_tok_s_per_gpu",
        unit="tok/s/GPU",
        direction=UP,
        definition="prompt and output tokens a second over the GPUs of both pools",
        computed_by=CLOSED,
        read=lambda p: p.total_tok_s_per_gpu,
    ),
    Objective(
        number=2,
        name="output_tok_s_per_gpu",
        unit="tok/s/GPU",
        direction=UP,
        definition="output tokens a second over the GPUs of both pools",
        computed_by=CLOSED,
        read=lambda p: p.output_tok_s_per_gpu,
    ),
    Objective(
        number=3,
        name="prefill_tok_s_per_gpu",
        unit="tok/s/GPU",
        direction=UP,
        definition="prompt tokens a second over the GPUs of both pools",
        computed_by=CLOSED,
        read=lambda p: (p.total_tok_s - p.output_tok_s) / p.gpus,
    ),
    Objective(
        number=4,
        name="total_tok_s",
        unit="tok/s",
        direction=UP,
        definition="prompt and output tokens a second of the fleet",
        computed_by=CLOSED,
        read=lambda p: p.total_tok_s,
    ),
    Objective(
        number=5,
        name="output_tok_s",
        unit="tok/s",
        direction=UP,
        definition="output tokens a second of the fleet",
        computed_by=CLOSED,
        read=lambda p: p.output_tok_s,
    ),
    Objective(
        number=6,
        name="prefill_tok_s",
        unit="tok/s",
        direction=UP,
        definition="prompt tokens a second of the fleet",
        computed_by=CLOSED,
        read=lambda p: p.total_tok_s - p.output_tok_s,
    ),
    Objective(
        number=7,
        name="ttft_ms",
        unit="ms",
        direction=DOWN,
        definition="mean time from sending a request to its first token",
        computed_by=CLOSED,
        read=lambda p: p.ttft_ms.mean,
    ),
    Objective(
        number=8,
        name="tpot_ms",
        unit="ms",
        direction=DOWN,
        definition="mean of (E2E - TTFT) / (output tokens - 1)",
        computed_by=CLOSED,
        read=lambda p: p.tpot_ms.mean,
    ),
    Objective(
        number=9,
        name="e2e_ms",
        unit="ms",
        direction=DOWN,
        definition="mean time from sending a request to its last token",
        computed_by=CLOSED,
        read=lambda p: p.e2e_ms.mean,
    ),
    Objective(
        number=10,
        name="decode_step_ms",
        unit="ms",
        direction=DOWN,
        definition="decode step at the served batch with no prefill in it",
        computed_by=STEP,
        read=decode_step_ms,
    ),
    Objective(
        number=11,
        name="interactivity_tok_s_user",
        unit="tok/s/user",
        direction=UP,
        definition="tokens a second one user sees, 1000 / TPOT",
        computed_by=CLOSED,
        read=lambda p: p.interactivity_tok_s_user,
    ),
    Objective(
        number=12,
        name="request_tok_s",
        unit="tok/s",
        direction=UP,
        definition="output tokens of a request over its E2E",
        computed_by=CLOSED,
        read=request_tok_s,
    ),
    Objective(
        number=13,
        name="max_concurrency",
        unit="sequences",
        direction=UP,
        definition="sequences that fit in memory at once",
        computed_by=MEMORY,
        read=lambda p: float(p.max_concurrency),
    ),
    Objective(
        number=14,
        name="sustainable_concurrency",
        unit="sequences",
        direction=UP,
        definition="most clients that fit in memory and meet the SLO",
        computed_by="search over load under an SLO",
        read=extra("sustainable_concurrency"),
    ),
    Objective(
        number=15,
        name="memory_gib",
        unit="GiB",
        direction=DOWN,
        definition="memory of the busiest GPU",
        computed_by=MEMORY,
        read=lambda p: p.memory.total_bytes / GIB,
    ),
    Objective(
        number=16,
        name="kv_cache_gib",
        unit="GiB",
        direction=DOWN,
        definition="KV pool of the busiest GPU",
        computed_by=MEMORY,
        read=lambda p: p.memory.kv_pool_bytes / GIB,
    ),
    Objective(
        number=17,
        name="weights_gib",
        unit="GiB",
        direction=DOWN,
        definition="weights of the busiest GPU",
        computed_by=MEMORY,
        read=lambda p: p.memory.weights_bytes / GIB,
    ),
    Objective(
        number=18,
        name="activations_gib",
        unit="GiB",
        direction=DOWN,
        definition="peak activations of the busiest GPU",
        computed_by=MEMORY,
        read=lambda p: p.memory.activation_bytes / GIB,
    ),
    Objective(
        number=19,
        name="mixed_step_frac",
        unit="0-1",
        direction=DOWN,
        definition="share of steps that hold prefill and decode",
        computed_by=DES,
        read=extra("mixed_step_frac"),
    ),
    Objective(
        number=20,
        name="tpot_pollution",
        unit="ratio",
        direction=DOWN,
        definition="loaded TPOT over the TPOT of uncontended decode steps",
        computed_by=STEP,
        read=tpot_pollution,
    ),
    Objective(
        number=21,
        name="mixed_step_ms",
        unit="ms",
        direction=DOWN,
        definition="mean time of a step that holds prefill and decode",
        computed_by=DES,
        read=extra("mixed_step_ms"),
    ),
    Objective(
        number=22,
        name="comm_prefill_ms",
        unit="ms",
        direction=DOWN,
        definition="communication in the prefill of one prompt",
        computed_by=STEP,
        read=communication_ms("comm_prefill_ms", lambda p: p.prefill_step_ms),
    ),
    Objective(
        number=23,
        name="comm_decode_ms",
        unit="ms",
        direction=DOWN,
        definition="communication in one decode step",
        computed_by=STEP,
        read=communication_ms("comm_decode_ms", lambda p: p.step_ms),
    ),
    Objective(
        number=24,
        name="gpus",
        unit="GPUs",
        direction=DOWN,
        definition="GPUs of the deployment, both pools",
        computed_by="deployment",
        read=lambda p: float(p.gpus),
    ),
)
BY_NAME = {objective.name: objective for objective in OBJECTIVES}


def objective(name: str) -> Objective:
    """The objective of this name; :class:`predictor.errors.UnknownName` with near matches otherwise."""
    if name not in BY_NAME:
        raise unknown_name("objective", name, BY_NAME)
    return BY_NAME[name]
