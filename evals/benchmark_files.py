"""Benchmark files as the tools write them, from a simulated run: what importers are tried on.

A simulated run gives every figure a client would have recorded; each writer puts those figures under the names and in
the units of one tool, with as much or as little about the deployment as that tool records. ``noise`` is relative and
drawn anew for every figure, as if each statistic had been measured apart.
"""

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from predictor.des.metrics import Samples, SimulationResult

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Load:
    """What a client was told to send."""

    clients: int
    isl_tokens: int
    osl_tokens: int
    length_range_frac: float
    model_id: str


class Noise:
    """Independent relative errors."""

    def __init__(self, share: float, seed: int) -> None:
        self._share = share
        self._rng = np.random.default_rng(seed)

    def __call__(self, value: float) -> float:
        """The value with an error; the same call order gives the same errors."""
        return float(value * (1.0 + self._share * self._rng.standard_normal()))


def _statistics(samples: Samples, noise: Noise) -> dict[str, float]:
    """Mean, median, p90, p99: one common error, so that percentiles still rise."""
    factor = noise(1.0)
    return {
        "mean": samples.mean * factor,
        "median": samples.p50 * factor,
        "p90": samples.p90 * factor,
        "p99": samples.p99 * factor,
    }


@dataclass(frozen=True, slots=True)
class Figures:
    """A run as a client summarises it; latencies in ms, by statistic."""

    ttft: dict[str, float]
    tpot: dict[str, float]
    itl: dict[str, float]
    e2e: dict[str, float]
    duration_s: float
    requests: int
    prompt_tokens: int
    output_tokens: int

    @property
    def requests_per_s(self) -> float:
        """Over the whole run."""
        return self.requests / self.duration_s

    @property
    def output_tok_s(self) -> float:
        """Over the whole run."""
        return self.output_tokens / self.duration_s

    @property
    def total_tok_s(self) -> float:
        """Prompt and output tokens over the whole run."""
        return (self.output_tokens + self.prompt_tokens) / self.duration_s


def figures(result: SimulationResult, noise: Noise) -> Figures:
    """Summarise a simulated run, with noise."""
    return Figures(
        ttft=_statistics(result.ttft_ms, noise),
        tpot=_statistics(result.tpot_ms, noise),
        itl=_statistics(result.itl_ms, noise),
        e2e=_statistics(result.e2e_ms, noise),
        duration_s=noise(result.duration_ms) / 1e3,
        requests=result.completed,
        prompt_tokens=int(result.totals.prompt_tokens),
        output_tokens=int(result.totals.output_tokens),
    )


def vllm(run: Figures, load: Load, details: SimulationResult | None = None) -> str:
    """``vllm bench serve --save-result``; with ``details`` the arrays of ``--save-detailed``."""
    row: Row = {
        "date": "20261130-120000",
        "endpoint_type": "openai",
        "backend": "openai",
        "label": "openai",
        "model_id": load.model_id,
        "tokenizer_id": load.model_id,
        "num_prompts": run.requests,
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": load.clients,
        "duration": run.duration_s,
        "completed": run.requests,
        "failed": 0,
        "total_input_tokens": run.prompt_tokens,
        "total_output_tokens": run.output_tokens,
        "request_throughput": run.requests_per_s,
        "request_goodput": None,
        "output_throughput": run.output_tok_s,
        "total_token_throughput": run.total_tok_s,
        "max_output_tokens_per_s": run.output_tok_s * 1.1,
        "max_concurrent_requests": load.clients,
        **_named(run, {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}, "_ms"),
    }
    if details is not None:
        requests = details.requests
        outputs = [int(n) for n in requests["output_tokens"]]
        row |= {
            "input_lens": [int(n) for n in requests["prompt_tokens"]],
            "output_lens": outputs,
            "ttfts": [float(t) / 1e3 for t in requests["ttft_ms"]],
            "itls": [[float(tpot) / 1e3] * (n - 1) for tpot, n in zip(requests["tpot_ms"], outputs, strict=True)],
            "errors": ["" for _ in outputs],
        }
    return json.dumps(row)


def atom(run: Figures, load: Load) -> str:
    """ATOM's ``benchmark_serving``."""
    row = json.loads(vllm(run, load))
    for name in ("failed", "label", "endpoint_type", "max_output_tokens_per_s", "max_concurrent_requests"):
        row.pop(name)
    return json.dumps(
        row | {"best_of": 1, "concurrency": load.clients * 0.95, "accept_length": None, "acceptance_rate": None}
    )


