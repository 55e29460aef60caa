"""A call leaves no connection behind, even at a server that would keep it."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from agent.llm.lm import Backbone
from agent.llm.session import open_session
from agent.llm.settings import LlmSettings

MESSAGE = {"role": "assistant", "content": '{"answer": "yes"}'}
ANSWER = {
    "id": "x", "object": "chat.completion", "created": 0, "model": "x",
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
}  # fmt: skip


def test_the_connection_ends_with_the_answer() -> None:
    ended: list[str] = []
    closed = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # keeps the connection until the client ends it

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            chat = self.path.endswith("/chat/completions")
            body = json.dumps(ANSWER if chat else {}).encode()
            self.send_response(200 if chat else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            if chat:
                self.wfile.flush()
                self.close_connection = True
                ended.append("by the client" if self.rfile.read(1) == b"" else "not at all")
                closed.set()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        session = open_session(
            LlmSettings(model="openai/own", api_base=f"http://127.0.0.1:{server.server_address[1]}/v1")
        )
        assert isinstance(session.backbone, Backbone)
        answer = session.backbone.ask("ask", session.program.asking, question='"why?"', context='"{}"')
        assert answer.answer.root == "yes"
        assert closed.wait(20), "the connection was left open"
        assert ended == ["by the client"]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
