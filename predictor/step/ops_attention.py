"""Token-priced operations around each attention kind, and the attention kernels themselves.

Query, key and value projections are sharded over the attention width; the low-rank down-projections of MLA and the
indexer are replicated on every rank. MLA decodes absorbed (per-head products with the up-projections, one latent read
for all heads) and prefills with keys and values restored.
"""

from predictor.cards import Attention
from predictor.context_parallel import layer_exchange
from predictor.kernels.linear_attention import CONV_DECODE_BYTES, CONV_PREFILL_BYTES
from predictor.step.op_types import AttentionOp, Build, Collective, Gemm, StepOp, Stream, layer_norms, linear_ops, shard

# Values a rotary kernel reads and writes for each query and key value, and the store into the cache.
_ROPE_BYTES_PER_VALUE = 4.0
_STORE_BYTES_PER_VALUE = 4.0


def attention_ops(build: Build, attention: Attention, count: float) -> tuple[list[StepOp], list[StepOp]]:
    """Decode and prefill operations of ``count`` layers of one attention kind, kernel apart."""
    builders = {"gqa": _gqa, "mla": _mla, "linear": _linear, "compressed": _compressed}
    decode, prefill = builders[attention.kind](build, attention, count)
    before = layer_norms(build, count, "attention")
    after = _reduce(build, count)
    return [*before, *decode, *_context_exchange(build, attention, count), *after], [*before, *prefill, *after]


def _context_exchange(build: Build, attention: Attention, count: float) -> list[StepOp]:
    """Query gather and output merge of decode context parallelism."""
    dcp = build.layout.dcp
    one = layer_exchange(attention, shard(attention.heads, build.layout.attn_tp), dcp)
    if one is None:
        return []
    return [
        Collective("dcp_gather", "all_gather", dcp, one.gather_bytes, count),
        Collective("dcp_merge", "reduce_scatter", dcp, one.scatter_bytes, count),
    ]


def attention_kernel(build: Build, attention: Attention, count: float) -> AttentionOp:
    """The attention kernel of ``count`` layers as this rank runs it: KV heads are replicated beyond their number."""
    width = build.layout.attn_tp
    kv_heads = shard(attention.kv_heads, width) if attention.kv_heads else 1
    heads = attention.value_heads if attention.kind == "linear" else attention.heads
    return AttentionOp(attention, shard(heads, width), kv_heads, build.precision.kv, count, 1.0 / build.layout.dcp)


def _linear_ops(build: Build, name: str, n: int, k: int, count: float, fusion: str = "") -> list[StepOp]:
    return linear_ops(build, name, n, k, build.attention_weight, count, fusion)


def _reduce(build: Build, count: float) -> list[StepOp]:
    """All-reduce of the output projection over the attention width."""
    width = build.layout.attn_tp
    return [Collective("attention_reduce", "all_reduce", width, 2.0 * build.card.hidden, count)] if width > 1 else []


def _rope_store(build: Build, rotated: float, stored: float, count: float) -> list[StepOp]:
    """Rotary embedding and cache store: one kernel when fused, two otherwise."""
    rope, store = _ROPE_BYTES_PER_VALUE * rotated, _STORE_BYTES_PER_VALUE * stored
    if "rope_kvstore" in build.fusions:
        return [Stream("rope_kvstore", rope + store - 2.0 * stored, count)]
    return [Stream("rope", rope, count), Stream("kv_store", store, count)]


def _gqa(build: Build, a: Attention, count: float) -> tuple[list[StepOp], list[StepOp]]:
    hidden, width = build.card.hidden, build.layout.attn_tp
    v_dim = a.value_head_dim
    heads, kv_heads = shard(a.heads, width), shard(a.kv_heads, width)
    query = heads * a.head_dim
    columns = query * (2 if a.gated_output else 1) + kv_heads * (a.head_dim + v_dim)
    ops: list[StepOp] = [
        *_linear_ops(build, "qkv", columns, hidden, count, "norm_quant"),
    ]
    if a.qk_norm:
        ops.append(Stream("qk_norm", 4.0 * (query + kv_heads * a.head_dim), count))
    ops += _indexer(build, a, count)
    ops += _rope_store(build, query + kv_heads * a.head_dim, kv_heads * (a.head_dim + v_dim), count)
    if a.gated_output:
        ops.append(Stream("output_gate", 6.0 * heads * v_dim, count))
    ops += _linear_ops(build, "o", hidden, heads * v_dim, count)
    return ops, ops


