"""What the reference engine keeps: each gap as a number of its own, and the state of a request."""

from array import array
from collections.abc import Callable

from predictor.des.clock import Clock
from predictor.des.metrics import FloatArray, HostTimes, Samples, SimulationResult, as_rows
from predictor.des.recorder import Recorder
from predictor.des.request import Request


class StepRecorder(Recorder):
    """Keeps each gap as a number of its own."""

    def __init__(self, clock: Clock, warm_requests: int = 0, progress: Callable[[int], None] | None = None) -> None:
        self._token_gaps = array("d")
        super().__init__(clock, warm_requests, progress)

    def _reset(self, now: int) -> None:
        super()._reset(now)
        self._token_gaps = array("d")

    def token_gap(self, ticks: int) -> None:
        """One token's gap."""
        self._token_gaps.append(self._clock.ms(ticks))

    def step(self, duration: int, decoding: int, rows: int, prompt: bool) -> None:
        """One step."""
        self._steps += 1
        self._runs += 1
        self._busy += duration
        self._decoding += decoding * duration
        self._prompt_steps += prompt
        self._mixed_steps += prompt and rows > 0

    def result(self, host: HostTimes, engine: str) -> SimulationResult:
        """See :class:`Recorder`."""
        gaps: FloatArray = as_rows(self._token_gaps, 1)[:, 0]
        return SimulationResult(self._requests, Samples.of(gaps), self.totals(), host, engine)


class Live:
    """A request inside the reference engine."""

    __slots__ = (
        "blocks",
        "computed",
        "context_units",
        "decoding",
        "ended",
        "generated",
        "last_token",
        "produced_units",
        "request",
        "target",
        "to_produce_units",
    )

    def __init__(self, request: Request) -> None:
        self.request = request
        self.target = request.prompt_tokens  # tokens to prefill before it can decode
        self.computed = 0
        self.generated = 0  # tokens, while not decoding; see ``known``
        self.decoding = False
        self.context_units = 0  # what its next decode step reads
        self.produced_units = 0  # output since it began to decode
        self.to_produce_units = 0  # output it needs from then on
        self.blocks: list[int] = []
        self.last_token = -1
        self.ended = False

    def known(self, unit: int) -> int:
        """Tokens of prompt and answer so far."""
        return self.context_units // unit if self.decoding else self.request.prompt_tokens + self.generated

    def outputs(self, unit: int) -> int:
        """Answer tokens so far."""
        return min(self.known(unit) - self.request.prompt_tokens, self.request.output_tokens)
