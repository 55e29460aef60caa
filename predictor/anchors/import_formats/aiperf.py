"""AIPerf: the summary ``profile_export_aiperf.json`` and the per-request ``profile_export.jsonl``.

Names and units from AIPerf 0.13 (``exporters/metrics_json_exporter.py``, ``metrics/types``). Every metric states its
unit, which is read and never assumed. ``inter_token_latency`` is (request latency − TTFT)/(output tokens − 1) of each
request, which is TPOT. Records of warm-up phases are dropped. Widths, precision and release are not recorded.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from predictor.anchors.import_formats.fields import Json, facts, number, short
from predictor.anchors.import_formats.run import BenchRun, Fact, Latency, ParsedFile, RequestTimes
from predictor.errors import BadFile

TOOL = "AIPerf"
_MS = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3}
_PER_S = frozenset({"requests/sec", "tokens/sec", "req/s", "tokens/s"})


def is_summary(row: Json) -> bool:
    """The summary export."""
    return "request_latency" in row and isinstance(row.get("request_throughput"), Mapping)


def is_record(row: Json) -> bool:
    """A line of the per-request export."""
    return isinstance(row.get("metadata"), Mapping) and isinstance(row.get("metrics"), Mapping)


def read_summary(row: Json, origin: str) -> ParsedFile:
    """One run."""
    if row.get("was_cancelled") or row.get("is_complete") is False:
        reason = row.get("incomplete_reason") or "the run was cancelled"
        raise BadFile(f"{origin}: an incomplete AIPerf run ({short(reason)}); run it to the end")
    phase, models = _phase(row), _models(row)
    count = _plain(row, "request_count", origin) or 0.0
    failed = _plain(row, "error_request_count", origin) or 0.0
    if count < 1:
        raise BadFile(f"{origin}: request_count is {count:g}: no request of this run finished")
    cached = _plain(row, "overall_usage_prompt_cache_read_pct", origin)
    run = BenchRun(
        origin=origin,
        tool=TOOL,
        concurrency=_int(phase.get("concurrency")),
        requests=int(count),
        failed=int(failed),
        request_rate_per_s=number(phase, "rate", origin) or number(phase, "request_rate", origin),
        duration_s=_seconds(row, "benchmark_duration", origin),
        ttft=_latency(row, "time_to_first_token", origin),
        tpot=_latency(row, "inter_token_latency", origin),
        itl=_latency(row, "inter_chunk_latency", origin),
        e2e=_latency(row, "request_latency", origin),
        mean_prompt_tokens=_plain(row, "input_sequence_length", origin),
        mean_output_tokens=_plain(row, "output_sequence_length", origin),
        requests_per_s=_rate(row, "request_throughput", origin),
        output_tok_s=_rate(row, "output_token_throughput", origin),
        total_tok_s=_rate(row, "total_token_throughput", origin),
        tokens_per_step=_plain(row, "spec_decode_token_weighted_acceptance_length", origin)
        or _plain(row, "spec_decode_acceptance_length", origin),
        cached_prompt_frac=None if cached is None else cached / 100.0,
        prompt_range=_range(row, origin),
        recorded=_recorded(row, models, cached),
    )
    return ParsedFile(TOOL, runs=(run,))


def _recorded(row: Json, models: Sequence[str], cached_pct: float | None) -> dict[str, Fact]:
    found = facts([("model_name", models[0] if len(models) == 1 else None)])
    if cached_pct == 0.0:
        found["prefix_cache"] = "cold"
    if any(key.startswith("spec_decode_") for key in row):
        found["speculates"] = True
    return found


def read_records(rows: Sequence[tuple[str, Json]], origin: str) -> ParsedFile:
    """All requests of one run; the load is the number in flight at once, read off the time stamps."""
    requests: list[RequestTimes] = []
    spans: list[tuple[float, float]] = []
    failed, cached, prompts = 0, 0.0, 0.0
    for where, row in rows:
        metadata, metrics = row["metadata"], row["metrics"]
        if str(metadata.get("benchmark_phase", "profiling")).lower() == "warmup":
            continue
        if row.get("error") or metadata.get("was_cancelled"):
            failed += 1
            continue
        requests.append(_request(metrics, where))
        start, end = (number(metadata, key, where) for key in ("request_start_ns", "request_end_ns"))
        if start is None or end is None or end <= start:
            raise BadFile(
                f"{where}: request_start_ns {start} and request_end_ns {end}: the clock stepped back or is unset"
            )
        spans.append((start * 1e-9, end * 1e-9))
        if "usage_prompt_cache_read_tokens" in metrics:
            cached += _value(metrics, "usage_prompt_cache_read_tokens", where) or 0.0
            prompts += requests[-1].prompt_tokens
    if not requests:
        raise BadFile(f"{origin}: no request outside warm-up finished ({failed} failed)")
    duration_s = max(end for _, end in spans) - min(start for start, _ in spans)
    tpots = [_value(row["metrics"], "inter_token_latency", where) for where, row in rows if _kept(row)]
    lengths = [one.prompt_tokens for one in requests]
    recorded: dict[str, Fact] = {}
    if prompts and not cached:
        recorded["prefix_cache"] = "cold"
    run = BenchRun(
        origin=origin,
        tool=TOOL,
        concurrency=_clients(spans),
        requests=len(requests),
        failed=failed,
        duration_s=duration_s,
        ttft=_of([one.ttft_ms for one in requests]),
        tpot=_of([value for value in tpots if value is not None]),
        e2e=_of([one.e2e_ms for one in requests if one.e2e_ms is not None]),
        mean_prompt_tokens=fmean(lengths),
        mean_output_tokens=fmean(one.output_tokens for one in requests),
        requests_per_s=len(requests) / duration_s,
        output_tok_s=sum(one.output_tokens for one in requests) / duration_s,
        cached_prompt_frac=cached / prompts if prompts else None,
        prompt_range=(min(lengths), max(lengths)),
        details=tuple(requests),
        recorded=recorded,
    )
    return ParsedFile(TOOL, runs=(run,))


def _kept(row: Json) -> bool:
    metadata = row["metadata"]
    warm = str(metadata.get("benchmark_phase", "profiling")).lower() == "warmup"
    return not (warm or row.get("error") or metadata.get("was_cancelled"))


def _request(metrics: Json, where: str) -> RequestTimes:
    values = {}
    for key in ("input_sequence_length", "output_sequence_length", "time_to_first_token", "request_latency"):
        value = _value(metrics, key, where)
        if value is None:
            raise BadFile(f"{where}: metrics.{key} is missing")
        values[key] = value
    return RequestTimes(
        int(values["input_sequence_length"]),
        int(values["output_sequence_length"]),
        values["time_to_first_token"],
        values["request_latency"],
    )


def _range(row: Json, origin: str) -> tuple[float, float] | None:
    length = row.get("input_sequence_length")
    if not isinstance(length, Mapping):
        return None
    low, high = number(length, "min", origin), number(length, "max", origin)
    return (low, high) if low and high else None


def _clients(spans: Sequence[tuple[float, float]]) -> int:
    """Clients of a closed loop: requests sent before the first one ended; where far more overlap later, the most."""
    first_end = min(end for _, end in spans)
    at_start = sum(1 for start, _ in spans if start < first_end)
    most = _peak(spans)
    return at_start if most <= 1.2 * at_start + 1 else most


def _peak(spans: Sequence[tuple[float, float]]) -> int:
    """Most requests in flight at once."""
    edges = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans], key=lambda e: (e[0], e[1]))
    most = now = 0
    for _, change in edges:
        now += change
        most = max(most, now)
    return most


def _of(values: Sequence[float]) -> Latency:
    if not values:
        return Latency()
    ordered = sorted(values)
    at = [ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))] for share in (0.9, 0.99)]
    return Latency(fmean(values), median(values), *at)


def _unit(metric: Json, key: str, origin: str) -> float:
    unit = str(metric.get("unit", "")).strip()
    if unit not in _MS:
        raise BadFile(f"{origin}: {key}.unit is {short(unit)}, expected one of {', '.join(_MS)}")
    return _MS[unit]


def _latency(row: Json, key: str, origin: str) -> Latency:
    metric = row.get(key)
    if not isinstance(metric, Mapping):
        return Latency()
    factor, where = _unit(metric, key, origin), f"{origin}: {key}"
    read = {name: number(metric, stat, where, zero=True) for name, stat in _STATISTICS.items()}
    return Latency(**{name: value for name, value in read.items() if value is not None}).scaled(factor)


_STATISTICS = {"mean": "avg", "p50": "p50", "p90": "p90", "p99": "p99"}


def _seconds(row: Json, key: str, origin: str) -> float | None:
    metric = row.get(key)
    if not isinstance(metric, Mapping):
        return None
    value = number(metric, "avg", f"{origin}: {key}")
    return None if value is None else value * _unit(metric, key, origin) / 1e3


def _rate(row: Json, key: str, origin: str) -> float | None:
    metric = row.get(key)
    if not isinstance(metric, Mapping):
        return None
    if str(metric.get("unit", "")) not in _PER_S:
        raise BadFile(
            f"{origin}: {key}.unit is {short(metric.get('unit'))}, expected one of {', '.join(sorted(_PER_S))}"
        )
    return number(metric, "avg", f"{origin}: {key}")


def _plain(row: Json, key: str, origin: str) -> float | None:
    metric = row.get(key)
    return number(metric, "avg", f"{origin}: {key}", zero=True) if isinstance(metric, Mapping) else None


def _value(metrics: Json, key: str, where: str) -> float | None:
    metric = metrics.get(key)
    if not isinstance(metric, Mapping):
        return None
    value = number(metric, "value", f"{where}: {key}", zero=True)
    if value is None or str(metric.get("unit", "")) not in _MS:
        return value
    return value * _MS[str(metric["unit"])]


def _phase(row: Json) -> Json:
    """The measured phase of ``input_config``, in its form of 0.13 (a list of phases) or the older ``loadgen``."""
    config = row.get("input_config")
    if not isinstance(config, Mapping):
        return {}
    phases = config.get("phases")
    if isinstance(phases, Sequence) and not isinstance(phases, str):
        measured = [p for p in phases if isinstance(p, Mapping) and "warmup" not in str(p.get("name", "")).lower()]
        return measured[-1] if len(measured) == 1 else {}
    loadgen = config.get("loadgen")
    return loadgen if isinstance(loadgen, Mapping) else {}


def _models(row: Json) -> list[str]:
    config = row.get("input_config")
    if not isinstance(config, Mapping):
        return []
    endpoint = config.get("endpoint")
    listed = config.get("models") or (endpoint.get("model_names") if isinstance(endpoint, Mapping) else None)
    if isinstance(listed, Mapping):
        listed = listed.get("items")
    items = listed if isinstance(listed, Sequence) and not isinstance(listed, str) else []
    return [str(item.get("name")) if isinstance(item, Mapping) else str(item) for item in items]


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
