"""Whole attention layers of the measured tables against the sum of the operations a step is built from.

The tables time one attention block as the engine runs it: projections, norms, rotary embedding, cache store, indexer,
attention, output projection, no all-reduce. Nothing here is learned from dense MLA blocks, so they check the list of
operations itself; of sparse blocks only the indexer's floor is learned, on H100 and B200.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evals.kernel_tables import Tables
from predictor.cards import ModelCard
from predictor.kernels.linear_attention import decode_us_per_request, prefill_us_per_token
from predictor.profiles.loader import model_card, platform
from predictor.step.attention_price import decode_attention, prefill_attention
from predictor.step.decode_work import Curve, curve, price_context
from predictor.step.op_price import TOKEN_GRID, PriceContext
from predictor.step.op_types import AttentionOp, Build, Collective, StepOp, Stream
from predictor.step.ops_attention import attention_kernel, attention_ops
from predictor.types import Deployment, Dtype, Kernels, Layout, Precision

FloatArray = NDArray[np.float64]
Price = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]  # batch, new tokens a request, tokens before -> us

MODELS = {
    "deepseek-ai/DeepSeek-V3": "DeepSeek-R1",
    "deepseek-ai/DeepSeek-V3.2": "DeepSeek-V3.2",
    "zai-org/GLM-5": "GLM-5",
    "zai-org/GLM-5-FP8": "GLM-5",
    "zai-org/GLM-5.2": "GLM-5.2",
    "zai-org/GLM-5.2-FP8": "GLM-5.2",
    "sgl-project/DeepSeek-V4-Flash-FP8": "DeepSeek-V4-Flash",
    "sgl-project/DeepSeek-V4-Pro-FP8": "DeepSeek-V4-Pro",
}
FORMATS = {"bfloat16": Dtype.BF16, "fp8_block": Dtype.FP8, "fp8": Dtype.FP8, "nvfp4": Dtype.FP4}
# (operation, folder, table, whether it is decode)
MODULES = (
    ("mla_layer_decode", "mla", "mla_generation_module_perf", True),
    ("mla_layer_prefill", "mla", "mla_context_module_perf", False),
    ("sparse_layer_decode", "sparse_attention", "dsa_generation_module_perf", True),
    ("sparse_layer_prefill", "sparse_attention", "dsa_context_module_perf", False),
    ("compressed_layer_decode", "sparse_attention", "dsv4_csa_generation_module_perf", True),
    ("compressed_layer_decode", "sparse_attention", "dsv4_hca_generation_module_perf", True),
    ("compressed_layer_prefill", "sparse_attention", "dsv4_csa_context_module_perf", False),
    ("compressed_layer_prefill", "sparse_attention", "dsv4_hca_context_module_perf", False),
)
SMALL_BATCH = 16  # decode rows up to here are floors


@dataclass(frozen=True, slots=True)
class LayerRows:
    """Measured blocks of one table, engine and format, and the model's times."""

    operation: str
    gpu: str
    engine: str
    kernel: str
    us: FloatArray
    times_us: FloatArray
    size: FloatArray


def layer_rows(tables: Tables) -> Iterator[LayerRows]:
    """Every attention block that a card can build."""
    for operation, folder, name, decode in MODULES:
        for gpu_name, engine, file in tables.files(folder, name):
            frame = tables.read(file)
            frame = frame[frame["model"].isin(list(MODELS)) & frame["gemm_type"].isin(list(FORMATS))]
            frame = frame[~frame["op_name"].str.contains("skip")]
            if not decode and len(frame):
                # Blocks never take less than the host needs to issue them; rows near that floor time the host.
                frame = tables.keep("host_bound_block", frame, frame["us"] > 1.5 * frame["us"].min())
            columns = ["model", "gemm_type", "kv_cache_dtype", "num_heads"]
            ratio = int(frame["compress_ratio"].iloc[0]) if "compress_ratio" in frame.columns and len(frame) else 0
            for (model, fmt, kv, heads), rows in frame.groupby(columns):
                card = _one_layer(model_card(MODELS[str(model)]), ratio)
                if card is not None:
                    weight, cache = FORMATS[str(fmt)], Dtype.FP8 if "fp8" in str(kv) else Dtype.BF16
                    batch, tokens, before = (
                        rows[column].to_numpy(np.float64) for column in ("batch_size", "isl", "step")
                    )
                    price = _block(card, gpu_name, engine, int(heads), weight, cache, decode)
                    times = price(batch, tokens, before)
                    size = batch if decode else batch * tokens
                    kernel = f"{fmt}/kv {cache.value}"
                    yield LayerRows(operation, gpu_name, engine, kernel, rows["us"].to_numpy(), times, size)


