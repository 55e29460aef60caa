"""A real HTTP server that speaks the streaming completions API with known step times, and fails on request.

One engine thread runs lockstep iterations: waiting prompts are prefilled in one step, then every running request gets a
token after ``step_ms(batch)``. Times are real, so they are never shorter than asked. Runs in a thread, or as a process:
``python fake_engine.py --port N``.
"""

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Script:
    """How the engine behaves."""

    step_ms: Callable[[int], float] = lambda batch: 1.0 + 0.25 * batch
    prefill_ms: Callable[[int], float] = lambda tokens: 2.0 + 0.8 * tokens
    prefix_cache: bool = False
    says_prefix_cache: str | None = "False"
    tokens_per_chunk: int = 1
    returns_ids: bool = True
    max_running: int = 64
    version: str = "0.33.0"
    status_after: int | None = None  # HTTP 500 from this request on
    truncate_after: int | None = None  # requests from this one on lose their connection half way
    error_event_after: int | None = None
    die_after: int | None = None  # the process exits at this request
    wrong_prompt_count: int = 0
    counters: bool = True
    model: str = "tiny"


@dataclass
class _Request:
    prompt: tuple[int, ...]
    tokens: int
    out: "queue.Queue[int | None]" = field(default_factory=queue.Queue)
    made: int = 0


