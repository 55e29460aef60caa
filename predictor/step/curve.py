"""A measured decode sweep as a function of batch."""

from bisect import bisect_left
from dataclasses import dataclass
from math import log


@dataclass(frozen=True, slots=True)
class DecodeCurve:
    """Decode step over batch at one context per sequence.

    Batches rise; ``step_ms`` has their length. ``context_tokens`` is the mean context of one sequence during the sweep.
    Between two measured batches the step is interpolated in log batch (paper B.1), below the smallest it is kept, above
    the largest it grows by ``tail_ms_per_request`` for each further request.
    """

    batches: tuple[int, ...]
    step_ms: tuple[float, ...]
    context_tokens: float
    tail_ms_per_request: float = 0.0

    def at(self, batch: float) -> float:
        """Step in ms.

        >>> DecodeCurve((1, 4), (10.0, 14.0), 1000.0).at(2)
        12.0
        """
        batches, steps = self.batches, self.step_ms
        if batch <= batches[0]:
            return steps[0]
        if batch >= batches[-1]:
            return steps[-1] + self.tail_ms_per_request * (batch - batches[-1])
        right = bisect_left(batches, batch)
        low, high = batches[right - 1], batches[right]
        share = log(batch / low) / log(high / low)
        return steps[right - 1] + share * (steps[right] - steps[right - 1])
