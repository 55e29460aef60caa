"""Simulated time as integer ticks, and step prices in ticks.

A float clock loses up to 1e-8 of a latency on long runs, because TTFT is a small difference of large times. Ticks are
Python integers: sums are exact, ties are ties, and the order of additions does not matter. Coefficients of the step
model are rounded to ticks once, so a tick is 1e-21 s: that keeps 1e-9 of the smallest, the quadratic prefill term of
some 1e-9 ms a token squared. With speculation a step adds a fractional number of tokens, so context is counted in 2^-20
tokens and a tick is finer by the same factor.
"""

from fractions import Fraction
from math import ceil

from predictor.errors import BadInput
from predictor.step.model import INFINITE_CONTEXT, StepModel

TICKS_PER_MS = 10**18
CONTEXT_FRACTION = 1 << 20  # context units a token when tokens a step is not a whole number

Piece = tuple[int, int, int | None]  # intercept ticks, slope ticks a context unit, context unit where the piece ends


class Clock:
    """Conversion between ms and ticks for one simulation."""

    __slots__ = ("per_ms",)

    def __init__(self, context_units: int = 1) -> None:
        self.per_ms = TICKS_PER_MS * context_units

    def ticks(self, duration_ms: float) -> int:
        """Ticks of a duration, to the precision of a float."""
        return round(duration_ms * self.per_ms)

    def ms(self, ticks: int) -> float:
        """Correctly rounded quotient."""
        return ticks / self.per_ms


def units_of(model: StepModel) -> int:
    """Context units a token that a step model needs."""
    return 1 if model.tokens_per_step == 1.0 else CONTEXT_FRACTION


class TickPrices:
    """Memo of a step model in ticks: one list of line pieces a batch, and the prefill coefficients."""

    __slots__ = ("_model", "_pieces", "area", "clock", "context_units", "done", "fixed", "grow", "mixed", "token")

    def __init__(self, model: StepModel, context_units: int | None = None) -> None:
        tokens_per_step = model.tokens_per_step
        if tokens_per_step < 1.0:
            raise BadInput(f"tokens_per_step is {tokens_per_step}; a decode step commits at least one token a request")
        self.context_units = units_of(model) if context_units is None else context_units
        self.grow = round(tokens_per_step * self.context_units)  # context units a decode step adds to a request
        self.clock = Clock(self.context_units)
        ticks, curve = self.clock.ticks, model.prefill
        self.fixed = ticks(curve.fixed_ms)
        self.mixed = ticks(curve.mixed_fixed_ms)
        self.token = ticks(curve.per_token_ms)
        self.area = ticks(curve.per_token2_ms)
        self.done = ticks(curve.per_request_ms)
        self._model = model
        self._pieces: dict[int, list[Piece]] = {}

    def line(self, batch: int, context: int) -> Piece:
        """The piece of the decode line at this batch that holds ``context`` units in all."""
        pieces = self._pieces.get(batch)
        if pieces is None:
            pieces = self._pieces[batch] = [self._piece(batch, 0)]
        for piece in pieces:
            if piece[2] is None or context < piece[2]:
                return piece
        while True:
            end = pieces[-1][2]
            if end is None or context < end:
                return pieces[-1]
            pieces.append(self._piece(batch, end))

    def _piece(self, batch: int, start: int) -> Piece:
        line = self._model.decode_line(batch, start / self.context_units)
        end = line.end_context_tokens
        units = None if end == INFINITE_CONTEXT else ceil(Fraction(end) * self.context_units)
        if units is not None and units <= start:
            raise BadInput(f"decode line of batch {batch}: a piece that holds context {start} ends at {units}")
        ticks = self.clock.ticks
        # A tick is finer by the context fraction, so the slope a unit is the slope a token in coarse ticks.
        slope = round(line.slope_ms_per_token * TICKS_PER_MS)
        return ticks(line.intercept_ms), slope, units

    def decode(self, batch: int, context: int) -> int:
        """One decode step, ticks."""
        intercept, slope, _ = self.line(batch, context)
        return intercept + slope * context

    def prompts(self, decoding: bool, tokens: int, area: int, done: int) -> int:
        """What prompt chunks add to a step: ``tokens`` new ones, ``area`` = sum of n² + 2np, ``done`` prompts ended."""
        return (self.mixed if decoding else self.fixed) + self.token * tokens + self.area * area + self.done * done
