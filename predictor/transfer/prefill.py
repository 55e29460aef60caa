"""Prompt work across layouts.

The fixed part of a prefill step is kept (paper §3.1.2: 146.9 and 145.9 ms at TP4 and TP8). The cost a token moves by
the ratio of simulated work where kernel tables back it; elsewhere its all-reduces, two a layer, are moved apart::

    c' = (c − A(w))·w/w' + A(w'),     A(w) = n·2·hidden/B(w)

``A`` is zero on one GPU, which is why some models gain nothing from TP1 to TP2 and halve from there on. A layer waits
for its busiest expert rank, so the part of a prompt that experts take goes with the busiest rank's rows at both EPs
(paper §3.1.2; simulated work has them in it). Attention DP whose ranks prefill one at a time pays a rank's own work
whole (:func:`~predictor.transfer.simulated.lone_rank_factor`).
"""

from dataclasses import replace

from predictor.expert_load import imbalance_at_both
from predictor.step.model import PrefillCurve
from predictor.transfer.constants import TransferConstants, default_constants, link_scale
from predictor.transfer.context import KernelContext
from predictor.transfer.terms import by_gpus

_ACTIVATION_BYTES = 2.0
_STEP_TOKENS = 8192.0  # of a full prompt step: the engines' token budgets are 8192 to 16384
_MAX_ALLREDUCE_SHARE = 0.7  # of a measured cost a token: the rest is computation that took some time


def allreduce_ms_per_token(side: KernelContext, constants: TransferConstants) -> float:
    """Time a prompt token spends in all-reduces, ms."""
    if side.gpus == 1:
        return 0.0
    blocks = 1 if side.layout.attn_dp > 1 else 2
    message = side.card.hidden * _ACTIVATION_BYTES
    bandwidth = by_gpus(constants.prefill_allreduce_gb_s, side.gpus) * 1e9 * link_scale(side.platform)
    return blocks * side.card.layers * message / bandwidth * 1e3


def move_per_token(
    per_token_ms: float, source: KernelContext, target: KernelContext, constants: TransferConstants
) -> float:
    """Cost of a prompt token at the target's layout."""
    if constants.prefill_simulated:
        from predictor.transfer.simulated import simulated_token_ms  # kernel models load only where they are needed

        return per_token_ms * simulated_token_ms(target) / simulated_token_ms(source)
    modelled = allreduce_ms_per_token(source, constants)
    here = min(modelled, _MAX_ALLREDUCE_SHARE * per_token_ms)
    scale = here / modelled if modelled else 1.0  # a ladder that shows less than the model says keeps its discount
    there = allreduce_ms_per_token(target, constants) * scale
    return ((per_token_ms - here) * source.gpus / target.gpus + there) * busiest_rank_factor(source, target)


def busiest_rank_factor(source: KernelContext, target: KernelContext) -> float:
    """What the busiest expert rank of a full prompt step costs at the target's EP over the anchor's.

    Only the share of the work that experts take is stretched by the rows of the busiest rank over the mean.
    """
    moe = source.card.moe
    same_ranks = source.layout.ep == target.layout.ep and source.redundant == target.redundant
    if moe is None or same_ranks:
        return 1.0
    from predictor.transfer.simulated import group_share  # kernel models load only where they are needed

    here, there = imbalance_at_both(
        moe.experts, moe.topk, source.layout.ep, target.layout.ep, _STEP_TOKENS, "prefill", target.redundant
    )
    return 1.0 + group_share(source) * (there.i_n / here.i_n - 1.0)


def prefill_ratio(
    source: KernelContext, target: KernelContext, per_token_ms: float, constants: TransferConstants
) -> float:
    """Factor on a cost a token; 1 where there is none."""
    if per_token_ms <= 0.0:
        return 1.0
    return move_per_token(per_token_ms, source, target, constants) / per_token_ms


def move_prefill(
    curve: PrefillCurve, source: KernelContext, target: KernelContext, constants: TransferConstants | None = None
) -> PrefillCurve:
    """Carry prompt coefficients to another layout; identity at the same one, exactly.

    A prompt's messages are large ones, which every variant hands to the library: the all-reduce variant moves nothing.
    """
    if replace(source, context_tokens=0.0) == replace(target, context_tokens=0.0, allreduce=source.allreduce):
        return curve
    known = constants or default_constants(source.platform)
    if target.layout.attn_dp > 1 and source.layout.attn_dp == 1:
        from predictor.transfer.simulated import lone_rank_factor

        lone = lone_rank_factor(target)
    else:
        lone = 1.0
    if lone != 1.0:
        one_by_one = move_prefill(curve, source, replace(target, layout=replace(target.layout, attn_dp=1)), known)
        return replace(one_by_one, per_token_ms=one_by_one.per_token_ms * lone)
    ratio = prefill_ratio(source, target, curve.per_token_ms, known)
    return PrefillCurve(
        fixed_ms=curve.fixed_ms,
        per_token_ms=curve.per_token_ms * ratio,
        per_token2_ms=curve.per_token2_ms * (source.gpus / target.gpus),
        mixed_fixed_ms=curve.mixed_fixed_ms,
        per_request_ms=curve.per_request_ms,
    )
