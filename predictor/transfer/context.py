"""What a transfer law knows of one measured or wanted kernel set: card, GPU, layout, formats, engine, lengths."""

from dataclasses import dataclass

from predictor.cards import ModelCard, Platform
from predictor.comm import Variant
from predictor.types import Layout, Precision


@dataclass(frozen=True, slots=True)
class KernelContext:
    """One side of a transfer. Both sides share card, platform, precision, engine and speculation; layouts differ.

    ``context_tokens`` is the mean context of a sequence in decode; ``tokens_per_step`` what one verify step commits for
    a request (1 without speculation) and ``draft_depth`` how many tokens were drafted, so that a step of ``b`` requests
    carries ``b · (1 + draft_depth)`` tokens. ``allreduce`` names the variant of a decode step's all-reduces and
    ``redundant`` counts the copies of busy experts; an anchor was measured with the engines' own choice: custom, none.
    """

    card: ModelCard
    platform: Platform
    layout: Layout
    precision: Precision
    engine: str
    context_tokens: float
    draft_depth: int = 0
    tokens_per_step: float = 1.0
    allreduce: Variant = "custom"
    redundant: int = 0

    @property
    def gpus(self) -> int:
        """GPUs over which one stage's weights are spread."""
        return max(self.layout.tp, self.layout.ep)

    def step_tokens(self, batch: float) -> float:
        """Tokens of one decode step over ``batch`` requests."""
        return batch * (1 + self.draft_depth)
