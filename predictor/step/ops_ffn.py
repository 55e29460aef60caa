"""Operations of dense and mixture-of-experts feed-forward blocks, and of the LM head and sampling.

Dense blocks and shared experts shard their intermediate width over all ``tp`` GPUs. Routed experts lie whole on ``ep``
ranks and are sharded over ``tp/ep``. Dispatch follows the engine: without an all-to-all backend tokens stay replicated
and the TP all-reduce combines the experts; under attention DP they are gathered and scattered back; with a backend each
rank's rows travel there and back.
"""

from predictor.cards import Ffn
from predictor.expert_dispatch import moe_dispatch
from predictor.step.op_types import (
    Build,
    Collective,
    Experts,
    Gemm,
    Scope,
    StepOp,
    Stream,
    layer_norms,
    linear_ops,
    shard,
)
from predictor.types import Dtype

SAMPLING_LAUNCHES = 4.0  # top-k/top-p filter, softmax, draw, token copy: vLLM and SGLang samplers
DISPATCH_BYTES = {True: 1.0, False: 2.0}  # fp8 dispatch where experts run in low precision


def ffn_ops(build: Build, ffn: Ffn, count: float) -> list[StepOp]:
    """All operations of ``count`` layers of one feed-forward kind."""
    ops = [*layer_norms(build, count, "ffn"), *_gather(build, ffn, count)]
    if ffn.intermediate:
        ops += _dense(build, "ffn", ffn.intermediate, ffn.gated, count)
    if ffn.experts:
        ops += _moe(build, ffn, count)
    ops += _combine(build, ffn, count)
    return ops


def _scope(build: Build) -> Scope:
    return "group" if build.layout.attn_dp > 1 else "rank"


def _dense(build: Build, name: str, intermediate: int, gated: bool, count: float) -> list[StepOp]:
    hidden, width, scope = build.card.hidden, shard(intermediate, build.layout.tp), _scope(build)
    up = width * (2 if gated else 1)
    activation: list[StepOp] = [Stream(f"{name}_activation", 2.0 * (up + width), count, scope)]
    return [
        *linear_ops(build, f"{name}_up", up, hidden, build.ffn_weight, count, "norm_quant", scope),
        *activation,
        *linear_ops(build, f"{name}_down", hidden, width, build.ffn_weight, count, "act_quant", scope),
    ]


def _moe(build: Build, ffn: Ffn, count: float) -> list[StepOp]:
    hidden, scope = build.card.hidden, _scope(build)
    work = ffn.latent_dim or hidden
    routing = 1.0 if "moe_routing" in build.fusions else 2.0
    ops: list[StepOp] = [
        Gemm("router", ffn.experts, hidden, build.bf16, build.bf16, count, scope, term="router"),
        Stream("route_topk", 8.0 * ffn.experts / routing, count * routing, scope, term="router"),
    ]
    if ffn.latent_dim:
        for name, n, k in (("latent_down", work, hidden), ("latent_up", hidden, work)):
            ops += linear_ops(build, name, n, k, build.ffn_weight, count, "", scope)
    if ffn.shared_experts:
        intermediate = (ffn.shared_intermediate or ffn.moe_intermediate) * ffn.shared_experts
        ops += _dense(build, "shared", intermediate, ffn.gated, count)
        ops.append(Stream("shared_add", 6.0 * hidden, count, scope))
    fused = "moe_expert" in build.fusions
    ops.append(
        Experts(
            ffn.experts, ffn.topk, work, ffn.moe_intermediate, ffn.gated, build.precision.expert, count, scope, fused
        )
    )
    return ops


def _all_to_all(build: Build, ffn: Ffn) -> bool:
    return bool(ffn.experts) and moe_dispatch(build.engine, build.layout, build.kernels.a2a).style == "all_to_all"


def _gather(build: Build, ffn: Ffn, count: float) -> list[StepOp]:
    """What brings tokens to the block: an all-to-all of each rank's own, or a gather under attention DP."""
    layout, hidden = build.layout, build.card.hidden
    if _all_to_all(build, ffn):
        sent = DISPATCH_BYTES[build.precision.expert is not Dtype.BF16]
        # Without attention DP tokens are replicated: each rank sends its slice of them.
        own = 1.0 / layout.attn_tp
        return [Collective("dispatch", "all_to_all", layout.ep, sent * hidden * own, count, topk=ffn.topk)]
    if layout.attn_dp > 1:
        return [Collective("gather", "all_gather", layout.tp, 2.0 * hidden, count, "group")]
    return []


def _combine(build: Build, ffn: Ffn, count: float) -> list[StepOp]:
    """What brings results back: the way they came, or the all-reduce of TP."""
    layout, hidden = build.layout, build.card.hidden
    if _all_to_all(build, ffn):
        own = 1.0 / layout.attn_tp
        ops: list[StepOp] = [Collective("combine", "all_to_all", layout.ep, 2.0 * hidden * own, count, topk=ffn.topk)]
        if layout.attn_tp > 1:
            ops.append(Collective("ffn_gather", "all_gather", layout.attn_tp, 2.0 * hidden, count))
        return ops
    if layout.attn_dp > 1:
        return [Collective("scatter", "reduce_scatter", layout.tp, 2.0 * hidden, count, "group")]
    return [Collective("ffn_reduce", "all_reduce", layout.tp, 2.0 * hidden, count)] if layout.tp > 1 else []


def head_ops(build: Build) -> list[StepOp]:
    """Final norm, LM head, gathering of logits and sampling: once a step, over the sampled tokens."""
    card, width = build.card, build.layout.tp
    columns = shard(card.vocab, width)
    ops: list[StepOp] = [
        Stream("final_norm", 8.0 * card.hidden, 1.0, term="lm_head"),
        Gemm("lm_head", columns, card.hidden, build.bf16, build.bf16, 1.0, term="lm_head"),
    ]
    if width > 1:
        ops.append(Collective("logits_gather", "all_gather", width, 2.0 * card.vocab, 1.0))
    ops.append(Stream("sampling", 12.0 * card.vocab / SAMPLING_LAUNCHES, SAMPLING_LAUNCHES, term="sampling"))
    return ops
