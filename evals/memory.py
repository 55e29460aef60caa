"""KV pool against what engines printed at start: ``python -m evals.memory --json``.

Each row of ``measured/kv_pool_startup_logs.csv`` states a model, a GPU, a layout, a memory share and what the engine
found. The model is given only what the row states. Where the row prints the weights as loaded, they stand in for the
computed ones (``weights: printed``); ``analytic_tokens`` is the same prediction without that. Rows without a memory
share give the pool's GiB instead, and only bytes per token are scored. A row on which a constant of
``predictor.memory`` or ``predictor.kv_cache`` was set says so (``constant``), and ``unseen_median_ape_pct`` leaves
those out.
"""

import argparse
import csv
import re
import statistics
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from evals.corpus import data_dir, parser, run
from predictor.cards import Attention, Ffn, LayerGroup, ModelCard, Platform
from predictor.engines import GIB, effective_settings
from predictor.errors import InferaSimError
from predictor.memory import at_least, engine_family, memory
from predictor.params import native_precision
from predictor.pool_logs import PoolLog
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.types import Deployment, Dtype, Layout, Precision, SchedulerSettings, Speculation

Row = Mapping[str, str]

# What the log states that names no release: the release of that month, for the rules that changed since.
RELEASES = {"Dec 2023": "0.2", "Aug 2024": "0.5", "Jan 2025": "0.7", "Jul 2025": "0.9", "0.6.x": "0.6"}


