"""Inter-token gaps of a simulation: rows of like gaps, folded into a histogram when there are many."""

from array import array

import numpy as np

from predictor.des.metrics import FloatArray, Samples, as_rows, expand_runs

FOLD_STEPS = 1_000_000  # gaps beyond which rows are folded, so that memory stays bounded
BATCH_STEPS = 200_000  # gaps folded at a time
BIN_WIDTH = 1e-4  # of the logarithm: relative width of a bin
_SHORTEST_MS, _LONGEST_MS = 1e-4, 1e9


class GapLog:
    """Rows of (first gap ms, growth a step ms, steps, weight); percentiles are exact until rows are folded."""

    __slots__ = ("_counts", "_fold_at", "_rows", "_steps", "_sums")

    def __init__(self) -> None:
        self._rows = array("d")
        self._steps = 0
        self._fold_at = FOLD_STEPS
        self._counts: FloatArray | None = None
        self._sums: FloatArray | None = None

    def add(self, first_ms: float, growth_ms: float, steps: int, weight: int) -> None:
        """A run's gaps."""
        self._rows.extend((first_ms, growth_ms, steps, weight))
        self._steps += steps
        if self._steps > self._fold_at:
            self._fold()

    def _fold(self) -> None:
        """Move the rows into the histogram; sums of the gaps in a bin are kept, so means stay exact."""
        values, weights = expand_runs(as_rows(self._rows, 4))
        self._rows = array("d")
        self._fold_at = self._steps + BATCH_STEPS
        low = np.log(_SHORTEST_MS)
        bins = int((np.log(_LONGEST_MS) - low) / BIN_WIDTH) + 1
        index = np.clip(((np.log(values) - low) / BIN_WIDTH).astype(np.int64), 0, bins - 1)
        counts: FloatArray = np.bincount(index, weights, bins).astype(np.float64)
        sums: FloatArray = np.bincount(index, weights * values, bins).astype(np.float64)
        self._counts = counts if self._counts is None else self._counts + counts
        self._sums = sums if self._sums is None else self._sums + sums

    def samples(self) -> Samples:
        """All gaps; to be called when the simulation is over."""
        if self._counts is None:
            rows = as_rows(self._rows, 4)
            return Samples(lambda: expand_runs(rows))
        if len(self._rows):
            self._fold()
        counts, sums = self._counts, self._sums
        assert sums is not None, "folded together with the counts"
        held = np.flatnonzero(counts)
        return Samples(lambda: (sums[held] / counts[held], counts[held]), width=BIN_WIDTH)
