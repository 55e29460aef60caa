"""Simulate-mode kernel times against the measured tables of ``aiconfigurator-core`` 0.12.0 (Hopper and Blackwell).

One set of constants a GPU generation and named facts of each engine's kernels; nothing is fitted to a shape. They were
learned on a few percent of the rows of H100 and B200 (``python -m evals.kernel_learn``); the other GPUs had no
part in it.
Besides absolute times two figures tell whether deployments are ranked rightly: the ratio of a layer's GEMMs from one TP
width to twice that width, and which precision is faster on a shape.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evals import corpus
from evals.kernel_layers import LayerRows, layer_rows, linear_attention_rows
from evals.kernel_rows import (
    Batch,
    FloatArray,
    decode_batches,
    gemm_batches,
    mla_decode_batches,
    mla_prefill_batches,
    moe_batches,
    predict_decode,
    predict_gemm,
    predict_mla_decode,
    predict_moe,
    predict_prefill,
    prefill_batches,
)
from evals.kernel_tables import OTHER_SYSTEMS, RULES, Tables, find_tables
from predictor.kernels import facts_nvidia

SIZE_CLASSES = (("decode", 0.0, 64.0), ("mid", 64.0, 1024.0), ("prefill", 1024.0, np.inf))
GEMM_PRECISION = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4"}
LARGE = 1024  # N and K from here on: smaller matrices decide nothing
DECISIVE_GAP = 0.10


@dataclass(frozen=True, slots=True)
class Scored:
    """Rows of one kernel with the model's times."""

    batch: Batch
    times_us: FloatArray

    def ratio(self) -> FloatArray:
        """Model over measured."""
        result: FloatArray = self.times_us / self.batch.us
        return result


def score(tables: Tables) -> dict[str, list[Scored]]:
    """Every usable row of every operation, priced."""
    return {
        "gemm": list(_gemm(tables)),
        "decode_attention": list(_priced(tables, decode_batches(tables), facts_nvidia.DECODE, predict_decode)),
        "mla_decode": list(_priced(tables, mla_decode_batches(tables), facts_nvidia.MLA_DECODE, predict_mla_decode)),
        "prefill_attention": list(_priced(tables, prefill_batches(tables), facts_nvidia.PREFILL, predict_prefill)),
        "mla_prefill": list(_priced(tables, mla_prefill_batches(tables), facts_nvidia.MLA_PREFILL, predict_prefill)),
        "moe": list(_priced(tables, moe_batches(tables), facts_nvidia.MOE, predict_moe)),
    }


def _gemm(tables: Tables) -> Iterator[Scored]:
    for batch in gemm_batches(tables):
        quant = facts_nvidia.QUANT.get((batch.gpu.generation.value, batch.engine, batch.key[1]))
        if quant is None and batch.key[1] != "bfloat16":  # an older generation: the same kernel as on Hopper
            quant = facts_nvidia.QUANT["hopper", batch.engine, batch.key[1]]
        yield Scored(batch, predict_gemm(batch, batch.gpu.constants, quant))


def _priced(
    tables: Tables, batches: Iterator[Batch], facts: dict[tuple[str, str, str, str], Any], predict: Callable[..., Any]
) -> Iterator[Scored]:
    for batch in batches:
        engine, family, fmt = batch.key
        found = facts.get((batch.gpu.generation.value, engine, family, fmt))
        if found is None:
            tables.dropped["kernel_without_facts"] = tables.dropped.get("kernel_without_facts", 0) + len(batch.us)
            continue
        yield Scored(batch, predict(batch, found))


# ---- absolute times ------------------------------------------------------------------------------------------------


def median_ape_pct(scored: list[Scored]) -> float:
    """Median absolute percentage error over the rows of all tables."""
    return _pct(np.median(np.abs(np.concatenate([part.ratio() for part in scored]) - 1.0)))


