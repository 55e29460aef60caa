"""How many tokens a prompt takes: the server's own count, else LiteLLM's copy of the tokenizer, else bytes.

A server of one's own is asked where it offers to count (llama.cpp, vLLM). Everybody else's prompt is weighed in bytes
at a rate that starts on the careful side and only tightens, by what servers report after each call.
"""

import math
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import httpx

from agent.llm.settings import LlmSettings

Messages = Sequence[tuple[str, str]]  # role and text

BYTES_PER_TOKEN = 1.8  # measured: JSON of trials in SmolLM2's tokens, which split every digit, 2.0; of prompts 2.2 to 3
MESSAGE_TOKENS = 8  # a chat template's own tokens around a message; measured: SmolLM2's 4 to 5
WRAPPING = 1.1  # what a provider adds to a prompt that LiteLLM counts: the schema of the answer, its own words
SMALLEST_TELLING_BYTES = 1024  # a shorter prompt's usage says more about the template than about the text
ASKING_LIMIT_S = 5.0  # of one count; a count takes milliseconds where there is one
REMEMBERED = 64  # counts
MISSHAPEN = (KeyError, TypeError, ValueError)  # of an answer that is not what the server's kind gives


class Source(StrEnum):
    """Who counts."""

    VLLM = "vLLM's /tokenize"
    LLAMA_CPP = "llama.cpp's /tokenize"
    LITELLM = "LiteLLM's tokenizer"
    BYTES = "bytes"


class NoCount(Exception):
    """The server does not count, or no longer."""


@dataclass(slots=True)
class TokenCounter:
    """Counts for one model. ``litellm`` gives the library when it is needed; ``within`` bounds a call by the clock."""

    settings: LlmSettings
    litellm: Callable[[], Any]
    within: Callable[[float, Callable[[], Any]], Any]
    _source: Source | None = None
    _served_tokens: int | None = None
    _rate: float = 1.0  # reported tokens by counted ones: at least what was ever seen
    _tls: ssl.SSLContext | None = None
    _counts: dict[tuple[tuple[str, str], ...], int] = field(default_factory=dict)

    @property
    def source(self) -> Source:
        """Who counts; found out by the first question."""
        if self._source is None:
            self._source = self._found()
        return self._source

    @property
    def served_tokens(self) -> int | None:
        """The context window as the server tells it; None where it does not."""
        _ = self.source
        return self._served_tokens

    def prompt(self, messages: Messages) -> int:
        """Tokens of a prompt, on the careful side."""
        return math.ceil(self._raw(tuple(messages)) * self._rate)

    def text(self, text: str) -> int:
        """Tokens of a text within a prompt; a sum over parts is as careful as a count of the whole."""
        return math.ceil(self._text(text) * self._rate)

    def learn(self, messages: Messages, reported: int) -> None:
        """Take what a server reported for a prompt; never hope for a better packing than the worst one seen."""
        size = sum(len(text.encode()) for _, text in messages)
        if size >= SMALLEST_TELLING_BYTES and 0 < reported <= size:
            self._rate = max(self._rate, reported / max(1, self._raw(tuple(messages))))

    # --------------------------------------------------------------------------------------------------- counting

    def _raw(self, messages: tuple[tuple[str, str], ...]) -> int:
        if messages not in self._counts:
            if len(self._counts) >= REMEMBERED:
                self._counts.pop(next(iter(self._counts)))
            self._counts[messages] = self._counted(messages)
        return self._counts[messages]

    def _counted(self, messages: tuple[tuple[str, str], ...]) -> int:
        chat = [{"role": role, "content": text} for role, text in messages]
        if self.source in (Source.VLLM, Source.LLAMA_CPP):
            try:
                return self._server_count(chat)
            except (NoCount, *MISSHAPEN):
                self._source = Source.BYTES
        if self.source is Source.LITELLM:
            counted: int = self.litellm().token_counter(model=self._name(), messages=chat)
            return math.ceil(counted * WRAPPING)
        return sum(in_bytes(text) + MESSAGE_TOKENS for _, text in messages)

    def _text(self, text: str) -> int:
        try:
            if self.source is Source.LLAMA_CPP:
                return len(self._post("/tokenize", {"content": text})["tokens"])
            if self.source is Source.VLLM:
                body = {"model": self._name(), "prompt": text, "add_special_tokens": False}
                return int(self._post("/tokenize", body)["count"])
        except (NoCount, *MISSHAPEN):
            self._source = Source.BYTES
        if self.source is Source.LITELLM:
            return int(self.litellm().token_counter(model=self._name(), text=text))
        return in_bytes(text)

    def _server_count(self, chat: list[dict[str, str]]) -> int:
        if self.source is Source.VLLM:
            return int(self._post("/tokenize", {"model": self._name(), "messages": chat})["count"])
        prompt = self._post("/apply-template", {"messages": chat})["prompt"]
        return len(self._post("/tokenize", {"content": prompt, "add_special": True})["tokens"])

    # ---------------------------------------------------------------------------------------------------- finding

    def _name(self) -> str:
        return self.settings.model.partition("/")[2]

    def _found(self) -> Source:
        """Ask a server of one's own with one word; then look whether LiteLLM holds the model's tokenizer."""
        if self.settings.api_base:
            try:
                return self._asked()
            except NoCount:
                pass
        # LiteLLM holds OpenAI's tokenizers; others it would download or replace by a guess.
        known = self._name() in self.litellm().open_ai_chat_completion_models
        return Source.LITELLM if known else Source.BYTES

    def _asked(self) -> Source:
        word = {"role": "user", "content": "ready"}
        answer = self._post("/tokenize", {"model": self._name(), "messages": [word]})
        if isinstance(answer.get("count"), int):
            held = answer.get("max_model_len")
            self._served_tokens = held if isinstance(held, int) and held > 0 else None
            return Source.VLLM
        if not isinstance(self._post("/apply-template", {"messages": [word]}).get("prompt"), str):
            raise NoCount
        self._served_tokens = self._llama_context()
        return Source.LLAMA_CPP

    def _llama_context(self) -> int | None:
        try:
            held: Any = self._request("GET", "/props", None)["default_generation_settings"]["n_ctx"]
        except (NoCount, *MISSHAPEN):
            return None
        return held if isinstance(held, int) and held > 0 else None

    def _certificates(self) -> ssl.SSLContext:
        """Reading them takes longer than a count: once a counter."""
        self._tls = self._tls or ssl.create_default_context()
        return self._tls

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._request("POST", path, body)

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        """One request beside the chat protocol; whatever goes wrong with it, the server does not count."""
        root = (self.settings.api_base or "").rstrip("/").removesuffix("/v1")
        key = self.settings.api_key.get_secret_value() if self.settings.api_key else ""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limit_s = min(ASKING_LIMIT_S, self.settings.timeout_s)

        def send() -> Any:
            answer = httpx.request(
                method, root + path, json=body, headers=headers, timeout=limit_s, verify=self._certificates()
            )
            answer.raise_for_status()
            return answer.json()

        try:
            found = self.within(limit_s, send)
        except Exception as error:  # a count is a help: without it the prompt is weighed in bytes
            raise NoCount from error
        if not isinstance(found, dict):
            raise NoCount
        return found


def in_bytes(text: str) -> int:
    """Tokens of a text at the careful rate; beyond ASCII a byte may be a token of its own.

    >>> in_bytes("x" * 18), in_bytes("é")
    (10, 2)
    """
    size, plain = len(text.encode()), len(text.encode("ascii", "ignore"))
    return math.ceil(plain / BYTES_PER_TOKEN) + size - plain
