"""Kept clients: the command says what the workload says, and what they write is read; failures are one line."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from agent.bench.adapters import aiperf_command, guidellm_command, run_client, vllm_command
from agent.bench.client import Endpoint
from agent.bench.load import FAILED_FRAC, run_benchmark
from agent.failures import DependencyFailed, EndpointFailed
from predictor.errors import BadInput
from predictor.types import Arrival, Workload
from tests.agent.fake_engine import FakeEngine, Script

WHERE = Endpoint("http://127.0.0.1:8000", "served-name")
WORKLOAD = Workload(1024, 256, 8, length_range_frac=0.8)
RESULT = {
    "backend": "openai",
    "model_id": "m",
    "num_prompts": 80,
    "request_rate": "inf",
    "max_concurrency": 8,
    "duration": 30.0,
    "completed": 80,
    "failed": 0,
    "total_input_tokens": 73728,
    "total_output_tokens": 18432,
    "request_throughput": 80 / 30.0,
    "output_throughput": 614.4,
    "total_token_throughput": 3072.0,
    "mean_ttft_ms": 100.0,
    "mean_tpot_ms": 12.0,
    "median_itl_ms": 11.0,
}


def after(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_vllm_bench_sends_the_workload_to_this_endpoint(tmp_path: Path) -> None:
    argv = vllm_command(WHERE, WORKLOAD, "tokenizer/dir", tmp_path)
    assert argv[:3] == ("vllm", "bench", "serve")
    assert after(argv, "--base-url") == WHERE.url
    assert after(argv, "--model") == "tokenizer/dir"
    assert after(argv, "--served-model-name") == "served-name"
    assert after(argv, "--max-concurrency") == "8"
    assert after(argv, "--num-prompts") == "80"
    # It draws on n(1 ± r): 921.6 ± 1/9 is 819 to 1024.
    assert after(argv, "--random-input-len") == "922"
    assert float(after(argv, "--random-range-ratio")) == pytest.approx(1 / 9, rel=1e-4)
    assert after(argv, "--result-filename") == str(tmp_path / "bench.json")


def test_aiperf_sends_closed_loops_of_the_mean_lengths(tmp_path: Path) -> None:
    argv = aiperf_command(WHERE, WORKLOAD, "tokenizer/dir", tmp_path)
    assert argv[:2] == ("aiperf", "profile")
    assert after(argv, "--concurrency") == "8"
    assert after(argv, "--isl") == "922"
    assert after(argv, "--osl") == "230"
    assert after(argv, "--extra-inputs") == "ignore_eos:true"
    with pytest.raises(BadInput, match="the aiperf adapter sends closed loops"):
        aiperf_command(WHERE, Workload(8, 8, arrival=Arrival.POISSON, request_rate_per_s=1.0), "t", tmp_path)


def test_guidellm_sends_what_it_can_say_of_a_workload(tmp_path: Path) -> None:
    argv = guidellm_command(WHERE, WORKLOAD, "tokenizer/dir", tmp_path)
    assert argv[:2] == ("guidellm", "run")
    assert after(argv, "--backend").startswith("kind=openai_http,target=http://127.0.0.1:8000,model=served-name,")
    assert after(argv, "--profile") == "kind=concurrent,streams=8"
    assert after(argv, "--constraint") == "kind=max_requests,count=80"
    data = dict(pair.split("=") for pair in after(argv, "--data").split(","))
    assert data["prompt_tokens"] == "922"
    assert (data["prompt_tokens_min"], data["prompt_tokens_max"]) == ("819", "1024")
    assert (data["output_tokens_min"], data["output_tokens_max"]) == ("205", "256")
    assert after(argv, "--output") == f"kind=json,path={tmp_path / 'benchmarks.json'}"
    fixed = after(guidellm_command(WHERE, Workload(64, 16, 2), "t", tmp_path), "--data")
    assert fixed == "kind=synthetic_text,prompt_tokens=64,output_tokens=16"
    open_loop = Workload(64, 16, arrival=Arrival.POISSON, request_rate_per_s=2.0)
    assert after(guidellm_command(WHERE, open_loop, "t", tmp_path), "--profile") == "kind=poisson,rate=2.0"
    with pytest.raises(BadInput, match="the guidellm adapter sends closed, poisson, constant"):
        guidellm_command(WHERE, Workload(8, 8, arrival=Arrival.GAMMA, request_rate_per_s=1.0), "t", tmp_path)


def program(folder: Path, body: str) -> str:
    path = folder / "client"
    path.write_text(f"#!{sys.executable}\nimport json, os, sys\nargv = sys.argv\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_what_the_client_wrote_is_read(tmp_path: Path) -> None:
    body = f"open(argv[argv.index('--result-filename') + 1], 'w').write({json.dumps(json.dumps(RESULT))})"
    run = run_client("vllm", WHERE, WORKLOAD, "t", program=program(tmp_path, body), env=dict(os.environ))
    assert run.tpot.mean == 12.0
    assert run.tool == "vllm bench serve"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.stderr.write('ValueError: no such model'); sys.exit(2)", "ended with code 2: ValueError: no such model"),
        ("pass", "ended with code 0"),
        ("open(argv[argv.index('--result-filename') + 1], 'w').write('{\"completed\": 1')", "ends in the middle"),
    ],
)
def test_a_client_that_fails_is_one_line(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises((DependencyFailed, BadInput), match=said) as error:
        run_client("vllm", WHERE, WORKLOAD, "t", program=program(tmp_path, body))
    assert "\n" not in str(error.value)


def test_a_client_that_is_not_installed_is_said() -> None:
    with pytest.raises(DependencyFailed, match="no-such-client: no such program"):
        run_client("vllm", WHERE, WORKLOAD, "t", program="no-such-client")


# The small client


def test_open_arrivals_are_sent_and_summarised() -> None:
    workload = Workload(16, 8, 4, arrival=Arrival.POISSON, request_rate_per_s=50.0, requests_per_client=2)
    with FakeEngine() as engine:
        run = run_benchmark(Endpoint(engine.url, "tiny", 20.0, counts_ids=True), workload, 1000)
    assert run.requests == 8
    assert run.concurrency is None
    assert run.request_rate_per_s == 50.0
    assert run.ttft.mean is not None
    assert run.itl.p50 is not None


def test_a_failing_endpoint_ends_the_benchmark() -> None:
    workload = Workload(16, 8, 2, requests_per_client=20)
    with FakeEngine(Script(status_after=5)) as engine, pytest.raises(EndpointFailed, match=r"of .* requests failed"):
        run_benchmark(Endpoint(engine.url, "tiny", 20.0), workload, 1000)
    assert 5 - 1 <= len(engine.bodies) <= 5 + 40 * FAILED_FRAC + 4


def test_no_more_requests_than_clients_are_in_flight() -> None:
    workload = Workload(16, 12, 3, requests_per_client=3)
    most = 0

    class Counting(FakeEngine):
        def submit(self, request: object) -> None:
            nonlocal most
            waiting = len(self.bodies) - self.finished
            most = max(most, waiting)
            super().submit(request)  # type: ignore[arg-type]

        finished = 0

        def _give(self, request: object, tokens: int) -> None:
            super()._give(request, tokens)  # type: ignore[arg-type]
            if request.made >= request.tokens:  # type: ignore[attr-defined]
                self.finished += 1

    with Counting() as engine:
        run = run_benchmark(Endpoint(engine.url, "tiny", 20.0), workload, 1000)
    assert run.requests == 9
    assert most <= 3
