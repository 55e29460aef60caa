"""The benchmark that verifies a prediction: the workload of the prediction, sent by ``vllm bench serve``."""

from agent.launch.types import host_of
from predictor.types import Arrival, Workload

PERCENTILES = "50,90,99"


def benchmark(entry: str, port: int, checkpoint: str, workload: Workload) -> tuple[str, ...]:
    """The client's command against the process that clients talk to; works with all four engines' HTTP servers.

    The client draws lengths from ``[n·(1−r), n·(1+r)]``, a prediction from ``[f·n, n]``: so n becomes its middle,
    ``n·(1+f)/2``, and ``r = (1−f)/(1+f)``.
    """
    spread = (1.0 - workload.length_range_frac) / (1.0 + workload.length_range_frac)
    argv = ["vllm", "bench", "serve", "--backend", "openai", "--base-url", f"http://{host_of(entry)}:{port}"]
    argv += ["--model", checkpoint, "--dataset-name", "random"]
    argv += ["--random-input-len", str(_middle(workload.isl_tokens, workload.length_range_frac))]
    argv += ["--random-output-len", str(_middle(workload.osl_tokens, workload.length_range_frac))]
    argv += ["--random-range-ratio", f"{spread:.6g}"] if spread else []
    argv += ["--num-prompts", str(workload.requests_per_client * workload.concurrency)]
    argv += ["--max-concurrency", str(workload.concurrency)] if workload.arrival is Arrival.CLOSED else []
    argv += _arrivals(workload)
    argv += ["--ignore-eos", "--seed", str(workload.seed)]
    argv += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", PERCENTILES]
    return (*argv, "--save-result", "--result-filename", "bench.json")


def _middle(tokens: int, frac: float) -> int:
    return max(1, round(tokens * (1.0 + frac) / 2.0))


def _arrivals(workload: Workload) -> list[str]:
    """Gamma arrivals: burstiness 1 is Poisson; a large one is a constant gap."""
    if workload.arrival not in (Arrival.POISSON, Arrival.CONSTANT, Arrival.GAMMA) or not workload.request_rate_per_s:
        return []
    shapes = {Arrival.CONSTANT: 1e6, Arrival.GAMMA: workload.burstiness}  # 1e6: gaps within 0.1% of each other
    argv = ["--request-rate", f"{workload.request_rate_per_s:g}"]
    shape = shapes.get(workload.arrival)
    return argv + (["--burstiness", f"{shape:g}"] if shape else [])
