"""Rows of the measured kernel tables as arrays, and the model's time for each: shared by scoring and learning.

A :class:`Batch` is one kernel on one GPU under one engine. Its ``predict`` takes the facts of that kernel, so that the
learner can move them and the scorer can take the shipped ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evals.kernel_tables import Tables, gpu
from predictor.kernels.attention import gqa_decode, mla_decode, prefill
from predictor.kernels.elementwise import quant_us
from predictor.kernels.facts import DecodeFacts, KernelConstants, MoeFacts, PrefillFacts, QuantFacts
from predictor.kernels.gemm import gemm_us
from predictor.kernels.gpu import Generation, Gpu
from predictor.kernels.moe import experts_us
from predictor.types import Dtype

FloatArray = NDArray[np.float64]

LATENT, ROPE, NOPE = 512, 64, 128  # DeepSeek's MLA, the only one in the tables


@dataclass(frozen=True, slots=True)
class Batch:
    """Measured rows of one kernel: ``key`` names its facts, ``size`` sorts rows into decode, mid and prefill."""

    operation: str
    gpu: Gpu
    engine: str
    key: tuple[str, ...]
    us: FloatArray
    size: FloatArray
    columns: dict[str, FloatArray]

    def take(self, rows: NDArray[np.int64]) -> "Batch":
        """The same with some rows only."""
        columns = {name: values[rows] for name, values in self.columns.items()}
        return Batch(self.operation, self.gpu, self.engine, self.key, self.us[rows], self.size[rows], columns)


def _columns(frame: Any, **names: str) -> dict[str, FloatArray]:
    return {ours: frame[theirs].to_numpy(np.float64) for ours, theirs in names.items()}


def _combinations(batch: Batch, *names: str) -> Iterator[tuple[tuple[float, ...], NDArray[np.int64]]]:
    """Rows that share the named columns."""
    stacked = np.stack([batch.columns[name] for name in names], axis=1)
    values, inverse = np.unique(stacked, axis=0, return_inverse=True)
    order = np.argsort(inverse.ravel(), kind="stable")
    edges = np.searchsorted(inverse.ravel()[order], np.arange(len(values) + 1))
    for index, value in enumerate(values):
        yield tuple(float(part) for part in value), order[edges[index] : edges[index + 1]]


# ---- GEMM ----------------------------------------------------------------------------------------------------------

GEMM_FORMATS = {"bfloat16": Dtype.BF16, "fp8": Dtype.FP8, "fp8_block": Dtype.FP8, "nvfp4": Dtype.FP4}


def gemm_batches(tables: Tables) -> Iterator[Batch]:
    """GEMM rows by GPU, engine and format; low precision includes the activation quantisation."""
    for gpu_name, engine, file in tables.files("gemm", "gemm_perf", older=True):
        frame = tables.read(file)
        frame = tables.keep("weight_only_int", frame, frame["gemm_dtype"].isin(list(GEMM_FORMATS)))
        if engine == "vllm":
            frame = tables.keep("host_bound_fp8_block", frame, frame["gemm_dtype"] != "fp8_block")
        for name, rows in frame.groupby("gemm_dtype"):
            columns = _columns(rows, m="m", n="n", k="k")
            yield Batch(
                "gemm", gpu(gpu_name), engine, (engine, str(name)), rows["us"].to_numpy(), columns["m"], columns
            )


def predict_gemm(batch: Batch, constants: KernelConstants, quant: QuantFacts | None) -> FloatArray:
    """GEMM and, in low precision, the quantisation of its input."""
    dtype = GEMM_FORMATS[batch.key[1]]
    card = batch.gpu.with_constants(constants)
    c = batch.columns
    times = gemm_us(card, dtype, c["m"], c["n"], c["k"])
    if quant is None:
        return times
    return times + quant_us(card, dtype, c["m"], c["k"], quant)


# ---- attention -----------------------------------------------------------------------------------------------------

_FAMILIES = (
    ("fa3", "fa3"),
    ("flash_attn_fa4", "fa4"),
    ("flash_attention", "fa3"),
    ("triton", "triton"),
    ("trtllm", "trtllm"),
    ("torch_flow_flashinfer", "flashinfer"),
    ("flashinfer", "flashinfer"),
    ("torch_flow", "trtllm"),
    ("default", "trtllm"),
)


def attention_family(kernel_source: str) -> str:
    """Kernel family of a table's ``kernel_source``."""
    return next((family for part, family in _FAMILIES if part in kernel_source), kernel_source)


def _precision(frame: Any, column: str) -> FloatArray:
    result: FloatArray = np.where(frame[column] == "fp8", 1.0, 2.0)
    return result


