"""Ratios of simulated work between two layouts of one kernel set.

A step or a prompt is rebuilt from its operations (:mod:`predictor.step.decode_work`) at both layouts; only the ratio is
used, so that efficiencies the kernel models get wrong on both sides cancel.
"""

from dataclasses import replace
from functools import lru_cache

from predictor.step.decode_work import DecodeWork, curve, decode_work, deployment_ops, interpolate, price_context
from predictor.step.model import PrefillCurve
from predictor.step.simulate import HOST_STEP_MS, prefill_curve
from predictor.transfer.context import KernelContext
from predictor.types import Deployment, Kernels

# Prompt at which the ratio of costs a token is taken; only the quadratic part of attention depends on it.
_PROMPT_TOKENS = 4096
_CHUNK_TOKENS = 8192


def _deployment(side: KernelContext) -> Deployment:
    return Deployment(
        model=side.card.name,
        gpu=side.platform.name,
        engine=side.engine,
        layout=side.layout,
        precision=side.precision,
        kernels=Kernels(allreduce=side.allreduce),
        eplb_redundant=side.redundant,
    )


def _kernels(side: KernelContext) -> KernelContext:
    """A side without its lengths and acceptance, which prices of operations do not depend on."""
    return replace(side, context_tokens=0.0, tokens_per_step=1.0)


@lru_cache(maxsize=1024)
def _decode(side: KernelContext) -> DecodeWork:
    return decode_work(side.card, side.platform, _deployment(side), side.layout, 1.0 + side.draft_depth)


@lru_cache(maxsize=1024)
def _prefill(side: KernelContext) -> PrefillCurve:
    return prefill_curve(side.card, side.platform, _deployment(side), side.layout, _CHUNK_TOKENS)


def simulated_step_ms(side: KernelContext, batch: float) -> float:
    """Decode step over ``batch`` requests of the replica: the largest attention-DP rank's, fixed cost included."""
    work = _decode(_kernels(side))
    rank_batch = max(1.0, batch / side.layout.attn_dp)
    terms = work.terms_us(rank_batch, rank_batch * side.context_tokens, rank_batch)
    return (sum(terms.values()) + work.launch_us) / 1e3 + HOST_STEP_MS


def simulated_token_ms(side: KernelContext) -> float:
    """Cost of a prompt token of a busy replica. Ranks under attention DP prefill prompts of their own side by side."""
    curve = _prefill(_kernels(side))
    return (curve.per_token_ms + curve.per_token2_ms * _PROMPT_TOKENS) / side.layout.attn_dp


# Prompt work that a rank does for its own tokens alone; what is left is shared by the group.
_RANK_TERMS = ("elementwise", "quant", "gemm", "router")
# Engines whose attention-DP ranks schedule prompts each for itself (vLLM). SGLang's delayer and ATOM line them up.
_UNCOORDINATED = ("vLLM",)


def lone_rank_factor(side: KernelContext) -> float:
    """Cost of a prompt under attention DP over the same GPUs without it, where ranks prefill one at a time.

    A prompt is then prefilled by one rank, attention and dense work on one GPU, while the others wait for the step: its
    own terms are whole, the group's (experts, collectives) cover its tokens only. 1 where ranks prefill side by side.
    """
    ranks = side.layout.attn_dp
    if ranks == 1 or side.engine not in _UNCOORDINATED:
        return 1.0
    own, group = _prompt_terms(_kernels(side))
    plain = sum(_prompt_terms(_kernels(replace(side, layout=replace(side.layout, attn_dp=1)))))
    return (own + group / ranks) / plain


def group_share(side: KernelContext) -> float:
    """Share of a prompt's work that the group of ranks shares: experts and collectives."""
    own, group = _prompt_terms(_kernels(side))
    return group / (own + group)


@lru_cache(maxsize=1024)
def _prompt_terms(side: KernelContext) -> tuple[float, float]:
    """Work of a full chunk on a rank: its own terms and the group's, us."""
    deployment = _deployment(side)
    context = price_context(side.card, side.platform, deployment, side.layout)
    operations = deployment_ops(side.card, side.platform, deployment, side.layout)
    terms = curve(context, operations.prefill, "prefill").terms_us
    amounts = {name: interpolate(values, float(_CHUNK_TOKENS)) for name, values in terms.items()}
    own = sum(us for name, us in amounts.items() if name in _RANK_TERMS)
    return own, sum(amounts.values()) - own
