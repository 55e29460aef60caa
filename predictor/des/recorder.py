"""What a timed simulation writes down while it runs."""

from collections.abc import Callable

from predictor.des.clock import Clock
from predictor.des.gaps import GapLog
from predictor.des.metrics import HostTimes, RequestRows, SimulationResult, Totals
from predictor.des.request import Request

PROGRESS_EVERY = 1000  # requests between two calls of a progress hook


class Recorder:
    """Gathers runs and finished requests.

    Sums are kept in ticks, so they do not depend on how steps were grouped into runs. With ``warm_requests`` the
    measured time begins when so many have finished, and the first so many of the workload yield no latency.
    """

    def __init__(self, clock: Clock, warm_requests: int = 0, progress: Callable[[int], None] | None = None) -> None:
        self._clock = clock
        self._warm = warm_requests
        self._warm_left = warm_requests
        self._ms = 1.0 / clock.per_ms
        self._requests = RequestRows()
        self.last_finish = 0
        self._progress = progress
        self._done = 0
        self._reset(0)

    def _reset(self, now: int) -> None:
        self._start = now
        self._gaps = GapLog()
        self._preemptions = self._steps = self._runs = self._prompt_steps = self._mixed_steps = 0
        self._decoding = self._busy = 0
        self._output_tokens = self._prompt_tokens = self._cached_tokens = 0

    def run(self, first: int, growth: int, steps: int, rows: int, prompt: bool, mixed: bool) -> None:
        """A run of ``steps`` steps lasting ``first``, ``first`` + ``growth``, ... ticks, with ``rows`` in decode."""
        duration = steps * first + growth * (steps * (steps - 1) // 2)
        self._runs += 1
        self._steps += steps
        self._busy += duration
        self._decoding += rows * duration
        if prompt:
            self._prompt_steps += steps
            self._mixed_steps += steps * mixed

    def decoding(self, rows: int, duration: int) -> None:
        """Requests in decode over a time that no run tells."""
        self._decoding += rows * duration

    def gaps_of_run(self, first: int, growth: int, steps: int, weight: int) -> None:
        """The steps of a run as gaps of ``weight`` rows."""
        self._gaps.add(first * self._ms, growth * self._ms, steps, weight)

    def gap(self, duration: int, weight: int) -> None:
        """Gaps told one by one."""
        self._gaps.add(duration * self._ms, 0.0, 1, weight)

    def preempted(self, count: int) -> None:
        """Preemptions since the last call."""
        self._preemptions += count

    def finished(self, request: Request, now: int) -> bool:
        """A request got its last token; True when the measured time begins with it."""
        opens = False
        self._done += 1
        if self._progress is not None and self._done % PROGRESS_EVERY == 0:
            self._progress(self._done)
        self.last_finish = now
        self._output_tokens += request.output_tokens
        self._prompt_tokens += request.prompt_tokens
        self._cached_tokens += request.cached_tokens
        if self._warm_left:
            self._warm_left -= 1
            if not self._warm_left:
                self._reset(now)
                opens = True
        if request.id < self._warm:
            return opens
        arrival, tick = request.arrival, self._clock.per_ms
        self._requests.add(
            (
                request.id,
                request.prompt_tokens,
                request.output_tokens,
                request.cached_tokens,
                request.preemptions,
                request.replica,
            ),
            (
                arrival / tick,
                (request.admitted - arrival) / tick,
                (request.first - arrival) / tick,
                (now - arrival) / tick,
            ),
        )
        return opens

    def totals(self) -> Totals:
        """Counts and sums in ms."""
        ms = self._clock.ms
        return Totals(
            duration_ms=ms(self.last_finish - self._start),
            output_tokens=self._output_tokens,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            steps=self._steps,
            runs=self._runs,
            prompt_steps=self._prompt_steps,
            mixed_steps=self._mixed_steps,
            decoding_ms=ms(self._decoding),
            busy_ms=ms(self._busy),
            preemptions=self._preemptions,
        )

    def result(self, host: HostTimes, engine: str) -> SimulationResult:
        """The finished simulation."""
        return SimulationResult(self._requests, self._gaps.samples(), self.totals(), host, engine)
