"""Learn the facts of sparse and linear attention kernels; called by :mod:`evals.kernel_learn`."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from evals.kernel_layers import SMALL_BATCH, layer_rows
from evals.kernel_tables import ENGINES, Tables, gpu
from predictor.kernels.facts import LinearFacts, SparseFacts
from predictor.kernels.facts_nvidia import SPARSE
from predictor.kernels.gpu import Gpu

FloatArray = NDArray[np.float64]

# GLM-5 in the kernel tables: 32 index heads of 128, 64 heads over 2048 chosen latents of 576, 512 of them values.
_INDEX_FLOPS = 2.0 * 32 * 128
_SPARSE_FLOPS = 2.0 * 64 * (576 + 512)
_TOPK = 2048


def floor_and_share(ideal_us: FloatArray, us: FloatArray, start: tuple[float, float]) -> tuple[float, float]:
    """Floor and efficiency of ``us = floor + ideal / share``, by mean absolute log error."""
    found = minimize(
        lambda logs: float(np.mean(np.abs(np.log((np.exp(logs[0]) + ideal_us / np.exp(logs[1])) / us)))),
        np.log(start),
        method="Nelder-Mead",
    )
    return float(np.exp(found.x[0])), min(1.0, float(np.exp(found.x[1])))


def learn_sparse(tables: Tables, gpu_name: str) -> dict[tuple[str, str], SparseFacts]:
    """Kernel tables of SGLang give shares and floors; whole blocks give what an engine launches around them."""
    card = gpu(gpu_name)
    scores = _kernel(tables, gpu_name, "glm5_mqa_logits_module_perf", _score_ideal, (6.0, 0.4))
    topk = _kernel(tables, gpu_name, "glm5_topk_module_perf", _topk_ideal, (10.0, 0.3))
    attention = _kernel(tables, gpu_name, "glm5_dsa_attn_module_perf", _attention_ideal, (50.0, 0.4))
    base = SparseFacts(scores[0] + topk[0], 0.0, scores[1], topk[1], *attention)
    gaps = _indexer_gaps(tables, gpu_name)
    generation = card.generation.value
    return {(generation, engine): replace(base, engine_us=max(0.0, gaps.get(engine, 0.0))) for engine in ENGINES}


def _kernel(
    tables: Tables,
    gpu_name: str,
    name: str,
    ideal: Callable[[Gpu, FloatArray, FloatArray, FloatArray], FloatArray],
    start: tuple[float, float],
) -> tuple[float, float]:
    for found, engine, file in tables.files("sparse_attention", name):
        if (found, engine) == (gpu_name, "sglang"):
            rows = tables.read(file)
            batch, tokens, before = (rows[column].to_numpy(np.float64) for column in ("batch_size", "isl", "step"))
            return floor_and_share(ideal(gpu(gpu_name), batch, tokens, before), rows["us"].to_numpy(), start)
    raise LookupError(f"{name} of SGLang on {gpu_name} is not in {tables.folder}")


def _score_ideal(card: Gpu, batch: FloatArray, tokens: FloatArray, before: FloatArray) -> FloatArray:
    pairs = batch * tokens * (before + (tokens + 1.0) / 2.0)
    result: FloatArray = _INDEX_FLOPS * pairs / card.peak_fp8_flops * 1e6
    return result


def _topk_ideal(card: Gpu, batch: FloatArray, tokens: FloatArray, before: FloatArray) -> FloatArray:
    result: FloatArray = 4.0 * batch * tokens * (before + tokens) / card.hbm_bytes_per_s * 1e6
    return result


def _attention_ideal(card: Gpu, batch: FloatArray, tokens: FloatArray, before: FloatArray) -> FloatArray:
    seen = np.minimum(before + tokens, _TOPK)
    result: FloatArray = _SPARSE_FLOPS * batch * tokens * seen / card.peak_bf16_flops * 1e6
    return result


def _indexer_gaps(tables: Tables, gpu_name: str) -> dict[str, float]:
    """Each engine's share: the shipped one plus what small sparse blocks lack, less what dense ones lack."""
    lacking: dict[str, dict[str, list[FloatArray]]] = {"mla_layer_decode": {}, "sparse_layer_decode": {}}
    for rows in layer_rows(tables):
        if rows.gpu == gpu_name and rows.operation in lacking:
            small = rows.size <= SMALL_BATCH
            lacking[rows.operation].setdefault(rows.engine, []).append((rows.us - rows.times_us)[small])
    dense, sparse = (
        {engine: float(np.median(np.concatenate(parts))) for engine, parts in by_engine.items()}
        for by_engine in lacking.values()
    )
    generation = gpu(gpu_name).generation.value
    return {
        engine: SPARSE[generation, engine].engine_us + gap - dense.get(engine, 0.0) for engine, gap in sparse.items()
    }


def learn_linear(tables: Tables, gpu_name: str) -> dict[tuple[str, str], LinearFacts]:
    """Recurrent decode and chunked prefill kernels of each engine."""
    card = gpu(gpu_name)
    result = {}
    for found, engine, file in tables.files("linear_attention", "gdn_perf"):
        if found != gpu_name:
            continue
        frame = tables.read(file)
        parts: list[float] = []
        for part in ("recurrent", "chunk"):
            rows = frame[frame["kernel_source"].str.contains(part)]
            batch, tokens, heads, key, value = (
                rows[column].to_numpy(np.float64)
                for column in ("batch_size", "seq_len", "num_v_heads", "head_k_dim", "head_v_dim")
            )
            state_us = batch * heads * key * value * 8.0 / card.hbm_bytes_per_s * 1e6
            flops = batch * tokens * heads * (2.0 * 64.0 * (2.0 * key + value) + 4.0 * key * value)
            ideal = state_us if part == "recurrent" else flops / card.peak_bf16_flops * 1e6
            start = (3.5, 0.9) if part == "recurrent" else (20.0, 0.05)
            parts += floor_and_share(ideal, rows["us"].to_numpy(), start)
        result[card.generation.value, engine] = LinearFacts(*parts)
    return result
