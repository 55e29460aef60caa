"""The operations of one step on one GPU, rebuilt from the model card and the layout."""

from predictor.cards import ModelCard
from predictor.kernels.engine_facts import engine_key
from predictor.step.op_types import AttentionOp, Build, StepOp, StepOps
from predictor.step.ops_attention import attention_kernel, attention_ops
from predictor.step.ops_ffn import ffn_ops, head_ops
from predictor.types import Kernels, Layout, Precision


def step_ops(
    card: ModelCard, layout: Layout, precision: Precision, kernels: Kernels, engine: str, fusions: frozenset[str]
) -> StepOps:
    """Operations of one forward pass on the busiest GPU; all pipeline stages together.

    ``fusions`` are those the engine applies without being asked; the deployment's own are added to them.
    """
    build = Build(card, layout, precision, kernels, engine_key(engine), fusions | frozenset(kernels.fusions))
    decode: list[StepOp] = []
    prefill: list[StepOp] = []
    attention: list[AttentionOp] = []
    for group in card.groups:
        count = float(group.count)
        decode_part, prefill_part = attention_ops(build, group.attention, count)
        feed_forward = ffn_ops(build, group.ffn, count)
        decode += [*decode_part, *feed_forward]
        prefill += [*prefill_part, *feed_forward]
        attention.append(attention_kernel(build, group.attention, count))
    return StepOps(tuple(decode), tuple(prefill), tuple(attention), tuple(head_ops(build)))