def breakdown(scored: dict[str, list[Scored]]) -> list[dict[str, Any]]:
    """One entry a GPU, engine, kernel, format and size class."""
    rows = []
    for operation, parts in scored.items():
        for part in parts:
            error = part.ratio() - 1.0
            for name, low, high in SIZE_CLASSES:
                chosen = error[(part.batch.size > low) & (part.batch.size <= high)]
                if len(chosen):
                    rows.append(
                        {
                            "operation": operation,
                            "gpu": part.batch.gpu.name,
                            "engine": part.batch.engine,
                            "kernel": "/".join(part.batch.key[1:]),
                            "size": name,
                            **_summary(chosen),
                        }
                    )
    return rows


def layer_breakdown(parts: list[LayerRows]) -> list[dict[str, Any]]:
    """One entry an operation, GPU and engine of whole attention layers."""
    groups: dict[tuple[str, str, str], list[LayerRows]] = {}
    for part in parts:
        groups.setdefault((part.operation, part.gpu, part.engine), []).append(part)
    rows = []
    for (operation, gpu_name, engine), held in groups.items():
        error = np.concatenate([part.times_us / part.us for part in held]) - 1.0
        rows.append(
            {
                "operation": operation,
                "gpu": gpu_name,
                "engine": engine,
                "kernel": "sum of operations",
                "size": "all",
                **_summary(error),
            }
        )
    return rows


def _summary(error: FloatArray) -> dict[str, Any]:
    return {
        "n": len(error),
        "median_ape_pct": _pct(np.median(np.abs(error))),
        "within_20_pct": _pct(np.mean(np.abs(error) < 0.2)),
        "bias_pct": _pct(np.median(error)),
    }


def _pct(share: Any) -> float:
    return round(100.0 * float(share), 2)


# ---- what ranks deployments ----------------------------------------------------------------------------------------


def layers(sizes: set[int]) -> Iterator[tuple[tuple[int, int], ...]]:
    """Dense layers whose four products, as (n, k) a TP width of one, all lie in the table's grid of sizes.

    Hidden widths of served models; query, key and value 1.25 to 3 times as wide; feed-forward one to four times.
    """
    for hidden, spread, inner in product((2048, 4096, 5120, 6144, 7168, 8192), (1.25, 1.5, 2.0, 3.0), sorted(sizes)):
        qkv = int(hidden * spread)
        if qkv in sizes and hidden <= inner <= 4 * hidden and 2 * inner in sizes:
            yield ((qkv, hidden), (hidden, hidden), (2 * inner, hidden), (hidden, inner))


