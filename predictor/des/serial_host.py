"""Host time that the GPU waits for: a part of each prompt's, on the prefill step that computes it (paper D.4)."""

from predictor.step.model import PrefillCurve, StepModel


class SerialHost:
    """A step model whose prefill steps also pay host time, for each prompt they end and each token they compute."""

    def __init__(self, model: StepModel, ms_per_request: float, us_per_token: float = 0.0) -> None:
        curve = model.prefill
        self.tokens_per_step = model.tokens_per_step
        self.decode_line = model.decode_line
        self.prefill = PrefillCurve(
            curve.fixed_ms,
            curve.per_token_ms + us_per_token / 1000.0,
            curve.per_token2_ms,
            curve.mixed_fixed_ms,
            curve.per_request_ms + ms_per_request,
        )
