"""Number formats: what the checkpoint, the GPU and the quantisation blocks allow."""

from collections.abc import Iterator

from levers.catalog.common import ATOM, VLLM
from levers.catalog.precision import (
    computes,
    expert_on_hand,
    gpu_computes,
    kv_supported,
    narrowness,
    validated,
    weight_on_hand,
)
from levers.context import SearchContext
from levers.legality.rule import Pool, Rule, pools
from levers.reasons import Reason
from predictor.memory import fp4_format
from predictor.types import Deployment, Dtype, Precision, Workload

# columns of one scale that a rank needs whole; MXFP4 kernels pad any split (gpt-oss runs 720 columns a rank)
FP4_BLOCK = {"mxfp4": 0, "nvfp4": 16, "int4": 32}


def weights_available(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """A validated checkpoint in the weight format."""
    for rule in (weight_on_hand, validated):
        reason = rule(context, deployment.precision.weight)
        if reason:
            yield reason


def experts_available(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Experts in a format of a checkpoint, not wider than the other weights."""
    precision = deployment.precision
    if not context.card.is_moe:
        return
    reason = expert_on_hand(context, precision.expert)
    if reason:
        yield reason
    elif narrowness(precision.expert) < narrowness(precision.weight):
        yield Reason(
            "expert_wider",
            f"expert_dtype={precision.expert} is wider than weight_dtype={precision.weight}: no checkpoint is made "
            f"so; use expert_dtype={precision.weight}",
        )


def activations_run(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Activations no narrower than the weights, in a format the GPU multiplies."""
    precision = deployment.precision
    reason = gpu_computes(context, precision.linear)
    if reason:
        yield reason
    if narrowness(precision.linear) > narrowness(precision.weight):
        yield Reason(
            "linear_narrower",
            f"linear_dtype={precision.linear} is narrower than weight_dtype={precision.weight}: choose a checkpoint "
            f"in {precision.linear}, or linear_dtype={precision.weight}",
        )


def kv_kept(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Some backend of the engine must keep its cache in the format."""
    reason = kv_supported(context, deployment.precision.kv)
    if reason:
        yield reason


def expert_blocks(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Columns of an expert on one rank are whole quantisation blocks; EP avoids the split."""
    card, moe = context.card, context.card.moe
    if moe is None:
        return
    block = quant_block(context, deployment.precision, deployment.precision.expert)
    for pool in pools(deployment):
        ranks = pool.layout.tp // pool.layout.ep
        if block and ranks and (moe.moe_intermediate % ranks or moe.moe_intermediate // ranks % block):
            yield Reason(
                "moe_block",
                f"{pool.label}TP{pool.layout.tp} leaves {moe.moe_intermediate / ranks:g} of {moe.moe_intermediate} "
                f"MoE columns of {card.name} a rank, not a multiple of {block}: "
                f"{_narrower(pool, moe.moe_intermediate, block)}",
            )


def _narrower(pool: Pool, columns: int, block: int) -> str:
    """What to do: the widest TP that keeps whole blocks, or expert parallelism."""
    widths = [width for width in (1, 2, 4, 8, 16, 32) if columns % width == 0 and columns // width % block == 0]
    fits = [width for width in widths if width < pool.layout.tp]
    return f"use TP{max(fits)} or EP" if fits else "use EP"


def quant_block(context: SearchContext, precision: Precision, dtype: Dtype) -> int:
    """Columns that one kernel needs whole on a rank in this format, 0 for any split.

    ATOM checks 8-bit experts against their block and pads 4-bit ones up to its tiles.
    """
    if dtype is Dtype.FP8:
        return context.card.quant_block
    if dtype is Dtype.FP4 and context.engine.name != ATOM:
        return FP4_BLOCK[fp4_format(context.card, context.platform, precision)]
    return 0


def dense_blocks(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Columns of a dense block on one rank are whole quantisation blocks."""
    precision = deployment.precision
    block = quant_block(context, precision, precision.weight)
    if precision.weight is Dtype.FP4 and context.card.is_moe:
        return  # 4-bit checkpoints of MoE models quantise the experts and keep the dense layers wider
    widths = {group.ffn.intermediate for group in context.card.groups if group.ffn.intermediate}
    for pool in pools(deployment):
        ranks = dense_ranks(pool, context)
        for columns in sorted(widths):
            if block and (columns % ranks or columns // ranks % block):
                yield Reason(
                    "dense_block",
                    f"{pool.label}{ranks} GPUs leave {columns / ranks:g} of {columns} columns of the dense layers of "
                    f"{context.card.name} each, not a multiple of {block}: use a narrower TP",
                )


def dense_ranks(pool: Pool, context: SearchContext) -> int:
    """GPUs that share a dense layer: under attention DP vLLM shards it over one rank's GPUs, others over all."""
    return pool.attn_tp if context.engine.name == VLLM else pool.layout.tp


def fp4_has_units(deployment: Deployment, workload: Workload, context: SearchContext) -> Iterator[Reason]:
    """Weight-only 4-bit needs kernels that unpack; the engines on CDNA3 have none for dense layers."""
    precision = deployment.precision
    if precision.weight is not Dtype.FP4 or computes(context, Dtype.FP4) or context.platform.vendor != "amd":
        return
    yield Reason(
        "fp4_amd",
        f"weight_dtype=fp4: {deployment.gpu} has no FP4 units, and {context.engine.name} unpacks 4-bit weights on "
        "NVIDIA GPUs only; use fp8",
    )


RULES = (
    Rule(
        name="weights",
        summary="the weight format has a validated checkpoint",
        source="model cards",
        check=weights_available,
    ),
    Rule(
        name="experts",
        summary="experts come in a checkpoint's format, no wider than its weights",
        source="model cards",
        check=experts_available,
    ),
    Rule(
        name="activations",
        summary="activations no narrower than weights, in a format of the GPU",
        source="GPU data sheets",
        check=activations_run,
    ),
    Rule(
        name="kv_backend",
        summary="some attention backend keeps the KV format",
        source="vllm-project/vllm#42587, #54761",
        check=kv_kept,
    ),
    Rule(
        name="fp4_amd",
        summary="4-bit weights need FP4 units on AMD",
        source="engine quantisation tables",
        check=fp4_has_units,
    ),
    Rule(
        name="moe_block",
        summary="expert columns a rank are whole quantisation blocks",
        source="vllm-project/vllm#17569, #25292; ROCm/ATOM ffdf3bb5",
        check=expert_blocks,
    ),
    Rule(
        name="dense_block",
        summary="dense columns a rank are whole quantisation blocks",
        source="vLLM FP8 linear layers",
        check=dense_blocks,
    ),
)