def sglang(run: Figures, load: Load, server: Mapping[str, Any] | None) -> str:
    """One line of SGLang's ``bench_serving``; ``server`` is what its server answers about itself."""
    return json.dumps(
        {
            "tag": None,
            "backend": "sglang-oai",
            "dataset_name": "random",
            "request_rate": "inf",
            "max_concurrency": load.clients,
            "sharegpt_output_len": None,
            "random_input_len": load.isl_tokens,
            "random_output_len": load.osl_tokens,
            "random_range_ratio": load.length_range_frac,
            "server_info": server,
            "duration": run.duration_s,
            "completed": run.requests,
            "total_input_tokens": run.prompt_tokens,
            "total_output_tokens": run.output_tokens,
            "total_output_tokens_retokenized": run.output_tokens,
            "request_throughput": run.requests_per_s,
            "input_throughput": run.prompt_tokens / run.duration_s,
            "output_throughput": run.output_tok_s,
            "total_throughput": run.total_tok_s,
            "concurrency": load.clients * 0.95,
            "accept_length": None,
            **_named(run, {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2e_latency"}, "_ms"),
        }
    )


def aiperf_summary(run: Figures, load: Load) -> str:
    """AIPerf's ``profile_export_aiperf.json``."""

    def metric(statistics: Mapping[str, float], unit: str) -> Row:
        names = {"mean": "avg", "median": "p50", "p90": "p90", "p99": "p99"}
        return {"unit": unit, **{names[name]: value for name, value in statistics.items()}}

    def scalar(value: float, unit: str) -> Row:
        return {"unit": unit, "avg": value}

    total_tok_s = run.output_tok_s * (1.0 + run.prompt_tokens / run.output_tokens)
    lengths = {"avg": run.prompt_tokens / run.requests, "max": load.isl_tokens}
    lengths["min"] = int(load.isl_tokens * load.length_range_frac)
    return json.dumps(
        {
            "schema_version": "1.4",
            "aiperf_version": "0.13.0",
            "input_config": {
                "models": {"items": [{"name": load.model_id}]},
                "phases": [{"name": "profiling", "type": "concurrency", "concurrency": load.clients}],
            },
            "was_cancelled": False,
            "request_count": scalar(run.requests, "requests"),
            "request_throughput": scalar(run.requests_per_s, "requests/sec"),
            "output_token_throughput": scalar(run.output_tok_s, "tokens/sec"),
            "total_token_throughput": scalar(total_tok_s, "tokens/sec"),
            "total_output_tokens": scalar(run.output_tokens, "tokens"),
            "total_isl": scalar(run.prompt_tokens, "tokens"),
            "benchmark_duration": scalar(run.duration_s, "sec"),
            "time_to_first_token": metric(run.ttft, "ms"),
            "inter_token_latency": metric(run.tpot, "ms"),
            "request_latency": metric(run.e2e, "ms"),
            "input_sequence_length": {"unit": "tokens", **lengths},
            "output_sequence_length": scalar(run.output_tokens / run.requests, "tokens"),
        }
    )


def aiperf_records(load: Load, result: SimulationResult, noise: Noise, host_ms: float) -> str:
    """AIPerf's ``profile_export.jsonl``: one line a request, a warm-up request first.

    The simulator lets a client send again when the GPU is done, so host time is taken off the time stamps.
    """
    requests = result.requests
    factors = {name: noise(1.0) for name in ("ttft", "tpot")}
    lines = [_record(0, 0.0, 0.0, 64, 8, 500.0, 900.0, "warmup")]
    for i in range(result.completed):
        output = int(requests["output_tokens"][i])
        ttft = float(requests["ttft_ms"][i]) * factors["ttft"]
        e2e = ttft + (output - 1) * float(requests["tpot_ms"][i]) * factors["tpot"]
        start = float(requests["arrival_ms"][i])
        end = start + float(requests["e2e_ms"][i]) - host_ms - 1e-3
        lines.append(_record(i + 1, start, end, int(requests["prompt_tokens"][i]), output, ttft, e2e, "profiling"))
    return "\n".join(lines) + "\n"


def _record(
    number: int, start_ms: float, end_ms: float, prompt: int, output: int, ttft: float, e2e: float, phase: str
) -> str:
    metrics = {
        "input_sequence_length": {"value": prompt, "unit": "tokens"},
        "output_sequence_length": {"value": output, "unit": "tokens"},
        "time_to_first_token": {"value": ttft, "unit": "ms"},
        "request_latency": {"value": e2e, "unit": "ms"},
        "inter_token_latency": {"value": (e2e - ttft) / max(1, output - 1), "unit": "ms"},
    }
    metadata = {
        "session_num": number,
        "benchmark_phase": phase,
        "request_start_ns": int(1e18 + start_ms * 1e6),
        "request_end_ns": int(1e18 + max(end_ms, start_ms + 1.0) * 1e6),
    }
    return json.dumps({"metadata": metadata, "metrics": metrics, "error": None})


def inferencex(run: Figures, load: Load, configuration: Mapping[str, Any]) -> str:
    """InferenceX ``agg_*.json``: latencies in seconds."""
    row: Row = {
        **configuration,
        "conc": load.clients,
        "model": load.model_id,
        "isl": load.isl_tokens,
        "osl": load.osl_tokens,
        "tput_per_gpu": run.total_tok_s / configuration["tp"],
        "output_tput_per_gpu": run.output_tok_s / configuration["tp"],
    }
    in_ms = _named(run, {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}, "")
    row |= {name: value / 1e3 for name, value in in_ms.items()}
    row |= {name.replace("tpot", "intvty"): 1e3 / value for name, value in in_ms.items() if "tpot" in name}
    return json.dumps(row)


def guidellm(runs: list[tuple[Figures, Load]]) -> str:
    """GuideLLM's report with one benchmark a load."""

    def summary(statistics: Mapping[str, float], factor: float = 1.0) -> Row:
        scaled = {name: value * factor for name, value in statistics.items()}
        return {
            "successful": {
                "mean": scaled["mean"],
                "median": scaled["median"],
                "percentiles": {"p50": scaled["median"], "p90": scaled["p90"], "p99": scaled["p99"]},
            }
        }

    def benchmark(run: Figures, load: Load) -> Row:
        low = int(load.isl_tokens * load.length_range_frac)
        counts = {"mean": run.prompt_tokens / run.requests, "min": low, "max": load.isl_tokens}
        return {
            "config": {
                "strategy": {"type_": "concurrent", "streams": load.clients},
                "backend": {"model": load.model_id},
            },
            "duration": run.duration_s,
            "metrics": {
                "request_totals": {"successful": run.requests, "incomplete": 0, "errored": 0, "total": run.requests},
                "requests_per_second": {"successful": {"mean": run.requests_per_s}},
                "output_tokens_per_second": {"successful": {"mean": run.output_tok_s}},
                "request_latency": summary(run.e2e, 1e-3),
                "time_to_first_token_ms": summary(run.ttft),
                "inter_token_latency_ms": summary(run.tpot),
                "prompt_token_count": {"successful": counts},
                "output_token_count": {"successful": {"mean": run.output_tokens / run.requests}},
            },
        }

    return json.dumps(
        {"metadata": {"version": 2, "guidellm_version": "0.8.1"}, "benchmarks": [benchmark(*one) for one in runs]}
    )


def plain_csv(runs: list[tuple[Figures, Load]]) -> str:
    """A table by hand: mean and median TTFT and TPOT a load."""
    names = ("concurrency", "requests", "isl", "osl", "length_range", "mean_ttft_ms", "mean_tpot_ms", "duration_s")
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(names)
    for run, load in runs:
        writer.writerow(
            [
                load.clients,
                run.requests,
                load.isl_tokens,
                load.osl_tokens,
                load.length_range_frac,
                run.ttft["mean"],
                run.tpot["mean"],
                run.duration_s,
            ]
        )
    return text.getvalue()


def one_batch(steps: list[tuple[int, int, int, float, float]], noise: Noise) -> str:
    """SGLang's ``bench_one_batch``: (batch, prompt, output, prefill ms, decode ms) a line."""
    lines = [
        json.dumps(
            {
                "run_name": "default",
                "batch_size": batch,
                "input_len": prompt,
                "output_len": output,
                "prefill_latency": noise(prefill) / 1e3,
                "prefill_throughput": batch * prompt / prefill * 1e3,
                "median_decode_latency": noise(decode) / 1e3,
                "median_decode_throughput": batch / decode * 1e3,
                "total_latency": (prefill + decode * (output - 1)) / 1e3,
                "overall_throughput": batch * (prompt + output) / (prefill + decode * (output - 1)) * 1e3,
            }
        )
        for batch, prompt, output, prefill, decode in steps
    ]
    return "\n".join(lines) + "\n"


def _named(run: Figures, names: Mapping[str, str], suffix: str) -> Row:
    """``mean_ttft_ms`` and so on."""
    return {
        f"{statistic}_{name}{suffix}": value
        for metric, name in names.items()
        for statistic, value in getattr(run, metric).items()
    }