def decode_batches(tables: Tables) -> Iterator[Batch]:
    """Decode attention by kernel family and cache precision; the context read stops at the window."""
    for gpu_name, engine, file in tables.files("attention", "generation_attention_perf"):
        frame = tables.read(file)
        group = frame["num_heads"] / frame["num_key_value_heads"]
        frame = tables.keep("unserved_head_group", frame, group < 48)
        card = gpu(gpu_name)
        if card.generation is Generation.HOPPER:
            frame = tables.keep("unserved_head_dim", frame, frame["head_dim"] < 512)
        frame = frame.assign(family=frame["kernel_source"].map(attention_family))
        for (family, kv), rows in frame.groupby(["family", "kv_cache_dtype"]):
            c = _columns(
                rows, batch="batch_size", heads="num_heads", kv_heads="num_key_value_heads", dim="head_dim",
                window="window_size",
            )  # fmt: skip
            seen = (rows["isl"] + rows["step"]).to_numpy(np.float64)
            seen = np.where(c["window"] > 0, np.minimum(seen, c["window"]), seen)
            c["context"] = seen * c["batch"]
            key = (engine, str(family), "fp8" if kv == "fp8" else "bf16")
            yield Batch("decode_attention", card, engine, key, rows["us"].to_numpy(), c["batch"], c)


def predict_decode(batch: Batch, facts: DecodeFacts) -> FloatArray:
    """Decode attention of every row."""
    result = np.empty_like(batch.us)
    kv = Dtype.FP8 if batch.key[2] == "fp8" else Dtype.BF16
    for (heads, kv_heads, dim), rows in _combinations(batch, "heads", "kv_heads", "dim"):
        form = gqa_decode(batch.gpu, facts, int(heads), int(kv_heads), int(dim), int(dim), kv)
        result[rows] = form.times_us(batch.columns["batch"][rows], batch.columns["context"][rows])
    return result


def mla_decode_batches(tables: Tables) -> Iterator[Batch]:
    """Absorbed MLA decode kernels."""
    for gpu_name, engine, file in tables.files("mla", "generation_mla_perf"):
        frame = tables.read(file)
        frame = frame.assign(family=frame["kernel_source"].map(attention_family))
        for (family, kv), rows in frame.groupby(["family", "kv_cache_dtype"]):
            c = _columns(rows, batch="batch_size", heads="num_heads")
            c["context"] = (rows["isl"] + rows["step"]).to_numpy(np.float64) * c["batch"]
            key = (engine, str(family), "fp8" if kv == "fp8" else "bf16")
            yield Batch("mla_decode", gpu(gpu_name), engine, key, rows["us"].to_numpy(), c["batch"], c)


def predict_mla_decode(batch: Batch, facts: DecodeFacts) -> FloatArray:
    """MLA decode of every row."""
    result = np.empty_like(batch.us)
    kv = Dtype.FP8 if batch.key[2] == "fp8" else Dtype.BF16
    for (heads,), rows in _combinations(batch, "heads"):
        form = mla_decode(batch.gpu, facts, int(heads), LATENT, ROPE, kv)
        result[rows] = form.times_us(batch.columns["batch"][rows], batch.columns["context"][rows])
    return result


def prefill_batches(tables: Tables) -> Iterator[Batch]:
    """Prefill attention by kernel family and arithmetic format."""
    for gpu_name, engine, file in tables.files("attention", "context_attention_perf"):
        frame = tables.read(file)
        frame = tables.keep("one_token_prompt", frame, frame["isl"] > 1)
        card = gpu(gpu_name)
        if card.generation is Generation.HOPPER:
            frame = tables.keep("unserved_head_dim", frame, frame["head_dim"] < 512)
        frame = frame.assign(family=frame["kernel_source"].map(attention_family))
        for (family, arithmetic), rows in frame.groupby(["family", "attn_dtype"]):
            c = _columns(
                rows, batch="batch_size", tokens="isl", heads="num_heads", kv_heads="num_key_value_heads",
                qk="head_dim", v="head_dim", window="window_size",
            )  # fmt: skip
            key = (engine, str(family), "fp8" if arithmetic == "fp8" else "bf16")
            yield Batch("prefill_attention", card, engine, key, rows["us"].to_numpy(), c["batch"] * c["tokens"], c)


def mla_prefill_batches(tables: Tables) -> Iterator[Batch]:
    """MLA prefill with keys and values restored: as many KV heads as query heads, 192 and 128 wide."""
    for gpu_name, engine, file in tables.files("mla", "context_mla_perf"):
        frame = tables.read(file)
        frame = tables.keep("one_token_prompt", frame, frame["isl"] > 1)
        frame = frame.assign(family=frame["kernel_source"].map(attention_family))
        for (family, kv), rows in frame.groupby(["family", "kv_cache_dtype"]):
            c = _columns(rows, batch="batch_size", tokens="isl", heads="num_heads", kv_heads="num_heads")
            c["qk"] = np.full_like(c["batch"], float(NOPE + ROPE))
            c["v"] = np.full_like(c["batch"], float(NOPE))
            c["window"] = np.zeros_like(c["batch"])
            key = (engine, str(family), "fp8" if kv == "fp8" else "bf16")
            yield Batch("mla_prefill", gpu(gpu_name), engine, key, rows["us"].to_numpy(), c["batch"] * c["tokens"], c)


