"""Make the bundled anchors from the one-stage rows of the paper's Table 20: ``python -m evals.bundle_anchors``.

The table gives mean TTFT and TPOT of served closed loops (fixed lengths, all clients at once, 10·C requests) at 1, 16
and 64 clients. A prefill curve is fitted to the time of one prefill step, read off TTFT; the stalls those steps cause
are then taken out of TPOT. Only rows with one stage are read.
"""

import argparse
import csv
import json
from collections import defaultdict
from math import ceil
from pathlib import Path

from evals.corpus import data_dir
from predictor.anchors.fit import fit_prefill
from predictor.anchors.schema import SCHEMA_VERSION, Anchor, checked, stated_fields

SOURCE = "arXiv 2611.04032v1 Table 20, rows with one pipeline stage"
FOLDER = Path(__file__).parents[1] / "predictor" / "anchors" / "bundled"
# SGLang on GPUs of 160 GB and more: prefill steps hold up to 16384 prompt tokens.
TOKEN_BUDGET = 16384
OUTPUT_TOKENS = 1024
# Formats of the three checkpoints: Qwen3-14B-FP8 names its own, the other two are published in bf16.
CHECKPOINTS = {
    "Qwen3-14B-FP8": ("Qwen3-14B", "fp8"),
    "Llama-3.1-8B": ("Llama-3.1-8B", "bf16"),
    "Qwen3.6-35B-A3B": ("Qwen3.6-35B-A3B", "bf16"),
}

Row = dict[str, str]


def table20(folder: Path) -> list[Row]:
    """All rows of the table."""
    with (folder / "paper" / "table20_pipeline.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def prefill_step(row: Row) -> tuple[int, float]:
    """Tokens and time of one prefill step, from the mean TTFT of C prompts that were sent at once.

    C prompts make k = ceil(C / per step) steps one after another, so a prompt waits (k + 1)/2 of them on average.
    """
    clients, isl = int(row["concurrency"]), int(row["isl"])
    steps = ceil(clients / max(1, TOKEN_BUDGET // isl))
    return clients * isl // steps, float(row["measured_ttft_ms"]) * 2.0 / (steps + 1)


def decode_step_ms(row: Row) -> float:
    """TPOT less the prefill steps after a prompt's own, half of the others on average, spread over its output."""
    clients, isl = int(row["concurrency"]), int(row["isl"])
    steps = ceil(clients / max(1, TOKEN_BUDGET // isl))
    stall_ms = prefill_step(row)[1] * (steps - 1) / 2.0
    return float(row["measured_tpot_ms"]) - stall_ms / (OUTPUT_TOKENS - 1)


def anchor(model: str, rows: list[Row]) -> Anchor:
    """One anchor from all one-stage rows of a model, one decode sweep a prompt length."""
    name, dtype = CHECKPOINTS[model]
    steps = sorted(prefill_step(row) for row in rows)
    fit = fit_prefill([tokens for tokens, _ in steps], [time for _, time in steps])
    sweeps = []
    for isl in sorted({int(row["isl"]) for row in rows}):
        points = [
            {
                "batch": int(row["concurrency"]),
                "step_ms": round(decode_step_ms(row), 4),
                "served_tpot_ms": float(row["measured_tpot_ms"]),
            }
            for row in rows
            if int(row["isl"]) == isl
        ]
        sweeps.append(
            {
                "prompt_tokens": isl,
                "output_tokens": OUTPUT_TOKENS,
                "kind": "served",
                "points": sorted(points, key=lambda point: point["batch"]),
            }
        )
    return checked(
        Anchor,
        {
            "schema_version": SCHEMA_VERSION,
            "name": f"{model.lower()}-mi355x-sglang-tp1",
            "signature": {
                "gpu": "MI355X",
                "engine": "SGLang",
                "engine_version": "0.5.19",
                "model": name,
                "weight_dtype": dtype,
                "linear_dtype": dtype,
                "expert_dtype": dtype,
                "kv_dtype": "bf16",
            },
            "decode": sweeps,
            "prefill": {
                "points": [{"tokens": tokens, "step_ms": round(time, 3)} for tokens, time in steps],
                "fixed_ms": round(fit.fixed_ms, 6),
                "per_token_ms": round(fit.per_token_ms, 9),
                "per_token2_ms": round(fit.per_token2_ms, 15),
                "rms_residual_ms": round(fit.rms_residual_ms, 3),
            },
            "provenance": {
                "real_weights": True,
                "prefix_cache_off": True,
                "coarse": True,
                "source": SOURCE,
                "command": "vLLM benchmark_serving, random dataset, --ignore-eos, 10*C prompts",
            },
        },
    )


def anchors(folder: Path) -> dict[str, Anchor]:
    """The bundled anchors by model name of the table."""
    by_model: dict[str, list[Row]] = defaultdict(list)
    for row in table20(folder):
        if row["pp"] == "1" and row["tp"] == "1":
            by_model[row["model"]].append(row)
    return {model: anchor(model, rows) for model, rows in sorted(by_model.items())}


def text(value: Anchor) -> str:
    """The file's text."""
    return json.dumps(stated_fields(value), indent=1) + "\n"


def main() -> None:
    """Write the files."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--corpus", metavar="DIR")
    FOLDER.mkdir(exist_ok=True)
    for value in anchors(data_dir(arguments.parse_args().corpus)).values():
        (FOLDER / f"{value.name}.json").write_text(text(value))


if __name__ == "__main__":
    main()
