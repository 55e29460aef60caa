"""GuideLLM ``benchmarks.json``: one report of one or more loads.

Names from GuideLLM 0.8 (``benchmark/schemas``): metrics are summaries by request status; ``inter_token_latency_ms`` is
(last − first)/(n − 1) of each request, which is TPOT, while its ``time_per_output_token_ms`` divides the whole
request and is not; ``request_latency`` is in seconds. Warm-up and cool-down are cut off before the statistics.
"""

from collections.abc import Mapping, Sequence

from predictor.anchors.import_formats.fields import Json, facts, number, short
from predictor.anchors.import_formats.run import BenchRun, Fact, Latency, ParsedFile
from predictor.errors import BadFile

TOOL = "GuideLLM"
_CLOSED = frozenset({"concurrent", "synchronous", "throughput"})


def is_guidellm(row: Json) -> bool:
    """A report."""
    listed = row.get("benchmarks")
    return isinstance(listed, Sequence) and bool(listed) and isinstance(listed[0], Mapping) and "metrics" in listed[0]


def read_guidellm(row: Json, origin: str) -> ParsedFile:
    """Every load of the report."""
    runs = tuple(_run(one, f"{origin} benchmark {i}") for i, one in enumerate(row["benchmarks"], start=1))
    return ParsedFile(TOOL, runs=runs)


def _run(one: Json, origin: str) -> BenchRun:
    metrics, config = _table(one, "metrics", origin), one.get("config")
    config = config if isinstance(config, Mapping) else {}
    strategy = config.get("strategy") or one.get("scheduler", {}).get("strategy") or {}
    kind = str(strategy.get("type_") or strategy.get("kind") or "")
    totals = metrics.get("request_totals")
    totals = totals if isinstance(totals, Mapping) else {}
    completed = int(number(totals, "successful", origin, zero=True) or 0)
    if not completed:
        raise BadFile(f"{origin}: request_totals.successful is {completed}: no request of this load finished")
    rate = number(strategy, "rate", origin)
    if kind not in _CLOSED and rate is None:
        raise BadFile(
            f"{origin}: strategy {short(kind)} has no single load; use concurrent, throughput, constant or poisson"
        )
    prompt, output = _summary(metrics, "prompt_token_count", origin), _summary(metrics, "output_token_count", origin)
    latency = _latency(metrics, "request_latency", origin, 1e3)
    duration = number(one, "duration", origin)
    return BenchRun(
        origin=origin,
        tool=TOOL,
        concurrency=_streams(strategy, kind),
        requests=completed,
        failed=int(number(totals, "errored", origin, zero=True) or 0),
        request_rate_per_s=None if kind in _CLOSED else rate,
        duration_s=duration,
        ttft=_latency(metrics, "time_to_first_token_ms", origin),
        tpot=_latency(metrics, "inter_token_latency_ms", origin),
        e2e=latency,
        mean_prompt_tokens=number(prompt, "mean", origin),
        mean_output_tokens=number(output, "mean", origin),
        requests_per_s=number(_summary(metrics, "requests_per_second", origin), "mean", origin),
        output_tok_s=number(_summary(metrics, "output_tokens_per_second", origin), "mean", origin),
        prompt_range=_range(prompt, origin),
        recorded=_recorded(config),
    )


def _streams(strategy: Json, kind: str) -> int | None:
    if kind == "synchronous":
        return 1
    value = strategy.get("streams") or strategy.get("max_concurrency")
    return value if isinstance(value, int) and value > 0 else None


def _recorded(config: Json) -> dict[str, Fact]:
    backend = config.get("backend")
    return facts([("model_name", backend.get("model") if isinstance(backend, Mapping) else None)])


def _range(prompt: Json, origin: str) -> tuple[float, float] | None:
    low, high = number(prompt, "min", origin, zero=True), number(prompt, "max", origin)
    return (low, high) if low and high else None


def _table(row: Json, key: str, origin: str) -> Json:
    value = row.get(key)
    if not isinstance(value, Mapping):
        raise BadFile(f"{origin}: {key} is {short(value)}, expected a table")
    return value


def _summary(metrics: Json, key: str, origin: str) -> Json:
    """Statistics over successful requests."""
    metric = metrics.get(key)
    if not isinstance(metric, Mapping):
        return {}
    successful = metric.get("successful", metric)
    return successful if isinstance(successful, Mapping) else {}


def _latency(metrics: Json, key: str, origin: str, factor: float = 1.0) -> Latency:
    summary, where = _summary(metrics, key, origin), f"{origin}: {key}"
    shares = summary.get("percentiles")
    shares = shares if isinstance(shares, Mapping) else {}
    read = {
        "mean": number(summary, "mean", where, zero=True),
        "p50": number(summary, "median", where, zero=True),
        "p90": number(shares, "p90", where, zero=True),
        "p99": number(shares, "p99", where, zero=True),
    }
    return Latency(**read).scaled(factor)
