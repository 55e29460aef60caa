"""One measured run: the kernel models' steps times the factors that reproduce it.

Two factors, one on decode and one on prefill, are what a TPOT and a TTFT can tell. The shape over batch and context is
then the kernel models', not measured, and the artefact says so.
"""

from dataclasses import dataclass, replace

import numpy as np

from predictor.anchors.import_solve.ladder import WEIGHTS, ServedRun, reproduce, statistic
from predictor.linear import non_negative_least_squares
from predictor.step.model import DecodeLine, PrefillCurve, StepModel

_ROUNDS = 4
_BUMP = 1e-3
# A factor outside this range says that run and deployment do not belong together rather than that a kernel is slow.
PLAUSIBLE = (0.2, 5.0)


@dataclass(frozen=True, slots=True)
class ScaledModel:
    """A step model times a factor for decode and one for prefill; see ``StepModel``."""

    base: StepModel
    decode: float
    prompt: float

    @property
    def prefill(self) -> PrefillCurve:
        """Prefill, scaled."""
        curve, f = self.base.prefill, self.prompt
        return PrefillCurve(
            curve.fixed_ms * f,
            curve.per_token_ms * f,
            curve.per_token2_ms * f,
            curve.mixed_fixed_ms * f,
            curve.per_request_ms * f,
        )

    @property
    def tokens_per_step(self) -> float:
        """As the base's."""
        return self.base.tokens_per_step

    def decode_line(self, batch: int, context_tokens: float = 0.0) -> DecodeLine:
        """The base's line, scaled."""
        line = self.base.decode_line(batch, context_tokens)
        return replace(
            line,
            intercept_ms=line.intercept_ms * self.decode,
            slope_ms_per_token=line.slope_ms_per_token * self.decode,
        )


@dataclass(frozen=True, slots=True)
class Scaled:
    """Factors, how well they reproduce the run, and what is odd about them."""

    model: ScaledModel
    residual_pct: float
    notes: tuple[str, ...]


def scale_to_run(run: ServedRun, base: StepModel, host_ms: float) -> Scaled:
    """Find both factors by least squares on relative errors; with no TTFT the decode factor serves both."""
    names = [name for name, _ in run.recorded.given()]
    recorded = np.array([value for _, value in run.recorded.given()])
    weights = np.array([WEIGHTS[name] for name in names]) / recorded
    both = "ttft_ms" in names

    def values(
        factors: "np.ndarray[tuple[int], np.dtype[np.float64]]",
    ) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        decode = float(factors[0])
        result = reproduce(run, ScaledModel(base, decode, float(factors[1]) if both else decode), host_ms)
        return np.array([statistic(result, name, run.recorded) for name in names])

    x = np.ones(2 if both else 1)
    for _ in range(_ROUNDS):
        here = values(x)
        jacobian = np.zeros((len(names), len(x)))
        for column in range(len(x)):
            moved = x.copy()
            moved[column] += _BUMP
            jacobian[:, column] = (values(moved) - here) / _BUMP
        target = (recorded - here + jacobian @ x) * weights
        x = np.maximum(non_negative_least_squares(jacobian * weights[:, None], target), 1e-3)
    decode = float(x[0])
    prompt = float(x[1]) if both else decode
    notes = []
    for word, factor in (("decode", decode), ("prefill", prompt)):
        if not PLAUSIBLE[0] < factor < PLAUSIBLE[1]:
            notes.append(f"{word} had to be scaled {factor:.2f} times: check that run and deployment belong together")
    if not both:
        notes.append("no TTFT was recorded: prefill is scaled as decode is")
    residual = float(np.median(np.abs(values(x) / recorded - 1.0))) * 100.0
    return Scaled(ScaledModel(base, decode, prompt), residual, tuple(notes))
