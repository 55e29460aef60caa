"""A scripted language model behind a real HTTP server that speaks the OpenAI chat protocol, for tests and evals.

A policy is a list of replies, given in order, or a function of the request's body. When a list is used up the server
answers 599, which no client retries into silence. With a tokenizer it reports true usage, and counts for who asks as
llama.cpp or vLLM do; without, there is nothing but the chat path.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


@dataclass(frozen=True)
class Status:
    """An HTTP error."""

    code: int
    body: Mapping[str, Any] = field(default_factory=lambda: {"error": {"message": "scripted failure"}})
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Late:
    """A reply that waits until the server is closed or the seconds have passed."""

    seconds: float
    reply: "Reply"


@dataclass(frozen=True)
class Cut:
    """A connection closed in the middle of the body."""


@dataclass(frozen=True)
class Drip:
    """A body sent a byte at a time, so that no read ever times out."""

    seconds_a_byte: float


Tokens = Callable[[str], int]


@dataclass(frozen=True)
class Tokenizer:
    """How the server's model splits text, and whose way of counting it offers: ``llama.cpp``, ``vllm`` or none."""

    tokens: Tokens
    offers: str = ""
    context_tokens: int | None = None

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """Tokens of a chat, its template included."""
        return self.tokens(template(messages))


def template(messages: Sequence[Mapping[str, Any]]) -> str:
    """A chat as one text."""
    return "".join(f"<{one['role']}>{one['content']}</>" for one in messages) + "<assistant>"


Reply = str | Mapping[str, Any] | Status | Late | Cut | Drip
Policy = Callable[[Mapping[str, Any]], Reply]

OVERFLOW = Status(
    400,
    {
        "error": {
            "message": "This model's maximum context length is 2048 tokens.",
            "type": "invalid_request_error",
            "code": "context_length_exceeded",
        }
    },
)


@dataclass
class ScriptedLlm:
    """A running server: its address and every request it was sent."""

    url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    left: list[Reply] | None = None

    def prompts(self) -> list[str]:
        """The text of each request, all messages joined."""
        return ["\n".join(str(message["content"]) for message in body["messages"]) for body in self.requests]


@contextmanager
def scripted_llm(policy: Policy | Sequence[Reply], tokenizer: Tokenizer | None = None) -> Iterator[ScriptedLlm]:
    """Serve a policy on a free port of the loopback address until the block ends."""
    closing = threading.Event()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not self.path.endswith("/chat/completions"):
                self._counted(_count(tokenizer, self.path, body))
                return
            with lock:
                llm.requests.append(body)
                reply = _next(policy, llm, body)
            try:
                self._send(reply)
            except OSError:
                return  # the client has gone, as it should after its time-out

        def do_GET(self) -> None:
            self._counted(_count(tokenizer, self.path, {}))

        def _counted(self, found: Mapping[str, Any] | None) -> None:
            """What a server says beside the chat, or that it has nothing there."""
            code = 404 if found is None else 200
            self._answer(code, json.dumps(found or {"error": {"message": "not found"}}).encode(), {})

        def _send(self, reply: Reply) -> None:
            match reply:
                case Status(code, error, headers):
                    self._answer(code, json.dumps(error).encode(), headers)
                case Late(seconds, later):
                    closing.wait(seconds)
                    self._send(later)
                case Cut():
                    self._head(200, 4096, {})
                    self.wfile.write(b'{"id": "cut')
                case Drip(seconds):
                    body = _completion("never read", USAGE)
                    self._head(200, len(body), {})
                    for byte in body:
                        if closing.wait(seconds):
                            return
                        self.wfile.write(bytes([byte]))
                case str(content):
                    self._answer(200, _completion(content, self._usage(content)), {})
                case _:
                    content = json.dumps(reply)
                    self._answer(200, _completion(content, self._usage(content)), {})

        def _usage(self, content: str) -> Mapping[str, int]:
            if tokenizer is None:
                return USAGE
            prompt, completion = tokenizer.prompt(llm.requests[-1]["messages"]), tokenizer.tokens(content)
            return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

        def _answer(self, code: int, body: bytes, headers: Mapping[str, str]) -> None:
            self._head(code, len(body), headers)
            self.wfile.write(body)

        def _head(self, code: int, length: int, headers: Mapping[str, str]) -> None:
            self.close_connection = True
            self.send_response(code)
            for name, value in {"Content-Type": "application/json", "Content-Length": str(length), **headers}.items():
                self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    llm = ScriptedLlm(f"http://127.0.0.1:{server.server_address[1]}/v1")
    llm.left = None if callable(policy) else list(policy)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield llm
    finally:
        closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _next(policy: Policy | Sequence[Reply], llm: ScriptedLlm, body: Mapping[str, Any]) -> Reply:
    if callable(policy):
        return policy(body)
    return llm.left.pop(0) if llm.left else Status(599, {"error": {"message": "the script is empty"}})


def _count(tokenizer: Tokenizer | None, path: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
    """What lies beside the chat path; None where there is nothing."""
    match tokenizer, path:
        case Tokenizer(offers="llama.cpp"), "/apply-template":
            return {"prompt": template(body["messages"])}
        case Tokenizer(offers="llama.cpp"), "/tokenize":
            return {"tokens": list(range(tokenizer.tokens(str(body.get("content", "")))))}
        case Tokenizer(offers="llama.cpp"), "/props":
            return {"default_generation_settings": {"n_ctx": tokenizer.context_tokens}}
        case Tokenizer(offers="vllm"), "/tokenize":
            text = template(body["messages"]) if "messages" in body else str(body["prompt"])
            return {"count": tokenizer.tokens(text), "max_model_len": tokenizer.context_tokens, "tokens": []}
        case _:
            return None


def _completion(content: str, usage: Mapping[str, int]) -> bytes:
    """A chat completion of the OpenAI protocol."""
    message = {"role": "assistant", "content": content}
    answer = {
        "id": "scripted",
        "object": "chat.completion",
        "created": 0,
        "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": usage,
    }
    return json.dumps(answer).encode()
