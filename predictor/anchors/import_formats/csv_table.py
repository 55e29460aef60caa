"""A plain CSV: one row a load, the header names what stands in each column.

Latencies need their unit in the name (``ttft_ms`` or ``ttft_s``, ``mean_tpot_ms``, ``p99_itl_ms``, …). Any fact of the
deployment may be a column, under the name of its flag (``tp``, ``gpu``, ``weight_dtype``, …); it holds for its row.
"""

import csv
from collections.abc import Mapping
from io import StringIO
from math import isfinite

from predictor.anchors.import_formats.run import BenchRun, Fact, Latency, ParsedFile
from predictor.errors import BadFile

TOOL = "CSV"
_UNITS = {"_ms": 1.0, "_s": 1e3, "_us": 1e-3}
_METRICS = ("ttft", "tpot", "itl", "e2e")
_STATISTICS = {"": "mean", "mean_": "mean", "median_": "p50", "p50_": "p50", "p90_": "p90", "p99_": "p99"}
_LOAD = frozenset(
    {
        "concurrency",
        "requests",
        "failed",
        "request_rate",
        "duration_s",
        "requests_per_s",
        "output_tok_s",
        "total_tok_s",
        "mean_prompt_tokens",
        "mean_output_tokens",
        "tokens_per_step",
    }
)
_WHOLE_FACTS = frozenset(
    {"tp", "ep", "pp", "attn_dp", "dcp", "isl", "osl", "spec_depth", "max_running", "token_budget", "chunk_size"}
)
_TEXT_FACTS = frozenset(
    {
        "gpu",
        "engine",
        "engine_version",
        "model",
        "weight_dtype",
        "linear_dtype",
        "expert_dtype",
        "kv_dtype",
        "prefix_cache",
        "spec_method",
        "attention_backend",
        "moe_backend",
        "a2a_backend",
        "graph_mode",
    }
)
_OTHER_FACTS = frozenset({"length_range", "real_weights", "kv_pool_tokens"})
_LATENCIES = {
    f"{word}{metric}{suffix}": (metric, statistic, factor)
    for metric in _METRICS
    for word, statistic in _STATISTICS.items()
    for suffix, factor in _UNITS.items()
}


def is_csv(text: str) -> bool:
    """A header line with a load and a latency."""
    header = {name.strip() for name in text.lstrip("\ufeff").split("\n", 1)[0].split(",")}
    return "concurrency" in header and any(name in _LATENCIES for name in header)


def read_csv(text: str, origin: str) -> ParsedFile:
    """All rows."""
    reader = csv.DictReader(StringIO(text.lstrip("\ufeff")))
    names = [name.strip() for name in reader.fieldnames or ()]
    for name in names:
        if name not in _LATENCIES and name not in _LOAD | _WHOLE_FACTS | _TEXT_FACTS | _OTHER_FACTS:
            bare = next((metric for metric in _METRICS if name.endswith(metric)), None)
            hint = f"; a latency needs its unit: {name}_ms or {name}_s" if bare else ""
            raise BadFile(f"{origin}: column {name!r} is not known{hint}")
    runs = []
    for row in reader:
        where = f"{origin} line {reader.line_num}"
        if None in row or None in row.values():
            raise BadFile(f"{where}: has another number of columns than the header ({len(names)}): the file is cut off")
        cells = {key.strip(): value.strip() for key, value in row.items() if value and value.strip()}
        runs.append(_run(cells, where))
    if not runs:
        raise BadFile(f"{origin}: a header and no rows")
    return ParsedFile(TOOL, runs=tuple(runs))


def _run(cells: Mapping[str, str], where: str) -> BenchRun:
    latencies: dict[str, dict[str, float]] = {metric: {} for metric in _METRICS}
    for name, value in cells.items():
        if name in _LATENCIES:
            metric, statistic, factor = _LATENCIES[name]
            latencies[metric][statistic] = _number(value, name, where) * factor
    read = {metric: Latency(**statistics) for metric, statistics in latencies.items()}
    concurrency = _whole(cells, "concurrency", where)
    requests = _whole(cells, "requests", where)
    recorded: dict[str, Fact] = {name: cells[name] for name in _TEXT_FACTS & cells.keys()}
    for name in _WHOLE_FACTS | {"kv_pool_tokens"}:
        count = _whole(cells, name, where)
        if count is not None:
            recorded[name] = count
    if "length_range" in cells:
        recorded["length_range"] = _number(cells["length_range"], "length_range", where)
    if "real_weights" in cells:
        recorded["real_weights"] = _flag(cells["real_weights"], where)
    return BenchRun(
        origin=where,
        tool=TOOL,
        concurrency=concurrency,
        requests=requests or 0,
        failed=_whole(cells, "failed", where, least=0) or 0,
        request_rate_per_s=None if cells.get("request_rate") == "inf" else _maybe(cells, "request_rate", where),
        duration_s=_maybe(cells, "duration_s", where),
        ttft=read["ttft"],
        tpot=read["tpot"],
        itl=read["itl"],
        e2e=read["e2e"],
        mean_prompt_tokens=_maybe(cells, "mean_prompt_tokens", where),
        mean_output_tokens=_maybe(cells, "mean_output_tokens", where),
        requests_per_s=_maybe(cells, "requests_per_s", where),
        output_tok_s=_maybe(cells, "output_tok_s", where),
        total_tok_s=_maybe(cells, "total_tok_s", where),
        tokens_per_step=_maybe(cells, "tokens_per_step", where),
        recorded=recorded,
    )


def _number(text: str, name: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise BadFile(f"{where}: {name} is {text!r}, expected a number") from None
    if not isfinite(value) or value < 0.0:
        raise BadFile(f"{where}: {name} is {text}, expected a finite number of at least 0")
    return value


def _maybe(cells: Mapping[str, str], name: str, where: str) -> float | None:
    return _number(cells[name], name, where) if name in cells else None


def _whole(cells: Mapping[str, str], name: str, where: str, least: int = 1) -> int | None:
    if name not in cells:
        return None
    value = _number(cells[name], name, where)
    if value != int(value) or value < least:
        raise BadFile(f"{where}: {name} is {cells[name]}, expected a whole number of at least {least}")
    return int(value)


def _flag(text: str, where: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise BadFile(f"{where}: real_weights is {text!r}, expected true or false")
    return text.lower() == "true"
