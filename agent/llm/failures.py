"""Why a language model's part ended early: one exception with a stable code, and the flag a person reads."""


class LlmFailure(Exception):
    """The language model cannot go on. The code is stable; the message says what happened and what to do."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class CapReached(LlmFailure):
    """A cap on calls, tokens, money or time: not a fault, a limit the operator set."""


class TooLong(LlmFailure):
    """A prompt that would not fit in the context window beside its answer: it is not sent."""

    def __init__(self, tokens: int, free: int) -> None:
        super().__init__(
            CONTEXT,
            f"a prompt of {tokens} tokens was not sent: {free} are free beside the answer; use a model that holds more "
            "(INFERASIM_LLM_CONTEXT_TOKENS), or shorten the answer (INFERASIM_LLM_MAX_TOKENS)",
        )


NOT_CONFIGURED = "llm_not_configured"
UNREACHABLE = "llm_unreachable"
TIMEOUT = "llm_timeout"
RATE_LIMITED = "llm_rate_limited"
AUTH = "llm_auth"
REFUSED = "llm_refused"  # the provider refuses the request itself: model name, parameters
SERVER = "llm_server_error"
CONTEXT = "llm_context_exceeded"
UNREADABLE = "llm_unreadable"
UNEXPECTED = "llm_unexpected"
CAP_CALLS = "cap_llm_calls"
CAP_TOKENS = "cap_llm_tokens"
CAP_COST = "cap_llm_cost"
CAP_WALL = "cap_llm_wall_time"
CONTEXT_ASSUMED = "llm_context_assumed"  # no failure: what the model holds is not known, and a default was taken
SHORTENED = "llm_prompt_shortened"  # no failure: the inputs were cut beyond older trials to fit
PRICE_UNKNOWN = "llm_price_unknown"  # no failure: the cap on money cannot be kept
