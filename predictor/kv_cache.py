"""What one request keeps in GPU memory: KV bytes per token, window residency, recurrent state; every attention kind.

All figures are of one GPU: the busiest pipeline stage, one tensor-parallel rank. Layouts follow vLLM's
``kv_cache_interface.py``, SGLang's ``pool_configurator.py`` and ATOM's block manager.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, floor
from typing import Literal

from predictor.cards import Attention, LayerGroup, ModelCard
from predictor.types import Dtype, Layout

Vendor = Literal["amd", "nvidia"]

KV_BYTES = {Dtype.BF16: 2.0, Dtype.FP8: 1.0, Dtype.FP4: 0.5 + 1 / 16}  # nvfp4: one FP8 scale for 16 elements
INDEX_SCALE_BYTES = 4  # DeepSeek indexer keys are FP8 with one fp32 scale for 128 elements
FP8_DS_MLA_BYTES = 656  # vLLM sparse MLA on CUDA: 512 fp8, 4 fp32 scales, 64 bf16 rope
NVFP4_DS_MLA_BYTES = 352  # the same in NVFP4
COMPRESSED_ENTRY_BYTES = 584  # DeepSeek-V4: 448 fp8, 64 bf16 rope, 8 scale bytes
# DeepSeek-V4 outside SGLang: pool bytes over bare entries, with page padding, windows and compressor state. It is
# bound to the version and not derived: one start log of vLLM 0.21 (GB300, TP4); ATOM and TensorRT-LLM assumed alike.
COMPRESSED_FACTOR = 1.86
COMPRESSED_WINDOW_SHARE = 0.1  # SGLang 0.5.23: tokens of the window pool over those of the pool
COMPRESSED_STATE_ROWS = 8 / 256  # SGLang: rows of compressor state for each token of a window page
MAMBA_FULL_MEMORY_RATIO = 0.9  # SGLang: state pool over the KV pool
SWA_FULL_TOKENS_RATIO = 0.8  # SGLang: window pool's tokens over the full pool's


@dataclass(frozen=True, slots=True)
class KvCost:
    """Bytes of one GPU that a request of ``n`` tokens keeps.

    ``per_token`` for each token; ``window_per_token`` for each of the last ``window_tokens``; ``per_sequence`` whatever
    its length. Tokens are rounded up to blocks. ``in_flight_tokens`` of the window's are those of the steps in flight,
    which all requests of a scheduler share.
    """

    per_token: float
    window_per_token: float
    window_tokens: int
    per_sequence: float
    block_tokens: int
    in_flight_tokens: int = 0

    def requests_held(self, pool_bytes: float, tokens: int) -> int:
        """Requests of ``tokens`` that a pool holds at once.

        A request alone must find room for its window and what is in flight, and engines print their capacity so; but
        only the requests that prefill have tokens in flight, at most one budget a step together.

        >>> KvCost(100.0, 10.0, 1024, 0.0, 16, 960).requests_held(1e6, 1024), int(1e6 / 112800.0)
        (9, 8)
        """
        alone = floor(pool_bytes / self.request_bytes(tokens))
        if not self.in_flight_tokens:
            return alone
        decoding = replace(self, window_tokens=self.window_tokens - self.in_flight_tokens, in_flight_tokens=0)
        shared = blocks(self.in_flight_tokens, self.block_tokens) * self.window_per_token
        return max(alone, floor((pool_bytes - shared) / decoding.request_bytes(tokens)))

    def request_bytes(self, tokens: int) -> float:
        """Bytes a request of ``tokens`` keeps.

        >>> KvCost(100.0, 10.0, 64, 5.0, 16).request_bytes(100)
        12005.0
        """
        full = blocks(tokens, self.block_tokens) * self.per_token
        window = 0.0
        if self.window_tokens:
            window = (blocks(min(tokens, self.window_tokens), self.block_tokens) + self.block_tokens) * (
                self.window_per_token
            )
        return full + window + self.per_sequence


def blocks(tokens: int, block_tokens: int) -> int:
    """Tokens rounded up to whole blocks."""
    return -(-tokens // block_tokens) * block_tokens


def kv_bytes_per_token(
    card: ModelCard,
    layout: Layout,
    kv_dtype: Dtype,
    engine: str = "vLLM",
    version: str = "",
    *,
    vendor: Vendor = "amd",
    drafter: str = "none",
) -> float:
    """Bytes that each further token of a long context takes on one GPU (window layers no longer grow).

    GQA: ``max(1, kv_heads/tp)·(d_k + d_v)·b`` a layer, replicated beyond the KV heads; MLA: ``(kv_lora + rope)·b``, on
    every rank; indexer keys 132 bytes; decode context parallelism divides all but the indexer's. A pipeline stage holds
    its own layers. ``version`` is kept for engines whose layout changed; none of the described ones did.
    """
    return _per_token(card, layout, kv_dtype, engine, vendor, drafter)


@lru_cache(maxsize=8192)
def _per_token(card: ModelCard, layout: Layout, kv_dtype: Dtype, engine: str, vendor: Vendor, drafter: str) -> float:
    own = sum(
        group.count * layer_bytes(group.attention, layout, kv_dtype, engine, vendor)
        for group in card.groups
        if not keeps_window_only(group.attention, engine)
    )
    return own * stage_share(card, layout) + _drafter_bytes(card, layout, kv_dtype, engine, vendor, drafter)


def keeps_window_only(attention: Attention, engine: str) -> bool:
    """Whether the engine frees what leaves the window; ATOM keeps the whole context (no window pool is described)."""
    return attention.kind == "gqa" and attention.window > 0 and engine != "ATOM"


def stage_share(card: ModelCard, layout: Layout) -> float:
    """Share of the layers that the fullest pipeline stage holds."""
    return ceil(card.layers / layout.pp) / card.layers


def layer_bytes(attention: Attention, layout: Layout, kv_dtype: Dtype, engine: str, vendor: Vendor) -> float:
    """KV bytes of one token in one layer on one rank.

    >>> layer_bytes(Attention(kind="gqa", heads=32, kv_heads=8, head_dim=128), Layout(tp=16), Dtype.BF16, "vLLM", "amd")
    512.0
    """
    a = attention
    if a.kind == "linear":
        return 0.0
    if a.kind == "compressed":
        return _compressed_bytes(a, kv_dtype, engine)
    index = _index_bytes(a, engine)
    if a.kind == "mla":
        return _mla_bytes(a, kv_dtype, engine, vendor) / layout.dcp + index
    heads = max(1.0, a.kv_heads / layout.attn_tp)
    return heads * (a.head_dim + a.value_head_dim) * KV_BYTES[kv_dtype] / layout.dcp + index


def _mla_bytes(a: Attention, kv_dtype: Dtype, engine: str, vendor: Vendor) -> float:
    if engine == "vLLM" and vendor == "nvidia" and a.index_heads:
        layouts = {Dtype.FP8: float(FP8_DS_MLA_BYTES), Dtype.FP4: float(NVFP4_DS_MLA_BYTES)}
        if kv_dtype in layouts:
            return layouts[kv_dtype]
    return (a.kv_lora_rank + a.rope_dim) * KV_BYTES[kv_dtype]


def _index_bytes(a: Attention, engine: str) -> float:
    """Indexer keys, one head for all query heads, on every rank; bf16 in block-sparse GQA (MiniMax-M3)."""
    if not a.index_heads or not a.index_stored:
        return 0.0
    if a.kind == "gqa":
        return 2.0 * a.index_head_dim
    bare = a.index_head_dim + INDEX_SCALE_BYTES * ceil(a.index_head_dim / 128)
    return float(blocks(bare, 16) if engine == "ATOM" else bare)


def _compressed_bytes(a: Attention, kv_dtype: Dtype, engine: str) -> float:
    """DeepSeek-V4: pooled entries over the tokens each stands for; what windows and states add is each engine's own.

    SGLang prices its window pool, a tenth of the tokens, and the fp32 compressor state of its pages into each token.
    """
    if a.kv_elements_per_token:
        return a.kv_elements_per_token * KV_BYTES[kv_dtype]
    entry = 2.0 * a.head_dim if kv_dtype is Dtype.BF16 else float(COMPRESSED_ENTRY_BYTES)
    index = a.index_head_dim + INDEX_SCALE_BYTES if a.index_heads else 0
    bare = (entry + index) / a.compress_ratio if a.compress_ratio else 0.0
    if engine != "SGLang":
        return bare * COMPRESSED_FACTOR
    state = COMPRESSED_STATE_ROWS * 4 * (a.head_dim + a.index_head_dim) * 4 if a.index_heads else 0.0
    return bare + COMPRESSED_WINDOW_SHARE * (entry + state)


def _drafter_bytes(
    card: ModelCard, layout: Layout, kv_dtype: Dtype, engine: str, vendor: Vendor, drafter: str
) -> float:
    """Draft layers keep KV as well: MTP as the model's last layer; EAGLE-3 one and DSpark five GQA layers (assumed)."""
    if drafter == "mtp":
        last = next((g.attention for g in reversed(card.groups) if g.attention.kind != "linear"), None)
        return card.mtp_layers * layer_bytes(last, layout, kv_dtype, engine, vendor) if last else 0.0
    layers = {"eagle3": 1, "dspark": 5}.get(drafter, 0)
    main = card.attention
    gqa = main if main.kind == "gqa" else Attention(kind="gqa", heads=64, kv_heads=8, head_dim=128)
    return layers * layer_bytes(gqa, layout, kv_dtype, engine, vendor)


