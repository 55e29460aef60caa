"""A measured decode sweep as a function of batch."""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
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


def filled_by(curve: DecodeCurve, denser: DecodeCurve) -> DecodeCurve:
    """A sweep at few batches with the batches of another context's sweep between them.

    What context adds to a step is cache bytes, linear in the batch, while the step itself bends: so between two batches
    that both sweeps have, ``step(b) = denser(b) + Δ(b)`` with their difference Δ linear in b. Measured steps stay as
    they are; batches outside the shared ones are left out.

    >>> sparse, dense = DecodeCurve((1, 4), (11.0, 17.0), 900.0), DecodeCurve((1, 2, 4), (10.0, 10.5, 13.0), 100.0)
    >>> filled_by(sparse, dense).step_ms
    (11.0, 12.5, 17.0)
    """
    there = dict(zip(denser.batches, denser.step_ms, strict=True))
    steps = dict(zip(curve.batches, curve.step_ms, strict=True))
    shared = sorted(set(there) & set(steps))
    for low, high in pairwise(shared):
        first, last = steps[low] - there[low], steps[high] - there[high]
        for batch in (b for b in denser.batches if low < b < high and b not in steps):
            steps[batch] = there[batch] + first + (last - first) * (batch - low) / (high - low)
    rising = sorted(steps)
    return DecodeCurve(tuple(rising), tuple(steps[b] for b in rising), curve.context_tokens, curve.tail_ms_per_request)
