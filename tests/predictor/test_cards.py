"""Cards: ranges are checked however a record is built, and a config.json gives the layers of the bundled card."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from predictor.cards import Attention, Collective, Ffn, LayerGroup, ModelCard
from predictor.errors import BadFile, BadInput
from predictor.params import count
from predictor.profiles.hf import FAMILIES, card_from_config, read_config
from predictor.profiles.loader import model_card, model_names, platform
from predictor.types import Dtype

CONFIGS = sorted((Path(__file__).parent / "configs").glob("*.json"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_json_gives_the_bundled_card_s_layers(path: Path) -> None:
    bundled = model_card(path.stem)
    read = card_from_config(json.loads(path.read_text()), str(path), bundled.name)
    assert read.groups == bundled.groups
    assert (read.hidden, read.vocab, read.mtp_layers) == (bundled.hidden, bundled.vocab, bundled.mtp_layers)
    assert read.expert_dtype == bundled.expert_dtype
    assert (read.tied_embeddings, read.max_context_tokens) == (bundled.tied_embeddings, bundled.max_context_tokens)


BASE = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 32768}
SMALL = BASE | {"intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 32000}
FOREIGN = {
    # config.json facts of models outside the catalogue, and (billions in total, active) as published
    "Mistral-7B": ({"architectures": ["MistralForCausalLM"], "model_type": "mistral", **SMALL}, 7.24, 7.24),
    "Mixtral-8x7B": (
        {"architectures": ["MixtralForCausalLM"], "num_local_experts": 8, "num_experts_per_tok": 2, **SMALL},
        46.7,
        12.9,
    ),
    "Qwen2.5-7B": (
        {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "num_hidden_layers": 28,
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152064,
            "max_position_embeddings": 32768,
        },
        7.62,
        7.62,
    ),
    "DeepSeek-V2": (
        {
            "architectures": ["DeepseekV2ForCausalLM"],
            "num_hidden_layers": 60,
            "hidden_size": 5120,
            "intermediate_size": 12288,
            "moe_intermediate_size": 1536,
            "first_k_dense_replace": 1,
            "n_routed_experts": 160,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "num_attention_heads": 128,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "vocab_size": 102400,
            "max_position_embeddings": 163840,
        },
        236,
        21,
    ),
    "GLM-4.5": (
        {
            "architectures": ["Glm4MoeForCausalLM"],
            "num_hidden_layers": 92,
            "hidden_size": 5120,
            "intermediate_size": 12288,
            "moe_intermediate_size": 1536,
            "first_k_dense_replace": 3,
            "n_routed_experts": 160,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "num_attention_heads": 96,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "attention_bias": True,
            "use_qk_norm": True,
            "vocab_size": 151552,
            "max_position_embeddings": 131072,
        },
        355,
        32,
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_families_outside_the_catalogue_count_as_published(name: str) -> None:
    config, total, active = FOREIGN[name]
    params = count(card_from_config(config, name, name))
    assert params.total / 1e9 == pytest.approx(total, rel=0.02)
    assert params.active / 1e9 == pytest.approx(active, rel=0.06)  # makers differ in counting the embedding


@pytest.mark.parametrize(
    ("quantization", "weight", "expert", "fp4"),
    [
        (None, Dtype.BF16, None, None),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, Dtype.FP8, None, None),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, Dtype.FP4, None, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, Dtype.FP8, None, None),
        ({"quant_method": "mxfp4"}, Dtype.BF16, Dtype.FP4, "mxfp4"),
    ],
)
def test_quantised_checkpoints_say_their_formats(
    quantization: object, weight: Dtype, expert: Dtype | None, fp4: str | None
) -> None:
    config = FOREIGN["Mixtral-8x7B"][0] | {"quantization_config": quantization}
    card = card_from_config(config, "config.json", "quantised")
    assert (card.weight_dtypes, card.expert_dtype, card.fp4_format) == ((weight,), expert, fp4)


def test_modelopt_keeps_the_format_in_a_file_beside(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(FOREIGN["Mistral-7B"][0]))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    assert read_config(tmp_path / "config.json").weight_dtypes == (Dtype.FP4,)


def test_every_attention_kind_has_a_config_under_test() -> None:
    kinds = {group.attention.kind for path in CONFIGS for group in model_card(path.stem).groups}
    assert kinds == {"gqa", "mla", "linear", "compressed"}


@pytest.mark.parametrize("architecture", sorted(FAMILIES))
def test_an_empty_config_names_the_missing_field(architecture: str) -> None:
    with pytest.raises(BadFile, match=r"config\.json: .*(missing field|expected)"):
        card_from_config({"architectures": [architecture]}, "config.json", "empty")


def test_formats_of_the_makers_checkpoints() -> None:
    """What the maker published first: (dense weights, experts, kind of 4-bit format)."""
    wanted = {
        "gpt-oss-120b": (Dtype.BF16, Dtype.FP4, "mxfp4"),
        "DeepSeek-R1": (Dtype.FP8, None, None),
        "DeepSeek-V4-Pro": (Dtype.FP8, Dtype.FP4, "mxfp4"),
        "Kimi-K2.5": (Dtype.BF16, Dtype.FP4, "int4"),
        "Kimi-K3": (Dtype.BF16, Dtype.FP4, "mxfp4"),
        "MiniMax-M2.5": (Dtype.FP8, None, None),
        "Llama-3.1-8B": (Dtype.BF16, None, None),
    }
    for name, expected in wanted.items():
        card = model_card(name)
        assert (card.weight_dtypes[0], card.expert_dtype, card.fp4_format) == expected, name


def test_layers_and_kinds_of_hybrid_models() -> None:
    qwen = model_card("Qwen3.5-397B-A17B")
    assert {g.attention.kind: g.count for g in qwen.groups} == {"linear": 45, "gqa": 15}
    assert qwen.attention.kind == "gqa"
    kimi = model_card("Kimi-K3")
    assert sum(g.count for g in kimi.groups if g.attention.kind == "linear") == 69
    oss = model_card("gpt-oss-120b")
    assert sorted(g.attention.window for g in oss.groups) == [0, 128]
    glm = model_card("GLM-5.2")
    assert sum(g.count for g in glm.groups if g.attention.index_stored) == 21
    v4 = model_card("DeepSeek-V4-Pro")
    assert {g.attention.compress_ratio: g.count for g in v4.groups} == {4.0: 30, 128.0: 31}


def test_every_card_is_consistent() -> None:
    for name in model_names():
        card = model_card(name)
        for group in card.groups:
            assert group.ffn.intermediate > 0 or group.ffn.experts > 0, name
            assert group.ffn.topk <= group.ffn.experts, name
            if group.attention.kind == "gqa":
                assert group.attention.heads % group.attention.kv_heads == 0, name
        assert ("mtp" in card.drafters) == (card.mtp_layers > 0), name
        assert set(card.assumed) <= set(ModelCard.__dataclass_fields__), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": 0}, r"ModelCard\.hidden is 0; it must be above 0"),
        ({"groups": ()}, r"ModelCard\.groups is \(\); it must be at least one group"),
    ],
)
def test_a_record_built_by_hand_is_checked(change: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        replace(model_card("Llama-3.1-8B"), **change)  # type: ignore[arg-type]


def test_other_records_are_checked() -> None:
    with pytest.raises(BadInput, match=r"hbm_efficiency is 1\.5; it must be above 0 and at most 1"):
        replace(platform("H100"), hbm_efficiency=1.5)
    with pytest.raises(BadInput, match="gpus is 1; it must be 2 or more"):
        Collective(op="all_reduce", variant="x", tier="node", gpus=1, alpha_us=1, bandwidth_gb_s=1, source="test")
    with pytest.raises(BadInput, match="count is 0"):
        LayerGroup(count=0, attention=Attention(kind="gqa"), ffn=Ffn())


def test_peak_of_a_missing_format_is_the_next_wider_one() -> None:
    assert platform("MI300X").peak_flops(Dtype.FP4) == platform("MI300X").peak_fp8_flops
    assert platform("MI355X").peak_flops(Dtype.FP4) == 10066e12