# --- windows and states ---------------------------------------------------------------------------------------------


def window_bytes_per_token(card: ModelCard, layout: Layout, kv_dtype: Dtype, engine: str, vendor: Vendor) -> float:
    """KV bytes of one resident token in all layers that keep a window only."""
    windowed = [group for group in card.groups if keeps_window_only(group.attention, engine)]
    per_layer = sum(g.count * layer_bytes(g.attention, layout, kv_dtype, engine, vendor) for g in windowed)
    return per_layer * stage_share(card, layout)


def state_layer_bytes(attention: Attention, attn_tp: int, draft_tokens: int = 0) -> float:
    """Recurrent state of one linear-attention layer for one sequence: convolution tail (bf16) and state matrix.

    ``(2·key + value)/tp·(kernel − 1 + drafts)·2 + value_heads/tp·d_v·d_k·state bytes``.
    """
    a = attention
    channels = 2 * a.key_heads * a.key_dim + a.value_heads * a.value_dim
    convolution = channels / attn_tp * (a.conv_kernel - 1 + draft_tokens) * 2
    return convolution + a.value_heads / attn_tp * a.value_dim * a.key_dim * a.state_dtype_bytes


def linear_groups(card: ModelCard) -> tuple[LayerGroup, ...]:
    """Groups of linear-attention layers."""
    return tuple(group for group in card.groups if group.attention.kind == "linear")


