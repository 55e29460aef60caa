"""Cards: ranges are checked however a record is built, and a config.json gives the layers of the bundled card."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from predictor.cards import Attention, Collective, Ffn, LayerGroup, ModelCard
from predictor.errors import BadFile, BadInput
from predictor.profiles.hf import FAMILIES, card_from_config
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