def _one_layer(card: ModelCard, ratio: int) -> ModelCard | None:
    """The card with the layers of the table only: its last group, or the one of the table's compression."""
    groups = [group for group in card.groups if not ratio or group.attention.compress_ratio == ratio]
    return replace(card, name=f"{card.name} x{ratio}", groups=(replace(groups[-1], count=1),)) if groups else None


def _block(card: ModelCard, gpu_name: str, engine: str, heads: int, weight: Dtype, cache: Dtype, decode: bool) -> Price:
    """Time of one block for (batch, new tokens a request, tokens before), us."""
    attention = card.groups[0].attention
    layout = Layout(tp=max(1, attention.heads // heads))
    precision = Precision(weight, weight, weight, cache)
    deployment = Deployment(card.name, gpu_name, engine, layout=layout, precision=precision)
    context = price_context(card, platform(gpu_name), deployment, layout)
    # 4-bit rows quantise the projections too, which checkpoints of these models leave wider.
    wide = replace(card, fp4_attention=weight)
    build = Build(wide, layout, precision, Kernels(), engine, context.facts.fusions)
    decode_ops, prefill_ops = attention_ops(build, attention, 1.0)
    kernel = attention_kernel(build, attention, 1.0)
    if decode:
        return _decode_price(context, _own(decode_ops), kernel)
    return _prefill_price(context, _own(prefill_ops), kernel)


def _own(ops: list[StepOp]) -> tuple[StepOp, ...]:
    """The block's own operations: no all-reduce, and the residual add belongs to the layer around it."""
    return tuple(op for op in ops if not isinstance(op, Collective) and not _is_add(op))


def _is_add(op: StepOp) -> bool:
    return isinstance(op, Stream) and op.name == "attention_add"


def _decode_price(context: PriceContext, ops: tuple[StepOp, ...], kernel: AttentionOp) -> Price:
    linear = curve(context, ops, "decode")
    attention = decode_attention(context.gpu, context.facts, kernel, 1.0)
    floor = linear.launch_us + attention.launch_us

    def price(batch: FloatArray, tokens: FloatArray, before: FloatArray) -> FloatArray:
        context = batch * (tokens + before)
        times = floor + _at(linear, batch) + attention.form.times_us(batch, 0.0 * batch) - attention.form.floor_us
        for read in attention.reads:
            times = times + read.us_per_token * np.minimum(context, read.cap_tokens * batch)
        return times

    return price


def _prefill_price(context: PriceContext, ops: tuple[StepOp, ...], kernel: AttentionOp) -> Price:
    linear = curve(context, ops, "prefill")
    attention = prefill_attention(context.gpu, context.facts, kernel)
    floor = linear.launch_us + attention.launch_us

    def price(batch: FloatArray, tokens: FloatArray, before: FloatArray) -> FloatArray:
        pairs = batch * tokens * (tokens / 2.0 + before)
        work = batch * tokens * attention.us_per_token + pairs * attention.us_per_pair
        return floor + _at(linear, batch * tokens) + work

    return price


def _at(linear: Curve, tokens: FloatArray) -> FloatArray:
    """Token-priced work over an array; beyond the grid in proportion."""
    last = float(TOKEN_GRID[-1])
    result: FloatArray = np.interp(tokens, TOKEN_GRID, linear.total_us) * np.maximum(1.0, tokens / last)
    return result


def linear_attention_rows(tables: Tables) -> Iterator[LayerRows]:
    """Gated delta net kernels: the recurrent step at decode, the chunked scan at prefill; convolution apart."""
    for gpu_name, engine, file in tables.files("linear_attention", "gdn_perf"):
        frame = tables.read(file)
        deployment = Deployment("gdn", gpu_name, engine)
        context = price_context(model_card("Qwen3.5-397B-A17B"), platform(gpu_name), deployment, Layout())
        facts = context.facts.linear
        for part, phase in (("recurrent", "decode"), ("chunk", "prefill")):
            rows = frame[frame["kernel_source"].str.contains(part)]
            if not len(rows):
                continue
            batch, tokens = rows["batch_size"].to_numpy(np.float64), rows["seq_len"].to_numpy(np.float64)
            work = np.array([_gdn_us(context, part, *shape) for shape in zip(
                rows["num_v_heads"], rows["head_k_dim"], rows["head_v_dim"], strict=True)])  # fmt: skip
            if phase == "decode":
                times, size = facts.decode_floor_us + batch * work, batch
            else:
                times, size = facts.prefill_floor_us + batch * tokens * work, batch * tokens
            yield LayerRows(f"linear_attention_{phase}", gpu_name, engine, "gdn", rows["us"].to_numpy(), times, size)


def _gdn_us(context: PriceContext, part: str, heads: float, key_dim: float, value_dim: float) -> float:
    if part == "recurrent":
        return decode_us_per_request(context.gpu, context.facts.linear, heads * key_dim * value_dim, 4.0)
    return prefill_us_per_token(context.gpu, context.facts.linear, heads, key_dim, value_dim)
