"""Traffic sources: closed-loop clients and open arrivals."""

from collections.abc import Iterable, Iterator

from predictor.des.clock import CONTEXT_FRACTION, Clock
from predictor.des.request import Request, Sent
from predictor.des.rules import SchedulerRules
from predictor.errors import BadInput
from predictor.step.model import StepModel
from predictor.types import Arrival, StartMode, Workload
from predictor.workload.acceptance import verify_steps
from predictor.workload.synthetic import arrival_gaps_ms, generator, lengths, request_count


def new_requests(workload: Workload, seed: int, acceptance: tuple[float, ...] = ()) -> Iterator[Request]:
    """The workload's requests in the order in which they will be sent.

    With ``acceptance`` (rates of the drafted tokens) each one draws how many verify steps its answer takes, and grows
    evenly over them; without, every step commits the step model's mean.
    """
    drawn = lengths(workload, seed)
    plain = (
        Request(id, prompt, output) for id, (prompt, output) in zip(range(request_count(workload)), drawn, strict=False)
    )
    return plain if not acceptance else _accepting(plain, acceptance, workload, seed)


def _accepting(
    requests: Iterator[Request], acceptance: tuple[float, ...], workload: Workload, seed: int
) -> Iterator[Request]:
    """The requests, each with the growth of an answer that takes a drawn number of verify steps."""
    steps = verify_steps(acceptance, generator(workload, seed, "acceptance"))
    next(steps)
    for request in requests:
        answer = request.output_tokens - 1
        if answer:
            request.grow = -(-answer * CONTEXT_FRACTION // steps.send(answer))
        yield request


def check_acceptance(acceptance: tuple[float, ...], model: StepModel, rules: SchedulerRules) -> None:
    """Drawn acceptance needs a step model that speculates and rules that carry the drafted tokens."""
    if acceptance and (model.tokens_per_step == 1.0 or rules.draft_tokens < len(acceptance)):
        raise BadInput(
            f"acceptance of {len(acceptance)} drafted tokens: the step model commits {model.tokens_per_step} tokens a "
            f"step, and the scheduler carries {rules.draft_tokens} drafted ones a row"
        )


def stagger_ms(model: StepModel, workload: Workload) -> float:
    """Time between the first requests of staggered clients: a request's life among the others, over the clients.

    In that life every other client prefills once. Without their prompts in it the clients would come faster than they
    can be served, and the start would be the burst that staggering avoids.
    """
    clients, curve = workload.concurrency, model.prefill
    context = clients * (workload.isl_tokens + workload.osl_tokens / 2)
    step_ms = model.decode_line(clients, context).at(context)
    steps = (workload.osl_tokens - 1) / model.tokens_per_step
    others_ms = (clients - 1) * (curve.chunk_ms(workload.isl_tokens) + curve.per_request_ms + curve.mixed_fixed_ms)
    return (curve.prompt_ms(workload.isl_tokens) + others_ms + steps * step_ms) / clients


class ClosedLoop:
    """C clients; each sends its next request when the last one finished and its think time has passed."""

    def __init__(self, requests: Iterable[Request], clients: int, think_ticks: int = 0, stagger_ticks: int = 0) -> None:
        self._requests = iter(requests)
        self._clients = clients
        self._think = think_ticks
        self._stagger = stagger_ticks

    def initial(self) -> Iterator[Sent]:
        """One request a client, together or one after another."""
        for client in range(self._clients):
            request = next(self._requests, None)
            if request is None:
                return
            request.client = client
            yield client * self._stagger, request

    def finished(self, request: Request, now: int) -> Iterable[Sent]:
        """The client's next request."""
        following = next(self._requests, None)
        if following is None:
            return ()
        following.client = request.client
        return ((self._think, following),)


class OpenArrivals:
    """Requests that come at given gaps, whatever happens to the ones before; the first comes after one gap."""

    def __init__(self, requests: Iterable[Request], gaps_ms: Iterator[float], clock: Clock) -> None:
        self._requests = requests
        self._gaps_ms = gaps_ms
        self._clock = clock

    def initial(self) -> Iterator[Sent]:
        """All requests at their times."""
        now = 0
        for request in self._requests:
            now += self._clock.ticks(next(self._gaps_ms))
            yield now, request

    def finished(self, request: Request, now: int) -> Iterable[Sent]:
        """Nobody waits."""
        return ()


def source_for(
    workload: Workload, model: StepModel, clock: Clock, seed: int, acceptance: tuple[float, ...] = ()
) -> ClosedLoop | OpenArrivals:
    """The traffic a workload describes."""
    requests = new_requests(workload, seed, acceptance)
    if workload.arrival is Arrival.CLOSED:
        staggered = workload.start is StartMode.STAGGERED
        ticks = clock.ticks
        stagger = ticks(stagger_ms(model, workload)) if staggered else 0
        return ClosedLoop(requests, workload.concurrency, ticks(workload.think_time_ms), stagger)
    return OpenArrivals(requests, arrival_gaps_ms(workload, seed), clock)