def _mla(build: Build, a: Attention, count: float) -> tuple[list[StepOp], list[StepOp]]:
    hidden, width = build.card.hidden, build.layout.attn_tp
    heads = shard(a.heads, width)
    qk_dim = a.nope_dim + a.rope_dim
    v_dim = a.v_head_dim or a.nope_dim
    latent = a.kv_lora_rank + a.rope_dim
    down = (a.q_lora_rank or heads * qk_dim) + latent
    front: list[StepOp] = [
        *_linear_ops(build, "qkv_down", down, hidden, count, "norm_quant"),
        Stream("latent_norm", 4.0 * ((a.q_lora_rank or 0) + a.kv_lora_rank), count),
    ]
    if a.q_lora_rank:
        front += _linear_ops(build, "q_up", heads * qk_dim, a.q_lora_rank, count, "norm_quant")
    front += _rope_store(build, (heads + 1) * a.rope_dim, latent, count)
    front += _indexer(build, a, count)
    back: list[StepOp] = [
        *_linear_ops(build, "o", hidden, heads * v_dim, count),
    ]
    bf16 = build.bf16
    absorbed: list[StepOp] = [
        Gemm("q_absorb", heads * a.kv_lora_rank, a.nope_dim, bf16, bf16, count),
        Gemm("v_absorb", heads * v_dim, a.kv_lora_rank, bf16, bf16, count),
    ]
    if a.index_topk:  # sparse kernels work on the latent in prefill too
        return [*front, *absorbed, *back], [*front, *absorbed, *back]
    restored: list[StepOp] = [
        *_linear_ops(build, "kv_up", heads * (a.nope_dim + v_dim), a.kv_lora_rank, count, "norm_quant"),
    ]
    return [*front, *absorbed, *back], [*front, *restored, *back]


def _indexer(build: Build, a: Attention, count: float) -> list[StepOp]:
    """Projections of a sparse-attention indexer; layers that reuse another layer's index have none."""
    if not a.index_topk or not a.index_stored:
        return []
    bf16 = build.bf16
    return [
        *_linear_ops(build, "index_q", a.index_heads * a.index_head_dim, a.q_lora_rank or build.card.hidden, count),
        Gemm("index_k", a.index_head_dim + a.index_heads, build.card.hidden, bf16, bf16, count),
        Stream("index_rope_quant", 5.0 * (a.index_heads + 1) * a.index_head_dim, count),
    ]


def _linear(build: Build, a: Attention, count: float) -> tuple[list[StepOp], list[StepOp]]:
    hidden, width = build.card.hidden, build.layout.attn_tp
    keys, values = a.key_heads * a.key_dim, a.value_heads * a.value_dim
    columns = shard(2 * keys + 2 * values + 2 * a.value_heads, width)
    mixed, out = shard(2 * keys + values, width), shard(values, width)
    front = _linear_ops(build, "linear_in", columns, hidden, count, "norm_quant")
    ops: list[StepOp] = [
        Stream("gated_norm", 6.0 * out, count),
        *_linear_ops(build, "linear_out", hidden, out, count),
    ]
    decode, prefill = (Stream("conv", each * mixed, count) for each in (CONV_DECODE_BYTES, CONV_PREFILL_BYTES))
    return [*front, decode, *ops], [*front, prefill, *ops]


def _compressed(build: Build, a: Attention, count: float) -> tuple[list[StepOp], list[StepOp]]:
    """Sliding window plus compressed pools: one shared KV vector, low-rank queries, grouped low-rank output."""
    hidden, width = build.card.hidden, build.layout.attn_tp
    heads = shard(a.heads, width)
    groups = shard(a.o_groups, width)
    compressor = 2 * a.head_dim if a.compress_ratio else 0
    front: list[StepOp] = [
        *_linear_ops(build, "q_kv_down", a.q_lora_rank + a.head_dim + compressor, hidden, count, "norm_quant"),
        Stream("latent_norm", 4.0 * (a.q_lora_rank + a.head_dim), count),
        *_linear_ops(build, "q_up", heads * a.head_dim, a.q_lora_rank, count, "norm_quant"),
        *_rope_store(build, (heads + 1) * (a.rope_dim or a.head_dim), a.head_dim, count),
        *_indexer(build, a, count),
    ]
    if a.compress_ratio:  # pooling of the latest tokens into an entry
        front.append(Stream("compress", 8.0 * a.head_dim, count))
    rank = a.o_lora_rank or heads * a.head_dim
    back: list[StepOp] = [
        *_linear_ops(build, "o_down", groups * rank, heads * a.head_dim // groups, count),
        *_linear_ops(build, "o_up", hidden, groups * rank, count),
    ]
    return [*front, *back], [*front, *back]
