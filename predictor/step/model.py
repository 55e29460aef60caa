"""The one contract of a step model: what the analytical predictor and the simulator may ask.

A step is: prefill chunks (new tokens n, context before them p), a decode batch and the total context it reads. Every
build of the model, anchored or simulated, answers with a :class:`StepModel`, and no caller ever prices a step through
anything else.
"""

from dataclasses import dataclass
from typing import Protocol

INFINITE_CONTEXT = float("inf")


@dataclass(frozen=True, slots=True)
class DecodeLine:
    """Decode step time at one batch, exactly linear in total decode context on one piece.

    ``step_ms = intercept_ms + slope_ms_per_token · total_context_tokens`` while the context is below the end. Batch is
    the number of running sequences before graph padding; under attention DP it is the largest rank's batch and the
    context that rank's.
    """

    intercept_ms: float
    slope_ms_per_token: float
    end_context_tokens: float = INFINITE_CONTEXT

    def at(self, total_context_tokens: float) -> float:
        """Step time in ms."""
        return self.intercept_ms + self.slope_ms_per_token * total_context_tokens


@dataclass(frozen=True, slots=True)
class PrefillCurve:
    """Cost of prompt work: ``T(n) = F + c1·n + c2·n²`` for one whole prompt (paper §3.1.1).

    A chunk of ``n`` new tokens after ``p`` cached or earlier ones costs ``c1·n + c2·((p+n)² − p²)``; so chunks of one
    prompt add up to the whole. ``fixed_ms`` is paid once a step that prefills. ``per_request_ms`` is paid once for each
    prompt whose last chunk is in the step (first-token path). In a mixed step the decode part keeps its own fixed cost,
    and only ``mixed_fixed_ms`` of the prefill's is added.
    """

    fixed_ms: float
    per_token_ms: float
    per_token2_ms: float
    mixed_fixed_ms: float
    per_request_ms: float = 0.0

    def chunk_ms(self, new_tokens: int, context_before_tokens: int = 0) -> float:
        """Variable cost of one chunk, ms.

        >>> curve = PrefillCurve(10.0, 0.01, 1e-6, 5.0)
        >>> whole = curve.chunk_ms(4000)
        >>> abs(curve.chunk_ms(1000) + curve.chunk_ms(3000, 1000) - whole) < 1e-9
        True
        """
        n, p = new_tokens, context_before_tokens
        return self.per_token_ms * n + self.per_token2_ms * (n * n + 2.0 * n * p)

    def prompt_ms(self, tokens: int) -> float:
        """One whole prompt alone in a step, ms."""
        return self.fixed_ms + self.chunk_ms(tokens) + self.per_request_ms


class StepModel(Protocol):
    """What the analytical predictor and the simulator need; both builds provide it.

    ``decode_line`` is memoised by the implementation: callers ask once a run, never once a step and request.
    """

    @property
    def prefill(self) -> PrefillCurve:
        """Prefill coefficients of the (prefill pool's) layout."""
        ...

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens a decode step commits for each request, L(k); 1.0 without speculation."""
        ...

    def decode_line(self, batch: int, context_tokens: float = 0.0) -> DecodeLine:
        """The piece of the decode line at this batch that holds ``context_tokens`` (total over the batch)."""
        ...


@dataclass(frozen=True, slots=True)
class TableStepModel:
    """A step model given as numbers: one intercept and slope for each batch 1..N. For tests, imports and notebooks.

    Above the last batch the line is extended by the last difference of intercepts, and the last slope is kept.
    """

    intercepts_ms: tuple[float, ...]
    slopes_ms_per_token: tuple[float, ...]
    prefill: PrefillCurve
    tokens_per_step: float = 1.0

    def decode_line(self, batch: int, context_tokens: float = 0.0) -> DecodeLine:
        """See :class:`StepModel`."""
        size = len(self.intercepts_ms)
        if batch <= size:
            return DecodeLine(self.intercepts_ms[batch - 1], self.slopes_ms_per_token[batch - 1])
        rise = self.intercepts_ms[-1] - self.intercepts_ms[-2] if size > 1 else 0.0
        return DecodeLine(self.intercepts_ms[-1] + rise * (batch - size), self.slopes_ms_per_token[-1])
