"""Which collectives carry tokens to experts and back, as each engine does it (paper App. B.3; engine sources).

Three styles an MoE layer. ``all_reduce``: tokens are replicated over the TP group and expert outputs are summed by the
all-reduce that TP pays anyway, so dispatch adds nothing; SGLang does so under ``--ep-size`` without an all-to-all
backend, vLLM and TensorRT-LLM whenever attention is not data parallel. ``gather``: ranks own their tokens (attention
DP), gather all of them before the experts and reduce-scatter after. ``all_to_all``: tokens travel only to the ranks
that hold their experts, once there and once back.
"""

from dataclasses import dataclass
from math import pow
from typing import Literal

from predictor.types import Layout

DispatchStyle = Literal["none", "all_reduce", "gather", "all_to_all"]
CollectiveOp = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]

# Engines whose all-to-all kernels also serve TP attention; the others start them under attention DP only (vLLM: EP and
# DP > 1; ATOM and TensorRT-LLM: with DP attention).
_ALL_TO_ALL_WITH_TP_ATTENTION = ("sglang",)


@dataclass(frozen=True, slots=True)
class MoeDispatch:
    """Style of one MoE layer, the collectives it issues over the whole group, and why."""

    style: DispatchStyle
    ops: tuple[CollectiveOp, ...]
    reason: str


def moe_dispatch(engine: str, layout: Layout, a2a: str = "none") -> MoeDispatch:
    """Collectives of one MoE layer's dispatch and combine; ``a2a`` is the all-to-all backend, or ``none``.

    >>> moe_dispatch("sglang", Layout(tp=8, ep=8)).style, moe_dispatch("sglang", Layout(tp=8, ep=8), "mori_ht").style
    ('all_reduce', 'all_to_all')
    """
    if layout.tp == 1:
        return MoeDispatch("none", (), "one GPU holds every expert")
    dp = layout.attn_dp > 1
    if layout.ep > 1 and a2a != "none" and (dp or engine.lower() in _ALL_TO_ALL_WITH_TP_ATTENTION):
        return MoeDispatch("all_to_all", ("all_to_all", "all_to_all"), f"{engine} dispatches and combines over {a2a}")
    if dp:
        reason = f"{engine} gathers the tokens of {layout.attn_dp} attention ranks and reduce-scatters expert outputs"
        return MoeDispatch("gather", ("all_gather", "reduce_scatter"), reason)
    if layout.ep > 1 and a2a != "none":
        reason = f"{engine} uses {a2a} under attention DP only; expert outputs combine with the TP all-reduce"
    else:
        reason = "expert outputs combine with the TP all-reduce"
    return MoeDispatch("all_reduce", ("all_reduce",), reason)


def groups_reached(topk: int, groups: int) -> float:
    """Distinct ranks (or nodes) that hold a token's experts under uniform routing: ``G · (1 − (1 − 1/G)^k)``.

    >>> round(groups_reached(8, 8), 2), round(groups_reached(8, 32), 2)
    (5.25, 7.18)
    """
    return groups * (1.0 - pow(1.0 - 1.0 / groups, topk))
