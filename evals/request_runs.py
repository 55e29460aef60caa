"""Loaders of real per-request records: what was sent, when, and what the client measured.

H200 gpt-oss-120b: the recorded nominal lengths are 8192 and 1024, but the prompt and output totals of every run are
those of ``numpy.random.RandomState(0)`` drawing on 80–100% of 8000 and 1000 (and the three runs with a line a request
agree request by request), so the very lengths of each run are known; a run whose totals disagree is an error.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

METRICS = ("ttft", "itl", "tpot", "e2e")
STATISTICS = ("mean", "p50", "p99")
Summary = Mapping[str, float]  # "tpot_p99" -> ms

H200_RUNS = "measured/h200_gptoss120b_vllm_runs.csv"
H200_ENGINE = "measured/h200_gptoss120b_vllm_engine_metrics.csv"
LLAMA_REQUESTS = "measured/{gpu}_llama405b_fp8_sharegpt_qps16_requests.json"
LLAMA_OFFLINE = "measured/llama405b_fp8_offline_batch_mi300x_h100.csv"

PROMPT_TOKENS, OUTPUT_TOKENS, RANGE_FRAC = 8000, 1000, 0.8  # what the H200 harness drew from; see above

_COLUMNS = {"mean": "mean_{}_ms", "p50": "median_{}_ms", "p99": "p99_{}_ms"}


@dataclass(frozen=True, slots=True)
class ClosedRun:
    """One closed-loop run: clients, requests in all, drafted tokens, and the client's statistics in ms."""

    name: str
    draft_depth: int
    clients: int
    requests: int
    measured: Summary

    @property
    def setup(self) -> tuple[int, int, int]:
        """What repeats of a run share."""
        return self.draft_depth, self.clients, self.requests


def rows(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def harness_lengths(requests: int) -> tuple[list[int], list[int]]:
    """Prompt and output tokens of the H200 runs, request by request."""
    draw = np.random.RandomState(0)
    prompts = draw.randint(round(PROMPT_TOKENS * RANGE_FRAC), PROMPT_TOKENS + 1, size=requests)
    outputs = draw.randint(round(OUTPUT_TOKENS * RANGE_FRAC), OUTPUT_TOKENS + 1, size=requests)
    return prompts.tolist(), outputs.tolist()


def closed_runs(data: Path) -> list[ClosedRun]:
    """All H200 runs, each checked against the lengths it is said to have sent."""
    result = []
    for row in rows(data / H200_RUNS):
        requests = int(row["num_prompts"])
        prompts, outputs = harness_lengths(requests)
        sent = (int(row["total_input_tokens"]), int(row["total_output_tokens"]))
        if sent != (sum(prompts), sum(outputs)):
            raise ValueError(f"{row['run']}: {sent} tokens in and out are not those of the harness's seeded draw")
        measured = {
            f"{metric}_{statistic}": float(row[_COLUMNS[statistic].format("e2el" if metric == "e2e" else metric)])
            for metric in METRICS
            for statistic in STATISTICS
        }
        depth = int(row["num_spec_tokens"] or 0)
        result.append(ClosedRun(row["run"], depth, int(row["conc"]), requests, measured))
    return result


def median_of_repeats(repeats: Sequence[ClosedRun]) -> Summary:
    """Each statistic's median over repeats of one set-up."""
    return {key: median(run.measured[key] for run in repeats) for key in repeats[0].measured}


def spread_pct(repeats: Sequence[ClosedRun], key: str) -> float | None:
    """Half of the range of a statistic over repeats, in percent of its median; None for one run."""
    if len(repeats) < 2:
        return None
    values = [run.measured[key] for run in repeats]
    return (max(values) - min(values)) / 2.0 / median(values) * 100.0


def kv_pool_tokens(data: Path, draft_depth: int, heaviest_clients: int) -> int:
    """KV pool from the engine's own gauges at loads up to ``heaviest_clients``.

    A running request of mean context ``isl + osl/2`` holds a share of the pool (``kv_mean`` over ``running_mean``);
    the median over the sweep's loads. Only plain and deepest drafting were logged; other depths hold the same cache.
    """
    logged = [row for row in rows(data / H200_ENGINE) if row["label"].startswith("sweep_c")]
    if draft_depth:
        logged = [row for row in logged if int(row["num_spec_tokens"]) > 0]
    else:
        logged = [row for row in logged if int(row["num_spec_tokens"]) == 0]
    light = [row for row in logged if int(row["label"].removeprefix("sweep_c")) <= heaviest_clients]
    share = median(float(row["kv_mean"]) / 100.0 / float(row["running_mean"]) for row in light)
    context = (PROMPT_TOKENS + OUTPUT_TOKENS / 2.0) * (1.0 + RANGE_FRAC) / 2.0
    return int(context / share)


@dataclass(frozen=True, slots=True)
class SentRequest:
    """One request of an open-loop run and what the client saw, ms."""

    prompt_tokens: int
    output_tokens: int
    ttft_ms: float
    gaps_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class OpenRun:
    """One open-loop run with its requests in the order in which they were sent."""

    gpu: str
    rate_per_s: float
    requests: tuple[SentRequest, ...]


def llama_run(data: Path, gpu: str) -> OpenRun:
    """The ShareGPT run at 16 requests a second on 8 GPUs of a kind (``h100`` or ``mi300x``)."""
    with (data / LLAMA_REQUESTS.format(gpu=gpu)).open(encoding="utf-8") as file:
        record = json.load(file)
    requests = tuple(
        SentRequest(int(r["input_tokens"]), int(r["output_tokens"]), float(r["ttft_ms"]), tuple(r["itl_ms"]))
        for r in record["requests"]
    )
    return OpenRun(gpu, float(record["request_rate"]), requests)


def poisson_arrivals_ms(rate_per_s: float, requests: int) -> list[float]:
    """Send times of vLLM's serving benchmark under its default seed 0: exponential gaps, the first request at once."""
    gaps = np.random.RandomState(0).exponential(1000.0 / rate_per_s, size=requests)
    return [0.0, *np.cumsum(gaps)[:-1].tolist()]