@lru_cache(maxsize=4096)
def state_bytes_per_sequence(
    card: ModelCard, layout: Layout, engine: str = "vLLM", draft_tokens: int = 0, prefix_cache: bool = True
) -> float:
    """Recurrent state one sequence holds on one GPU, all copies.

    vLLM keeps one state and one for each draft token, one more with prefix caching; SGLang three with prefix caching
    (running, checkpoint, hand-over); ATOM and TensorRT-LLM one and the drafts.
    """
    one = sum(g.count * state_layer_bytes(g.attention, layout.attn_tp, draft_tokens) for g in linear_groups(card))
    return one * stage_share(card, layout) * state_copies(engine, draft_tokens, prefix_cache)


def state_copies(engine: str, draft_tokens: int, prefix_cache: bool) -> int:
    """States kept for one sequence."""
    if engine == "SGLang":
        return (3 if prefix_cache else 1) + draft_tokens
    return 1 + draft_tokens + (1 if engine == "vLLM" and prefix_cache else 0)


@lru_cache(maxsize=8192)
def kv_cost(
    card: ModelCard,
    layout: Layout,
    kv_dtype: Dtype,
    engine: str,
    *,
    vendor: Vendor,
    block_tokens: int,
    in_flight_tokens: int,
    draft_tokens: int = 0,
    drafter: str = "none",
    prefix_cache: bool = True,
) -> KvCost:
    """Cost of a request in the engine's pool.

    Window layers keep ``window − 1`` tokens and those in flight. In vLLM recurrent states live in the pool, in pages of
    the attention block's size, so the block grows until its page holds a state; SGLang and ATOM keep states elsewhere.
    """
    per_token = _per_token(card, layout, kv_dtype, engine, vendor, drafter)
    window_b = window_bytes_per_token(card, layout, kv_dtype, engine, vendor)
    windows = [g.attention.window for g in card.groups if keeps_window_only(g.attention, engine)]
    linear = linear_groups(card)
    block, per_sequence = block_tokens, 0.0
    if linear and engine not in ("SGLang", "ATOM"):
        page = state_layer_bytes(linear[0].attention, layout.attn_tp, draft_tokens)
        layer_b = max(layer_bytes(g.attention, layout, kv_dtype, engine, vendor) for g in card.groups)
        if engine == "vLLM" and layer_b:
            block = blocks(ceil(page / layer_b), max(block_tokens, 16))
            page = block * layer_b
        layers = sum(g.count for g in linear) * stage_share(card, layout)
        per_sequence = layers * page * state_copies(engine, draft_tokens, prefix_cache)
    resident = max(windows) - 1 + in_flight_tokens if windows else 0
    return KvCost(per_token, window_b, resident, per_sequence, block, in_flight_tokens if windows else 0)
