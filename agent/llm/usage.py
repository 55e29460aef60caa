"""What a search has asked of its language model, call by call and in all."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call as the ledger notes it: all attempts of one question."""

    stage: str
    outcome: str  # ok, or the code of the failure
    attempts: int
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None  # None where nobody knows the price
    latency_ms: float
    detail: str = ""


@dataclass(slots=True)
class Usage:
    """What a search has asked of its language model so far."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    unpriced_calls: int = 0
    wall_s: float = 0.0
    unanswered_prompt_tokens: int = 0  # of attempts whose answer never came: they may have been billed, so caps count
    unanswered_completion_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens."""
        return self.prompt_tokens + self.completion_tokens

    def as_json(self) -> dict[str, Any]:
        """As the answer and the ledger show it; the cost is null where any call's price is unknown."""
        return {
            "calls": self.calls,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cost_usd": None if self.unpriced_calls else self.cost_usd,
            "wall_s": self.wall_s,
        }
