"""What decode context parallelism exchanges: queries before attention, partial outputs after it (engines' Helix, DCP).

``dcp`` of the GPUs that hold copies of the same KV heads keep 1/dcp of a sequence each. A rank needs the queries
of its whole group to attend over its share, and the group's partial outputs are merged by their log-sum-exp, so every
layer gathers queries and reduce-scatters outputs. With ``H`` heads a rank, per token and layer in bf16::

    gather  = 2 · H · dcp · d_query          scatter = 2 · H · dcp · d_output + 4 · H · dcp (log-sum-exp, fp32)

MLA attends absorbed: ``d_query`` is the latent with its rotary part, ``d_output`` the latent. A recurrent layer has no
cache to share and exchanges nothing. Source: vLLM 0.33 ``vllm/v1/attention/ops/common.py`` (outputs corrected by the
gathered log-sum-exps, then reduced) and the query gather of its attention layers.
"""

from dataclasses import dataclass

from predictor.cards import Attention

_VALUE_BYTES = 2.0
_LSE_BYTES = 4.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """Bytes a token puts into the two collectives of one layer."""

    gather_bytes: float
    scatter_bytes: float


def layer_exchange(attention: Attention, heads_per_rank: float, dcp: int) -> Exchange | None:
    """Exchange of one layer over a group of ``dcp`` GPUs; None where nothing is exchanged."""
    if dcp == 1 or attention.kind == "linear":
        return None
    latent = attention.kind == "mla"
    query = attention.kv_lora_rank + attention.rope_dim if latent else attention.head_dim
    output = attention.kv_lora_rank if latent else attention.value_head_dim or attention.head_dim
    heads = heads_per_rank * dcp
    return Exchange(_VALUE_BYTES * heads * query, heads * (_VALUE_BYTES * output + _LSE_BYTES))
