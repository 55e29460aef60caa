"""The only place that builds a language model: DSPy over LiteLLM, metered, capped, retried once and never cached.

DSPy hands each request to :class:`_Metered`, which checks the caps, makes the attempts (tenacity; DSPy's and LiteLLM's
own retries are off), bounds each attempt by the clock even if the server drips bytes, and tells what the call cost.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import dspy
from dspy import lm15
from dspy.clients._litellm import get_litellm
from dspy.clients.engines import LiteLLMEngine
from dspy.utils import exceptions as errors
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt

from agent.llm import failures
from agent.llm.failures import CapReached, LlmFailure, TooLong
from agent.llm.guards import Redactor
from agent.llm.retrying import retry_wait, retryable
from agent.llm.settings import DEFAULT_CONTEXT_TOKENS, HOW_TO_CONFIGURE, LlmSettings
from agent.llm.tokens import Messages, TokenCounter
from agent.llm.usage import CallRecord, Usage

REASONING_MAX_TOKENS = 16_000  # source: DSPy 3.4 refuses OpenAI reasoning models below this
ANSWER_SHARE = 0.25  # of the context window that an answer may take at most: a plan takes some 800 tokens
LONGEST_WAIT_S = 30.0  # between two attempts, unless the server asks for more


@dataclass(slots=True)
class Backbone:
    """One chat model for one search. ``on_call`` hears of every call, failed ones included."""

    settings: LlmSettings
    redactor: Redactor
    on_call: Callable[[CallRecord], None] = lambda record: None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    usage: Usage = field(default_factory=Usage)
    stage: str = ""
    _lm: Any = None
    _adapter: Any = None
    _engine: Any = None
    _counter: Any = None
    schema_refused: bool = False  # the provider took no JSON schema

    def __post_init__(self) -> None:
        if not self.settings.configured:
            raise LlmFailure(failures.NOT_CONFIGURED, f"no language model is set: {HOW_TO_CONFIGURE}")
        quiet()
        self._engine = _Metered(self)
        self._adapter = dspy.JSONAdapter()
        self._counter = TokenCounter(self.settings, litellm, within)

    def _model(self) -> Any:
        """The model as DSPy calls it; built at the first question, which knows how long an answer may be."""
        if self._lm is None:
            options: dict[str, Any] = {
                "temperature": self.settings.temperature,
                "max_tokens": min(self.settings.max_tokens, int(self.context_tokens * ANSWER_SHARE)),
                "cache": False,
                "num_retries": 0,  # the one layer of retries is this module's
                "engine": self._engine,
            }
            try:
                self._lm = dspy.LM(self.settings.model, **options)
            except errors.LMConfigurationError:  # OpenAI's reasoning families take nothing else
                reasoning = {**options, "temperature": None, "max_tokens": REASONING_MAX_TOKENS}
                self._lm = dspy.LM(self.settings.model, **reasoning)
        return self._lm

    @property
    def known_context_tokens(self) -> int | None:
        """The model's context window: as set, never above what the server holds, else as LiteLLM knows it."""
        told = [one for one in (self.settings.context_tokens, self._counter.served_tokens) if one]
        if told:
            return min(told)
        try:
            known = litellm().get_model_info(self.settings.model).get("max_input_tokens")
        except Exception:  # noqa: BLE001  a model LiteLLM does not know: older releases raise a bare Exception
            return None
        return int(known) if known else None

    @property
    def context_tokens(self) -> int:
        """The context window prompts are cut to; :meth:`assumptions` says so where it is only assumed."""
        return self.known_context_tokens or DEFAULT_CONTEXT_TOKENS

    def assumptions(self) -> list[tuple[str, str]]:
        """What was taken for granted because neither the settings nor LiteLLM know it, as flags."""
        found = []
        if self.known_context_tokens is None:
            found.append(
                (
                    failures.CONTEXT_ASSUMED,
                    f"nobody says how much {self.settings.model} holds: prompts are cut to {DEFAULT_CONTEXT_TOKENS} "
                    "tokens; set INFERASIM_LLM_CONTEXT_TOKENS",
                )
            )
        if "max_cost_usd" in self.settings.model_fields_set and self._cost(1, 1) is None:
            found.append(
                (
                    failures.PRICE_UNKNOWN,
                    f"nobody says what {self.settings.model} costs, so the cap of ${self.settings.max_cost_usd:g} "
                    "cannot be kept: set INFERASIM_LLM_USD_PER_M_INPUT and INFERASIM_LLM_USD_PER_M_OUTPUT",
                )
            )
        return found

    @property
    def answer_tokens(self) -> int:
        """Most tokens of one answer."""
        options = self._model().kwargs
        return int(options.get("max_tokens") or options.get("max_completion_tokens") or self.settings.max_tokens)

    @property
    def free_tokens(self) -> int:
        """Most tokens of a prompt that leave room for the answer in the context window."""
        return self.context_tokens - self.answer_tokens

    @property
    def counted_by(self) -> str:
        """Who counts the tokens of a prompt."""
        return str(self._counter.source)

    def prompt_tokens(self, module: Any, inputs: Mapping[str, str], options: Mapping[str, Any]) -> int:
        """Tokens of the prompt that a DSPy predictor would send for these inputs."""
        signature, demos = options.get("signature", module.signature), options.get("demos", module.demos)
        sent = self._adapter.format(signature, demos, dict(inputs))
        return int(self._counter.prompt([(one["role"], str(one["content"])) for one in sent]))

    def text_tokens(self, text: str) -> int:
        """Tokens of a text within a prompt."""
        return int(self._counter.text(text))

    def ask(self, stage: str, module: Callable[..., Any], **inputs: Any) -> Any:
        """Run a DSPy module; everything that can go wrong is an :class:`LlmFailure` with a stable code."""
        self.stage = stage
        try:
            return self._run(module, inputs)
        except errors.AdapterParseError as error:
            raise LlmFailure(failures.UNREADABLE, self._brief(f"unreadable answer: {error.lm_response!r}")) from error
        except Exception as error:  # whatever DSPy and the provider's client raise: a search goes on without them
            raise self._failure(error) from error

    def _run(self, module: Callable[..., Any], inputs: Mapping[str, Any]) -> Any:
        """One module call; a provider that refuses the JSON schema is asked once more without it, and from then on."""
        with dspy.context(lm=self._model(), adapter=self._adapter, disable_history=True):
            try:
                return module(**inputs)
            except errors.ContextWindowExceededError:
                raise
            except errors.LMInvalidRequestError:
                if self.settings.response_schema != "auto" or not self._engine.supports_response_schema:
                    raise
                self.schema_refused = True
                return module(**inputs)

    def _failure(self, error: Exception) -> LlmFailure:
        """What a DSPy error means; one of our own that passed through DSPy comes out as it went in."""
        inner: BaseException | None = error
        while inner is not None:
            if isinstance(inner, LlmFailure):
                return inner
            inner = inner.__cause__
        names = (
            (errors.ContextWindowExceededError, failures.CONTEXT),
            (errors.LMRateLimitError, failures.RATE_LIMITED),
            (errors.LMTimeoutError, failures.TIMEOUT),
            (errors.LMAuthError, failures.AUTH),
            (errors.LMBillingError, failures.AUTH),
            (errors.LMServerError, failures.SERVER),
            (errors.LMTransportError, failures.UNREACHABLE),
            (errors.LMInvalidRequestError, failures.REFUSED),
            (errors.LMUnsupportedFeatureError, failures.REFUSED),
            (errors.LMConfigurationError, failures.AUTH),
        )
        code = next((code for kind, code in names if isinstance(error, kind)), failures.UNEXPECTED)
        return LlmFailure(code, self._brief(f"{type(error).__name__}: {error}"))

    def _brief(self, text: str) -> str:
        return self.redactor.text(" ".join(text.split()), 300)

    # ------------------------------------------------------------------------------------------------ one call

    def complete(self, request: Any, attempt: Callable[[Any, float], Any]) -> Any:
        """Answer one DSPy request within the caps: called by the engine, raises what DSPy understands."""
        sent = messages_of(request)
        expected = self._counter.prompt(sent)
        if expected > self.free_tokens:
            raise TooLong(expected, self.free_tokens)
        self._check_caps(expected)
        started = self.clock()
        tries = 0

        def once() -> Any:
            nonlocal tries
            tries += 1
            left_s = self.settings.max_wall_s - self.usage.wall_s - (self.clock() - started)
            if left_s <= 0:
                raise CapReached(failures.CAP_WALL, f"the limit of {self.settings.max_wall_s:g} s was reached")
            return attempt(request, min(self.settings.timeout_s, left_s))

        def wait(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            left_s = self.settings.max_wall_s - self.usage.wall_s - (self.clock() - started)
            wait_s = retry_wait(error, state.attempt_number, self.settings.retry_wait_s, LONGEST_WAIT_S)
            return max(0.0, min(wait_s, left_s))

        outcome, response, detail = "interrupted", None, ""  # unless it comes to an end of its own
        try:
            response = Retrying(
                stop=stop_after_attempt(self.settings.attempts),
                wait=wait,
                retry=retry_if_exception(retryable),
                sleep=self.sleep,
                reraise=True,
            )(once)
            outcome = "ok"
            return response
        except CapReached as error:
            outcome, detail = error.code, error.message
            raise
        except Exception as error:  # only noted: it goes on to whoever asked
            outcome, detail = type(error).__name__, self._brief(str(error))
            raise
        finally:
            elapsed_s = self.clock() - started
            self._account(response, expected, sent, outcome, tries, elapsed_s, detail)

    def _check_caps(self, expected_tokens: int) -> None:
        """Refuse a call that could pass a cap: hard limits are kept before the money is spent, not noticed after."""
        limits, used = self.settings, self.usage
        unanswered = used.unanswered_prompt_tokens, used.unanswered_completion_tokens
        if used.calls >= limits.max_calls:
            raise CapReached(failures.CAP_CALLS, f"the limit of {limits.max_calls} calls was reached")
        if used.tokens + sum(unanswered) + expected_tokens + self.answer_tokens > limits.max_total_tokens:
            raise CapReached(failures.CAP_TOKENS, f"the next call could pass {limits.max_total_tokens} tokens")
        next_usd = self._cost(expected_tokens + unanswered[0], self.answer_tokens + unanswered[1])
        if next_usd is not None and used.cost_usd + next_usd > limits.max_cost_usd:
            raise CapReached(failures.CAP_COST, f"the next call could pass ${limits.max_cost_usd:g}")
        if used.wall_s >= limits.max_wall_s:
            raise CapReached(failures.CAP_WALL, f"the limit of {limits.max_wall_s:g} s was reached")

    def _account(
        self, response: Any, expected: int, sent: Messages, outcome: str, tries: int, elapsed_s: float, detail: str
    ) -> None:
        reported = None if response is None else response.usage
        prompt = getattr(reported, "input_tokens", None)
        completion = getattr(reported, "output_tokens", None)
        if prompt:
            self._counter.learn(sent, int(prompt))
        failed = response is None
        prompt_tokens = 0 if failed else expected if prompt is None else int(prompt)
        completion_tokens = 0 if failed else self.answer_tokens if completion is None else int(completion)
        cost_usd = 0.0 if failed else self._cost(prompt_tokens, completion_tokens)
        self.usage.calls += 1
        self.usage.prompt_tokens += prompt_tokens
        self.usage.completion_tokens += completion_tokens
        self.usage.cost_usd += cost_usd or 0.0
        self.usage.unpriced_calls += cost_usd is None
        self.usage.wall_s += elapsed_s
        unanswered = tries if failed else tries - 1
        self.usage.unanswered_prompt_tokens += unanswered * expected
        self.usage.unanswered_completion_tokens += unanswered * self.answer_tokens
        self.on_call(
            CallRecord(
                self.stage, outcome, tries, prompt_tokens, completion_tokens, cost_usd, elapsed_s * 1000.0, detail
            )
        )

    def _cost(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Dollars of a call: the operator's prices, else LiteLLM's, else None."""
        ours = self.settings.usd_per_m_input, self.settings.usd_per_m_output
        if ours[0] is not None and ours[1] is not None:
            return (prompt_tokens * ours[0] + completion_tokens * ours[1]) / 1e6
        try:
            parts = litellm().cost_per_token(
                model=self.settings.model, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens
            )
        except Exception:  # noqa: BLE001  a model LiteLLM does not know: older releases raise a bare Exception
            return None
        return float(sum(parts))


class _Metered:
    """DSPy's engine contract: one canonical request, one response; LiteLLM does the talking."""

    supports_function_calling = False
    supports_reasoning = False

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone

    @property
    def supports_response_schema(self) -> bool:
        """Whether to send a JSON schema: as set, else as LiteLLM knows the model."""
        settings = self._backbone.settings
        if settings.response_schema != "auto":
            return settings.response_schema == "on"
        return not self._backbone.schema_refused and bool(litellm().supports_response_schema(model=settings.model))

    @property
    def supported_params(self) -> frozenset[str]:
        """Request parameters the provider takes."""
        if self._backbone.settings.response_schema == "off":
            return frozenset()
        found = litellm().get_supported_openai_params(model=self._backbone.settings.model)
        return frozenset(found or ())

    def complete(self, request: Any) -> Any:
        """One answer."""
        return self._backbone.complete(request, self._attempt)

    def _attempt(self, request: Any, limit_s: float) -> Any:
        settings = self._backbone.settings
        options: dict[str, Any] = {"timeout": limit_s}
        if settings.api_base:
            options["api_base"] = settings.api_base
            # LiteLLM keeps its client, and with it an idle connection, for the life of the process: nobody would close
            # it, and small servers have been seen to reset one that is used again.
            options["extra_headers"] = {"Connection": "close"}
        if settings.api_key:
            options["api_key"] = settings.api_key.get_secret_value()
        elif settings.api_base:
            options["api_key"] = "none"  # servers of one's own want none, and their clients insist on one
        engine = LiteLLMEngine(**options)
        litellm()  # takes seconds the first time, which are not the server's
        return within(limit_s, lambda: engine.complete(request))


def messages_of(request: Any) -> list[tuple[str, str]]:
    """Role and text of each message of a DSPy request, instructions first."""
    system = [("system", request.system)] if isinstance(request.system, str) and request.system else []
    return [*system, *((str(one.role), one.text or "") for one in request.messages)]


def within(limit_s: float, work: Callable[[], Any]) -> Any:
    """Run ``work``, giving up after ``limit_s``.

    The time-outs of HTTP clients count from byte to byte; a server that drips would hold them for ever. The abandoned
    thread is a daemon and ends with its connection.
    """
    answer: dict[str, Any] = {}
    done = threading.Event()

    def run() -> None:
        try:
            answer["value"] = work()
        except BaseException as error:  # noqa: BLE001  handed to the waiting thread, which raises it
            answer["error"] = error
        finally:
            done.set()

    threading.Thread(target=run, daemon=True, name="language-model").start()
    if not done.wait(limit_s):
        raise lm15.TimeoutError(f"no answer within {limit_s:g} s")
    if "error" in answer:
        raise answer["error"]
    return answer["value"]


def quiet() -> None:
    """Keep the libraries' own log lines off the terminal; the ledger holds every failure."""
    for name in ("dspy", "LiteLLM", "httpx", "httpcore", "openai"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def litellm() -> Any:
    """LiteLLM as DSPy sets it up: no telemetry, no cache, no advertisements. The first use takes seconds to import."""
    return get_litellm(feature="InferaSim")


def secrets_of(settings: LlmSettings) -> tuple[str, ...]:
    """Secret values the settings hold, for a :class:`agent.llm.guards.Redactor`."""
    return (settings.api_key.get_secret_value(),) if settings.api_key else ()


def public_facts(settings: LlmSettings, redactor: Redactor) -> Mapping[str, Any]:
    """What of the settings decides an answer, for the ledger: no key, no address."""
    return {
        "model": redactor.text(settings.model, 200),
        "temperature": settings.temperature,
        "max_tokens": settings.max_tokens,
        "response_schema": settings.response_schema,
        "max_calls": settings.max_calls,
        "max_total_tokens": settings.max_total_tokens,
        "max_cost_usd": settings.max_cost_usd,
        "max_wall_s": settings.max_wall_s,
    }
