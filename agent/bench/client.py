"""One streamed completion, with the time of every chunk and the tokens in it.

Times are of a monotonic clock, so a step of the wall clock moves nothing. Connections are not reused: an engine may
reset a kept one between two requests though it lives. No seed is sent: vLLM's CPU build dies of one.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import httpx

from agent.failures import EndpointFailed

Prompt = Sequence[int] | str
_DONE = "[DONE]"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to send, and what the server calls its model."""

    url: str  # without a trailing slash or /v1
    model: str
    timeout_s: float = 600.0
    token_ids: bool = True  # prompts as token ids; some servers take text alone
    counts_ids: bool = False  # the server returns the ids of each message's tokens when asked (vLLM)
    extra_body: Mapping[str, Any] = field(default_factory=dict)  # what this server wants beside the usual fields

    def path(self, name: str) -> str:
        """Address of a route."""
        return f"{self.url}{name}"


@dataclass(frozen=True, slots=True)
class Chunk:
    """One message of a stream: when it came (ms, monotonic) and how many tokens it held."""

    at_ms: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished request."""

    sent_ms: float
    chunks: tuple[Chunk, ...]
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    ids_counted: bool = False  # every message came with its tokens' ids

    @property
    def first_ms(self) -> float:
        """When the first token came."""
        return self.chunks[0].at_ms

    @property
    def last_ms(self) -> float:
        """When the last token came."""
        return self.chunks[-1].at_ms

    @property
    def ttft_ms(self) -> float:
        """From sending to the first token."""
        return self.first_ms - self.sent_ms

    @property
    def e2e_ms(self) -> float:
        """From sending to the last token."""
        return self.last_ms - self.sent_ms

    @property
    def tokens_per_chunk(self) -> float:
        """Mean tokens of a message; above 1 the gaps between messages are not gaps between tokens."""
        return self.output_tokens / len(self.chunks)

    @property
    def span_ms(self) -> float:
        """(last − first)/(n − 1): the mean time of a token after the first message's."""
        return (self.last_ms - self.first_ms) / max(1, self.output_tokens - self.chunks[0].tokens)


