"""A server's own counters: Prometheus text of ``/metrics`` for the engines that offer it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from agent.bench.client import Endpoint

_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>[-+0-9.eEinfNa]+)")
# Time between two tokens of a request, in seconds, by engine and release.
INTER_TOKEN = (
    "vllm:inter_token_latency_seconds",
    "vllm:time_per_output_token_seconds",
    "sglang:inter_token_latency_seconds",
    "sglang:time_per_output_token_seconds",
    "trtllm:time_per_output_token_seconds",
)
PREFIX_HITS = (
    "vllm:prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_hits_total",
    "sglang:cached_tokens_total",
)
_CACHE_CONFIG = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Counters:
    """One reading of a server's counters; None where it has none."""

    token_seconds: float | None = None
    token_count: float | None = None
    prefix_hits: float | None = None
    config: Mapping[str, str] | None = None

    def step_ms_since(self, earlier: "Counters") -> float | None:
        """Mean time of a token between two readings; None where no token was counted."""
        if None in (self.token_seconds, self.token_count, earlier.token_seconds, earlier.token_count):
            return None
        seconds = (self.token_seconds or 0.0) - (earlier.token_seconds or 0.0)
        count = (self.token_count or 0.0) - (earlier.token_count or 0.0)
        return seconds / count * 1e3 if count > 0 else None


def parse_metrics(text: str) -> Counters:
    """Read Prometheus text; samples of several ranks add up.

    >>> parse_metrics('vllm:prefix_cache_hits_total{engine="0"} 12.0').prefix_hits
    12.0
    """
    sums: dict[str, float] = {}
    config: dict[str, str] | None = None
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None:
            continue
        name = match["name"]
        sums[name] = sums.get(name, 0.0) + float(match["value"])
        if name.endswith("cache_config_info"):
            config = dict(_CACHE_CONFIG.findall(match["labels"] or ""))
    base = next((name for name in INTER_TOKEN if f"{name}_sum" in sums), None)
    hits = [sums[name] for name in PREFIX_HITS if name in sums]
    return Counters(
        sums.get(f"{base}_sum") if base else None,
        sums.get(f"{base}_count") if base else None,
        sum(hits) if hits else None,
        config,
    )


async def read_counters(client: httpx.AsyncClient, endpoint: Endpoint) -> Counters:
    """The counters now; empty where the server offers none."""
    try:
        response = await client.get(endpoint.path("/metrics"), timeout=10.0)
    except httpx.HTTPError:
        return Counters()
    return parse_metrics(response.text) if response.status_code == httpx.codes.OK else Counters()
