"""Levers 34–36: what the clients do. Pinned to the workload unless the operator frees them."""

from levers.catalog.common import constant, flags, powers_of_two
from levers.context import LeverValue, SearchContext
from levers.lever import Group, Kind, Lever, Range
from levers.reasons import Reason
from predictor.types import Arrival

MAX_CLIENTS = 1024  # largest load offered; the operator may name any other
RATE_STEPS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)  # of the workload's own rate


def client_candidates(context: SearchContext) -> tuple[LeverValue, ...]:
    """Powers of two and the workload's own number of clients."""
    own = context.workload.concurrency
    return tuple(sorted({*powers_of_two(1, MAX_CLIENTS), own}))


def rate_candidates(context: SearchContext) -> tuple[LeverValue, ...]:
    """Multiples of the workload's rate; none where it has none."""
    own = context.workload.request_rate_per_s
    return (own,) if own is None else tuple(sorted(step * own for step in RATE_STEPS))


def arrival_known(context: SearchContext, value: LeverValue) -> Reason | None:
    """Open arrivals need a rate, and a trace its file."""
    if value == context.workload.arrival or value == Arrival.CLOSED:
        return None
    if value == Arrival.TRACE:
        return Reason("arrival_trace", "arrival_process=trace needs a workload read from a trace")
    if context.workload.request_rate_per_s is None:
        return Reason("arrival_rate", f"arrival_process={value} needs a workload with request_rate_per_s")
    return None


LEVERS = (
    Lever(
        number=34,
        name="concurrency",
        group=Group.LOAD,
        kind=Kind.LOAD,
        what="clients that each send a request when the last one ends",
        owner="workload",
        field="concurrency",
        candidates=client_candidates,
        default=lambda context: context.workload.concurrency,
        flags=flags(
            "bench --max-concurrency", "bench --max-concurrency", "bench --max-concurrency", "bench --max-concurrency"
        ),
        exclusions=(),
        accepts=Range(1, 1000000.0),
    ),
    Lever(
        number=35,
        name="arrival_process",
        group=Group.LOAD,
        kind=Kind.LOAD,
        what="how requests arrive",
        owner="workload",
        field="arrival",
        candidates=constant(*Arrival),
        default=lambda context: context.workload.arrival,
        flags=flags("bench --burstiness", "bench --request-rate", "bench --burstiness", "bench --request-rate"),
        exclusions=(arrival_known,),
    ),
    Lever(
        number=36,
        name="request_rate",
        group=Group.LOAD,
        kind=Kind.LOAD,
        what="requests a second of open arrivals",
        owner="workload",
        field="request_rate_per_s",
        candidates=rate_candidates,
        default=lambda context: context.workload.request_rate_per_s,
        flags=flags("bench --request-rate", "bench --request-rate", "bench --request-rate", "bench --request-rate"),
        exclusions=(),
        accepts=Range(1e-06, 1000000.0, integer=False, default_allowed=True),
        governor=("arrival_process", Arrival.CLOSED),
    ),
)