@asynccontextmanager
async def connect(endpoint: Endpoint) -> AsyncIterator[httpx.AsyncClient]:
    """A client for any number of streams at once."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    timeout = httpx.Timeout(endpoint.timeout_s, connect=10.0)
    async with httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False) as client:
        yield client


def now_ms() -> float:
    """The monotonic clock."""
    return perf_counter() * 1e3


def request_body(endpoint: Endpoint, prompt: Prompt, max_tokens: int) -> dict[str, Any]:
    """A request for exactly ``max_tokens`` tokens, whatever the model would say."""
    body: dict[str, Any] = {
        "model": endpoint.model,
        "prompt": prompt if isinstance(prompt, str) else list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return body | ({"return_token_ids": True} if endpoint.counts_ids else {}) | dict(endpoint.extra_body)


@dataclass(slots=True)
class _Stream:
    """What has come of one stream so far."""

    chunks: list[Chunk] = field(default_factory=list)
    usage: Mapping[str, Any] | None = None
    done: bool = False
    finish: str | None = None
    with_ids: int = 0


class Watch:
    """Told of every token of a wave; a wave that wants to act in the middle overrides :meth:`token`."""

    def token(self, index: int, total: int) -> None:
        """Request ``index`` has ``total`` tokens now."""


async def complete(
    client: httpx.AsyncClient,
    endpoint: Endpoint,
    prompt: Prompt,
    max_tokens: int,
    watch: Watch | None = None,
    index: int = 0,
) -> Completion:
    """Send one request and read its stream to the end.

    Raises EndpointFailed for an HTTP error, a stream that is cut, and one that holds no or too few tokens.
    """
    body = request_body(endpoint, prompt, max_tokens)
    stream = _Stream()
    sent = now_ms()
    try:
        async with client.stream("POST", endpoint.path("/v1/completions"), json=body) as response:
            if response.status_code != httpx.codes.OK:
                raise await _refused(response, endpoint)
            total = 0
            async for line in response.aiter_lines():
                if not line.startswith("data:"):
                    continue
                tokens = _take(stream, line[5:].strip(), endpoint)
                if tokens:
                    total += tokens
                    stream.chunks.append(Chunk(now_ms(), tokens))
                    if watch is not None:
                        watch.token(index, total)
    except httpx.TimeoutException:
        raise EndpointFailed(
            f"{endpoint.url}: no answer within {endpoint.timeout_s:g} s ({len(stream.chunks)} chunks so far); "
            "the engine hangs or is overloaded"
        ) from None
    except httpx.HTTPError as error:
        raise EndpointFailed(
            f"{endpoint.url}: the connection broke after {len(stream.chunks)} chunks ({_said(error)}): "
            "did the engine die? see its log"
        ) from None
    return _completion(stream, sent, max_tokens, endpoint)


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


async def _refused(response: httpx.Response, endpoint: Endpoint) -> EndpointFailed:
    text = (await response.aread()).decode(errors="replace")
    said = " ".join(text.split())[:200]
    return EndpointFailed(f"{endpoint.url}: HTTP {response.status_code}: {said or 'no reason given'}")


def _take(stream: _Stream, data: str, endpoint: Endpoint) -> int:
    """Read one event; the number of tokens it holds."""
    if data == _DONE:
        stream.done = True
        return 0
    try:
        event = json.loads(data)
    except json.JSONDecodeError:
        raise EndpointFailed(f"{endpoint.url}: an event of the stream is not JSON: {data[:100]!r}") from None
    if "error" in event:
        raise EndpointFailed(f"{endpoint.url}: error in the stream: {' '.join(str(event['error']).split())[:200]}")
    if event.get("usage"):
        stream.usage = event["usage"]
    choices = event.get("choices") or []
    if not choices:
        return 0
    choice = choices[0]
    stream.finish = choice.get("finish_reason") or stream.finish
    ids = choice.get("token_ids")
    if isinstance(ids, list):
        stream.with_ids += 1 if ids else 0
        return len(ids)
    # Without ids a message with text is a token; some servers add one last message that holds none.
    return 1 if choice.get("text") else 0


def _completion(stream: _Stream, sent: float, max_tokens: int, endpoint: Endpoint) -> Completion:
    if not stream.chunks:
        raise EndpointFailed(f"{endpoint.url}: a stream without a single token")
    counted = sum(chunk.tokens for chunk in stream.chunks)
    usage = stream.usage or {}
    output = int(usage.get("completion_tokens") or counted)
    if not stream.done and stream.finish is None:
        raise EndpointFailed(f"{endpoint.url}: the stream was cut after {counted} of {max_tokens} tokens")
    if output < max_tokens:
        raise EndpointFailed(
            f"{endpoint.url}: {output} tokens came of {max_tokens} asked for: the server does not honour ignore_eos"
        )
    chunks = tuple(stream.chunks)
    if counted != output:
        chunks = _spread(chunks, output)
    details = usage.get("prompt_tokens_details") or {}
    return Completion(
        sent,
        chunks,
        int(usage.get("prompt_tokens") or 0),
        output,
        int(details.get("cached_tokens") or 0),
        stream.with_ids == len(stream.chunks),
    )


def _spread(chunks: tuple[Chunk, ...], output: int) -> tuple[Chunk, ...]:
    """The server counts other tokens than messages showed: spread its count over the messages, the rest on the last."""
    share, left = divmod(output, len(chunks))
    if share == 0:
        return tuple(Chunk(chunk.at_ms, 1) for chunk in chunks[:output])
    return tuple(Chunk(c.at_ms, share + (1 if i >= len(chunks) - left else 0)) for i, c in enumerate(chunks))