def _dense(name: str, hidden: int, layers: int, heads: int, kv_heads: int, width: int) -> ModelCard:
    attention = Attention(kind="gqa", heads=heads, kv_heads=kv_heads, head_dim=hidden // heads)
    return ModelCard(
        name=name,
        hidden=hidden,
        vocab=32000,
        groups=(LayerGroup(count=layers, attention=attention, ffn=Ffn(intermediate=width)),),
        max_context_tokens=4096,
        source="Llama 2 report, arXiv 2307.09288, and its config.json",
    )


# Outside the bundled catalogue: models and a GPU that only these rows use.
CARDS = {
    "Llama-2-7B": _dense("Llama-2-7B", 4096, 32, 32, 32, 11008),
    "Llama-2-70B": _dense("Llama-2-70B", 8192, 80, 64, 8, 28672),
}
ALIASES = {
    "MiniMax-M2.5 NVFP4": "MiniMax-M2.5",
    "DeepSeek-V4 (dsv4 fp8 loader)": "DeepSeek-V4-Pro",
    "Kimi-K2.5 NVFP4": "Kimi-K2.5",
    "meta-llama/Meta-Llama-3-8B-Instruct": "Llama-3.1-8B",  # same layers
    "Llama-3.1-405B FP8": "Llama-3.1-405B",
    "moonshotai/Kimi-K2-Thinking (INT4)": "Kimi-K2.5",  # same layers
    "Llama-3.1-70B-Instruct w8a8": "Llama-3.1-70B",
    "moonshotai/Kimi-K3 MXFP4": "Kimi-K3",
}
NO_CARD = {"Qwen3.8-27B-FP8": "architecture not public in the sources used"}


def _card(name: str) -> ModelCard:
    return CARDS[name] if name in CARDS else model_card(ALIASES.get(name, name))


def _platform(name: str) -> Platform:
    if name.startswith("A100"):  # torch reports 79.15 GiB of the 80 GB part
        return replace(platform("H100"), name="A100-80GB", hbm_bytes=79.15 * GIB, peak_fp8_flops=None)
    return platform(name)


def _number(row: Row, field: str) -> float | None:
    return float(row[field]) if row.get(field) else None


def _count(row: Row, field: str) -> int | None:
    value = _number(row, field)
    return None if value is None else int(value)


def _version(engine: str) -> str:
    named = re.search(r"\d+\.\d+(\.\d+)?[\w.]*", engine)
    month = next((release for text, release in RELEASES.items() if text in engine), None)
    return month or (named.group(0) if named else "")


def _precision(row: Row, card: ModelCard) -> Precision:
    kv = Dtype.FP8 if "fp8" in row["kv_dtype"] else Dtype.BF16
    weight = row["weight_precision"]
    if weight == "nvfp4":
        return Precision(Dtype.FP4, Dtype.FP4, Dtype.FP4, kv)
    if weight in ("fp8", "int8"):
        return Precision(Dtype.FP8, Dtype.FP8, Dtype.FP8, kv)
    return replace(native_precision(card), kv=kv)


def _deployment(row: Row, card: ModelCard) -> Deployment:
    dcp = re.search(r"decode-context-parallel-size (\d+)", row["other_flags"])
    layout = Layout(tp=int(row["tp"]), ep=int(row["ep"] or 1), dcp=int(dcp.group(1)) if dcp else 1)
    tokens, length = _count(row, "max_num_batched_tokens"), _count(row, "max_model_len")
    engine, version = row["engine"].split()[0], _version(row["engine"])
    seqs = _count(row, "max_num_seqs")
    if engine == "vllm" and ("(V0)" in row["engine"] or not at_least(version, (0, 8))) and "V1" not in row["engine"]:
        # before V1 the profiled step was one whole prompt
        tokens, seqs = tokens or max(length or card.max_context_tokens, 2048), seqs or 256
    scheduler = SchedulerSettings(
        max_running=seqs,
        token_budget=tokens if engine == "vllm" else None,
        chunk_size=tokens if engine == "sglang" else None,
        kv_mem_fraction=_number(row, "gpu_mem_util"),
        block_size=_count(row, "block_size"),
        prefix_cache="prefix caching off" not in row["other_flags"],
    )
    drafted = "DSpark" in row["other_flags"]
    return Deployment(
        model=card.name,
        gpu=row["gpu"],
        engine=engine,
        layout=layout,
        precision=_precision(row, card),
        scheduler=scheduler,
        speculation=Speculation("dspark", 5) if drafted else Speculation(),
        engine_version=version,
    )


def _constant(row: Row) -> str:
    """Whether a constant was set on this row."""
    if row["model"].startswith("DeepSeek-V4") and "vllm" in row["engine"]:
        return "compressed layout factor"
    if row["model"].startswith(("MiniMax-M2.5", "openai/gpt-oss")):
        return "overheads beyond weights and activations"
    return ""


def _predict(row: Row, card: ModelCard, gpu: Platform, log: PoolLog | None) -> tuple[int, float]:
    deployment = _deployment(row, card)
    length = _count(row, "max_model_len")
    if length:
        card = replace(card, max_context_tokens=length)
    profile = engine_profile(deployment.engine)
    settings = effective_settings(profile, "", gpu, card, deployment)
    result = memory(card, gpu, deployment, settings, log)
    return result.kv_pool_tokens, result.kv_pool_bytes / GIB


def score(row: Row) -> dict[str, Any]:
    """One row: predicted and printed tokens, the error, and how it came about."""
    measured, kv_gib = _count(row, "kv_tokens"), _number(row, "kv_gib_per_gpu")
    result: dict[str, Any] = {
        "model": row["model"],
        "gpu": row["gpu"],
        "tp": int(row["tp"]),
        "ep": int(row["ep"] or 1),
        "engine": row["engine"],
        "measured_tokens": measured,
        "measured_gib": kv_gib,
    }
    if row["model"] in NO_CARD:
        return result | {"skipped": NO_CARD[row["model"]]}
    card, gpu = _card(row["model"]), _platform(row["gpu"])
    family, weights = engine_family(row["engine"].split()[0]), _number(row, "weights_gib_per_gpu")
    given = row["gpu_mem_util"] != ""
    log = PoolLog(family, weights_gib=weights, kv_gib=None if given else kv_gib)
    try:
        tokens, gib = _predict(row, card, gpu, log)
        analytic = _predict(row, card, gpu, None)[0] if given else None
    except InferaSimError as error:
        return result | {"skipped": str(error)}
    return result | {
        "predicted_tokens": tokens,
        "predicted_gib": round(gib, 2),
        "ape_pct": _ape(tokens, measured),
        "analytic_tokens": analytic,
        "analytic_ape_pct": _ape(analytic, measured),
        "weights": "printed" if weights is not None else "computed",
        "scored": "pool" if given else "bytes per token",
        "constant": _constant(row),
        "note": row["note"],
    }


def _ape(predicted: int | None, measured: int | None) -> float | None:
    return round(100 * abs(predicted / measured - 1), 2) if predicted and measured else None


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """Score every row."""
    path: Path = data_dir(args.corpus) / "measured" / "kv_pool_startup_logs.csv"
    with path.open(newline="", encoding="utf-8") as file:
        rows = [score(row) for row in csv.DictReader(file)]
    scored = [row for row in rows if row.get("ape_pct") is not None]
    for row in rows:
        error = row.get("ape_pct", row.get("skipped"))
        print(f"{row['model'][:36]:36} {row['gpu']:10} tp{row['tp']} {row['engine'][:22]:22} {error}", file=sys.stderr)

    def median(field: str, chosen: list[dict[str, Any]]) -> float | None:
        values = [row[field] for row in chosen if row.get(field) is not None]
        return round(statistics.median(values), 2) if values else None

    return {
        "n": len(scored),
        "median_ape_pct": median("ape_pct", scored),
        "unseen_median_ape_pct": median("ape_pct", [row for row in scored if not row["constant"]]),
        "unseen_n": sum(not row["constant"] for row in scored),
        "analytic_median_ape_pct": median("analytic_ape_pct", scored),
        "within_5_pct": sum(row["ape_pct"] <= 5 for row in scored),
        "skipped": sum("skipped" in row for row in rows),
        "rows": rows,
    }


if __name__ == "__main__":
    raise SystemExit(run(evaluate, parser(__doc__ or "")))