def predict_prefill(batch: Batch, facts: PrefillFacts) -> FloatArray:
    """Prefill attention of every row, MLA included (its fp8 rows store fp8 and multiply in bf16)."""
    result = np.empty_like(batch.us)
    low = batch.operation == "prefill_attention" and batch.key[2] == "fp8"
    for (heads, kv_heads, qk, v), rows in _combinations(batch, "heads", "kv_heads", "qk", "v"):
        form = prefill(batch.gpu, facts, int(heads), int(kv_heads), int(qk), int(v), Dtype.FP8 if low else Dtype.BF16)
        c = batch.columns
        result[rows] = form.times_us(c["batch"][rows], c["tokens"][rows], c["window"][rows])
    return result


# ---- mixture of experts --------------------------------------------------------------------------------------------

MOE_FORMATS = {
    "bfloat16": ("bf16", Dtype.BF16, Dtype.BF16),
    "fp8": ("fp8", Dtype.FP8, Dtype.FP8),
    "fp8_block": ("fp8_block", Dtype.FP8, Dtype.FP8),
    "nvfp4": ("nvfp4", Dtype.FP4, Dtype.FP4),
    "w4a8_mxfp4_mxfp8": ("mxfp4_a8", Dtype.FP4, Dtype.FP8),
    "w4a16_mxfp4": ("mxfp4_a16", Dtype.FP4, Dtype.BF16),
}
_MOE_FAMILIES = (
    ("triton", "triton"),
    ("flashinfer_cutlass", "cutlass"),
    ("flashinfer_trtllm", "trtllm"),
    ("marlin", "marlin"),
    ("deepgemm", "deepgemm"),
    ("nongated", "nongated"),
    ("min_latency", "min_latency"),
    ("torch_flow", "cutlass"),
)


def moe_family(kernel_source: str) -> str:
    """Kernel family of a table's ``kernel_source``."""
    return next((family for part, family in _MOE_FAMILIES if part in kernel_source), kernel_source)


def moe_batches(tables: Tables) -> Iterator[Batch]:
    """Grouped GEMMs with tokens dealt round robin: ``min(E, T·k)`` distinct experts, equal rows each."""
    for gpu_name, engine, file in tables.files("moe", "moe_perf"):
        frame = tables.read(file)
        frame = tables.keep("weight_only_int", frame, frame["moe_dtype"].isin(list(MOE_FORMATS)))
        skewed = frame["distribution"] != "balanced"
        frame = tables.keep("light_busiest_rank", frame, ~(skewed & (frame["moe_ep_size"] > 1)))
        frame = tables.keep("unknown_distribution", frame, frame["distribution"] == "balanced")
        card = gpu(gpu_name)
        frame = frame.assign(family=frame["kernel_source"].map(moe_family))
        for (family, name), rows in frame.groupby(["family", "moe_dtype"]):
            c = _moe_columns(rows)
            fmt, weight, _ = MOE_FORMATS[str(name)]
            moved = c["read"] * c["matrices"] * c["hidden"] * c["intermediate"] * (2.0 if fmt == "bf16" else 1.0)
            moved *= 0.53125 if weight is Dtype.FP4 else 1.0
            physical = moved / card.hbm_bytes_per_s * 1e6 < c["us"]
            tables.keep("unphysical_bandwidth", rows, rows["us"].gt(-1) & physical)
            c = {column: values[physical] for column, values in c.items()}
            if len(c["us"]):
                yield Batch("moe", card, engine, (engine, str(family), fmt), c["us"], c["tokens"], c)


def _moe_columns(rows: Any) -> dict[str, FloatArray]:
    c = _columns(
        rows, tokens="num_tokens", hidden="hidden_size", topk="topk", experts="num_experts", ep="moe_ep_size",
        tp="moe_tp_size", inter="inter_size", us="us",
    )  # fmt: skip
    c["intermediate"] = np.ceil(c["inter"] / c["tp"])
    c["all_rows"] = c["tokens"] * c["topk"]
    c["rows"] = np.maximum(1.0, c["all_rows"] / c["ep"])
    c["read"] = np.minimum(c["experts"] / c["ep"], c["rows"])
    # Top-22 models and 2688/1856 have no gate matrix; TensorRT-LLM names their kernel.
    ungated = (c["topk"] == 22) | ((c["hidden"] == 2688) & (c["inter"] == 1856))
    ungated |= rows["kernel_source"].str.contains("nongated").to_numpy()
    c["matrices"] = np.where(ungated, 2.0, 3.0)
    return c


def predict_moe(batch: Batch, facts: MoeFacts) -> FloatArray:
    """Routed experts of every row; TensorRT-LLM permutes only the rows of its own experts."""
    c = batch.columns
    _, weight, arithmetic = next(value for value in MOE_FORMATS.values() if value[0] == batch.key[2])
    moved = c["rows"] if batch.engine == "trtllm" else c["all_rows"]
    return experts_us(
        batch.gpu, facts, weight, arithmetic, c["rows"], c["read"], c["hidden"], c["intermediate"], c["matrices"], moved
    )
