"""Model cards from a Hugging Face ``config.json``.

One small reader a family; an architecture nobody has described is refused, because guessing its layers would give a
plausible and wrong card. Facts that the file does not hold (published parameter counts, drafter heads) stay empty.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from predictor.cards import Attention, Ffn, LayerGroup, ModelCard
from predictor.errors import BadFile, BadInput
from predictor.types import Dtype

Layers = list[tuple[Attention, Ffn]]


class Config:
    """The text part of one ``config.json``: typed access, errors that name the file and the field."""

    def __init__(self, path: str, outer: Mapping[str, Any]) -> None:
        self.path = path
        self.outer = outer
        text = outer.get("text_config")
        self.data: Mapping[str, Any] = text if isinstance(text, Mapping) else outer

    def whole(self, *names: str, default: int | None = None) -> int:
        """First of ``names`` that is present, as a whole number."""
        for name in names:
            value = self.data.get(name)
            if value is None:
                continue
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                return value
            raise BadFile(f"{self.path}: {name}: expected a whole number, got {value!r}")
        if default is None:
            raise BadFile(f"{self.path}: missing field {' or '.join(map(repr, names))}, expected a whole number")
        return default

    def flag(self, name: str, default: bool = False) -> bool:
        """A true or false field."""
        value = self.data.get(name)
        if value is not None and not isinstance(value, bool):
            raise BadFile(f"{self.path}: {name}: expected true or false, got {value!r}")
        return default if value is None else value

    def per_layer(self, name: str) -> Sequence[Any]:
        """A list with one entry a layer (drafter layers may follow); empty where absent."""
        value = self.data.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) < self.layers:
            raise BadFile(f"{self.path}: {name}: expected a list with an entry for each of {self.layers} layers")
        return value[: self.layers]

    def table(self, name: str) -> Mapping[str, Any]:
        """A nested table, empty where absent."""
        value = self.data.get(name, self.outer.get(name)) or {}
        if not isinstance(value, Mapping):
            raise BadFile(f"{self.path}: {name}: expected a table, got {value!r}")
        return value

    def nested(self, name: str) -> "Config":
        """A nested table to read fields from; errors name both."""
        return Config(f"{self.path}: {name}", self.table(name))

    @property
    def layers(self) -> int:
        """Layers of the main model."""
        return self.whole("num_hidden_layers")


def _gqa(c: Config, **more: Any) -> Attention:
    heads = c.whole("num_attention_heads")
    given = {
        "heads": heads,
        "kv_heads": c.whole("num_key_value_heads", default=heads),
        "head_dim": c.whole("head_dim", default=c.whole("hidden_size") // heads),
        "bias": c.flag("attention_bias"),
    }
    return Attention(kind="gqa", **(given | more))


def _mla(c: Config, **more: Any) -> Attention:
    return Attention(
        kind="mla",
        heads=c.whole("num_attention_heads"),
        kv_heads=1,
        q_lora_rank=c.whole("q_lora_rank", default=0),
        kv_lora_rank=c.whole("kv_lora_rank"),
        nope_dim=c.whole("qk_nope_head_dim"),
        rope_dim=c.whole("qk_rope_head_dim"),
        v_head_dim=c.whole("v_head_dim"),
        **more,
    )


def _indexer(c: Config) -> dict[str, Any]:
    names = {"index_heads": "index_n_heads", "index_head_dim": "index_head_dim", "index_topk": "index_topk"}
    return {field: c.whole(name) for field, name in names.items()}


def _moe(c: Config, **more: Any) -> Ffn:
    shared = c.whole("n_shared_experts", "num_shared_experts", default=0)
    width = c.whole("moe_intermediate_size", "intermediate_size")
    given: dict[str, Any] = {
        "experts": c.whole("n_routed_experts", "num_experts", "num_local_experts"),
        "topk": c.whole("num_experts_per_tok", "num_experts_per_token"),
        "moe_intermediate": width,
        "shared_experts": shared,
        "shared_intermediate": width if shared else 0,
    }
    return Ffn(**(given | more))


def _dense_transformer(c: Config) -> Layers:
    """Llama, Mistral, Qwen2, Qwen3."""
    kind = str(c.data.get("model_type"))
    window = c.whole("sliding_window", default=0) if c.flag("use_sliding_window", kind == "mistral") else 0
    more = {"bias": True} if kind == "qwen2" else {"qk_norm": kind == "qwen3"}
    return [(_gqa(c, window=window, **more), Ffn(intermediate=c.whole("intermediate_size")))] * c.layers


def _mixtral(c: Config) -> Layers:
    return [(_gqa(c, window=c.whole("sliding_window", default=0)), _moe(c))] * c.layers


def _qwen3_moe(c: Config) -> Layers:
    step, dense = c.whole("decoder_sparse_step", default=1), c.data.get("mlp_only_layers") or []
    attention, moe = _gqa(c, qk_norm=True), _moe(c)
    plain = Ffn(intermediate=c.whole("intermediate_size", default=0))
    sparse = [i not in dense and (i + 1) % step == 0 for i in range(c.layers)]
    return [(attention, moe if routed else plain) for routed in sparse]


def _qwen_hybrid(c: Config) -> Layers:
    """Qwen3.5 and Qwen3.6: gated delta net with a full-attention layer every few."""
    linear = Attention(
        kind="linear",
        key_heads=c.whole("linear_num_key_heads"),
        value_heads=c.whole("linear_num_value_heads"),
        key_dim=c.whole("linear_key_head_dim"),
        value_dim=c.whole("linear_value_head_dim"),
        conv_kernel=c.whole("linear_conv_kernel_dim"),
        gated_output=True,
        state_dtype_bytes=4 if c.data.get("mamba_ssm_dtype", "float32") == "float32" else 2,
    )
    full = _gqa(c, qk_norm=True, gated_output=c.flag("attn_output_gate", True))
    if c.whole("num_experts", default=0):
        shared = c.whole("shared_expert_intermediate_size", default=0)
        ffn = _moe(c, shared_experts=1 if shared else 0, shared_intermediate=shared)
    else:
        ffn = Ffn(intermediate=c.whole("intermediate_size"))
    kinds = c.per_layer("layer_types")
    if not kinds:
        every = c.whole("full_attention_interval")
        kinds = ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(c.layers)]
    return [(full if kind == "full_attention" else linear, ffn) for kind in kinds]


def _gpt_oss(c: Config) -> Layers:
    window, ffn = c.whole("sliding_window"), _moe(c, bias=True)
    kinds = c.per_layer("layer_types") or ["sliding_attention", "full_attention"] * (c.layers // 2)
    full, sliding = _gqa(c), _gqa(c, window=window)
    return [(sliding if kind == "sliding_attention" else full, ffn) for kind in kinds]


def _deepseek(c: Config) -> Layers:
    """DeepSeek V2 to V3.2, Kimi-K2, GLM-5: MLA, a few dense layers first; an indexer where the file names one."""
    indexed = _mla(c, **_indexer(c)) if "index_topk" in c.data else _mla(c)
    shared = c.per_layer("indexer_types")
    reuse = _mla(c, **_indexer(c), index_stored=False) if shared else indexed
    attentions = [reuse if shared and shared[i] == "shared" else indexed for i in range(c.layers)]
    dense_first, frequency = c.whole("first_k_dense_replace", default=0), c.whole("moe_layer_freq", default=1)
    dense, moe = Ffn(intermediate=c.whole("intermediate_size")), _moe(c)
    return [
        (attention, moe if i >= dense_first and i % frequency == 0 else dense) for i, attention in enumerate(attentions)
    ]


def _deepseek_v4(c: Config) -> Layers:
    """DeepSeek-V4: a window, and pools that compress 4 tokens (with an indexer) or 128 into one entry."""
    ffn = _moe(c)

    def attention(ratio: int) -> Attention:
        return Attention(
            kind="compressed",
            heads=c.whole("num_attention_heads"),
            kv_heads=1,
            head_dim=c.whole("head_dim"),
            window=c.whole("sliding_window"),
            q_lora_rank=c.whole("q_lora_rank"),
            rope_dim=c.whole("qk_rope_head_dim"),
            o_lora_rank=c.whole("o_lora_rank"),
            o_groups=c.whole("o_groups"),
            compress_ratio=float(ratio),
            **(_indexer(c) if ratio == 4 else {}),
        )

    ratios = c.per_layer("compress_ratios")
    if not ratios:
        raise BadFile(f"{c.path}: missing field 'compress_ratios', expected a list with an entry a layer")
    return [(attention(int(ratio)), ffn) for ratio in ratios]


def _glm4_moe(c: Config) -> Layers:
    dense_first = c.whole("first_k_dense_replace", default=0)
    attention = _gqa(c, qk_norm=c.flag("use_qk_norm"))
    dense, moe = Ffn(intermediate=c.whole("intermediate_size")), _moe(c)
    return [(attention, moe if i >= dense_first else dense) for i in range(c.layers)]


def _minimax_m2(c: Config) -> Layers:
    return [(_gqa(c, qk_norm=c.flag("use_qk_norm")), _moe(c))] * c.layers


def _minimax_m3(c: Config) -> Layers:
    """MiniMax-M3: GQA, block-sparse with an indexer in all but the first layers."""
    sparse = c.nested("sparse_attention_config")
    on, block = sparse.data.get("sparse_attention_freq", []), sparse.whole("sparse_block_size")
    index = {
        "index_heads": sparse.whole("sparse_num_index_heads"),
        "index_head_dim": sparse.whole("sparse_index_dim"),
        "index_block": block,
        "index_topk": block * sparse.whole("sparse_topk_blocks"),
    }
    full = _gqa(c, qk_norm=c.flag("use_qk_norm"))
    indexed = _gqa(c, qk_norm=c.flag("use_qk_norm"), **index)
    width = c.whole("dense_intermediate_size")
    moe = _moe(c, shared_intermediate=c.whole("shared_intermediate_size", default=0))
    routed = c.per_layer("moe_layer_freq")
    return [
        (indexed if i < len(on) and on[i] else full, moe if not routed or routed[i] else Ffn(intermediate=width))
        for i in range(c.layers)
    ]


def _kimi_linear(c: Config) -> Layers:
    """Kimi-K3: Kimi delta attention with an MLA layer every fourth; experts in a latent space."""
    linear = c.nested("linear_attn_config")
    heads, dim = linear.whole("num_heads"), linear.whole("head_dim")
    delta = Attention(
        kind="linear",
        key_heads=heads,
        value_heads=heads,
        key_dim=dim,
        value_dim=dim,
        conv_kernel=linear.whole("short_conv_kernel_size"),
        gated_output=True,
        channel_decay=True,
    )
    full = _mla(c, gated_output=c.flag("mla_use_output_gate"))
    dense_first = c.whole("first_k_dense_replace", default=0)
    dense = Ffn(intermediate=c.whole("intermediate_size"))
    moe = _moe(c, latent_dim=c.whole("routed_expert_hidden_size", default=0))
    at = set(linear.data.get("full_attn_layers") or ())  # counted from 1
    return [(full if i + 1 in at else delta, moe if i >= dense_first else dense) for i in range(c.layers)]


FAMILIES: Mapping[str, Callable[[Config], Layers]] = {
    "LlamaForCausalLM": _dense_transformer,
    "MistralForCausalLM": _dense_transformer,
    "Qwen2ForCausalLM": _dense_transformer,
    "Qwen3ForCausalLM": _dense_transformer,
    "MixtralForCausalLM": _mixtral,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "Qwen3_5ForConditionalGeneration": _qwen_hybrid,
    "Qwen3_5MoeForConditionalGeneration": _qwen_hybrid,
    "GptOssForCausalLM": _gpt_oss,
    "DeepseekV2ForCausalLM": _deepseek,
    "DeepseekV3ForCausalLM": _deepseek,
    "DeepseekV32ForCausalLM": _deepseek,
    "DeepseekV4ForCausalLM": _deepseek_v4,
    "KimiK25ForConditionalGeneration": _deepseek,
    "KimiK3ForConditionalGeneration": _kimi_linear,
    "KimiLinearForCausalLM": _kimi_linear,
    "Glm4MoeForCausalLM": _glm4_moe,
    "GlmMoeDsaForCausalLM": _deepseek,
    "MiniMaxM2ForCausalLM": _minimax_m2,
    "MiniMaxM3ForCausalLM": _minimax_m3,
    "MiniMaxM3SparseForConditionalGeneration": _minimax_m3,
}


def read_config(path: Path) -> ModelCard:
    """Card of the checkpoint whose ``config.json`` this is; its folder's name is the card's name.

    Raises BadFile naming the file and the field, or the architectures that are known.
    """
    data = _read_json(path)
    beside = path.with_name("hf_quant_config.json")  # where ModelOpt checkpoints keep the weight format
    if "quantization_config" not in data and beside.is_file():
        data = {**data, "quantization_config": _read_json(beside).get("quantization", {})}
    return card_from_config(data, str(path), name=path.resolve().parent.name)


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadFile(f"{path}: not readable as JSON: {error}") from None
    if not isinstance(data, Mapping):
        raise BadFile(f"{path}: expected a JSON object")
    return data


def card_from_config(data: Mapping[str, Any], where: str, name: str) -> ModelCard:
    """Card from a parsed ``config.json``; ``where`` begins every error message."""
    architecture = (data.get("architectures") or ["none"])[0]
    if architecture not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise BadFile(f"{where}: architectures: {architecture!r} is not known; known architectures: {known}")
    config = Config(where, data)
    try:
        layers = FAMILIES[architecture](config)
        weight, expert, fp4 = _formats(config)
        vision_layers, vision_hidden = _vision(config)
        return ModelCard(
            name=name,
            hidden=config.whole("hidden_size"),
            vocab=config.whole("vocab_size"),
            tied_embeddings=config.flag("tie_word_embeddings"),
            groups=tuple(LayerGroup(count=n, attention=a, ffn=f) for (a, f), n in Counter(layers).items()),
            mtp_layers=config.whole("num_nextn_predict_layers", "mtp_num_hidden_layers", default=0),
            max_context_tokens=config.whole("max_position_embeddings"),
            weight_dtypes=(weight,),
            expert_dtype=expert,
            fp4_format=fp4,
            quant_block=128 if weight is Dtype.FP8 else 0,
            drafters=("mtp",) if config.whole("num_nextn_predict_layers", "mtp_num_hidden_layers", default=0) else (),
            residual_streams=config.whole("hc_mult", default=1),
            vision_layers=vision_layers,
            vision_hidden=vision_hidden,
            source=where,
        )
    except BadFile:
        raise
    except (BadInput, KeyError, TypeError, ValueError) as error:
        raise BadFile(f"{where}: {architecture}: {error}") from None


def _vision(c: Config) -> tuple[int, int]:
    """Layers and width of the vision tower, 0 without one; depth under another name counts as 24, as in SGLang."""
    vision = c.outer.get("vision_config")
    if not isinstance(vision, Mapping):
        return 0, 0
    layers = vision.get("num_hidden_layers", vision.get("vt_num_hidden_layers", 24))
    return int(layers), int(vision.get("hidden_size", vision.get("vt_hidden_size", 1024)))


def _formats(c: Config) -> tuple[Dtype, Dtype | None, Literal["mxfp4", "nvfp4", "int4"] | None]:
    """Dense weight format, expert format where it differs, and the kind of 4-bit format."""
    quant = c.table("quantization_config")
    method, text = str(quant.get("quant_method", "")), json.dumps(quant).lower()
    if method == "mxfp4" or "mxfp4" in text:
        return Dtype.BF16, Dtype.FP4, "mxfp4"
    if "nvfp4" in text:
        return Dtype.FP4, None, "nvfp4"
    if method == "compressed-tensors" and '"num_bits": 4' in text:
        return Dtype.BF16, Dtype.FP4, "int4"
    if method == "fp8":
        four_bit = c.data.get("expert_dtype") == "fp4"
        return Dtype.FP8, Dtype.FP4 if four_bit else None, "mxfp4" if four_bit else None
    return (Dtype.FP8 if "fp8" in text else Dtype.BF16), None, None
