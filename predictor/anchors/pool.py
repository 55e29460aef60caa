"""The KV pool of a deployment where an anchor tells more than the memory model.

An anchor may state the pool its engine printed, and a served one how many requests ran at once, which the pool must
have held. What that says of the memory model at the anchor's layout is carried to the target as a factor on the pool.
"""

from dataclasses import replace
from math import ceil

from predictor.anchors.schema import Anchor
from predictor.cards import EngineProfile, ModelCard, Platform
from predictor.engines import GIB, Settings, effective_settings
from predictor.errors import DoesNotFit
from predictor.memory import max_concurrency, memory
from predictor.types import Deployment, MemoryBreakdown


def pool_memory(
    deployment: Deployment,
    card: ModelCard,
    platform: Platform,
    profile: EngineProfile,
    settings: Settings,
    anchor: Anchor | None,
) -> MemoryBreakdown:
    """Memory of one GPU, the pool corrected by what the anchor shows; raises DoesNotFit where neither finds room."""
    if anchor is None or not shows_pool(anchor):
        return memory(card, platform, deployment, settings)
    from predictor.pool_logs import PoolLog  # only pools that were seen need it

    own = replace(deployment, layout=anchor.signature.layout, prefill=None)
    try:
        here = memory(card, platform, own, effective_settings(profile, own.engine_version, platform, card, own))
    except DoesNotFit:
        if deployment.layout != anchor.signature.layout:
            return memory(card, platform, deployment, settings)
        return memory(card, platform, deployment, settings, PoolLog(profile.name, tokens=shown_tokens(anchor)))
    factor = pool_factor(anchor, here)
    modelled = memory(card, platform, deployment, settings)
    if factor == 1.0:
        return modelled
    return memory(
        card, platform, deployment, settings, PoolLog(profile.name, kv_gib=factor * modelled.kv_pool_bytes / GIB)
    )


def shows_pool(anchor: Anchor) -> bool:
    """Whether the anchor says anything about its KV pool."""
    return anchor.kv_pool_tokens is not None or any(sweep.held_requests for sweep in anchor.decode)


def shown_tokens(anchor: Anchor) -> int:
    """Tokens the pool of one scheduler held: as printed, or those of the requests that ran at once."""
    if anchor.kv_pool_tokens is not None:
        return anchor.kv_pool_tokens
    held = [(sweep.held_requests or 0) * (sweep.prompt_tokens + sweep.output_tokens) for sweep in anchor.decode]
    return ceil(max(held) / anchor.signature.attn_dp)


def pool_factor(anchor: Anchor, here: MemoryBreakdown) -> float:
    """Pool the anchor shows over the modelled one; requests that ran at once only ever raise it."""
    if anchor.kv_pool_tokens is not None:
        return anchor.kv_pool_tokens / here.kv_pool_tokens
    shares = [
        sweep.held_requests
        / max(1, max_concurrency(here, sweep.prompt_tokens + sweep.output_tokens, anchor.signature.layout))
        for sweep in anchor.decode
        if sweep.held_requests
    ]
    return max(1.0, *shares)
