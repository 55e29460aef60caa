"""Measured collectives, half of each table held out: mean error of the communication model.

A sized table is one collective on one system over message sizes: constants come from every other point by size, and the
points between are predicted. Expert-dispatch rows and single points are predicted from link and network rates; the one
row that gave a constant (the α of an expert exchange) is left out. Source: the rows' ``provenance`` column.
"""

import argparse
import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.corpus import data_dir, parser, run
from predictor.cards import Platform
from predictor.comm import collective_ms, expert_exchange_us, wire_gb_s
from predictor.comm_fit import MeasuredPoint, fit, predict_us
from predictor.expert_dispatch import groups_reached
from predictor.profiles.loader import platform

Row = Mapping[str, str]
_READS_PER_BATCH = 128  # "avg latency of a batch of 128 transfers"
_HIDDEN, _TOPK = 7168, 8  # of every expert row, from its note
_BYTES = {"fp8": 1, "bf16": 2}


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """Predict the held-out points of every table."""
    path: Path = data_dir(args.corpus) / "measured" / "collectives_measured.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    by = [*sized_tables(rows), *rate_tables(rows)]
    errors = [abs(row["diff_pct"]) for entry in by for row in entry["rows"]]
    return {
        "n": len(errors),
        "mean_ape_pct": round(sum(errors) / len(errors), 2),
        "rows_in_file": len(rows),
        "by": by,
    }


# ---- tables over message sizes -------------------------------------------------------------------------------------


def sized_tables(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Fit every other size, predict the sizes between."""
    tables: dict[tuple[str, str, str], list[MeasuredPoint]] = defaultdict(list)
    for row in rows:
        if row["size_bytes"]:
            tables[row["hardware"], row["operation"], row["nodes"]].append(measured_point(row))
    for (hardware, operation, nodes), points in tables.items():
        if len(points) < 4:
            continue
        points.sort(key=lambda point: point.size_bytes)
        pieces = fit(points[::2])
        pairs = [(f"{p.size_bytes:.0f} bytes", p.time_us, predict_us(pieces, p.size_bytes)) for p in points[1::2]]
        constants = "; ".join(f"α {p.alpha_us:.1f} us, B {p.bandwidth_gb_s:.1f} GB/s" for p in pieces)
        yield table(f"{hardware}, {operation}, {nodes} node(s)", f"fitted on every other size: {constants}", pairs)


def measured_point(row: Row) -> MeasuredPoint:
    """Bytes and time; where only a bus bandwidth was published, the time that it stands for up to a constant factor."""
    size = float(row["size_bytes"])
    if row["operation"].startswith("rdma_read_batch"):
        size *= _READS_PER_BATCH
    time_us = float(row["time_us"]) if row["time_us"] else size / (float(row["busbw_gb_s"]) * 1e3)
    return MeasuredPoint(size, time_us)


# ---- rates of expert exchanges and single points -------------------------------------------------------------------


def rate_tables(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Rows without a size ladder, by platform."""
    pairs: dict[str, list[tuple[str, float, float]]] = defaultdict(list)
    for row in rows:
        name = row["hardware"].split("+")[0]
        if name not in ("MI300X", "MI355X") or row["operation"].startswith("rdma_read"):
            continue
        predicted = predicted_rate(platform(name), row)
        if predicted is not None:
            pairs[name].append((f"{row['operation']} {row['note']}", *predicted))
    for name, found in pairs.items():
        yield table(f"{name}, exchanges and single points", "link and network rates; nothing fitted here", found)


def predicted_rate(gpu: Platform, row: Row) -> tuple[float, float] | None:
    """Measured and predicted value of one row: µs where it has a time, else GB/s; None for the row that gave α."""
    if row["operation"] == "xgmi_p2p_link":
        return float(row["algbw_gb_s"] or row["busbw_gb_s"]), wire_gb_s(gpu, 2)
    if row["operation"] == "all_reduce":
        size = float(row["size_bytes"])
        return float(row["time_us"]), collective_ms(gpu, "all_reduce", size, 8, variant="rccl", in_step=False) * 1e3
    gpus, nodes = int(float(row["gpus"])), int(row["nodes"])
    tokens = re.match(r"(\d+) tokens/rank", row["note"])
    low_latency = tokens is not None and tokens[1] == "128"
    if (gpu.name, row["operation"], gpus, low_latency) == ("MI300X", "ep_dispatch", 8, True):
        return None
    token_bytes = float(tokens[1] if tokens else 4096) * _HIDDEN * _BYTES[row["dtype"]]
    us = expert_exchange_us(gpu, token_bytes, _TOPK, gpus, nodes=nodes, in_step=False)
    if row["time_us"]:
        return float(row["time_us"]), us
    copies = groups_reached(_TOPK, nodes if row["operation"].endswith("_rdma") else gpus)
    return float(row["algbw_gb_s"]), token_bytes * copies / us / 1e3


def table(name: str, method: str, pairs: Sequence[tuple[str, float, float]]) -> dict[str, Any]:
    """One table's rows and its mean error."""
    rows: list[dict[str, Any]] = [
        {"what": what, "measured": round(m, 3), "ours": round(o, 3), "diff_pct": round(100 * (o / m - 1), 1)}
        for what, m, o in pairs
    ]
    mean = sum(abs(row["diff_pct"]) for row in rows) / len(rows)
    return {"table": name, "n": len(rows), "mean_ape_pct": round(mean, 2), "method": method, "rows": rows}


if __name__ == "__main__":
    raise SystemExit(run(evaluate, parser("Error of the communication model on measured collectives.")))
