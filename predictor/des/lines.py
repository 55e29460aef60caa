"""All pieces of a step model's decode lines that a schedule touches, as arrays."""

from math import ceil

import numpy as np
from numpy.typing import NDArray

from predictor.des.metrics import FloatArray
from predictor.errors import BadInput
from predictor.step.model import INFINITE_CONTEXT, StepModel

IntArray = NDArray[np.int64]

_STRIDE = 1 << 49  # context units that one batch's keys span: 5e8 tokens where a token is 2^20 units
_MOST_BATCH = (1 << 63) // _STRIDE - 2


class LinePieces:
    """Pieces sorted by batch and context, so that one search finds the piece of every run."""

    def __init__(self, model: StepModel, batches: IntArray, most_context: int, unit: int) -> None:
        """Pieces up to ``most_context`` units; batch 0, a step without decode rows, costs nothing."""
        if most_context >= _STRIDE or (len(batches) and int(batches.max()) > _MOST_BATCH):
            raise BadInput(f"a step with batch {batches.max()} and context {most_context} is too large to price")
        ends, intercepts, slopes = [_STRIDE], [0.0], [0.0]
        # Not np.unique: it imports numpy.ma, a third of the start-up time of a prediction.
        for batch in sorted(set(batches[batches > 0].tolist())):
            context = 0
            while True:
                line = model.decode_line(batch, context / unit)
                endless = line.end_context_tokens == INFINITE_CONTEXT
                end = _STRIDE if endless else min(_STRIDE, ceil(line.end_context_tokens * unit))
                ends.append(batch * _STRIDE + end)
                intercepts.append(line.intercept_ms)
                slopes.append(line.slope_ms_per_token / unit)
                if end > most_context:
                    ends[-1] = (batch + 1) * _STRIDE
                    break
                if end <= context:
                    raise BadInput(f"decode line of batch {batch}: a piece that holds context {context} ends at {end}")
                context = end
        self._ends: IntArray = np.array(ends, dtype=np.int64)
        self.intercept_ms: FloatArray = np.array(intercepts)
        self.slope_ms: FloatArray = np.array(slopes)  # a context unit

    def find(self, batch: IntArray, context: IntArray) -> IntArray:
        """Index of the piece that holds each step."""
        return np.asarray(np.searchsorted(self._ends, batch * _STRIDE + context, side="right"), dtype=np.int64)

    def end_of(self, index: int, batch: int) -> int:
        """Context unit at which a piece ends."""
        return int(self._ends[index]) - batch * _STRIDE
