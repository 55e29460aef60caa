"""The anchored build of the step model: a measured sweep, already moved to the target's layout, made priceable.

The curve gives the step at the anchor's context; a slope in total context moves it to any other; the graph staircase
pads the batch; a pipeline turns the step of one micro-batch into the cycle a token waits for (paper Eq. 4).
"""

from dataclasses import dataclass, field, replace

from predictor.pipeline import PipelineCosts, pipeline_step_ms
from predictor.step.capture import padded_batch
from predictor.step.curve import DecodeCurve
from predictor.step.model import DecodeLine, PrefillCurve


@dataclass(frozen=True, slots=True)
class PipelineTerms:
    """What p stages add to a step (:mod:`predictor.pipeline`), for one deployment and load."""

    stages: int
    costs: PipelineCosts
    p2p_ms: float
    in_flight: int  # micro-batches

    def cycle_ms(self, step_ms: float, micro_batch: int) -> float:
        """Eq. 4: the full-depth step of one micro-batch becomes the cycle a token waits for."""
        return pipeline_step_ms(
            step_ms, self.stages, self.costs.hop_us, self.p2p_ms, self.costs.host_ms(micro_batch), self.in_flight
        )

    @property
    def hops_ms(self) -> float:
        """All hops of one way through the stages."""
        return self.stages * (self.costs.hop_us / 1000.0 + self.p2p_ms)


@dataclass(slots=True)
class AnchoredStepModel:
    """See :class:`~predictor.step.model.StepModel`. ``curve`` is at the target's layout, over a replica's whole batch.

    ``context_slope_ms`` is the cost of one more token of total context on the busiest GPU. Under attention DP the line
    asked for is one rank's: ``ranks`` of them share the step.
    """

    curve: DecodeCurve
    context_slope_ms: float
    prefill: PrefillCurve
    capture_sizes: tuple[int, ...] = ()
    tokens_per_step: float = 1.0
    pipeline: PipelineTerms | None = None
    ranks: int = 1
    eager_ms: float = 0.0  # least step of a batch that no graph holds, where the measured one had a graph
    _lines: dict[int, DecodeLine] = field(default_factory=dict)

    def decode_line(self, batch: int, context_tokens: float = 0.0) -> DecodeLine:
        """The line at ``batch``; it has one piece, so ``context_tokens`` does not matter.

        The measured step at the padded batch contains the KV reads of that many sequences at the anchor's context, so
        those are taken out of the intercept. The slope is never steeper than the whole measured step over its context.
        """
        line = self._lines.get(batch)
        if line is None:
            padded = padded_batch(batch, self.capture_sizes)
            step = self.curve.at(padded * self.ranks)
            if self.capture_sizes and batch > self.capture_sizes[-1]:
                step = max(step, self.eager_ms)
            measured_context = padded * self.curve.context_tokens
            slope = min(self.context_slope_ms, step / measured_context)
            intercept = step - slope * measured_context
            if self.pipeline is not None:
                intercept = self.pipeline.cycle_ms(intercept, batch)
            line = self._lines[batch] = DecodeLine(intercept, slope)
        return line

    def whole_depth(self) -> "AnchoredStepModel":
        """The forward through all stages alone, for a simulation that follows micro-batches from stage to stage."""
        return replace(self, pipeline=None, _lines={})
