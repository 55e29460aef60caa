"""Whether a deployment and a workload make sense for a model at all; engine rules are :mod:`levers.legality`'s."""

from predictor.cards import EngineProfile, ModelCard
from predictor.errors import BadInput
from predictor.types import Arrival, Deployment, Layout, Workload


def check_workload(workload: Workload, card: ModelCard) -> None:
    """Raise BadInput naming the first impossible field of a workload."""
    for name, value in (
        ("isl", workload.isl_tokens),
        ("osl", workload.osl_tokens),
        ("concurrency", workload.concurrency),
    ):
        if value < 1:
            raise BadInput(f"{name} {value}: must be at least 1")
    total = workload.isl_tokens + workload.osl_tokens
    if total > card.max_context_tokens:
        raise BadInput(f"isl + osl {total}: {card.name} holds at most {card.max_context_tokens} tokens of context")
    if workload.arrival is not Arrival.CLOSED and (workload.request_rate_per_s or 0.0) <= 0.0:
        raise BadInput(f"request rate {workload.request_rate_per_s}: arrival {workload.arrival} needs one above 0")
    if not 0.0 < workload.length_range_frac <= 1.0:
        raise BadInput(f"length range {workload.length_range_frac}: must be above 0 and at most 1")
    if not 0.0 <= workload.prefix_hit_frac < 1.0:
        raise BadInput(f"prefix hit share {workload.prefix_hit_frac}: must be at least 0 and below 1")


def check_layout(layout: Layout, card: ModelCard, pool: str = "") -> None:
    """Raise BadInput naming the first width that cannot divide this model. ``pool`` leads the message, if given."""
    where = f"{pool} " if pool else ""
    for name, width in (
        ("tp", layout.tp),
        ("ep", layout.ep),
        ("pp", layout.pp),
        ("attn-dp", layout.attn_dp),
        ("dcp", layout.dcp),
    ):
        if width < 1:
            raise BadInput(f"{where}{name} {width}: must be at least 1")
    if layout.tp % layout.attn_dp:
        raise BadInput(f"{where}attn-dp {layout.attn_dp}: must divide tp {layout.tp}")
    heads, kv_heads = card.attention.heads, card.attention.kv_heads
    if heads and heads % layout.attn_tp:
        legal = [tp for tp in (1, 2, 4, 8, 16) if heads % tp == 0]
        raise BadInput(
            f"{where}tp {layout.attn_tp}: does not divide the {heads} attention heads of {card.name}; "
            f"legal: {', '.join(map(str, legal))}"
        )
    if card.attention.kind == "gqa" and kv_heads % layout.attn_tp and layout.attn_tp % kv_heads:
        raise BadInput(f"{where}tp {layout.attn_tp}: neither divides nor is a multiple of {kv_heads} KV heads")
    experts = card.moe.experts if card.moe else 0
    if layout.ep > 1 and not experts:
        raise BadInput(f"{where}ep {layout.ep}: {card.name} has no experts; use ep 1")
    if layout.ep > 1 and experts % layout.ep:
        raise BadInput(f"{where}ep {layout.ep}: does not divide the {experts} experts of {card.name}")
    if layout.tp % layout.ep:
        raise BadInput(f"{where}ep {layout.ep}: must divide tp {layout.tp}")
    if layout.pp > card.layers:
        raise BadInput(f"{where}pp {layout.pp}: {card.name} has only {card.layers} layers")


def check_deployment(deployment: Deployment, card: ModelCard, profile: EngineProfile) -> None:
    """Raise BadInput naming the first impossible field of a deployment."""
    check_layout(deployment.layout, card)
    _check_dense_ranks(deployment.layout, deployment.replicas, card, profile)
    if deployment.replicas < 1:
        raise BadInput(f"replicas {deployment.replicas}: must be at least 1")
    topk = deployment.kernels.sparse_topk
    if topk and (topk < 0 or not card.attention.index_topk):
        raise BadInput(f"sparse_topk {topk}: {card.name} has no sparse attention of such a width; leave it 0")
    if deployment.prefill is not None:
        check_layout(deployment.prefill.layout, card, "prefill")
        _check_dense_ranks(deployment.prefill.layout, deployment.prefill.replicas, card, profile, "prefill ")
        if deployment.prefill.replicas < 1:
            raise BadInput(f"prefill replicas {deployment.prefill.replicas}: must be at least 1")
    if deployment.speculation.depth < 0:
        raise BadInput(f"speculation depth {deployment.speculation.depth}: must not be negative")


def _check_dense_ranks(layout: Layout, replicas: int, card: ModelCard, profile: EngineProfile, pool: str = "") -> None:
    """Ranks that share no step and no weights are replicas, and are asked for as such."""
    if layout.attn_dp > 1 and not card.is_moe and not profile.dense_dp_lockstep:
        raise BadInput(
            f"{pool}attn-dp {layout.attn_dp}: on {profile.name} the DP ranks of a dense model are independent engines; "
            f"use {pool}tp {layout.attn_tp} and {pool}replicas {replicas * layout.attn_dp}"
        )
