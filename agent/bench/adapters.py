"""Kept benchmark clients as programs: the command for a workload, and its result read by the importers."""

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from agent.bench.client import Endpoint
from agent.failures import DependencyFailed
from agent.launch.bench import benchmark
from predictor.anchors.import_formats import BenchRun, read_benchmark
from predictor.errors import BadInput
from predictor.types import Arrival, Workload

Command = Callable[[Endpoint, Workload, str, Path], tuple[str, ...]]
TAIL = 400


def vllm_command(endpoint: Endpoint, workload: Workload, tokenizer: str, folder: Path) -> tuple[str, ...]:
    """``vllm bench serve``: the launch artefact's command, against this endpoint."""
    argv = list(benchmark("server", 0, tokenizer, workload))
    argv[argv.index("--base-url") + 1] = endpoint.url
    argv[argv.index("--result-filename") + 1] = str(folder / "bench.json")
    if endpoint.model != tokenizer:
        argv += ["--served-model-name", endpoint.model]
    return tuple(argv)


def aiperf_command(endpoint: Endpoint, workload: Workload, tokenizer: str, folder: Path) -> tuple[str, ...]:
    """``aiperf profile`` (0.13): a closed loop with synthetic prompts of the workload's mean lengths."""
    if workload.arrival is not Arrival.CLOSED:
        raise BadInput(
            f"arrival {workload.arrival}: the aiperf adapter sends closed loops; use client vllm or built-in"
        )
    share = (1.0 + workload.length_range_frac) / 2.0
    # Lengths are normal there, uniform in a workload: the deviation of a uniform range of this width.
    deviation = (1.0 - workload.length_range_frac) / 12.0**0.5
    argv = ["aiperf", "profile", "--model", endpoint.model, "--url", endpoint.url, "--tokenizer", tokenizer]
    argv += ["--endpoint-type", "completions", "--streaming", "--concurrency", str(workload.concurrency)]
    argv += ["--request-count", str(workload.concurrency * workload.requests_per_client)]
    argv += ["--isl", str(round(workload.isl_tokens * share)), "--osl", str(round(workload.osl_tokens * share))]
    if deviation:
        argv += ["--isl-stddev", str(round(workload.isl_tokens * deviation))]
        argv += ["--osl-stddev", str(round(workload.osl_tokens * deviation))]
    # The server's counts: an answer is not as many tokens again when it is tokenized anew.
    argv += ["--use-server-token-count", "--extra-inputs", "ignore_eos:true", "--random-seed", str(workload.seed)]
    return (*argv, "--output-artifact-dir", str(folder))


def guidellm_command(endpoint: Endpoint, workload: Workload, tokenizer: str, folder: Path) -> tuple[str, ...]:
    """``guidellm run`` (0.8): a closed loop or open arrivals over its own synthetic text; answers of the length asked.

    It draws lengths from a normal distribution cut at both ends: here at those of the workload's range.
    """
    low, share = workload.length_range_frac, (1.0 + workload.length_range_frac) / 2.0
    data = "kind=synthetic_text"
    for name, tokens in (("prompt", workload.isl_tokens), ("output", workload.osl_tokens)):
        data += f",{name}_tokens={round(tokens * share)}"
        if low < 1.0:
            data += f",{name}_tokens_stdev={max(1, round(tokens * (1.0 - low) / 12.0**0.5))}"
            data += f",{name}_tokens_min={max(1, round(tokens * low))},{name}_tokens_max={tokens}"
    profiles = {
        Arrival.CLOSED: f"kind=concurrent,streams={workload.concurrency}",
        Arrival.POISSON: f"kind=poisson,rate={workload.request_rate_per_s}",
        Arrival.CONSTANT: f"kind=constant,rate={workload.request_rate_per_s}",
    }
    if workload.arrival not in profiles:
        raise BadInput(f"arrival {workload.arrival}: the guidellm adapter sends {', '.join(profiles)}; use client vllm")
    argv = ["guidellm", "run", "--disable-console"]
    argv += [
        "--backend",
        f"kind=openai_http,target={endpoint.url},model={endpoint.model},request_format=/v1/completions",
    ]
    argv += ["--profile", profiles[workload.arrival], "--data", data]
    argv += ["--constraint", f"kind=max_requests,count={workload.concurrency * workload.requests_per_client}"]
    argv += ["--tokenizer", f"kind=huggingface_auto,model={tokenizer}", "--seed", f"kind=static,value={workload.seed}"]
    return (*argv, "--output", f"kind=json,path={folder / 'benchmarks.json'}")


CLIENTS: dict[str, tuple[Command, str]] = {
    "vllm": (vllm_command, "bench.json"),
    "aiperf": (aiperf_command, "profile_export_aiperf.json"),
    "guidellm": (guidellm_command, "benchmarks.json"),
}


def run_client(
    name: str,
    endpoint: Endpoint,
    workload: Workload,
    tokenizer: str,
    *,
    program: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 7200.0,
) -> BenchRun:
    """Run a kept client and read what it wrote; ``program`` and ``env`` where it lies in an environment of its own.

    Raises DependencyFailed with its last words.
    """
    command, result = CLIENTS[name]
    with tempfile.TemporaryDirectory(prefix="inferasim-bench-") as place:
        folder = Path(place)
        usual, *arguments = command(endpoint, workload, tokenizer, folder)
        argv = (program or usual, *arguments)
        if shutil.which(argv[0]) is None:
            raise DependencyFailed(f"{argv[0]}: no such program; install it, or use --client built-in")
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=folder, env=env
            )
        except subprocess.TimeoutExpired:
            raise DependencyFailed(f"{argv[0]} did not finish within {timeout_s:.0f} s") from None
        found = next(iter(sorted(folder.rglob(result))), None)
        if done.returncode != 0 or found is None:
            said = " ".join((done.stderr or done.stdout).split())[-TAIL:]
            raise DependencyFailed(f"{' '.join(argv[:3])} ended with code {done.returncode}: {said}")
        parsed = read_benchmark(found.read_text(encoding="utf-8"), found.name)
    if len(parsed.runs) != 1:
        raise DependencyFailed(f"{argv[0]} wrote {len(parsed.runs)} runs where one was asked for")
    return parsed.runs[0]