class FakeEngine:
    """The server, its engine thread, and what it was asked."""

    def __init__(self, script: Script | None = None, port: int = 0) -> None:
        self.script = script or Script()
        self.bodies: list[dict[str, Any]] = []
        self._waiting: queue.Queue[_Request] = queue.Queue()
        self._seen: set[tuple[int, ...]] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.token_seconds = 0.0
        self.token_count = 0
        self.hits = 0
        handler = type("Handler", (_Handler,), {"engine": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self._threads = [
            threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True),
            threading.Thread(target=self._run, daemon=True),
        ]

    def __enter__(self) -> "FakeEngine":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self.server.shutdown()
        self.server.server_close()
        for thread in self._threads:
            thread.join(5.0)

    def submit(self, request: _Request) -> None:
        self._waiting.put(request)

    def _run(self) -> None:
        running: list[_Request] = []
        while not self._stop.is_set():
            joined: list[_Request] = []
            while len(running) + len(joined) < self.script.max_running:
                try:
                    joined.append(self._waiting.get(timeout=0.0 if running or joined else 0.01))
                except queue.Empty:
                    break
            if joined:
                _sleep(self.script.prefill_ms(sum(self._uncached(one.prompt) for one in joined)))
                for one in joined:
                    self._give(one, 1)
                running += joined
            elif running:
                begun = time.perf_counter()
                _sleep(self.script.step_ms(len(running)))
                for one in running:
                    self._give(one, 1)
                    self.token_seconds += time.perf_counter() - begun
                    self.token_count += 1
            running = [one for one in running if one.made < one.tokens]

    def _uncached(self, prompt: tuple[int, ...]) -> int:
        if self.script.prefix_cache and prompt in self._seen:
            self.hits += len(prompt)
            return 1
        self._seen.add(prompt)
        return len(prompt)

    def _give(self, request: _Request, tokens: int) -> None:
        request.made += tokens
        request.out.put(tokens)
        if request.made >= request.tokens:
            request.out.put(None)

    def metrics(self) -> str:
        lines = []
        if self.script.counters:
            lines += [
                "# TYPE vllm:inter_token_latency_seconds histogram",
                f'vllm:inter_token_latency_seconds_sum{{engine="0"}} {self.token_seconds}',
                f'vllm:inter_token_latency_seconds_count{{engine="0"}} {self.token_count}',
                f'vllm:prefix_cache_hits_total{{engine="0"}} {float(self.hits)}',
            ]
        if self.script.says_prefix_cache is not None:
            lines.append(
                f'vllm:cache_config_info{{block_size="16",enable_prefix_caching="{self.script.says_prefix_cache}",'
                'kv_cache_size_tokens="131072"} 1.0'
            )
        return "\n".join(lines) + "\n"


def _sleep(duration_ms: float) -> None:
    end = time.perf_counter() + duration_ms / 1e3
    while (left := end - time.perf_counter()) > 0.0:
        time.sleep(left)


class _Handler(BaseHTTPRequestHandler):
    engine: FakeEngine
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        script = self.engine.script
        answers: dict[str, tuple[str, str]] = {
            "/health": ("text/plain", ""),
            "/v1/models": (
                "application/json",
                json.dumps({"data": [{"id": script.model, "max_model_len": 4096}]}),
            ),
            "/version": ("application/json", json.dumps({"version": script.version})),
            "/metrics": ("text/plain", self.engine.metrics()),
        }
        kind, text = answers.get(self.path, ("text/plain", "not found"))
        self._answer(200 if self.path in answers else 404, kind, text)

    def _answer(self, status: int, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self) -> None:
        engine, script = self.engine, self.engine.script
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with engine._lock:
            engine.bodies.append(body)
            number = len(engine.bodies)
        if script.die_after is not None and number >= script.die_after:
            sys.stderr.write("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
            sys.stderr.flush()
            os._exit(1)
        if script.status_after is not None and number >= script.status_after:
            self._answer(500, "application/json", json.dumps({"error": {"message": "engine is not healthy"}}))
            return
        prompt = body["prompt"]
        ids = tuple(prompt.split()) if isinstance(prompt, str) else tuple(prompt)
        request = _Request(ids, int(body["max_tokens"]))
        engine.submit(request)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        with suppress(BrokenPipeError, ConnectionResetError):
            self._stream(request, body, number)

    def _stream(self, request: _Request, body: dict[str, Any], number: int) -> None:
        script = self.engine.script
        sent = held = 0
        while True:
            got = request.out.get()
            if got is None:
                if held:
                    self._event(held, body, "length" if sent + held >= request.tokens else None)
                break
            held += got
            if held < script.tokens_per_chunk:
                continue
            sent += held
            self._event(held, body, "length" if sent >= request.tokens else None)
            held = 0
            if script.truncate_after is not None and number >= script.truncate_after and sent >= request.tokens // 2:
                self.connection.close()
                return
            if script.error_event_after is not None and number >= script.error_event_after:
                self._data({"error": {"message": "engine core died"}})
                return
        count = len(request.prompt) + script.wrong_prompt_count
        usage = {"prompt_tokens": count, "completion_tokens": request.tokens}
        self._data({"id": "cmpl", "object": "text_completion", "choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")
        self.wfile.flush()

    def _event(self, tokens: int, body: dict[str, Any], finish: str | None) -> None:
        choice: dict[str, Any] = {"index": 0, "text": "x" * tokens, "finish_reason": finish}
        if self.engine.script.returns_ids and body.get("return_token_ids"):
            choice["token_ids"] = list(range(tokens))
        self._data({"id": "cmpl", "object": "text_completion", "choices": [choice]})

    def _data(self, value: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


# Last words of engines that die at their start.
DEATHS = {
    "model": "ValueError: unsupported model architecture",
    "memory": "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
    "device": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "port": "OSError: [Errno 98] error while attempting to bind on address: address already in use",
    "killed": "INFO loading shards: 40%",
}


def main() -> None:
    """Run as an engine process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--start-delay", type=float, default=0.0)
    parser.add_argument("--die-at-start", choices=sorted(DEATHS))
    parser.add_argument("--die-after", type=int)
    parser.add_argument("--says", default="INFO GPU KV cache size: 131,072 tokens")
    parser.add_argument("--child", action="store_true", help="start a child that ignores termination, as workers may")
    arguments = parser.parse_args()
    _say("INFO loading weights")
    if arguments.die_at_start:
        _say(DEATHS[arguments.die_at_start])
        if arguments.die_at_start == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise SystemExit(3)
    if arguments.child:
        code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", code])
    time.sleep(arguments.start_delay)
    _say(arguments.says)
    with FakeEngine(Script(die_after=arguments.die_after), arguments.port):
        threading.Event().wait()


if __name__ == "__main__":
    main()