def shard(layer: tuple[tuple[int, int], ...], width: int) -> tuple[tuple[int, int], ...]:
    """The same layer on one of ``width`` ranks: first and third product by columns, second and fourth by rows."""
    (qkv, hidden), (_, out), (up, _), (_, down) = layer
    return ((qkv // width, hidden), (hidden, out // width), (up // width, hidden), (hidden, down // width))


def tp_ratio_errors(part: Scored) -> FloatArray:
    """Relative error of a layer's GEMM sum at 2·TP over TP, for each layer, TP of 1, 2, 4 and token count."""
    c = part.batch.columns
    cells: dict[tuple[int, int], dict[int, int]] = {}
    for row, (n, k, m) in enumerate(zip(c["n"].astype(int), c["k"].astype(int), c["m"].astype(int), strict=True)):
        cells.setdefault((n, k), {})[m] = row
    errors = []
    for layer, width in product(layers({n for n, _ in cells}), (1, 2, 4)):
        narrow, wide = shard(layer, width), shard(layer, 2 * width)
        if all(shape in cells for shape in (*narrow, *wide)):
            common = set.intersection(*(set(cells[shape]) for shape in (*narrow, *wide)))
            for m in sorted(common):
                before, after = ([cells[shape][m] for shape in shapes] for shapes in (narrow, wide))
                model = part.times_us[after].sum() / part.times_us[before].sum()
                measured = part.batch.us[after].sum() / part.batch.us[before].sum()
                errors.append(model / measured - 1.0)
    return np.array(errors)


def faster_precision(parts: list[Scored]) -> tuple[int, int]:
    """(right, decided) over pairs of formats of one GPU and engine on one large shape, gap over 10%."""
    right = decided = 0
    for first_index, first in enumerate(parts):
        for second in parts[first_index + 1 :]:
            same_stack = (first.batch.gpu, first.batch.engine) == (second.batch.gpu, second.batch.engine)
            if same_stack and GEMM_PRECISION[first.batch.key[1]] != GEMM_PRECISION[second.batch.key[1]]:
                one, other = _same_shapes(first.batch, second.batch)
                measured = np.log(first.batch.us[one] / second.batch.us[other])
                model = np.log(first.times_us[one] / second.times_us[other])
                clear = np.abs(measured) > np.log1p(DECISIVE_GAP)
                decided += int(clear.sum())
                right += int(((measured > 0) == (model > 0))[clear].sum())
    return right, decided


def _same_shapes(first: Batch, second: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row numbers of the large shapes that both tables hold."""
    keys = []
    for batch in (first, second):
        c = batch.columns
        key = c["m"] * 2.0**40 + c["n"] * 2.0**20 + c["k"]
        keys.append(np.where((c["n"] >= LARGE) & (c["k"] >= LARGE), key, -1.0 - np.arange(len(key))))
    _, one, other = np.intersect1d(keys[0], keys[1], return_indices=True)
    return one[keys[0][one] > 0], other[keys[0][one] > 0]


# ---- report --------------------------------------------------------------------------------------------------------


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """All figures; the breakdown also as a table on stderr where no JSON is asked for."""
    tables = find_tables(args.tables)
    scored = score(tables)
    gemm = [part for part in scored["gemm"] if part.batch.gpu.name not in OTHER_SYSTEMS.values()]
    by_precision = {
        precision: [part for part in gemm if GEMM_PRECISION[part.batch.key[1]] == precision]
        for precision in ("bf16", "fp8", "fp4")
    }
    ratio_errors = np.concatenate([tp_ratio_errors(part) for part in gemm])
    right, decided = faster_precision(gemm)
    by = [*breakdown(scored), *layer_breakdown([*layer_rows(tables), *linear_attention_rows(tables)])]
    if not args.json:
        for row in by:
            print("  ".join(f"{value!s:>16}" for value in row.values()), file=sys.stderr)
    return {
        "gemm_median_ape_pct": {name: median_ape_pct(parts) for name, parts in by_precision.items()},
        "decode_attention_median_ape_pct": median_ape_pct(scored["decode_attention"]),
        "mla_decode_median_ape_pct": median_ape_pct(scored["mla_decode"]),
        "prefill_attention_median_ape_pct": median_ape_pct(scored["prefill_attention"]),
        "mla_prefill_median_ape_pct": median_ape_pct(scored["mla_prefill"]),
        "moe_median_ape_pct": median_ape_pct(scored["moe"]),
        "tp_ratio_median_ape_pct": _pct(np.median(np.abs(ratio_errors))),
        "tp_ratio_n": len(ratio_errors),
        "faster_precision_right_pct": _pct(right / decided),
        "faster_precision_n": decided,
        "blind_gpus": _blind(scored),
        "rules": [
            {"rule": rule, "rows_dropped": tables.dropped.get(rule, 0), "why": why} for rule, why in RULES.items()
        ],
        "by": by,
    }


def _blind(scored: dict[str, list[Scored]]) -> dict[str, float]:
    """The same medians over the GPUs no constant was learned on."""
    result = {}
    for operation, parts in scored.items():
        seen = ("H100", "B200", *OTHER_SYSTEMS.values())
        blind = [part for part in parts if part.batch.gpu.name not in seen]
        result[operation] = median_ape_pct(blind)
    return result


def main() -> int:
    """Command line."""
    arguments = corpus.parser(__doc__ or "")
    arguments.add_argument("--tables", metavar="DIR", help="folder systems/data of aiconfigurator-core")
    return corpus.run(evaluate, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
