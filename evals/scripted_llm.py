"""A scripted language model behind a real HTTP server that speaks the OpenAI chat protocol, for tests and evals.

A policy is a list of replies, given in order, or a function of the request's body. When a list is used up the server
answers 599, which no client retries into silence.
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
def scripted_llm(policy: Policy | Sequence[Reply]) -> Iterator[ScriptedLlm]:
    """Serve a policy on a free port of the loopback address until the block ends."""
    closing = threading.Event()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                llm.requests.append(body)
                reply = _next(policy, llm, body)
            try:
                self._send(reply)
            except OSError:
                return  # the client has gone, as it should after its time-out

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
                    body = _completion("never read")
                    self._head(200, len(body), {})
                    for byte in body:
                        if closing.wait(seconds):
                            return
                        self.wfile.write(bytes([byte]))
                case str(content):
                    self._answer(200, _completion(content), {})
                case _:
                    self._answer(200, _completion(json.dumps(reply)), {})

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


def _completion(content: str) -> bytes:
    """A chat completion of the OpenAI protocol."""
    message = {"role": "assistant", "content": content}
    answer = {
        "id": "scripted",
        "object": "chat.completion",
        "created": 0,
        "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": USAGE,
    }
    return json.dumps(answer).encode()
