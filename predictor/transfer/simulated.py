"""Ratios of simulated work between two layouts of one kernel set.

A step or a prompt is rebuilt from its operations (:mod:`predictor.step.decode_work`) at both layouts; only the ratio is
used, so that efficiencies the kernel models get wrong on both sides cancel.
"""

from dataclasses import replace
from functools import lru_cache

from predictor.step.decode_work import DecodeWork, decode_work
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
        kernels=Kernels(),
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
