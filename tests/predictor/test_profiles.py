"""Bundled profiles: complete, findable, and strict about malformed files."""

import json
from pathlib import Path

import pytest

from predictor.cards import EngineProfile, ModelCard, Platform
from predictor.errors import BadFile, BadInput, UnknownName
from predictor.profiles import loader

CATALOGUE = [
    "Llama-3.1-8B",
    "Llama-3.1-70B",
    "Llama-3.1-405B",
    "Qwen3-14B",
    "Qwen3-32B",
    "Qwen3-235B-A22B",
    "Qwen3.5-397B-A17B",
    "Qwen3.6-35B-A3B",
    "gpt-oss-120b",
    "DeepSeek-R1",
    "DeepSeek-V3.2",
    "DeepSeek-V4-Pro",
    "DeepSeek-V4-Flash",
    "GLM-5",
    "GLM-5.2",
    "Kimi-K2.5",
    "Kimi-K3",
    "MiniMax-M2.5",
    "MiniMax-M2.7",
    "MiniMax-M3",
]
PLATFORMS = ["MI300X", "MI325X", "MI355X", "H100", "H200", "B200", "B300", "GB200", "GB300"]


def test_catalogue_is_complete() -> None:
    assert set(CATALOGUE) <= set(loader.model_names())
    assert set(PLATFORMS) <= set(loader.platform_names())
    assert set(loader.engine_names()) == {"vLLM", "SGLang", "ATOM", "TensorRT-LLM"}


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("llama-3.1-8b", "Llama-3.1-8B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("OPENAI/GPT-OSS-120B", "gpt-oss-120b"),
        ("DeepSeek-V3", "DeepSeek-R1"),
        ("deepseek-r1-0528-mxfp4", "DeepSeek-R1"),
        ("Qwen3.5", "Qwen3.5-397B-A17B"),
    ],
)
def test_names_aliases_and_hub_ids_find_the_card(spelling: str, name: str) -> None:
    assert loader.model_card(spelling).name == name


def test_every_name_and_alias_is_unique() -> None:
    for read, names in (
        (loader.model_card, loader.model_names()),
        (loader.platform, loader.platform_names()),
        (loader.engine_profile, loader.engine_names()),
    ):
        seen: dict[str, str] = {}
        for name in names:
            record = read(name)
            spellings = (name, *record.aliases, *(record.hf_ids if isinstance(record, ModelCard) else ()))
            for spelling in {loader.slug(item) for item in spellings}:
                assert spelling not in seen, f"{spelling} is both {seen.get(spelling)} and {name}"
                seen[spelling] = name


def test_unknown_names_say_what_is_near() -> None:
    with pytest.raises(UnknownName, match=r"model 'Lama-3\.1-8B' is not known; nearest: Llama-3\.1-8B"):
        loader.model_card("Lama-3.1-8B")
    with pytest.raises(UnknownName, match="MI355X"):
        loader.platform("MI350X")
    with pytest.raises(UnknownName, match="vLLM"):
        loader.engine_profile("vlm")


def test_records_are_cached_and_hashable() -> None:
    assert loader.platform("mi355x") is loader.platform("mi355x")
    assert len({loader.platform("MI355X"), loader.platform("gfx950"), loader.platform("H100")}) == 2


@pytest.mark.parametrize("name", PLATFORMS)
def test_every_platform_figure_has_a_source(name: str) -> None:
    gpu = loader.platform(name)
    named = set(gpu.sources)
    wanted = {
        "hbm_bytes",
        "hbm_bytes_per_s",
        "peak_bf16_flops",
        "compute_units",
        "clock_ghz",
        "l2_bytes",
        "link_bytes_per_s",
        "nic_bytes_per_s",
        "kernel_launch_us",
        "hbm_efficiency",
        "gemm_efficiency",
        "expert_read_curve",
        "host_dram_bytes",
    }
    assert wanted <= named
    assert named <= set(Platform.__dataclass_fields__)
    assert all(gpu.sources.values())


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_card_names_its_source(name: str) -> None:
    card = loader.model_card(name)
    assert card.source
    assert card.published.source


def test_mi355x_holds_the_constants_of_the_paper() -> None:
    """Paper Tables 5 and 19: every constant, by (op, variant, tier, GPUs, from size)."""
    gpu = loader.platform("MI355X")
    assert gpu.kernel_launch_us == 4.98
    assert gpu.node_mesh_bytes_per_s == 600e9
    held = {(c.op, c.tier, c.gpus, c.alpha_us, c.bandwidth_gb_s) for c in gpu.collectives}
    wire = {n: 600 * 0.6 * (n - 1) / 7 for n in (2, 4, 8)}  # B_node η (g − 1)/(N − 1), η 0.6
    reduce = {n: round(wire[n] * n / (2 * (n - 1)), 1) for n in wire}  # 2 (g − 1)/g bytes sent a byte of message
    exchange = {n: round(wire[n] * n / (n - 1), 1) for n in wire}
    assert held == {
        ("all_reduce", "node", 2, 4.9, 60.4),
        ("all_reduce", "node", 4, 5.5, 63.0),
        ("all_reduce", "node", 4, 6.4, 100.0),
        ("all_reduce", "node", 8, 6.4, 56.0),
        ("all_reduce", "node", 8, 11.0, 123.0),
        ("all_to_all", "node", 2, 37.8, 113.3),
        ("all_to_all", "node", 4, 35.2, 205.5),
        ("all_to_all", "node", 8, 37.8, 408.8),
        *(("all_reduce", "node", n, a, reduce[n]) for n, a in ((2, 50.8), (4, 41.1), (8, 39.0))),
        *(("all_to_all", "node", n, a, exchange[n]) for n, a in ((2, 40.1), (4, 36.5), (8, 39.1))),
        ("send_recv", "node", 2, 59.1, round(wire[2], 1)),
        ("send_recv", "network", 2, 44.2, 45.1),
        ("all_reduce", "network", 2, 58.7, 19.8),
        ("all_reduce", "network", 16, 90.5, 31.6),
        ("all_to_all", "network", 16, 47.4, 37.9),
    }
    handoffs = {h.backend: (h.floor_us, h.bandwidth_gb_s, h.layer_streamed) for h in gpu.handoffs}
    assert handoffs == {"mori": (120, 47.9, True), "nixl": (5, 400, False), "mooncake": (10, 200, False)}
    sglang = loader.engine_profile("sglang")
    assert (sglang.pp_hop_us, sglang.pp_host_ms) == (970, (0.33, 0.0063))
    assert all(loader.engine_profile(name).pp_hop_us is None for name in ("vllm", "atom", "trtllm"))


def test_nic_efficiency_gives_the_paper_s_datasheet_row() -> None:
    """Paper G.2: the datasheet NIC of 50 GB/s at 0.8 is 40 GB/s."""
    gpu = loader.platform("MI355X")
    assert gpu.nic_bytes_per_s * gpu.nic_efficiency == pytest.approx(40e9)


def _write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "card.toml"
    path.write_text(text)
    return path


GOOD = """
name = "T"
hidden = 8
vocab = 16
max_context_tokens = 32
source = "test"
[[groups]]
count = 1
attention = {kind = "gqa", heads = 2, kv_heads = 1, head_dim = 4}
ffn = {intermediate = 16}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("hidden = 8\n", "", "missing field 'hidden', expected a whole number"),
        ("hidden = 8", 'hidden = "8"', "hidden: expected a whole number, got '8'"),
        ("hidden = 8", "hidden = true", "hidden: expected a whole number, got True"),
        ("hidden = 8", "hiden = 8", "unknown field 'hiden'; did you mean 'hidden'"),
        ("hidden = 8", "hidden = 0", "hidden is 0; it must be above 0"),
        ('"gqa"', '"gpa"', r"groups\[0\].attention.kind: expected one of gqa, mla, linear, compressed, got 'gpa'"),
        ("count = 1", "count = 0", r"groups\[0\]: LayerGroup.count is 0; it must be above 0"),
        ("hidden = 8", "hidden = ", "not readable as TOML"),
    ],
)
def test_malformed_card_names_file_field_and_expectation(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = _write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(BadFile, match=message) as caught:
        loader.model_card(str(path))
    assert "card.toml" in str(caught.value)


def test_good_card_from_a_path(tmp_path: Path) -> None:
    assert loader.model_card(str(_write(tmp_path, GOOD))).groups[0].attention.heads == 2


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


def test_config_json_gives_the_bundled_card(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    for path in (tmp_path, tmp_path / "config.json"):
        read = loader.model_card(str(path))
        bundled = loader.model_card("Llama-3.1-8B")
        assert (read.groups, read.hidden, read.vocab) == (bundled.groups, bundled.hidden, bundled.vocab)
        assert read.name == tmp_path.name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "'MambaForCausalLM' is not known; known architectures: .*Qwen3Moe"),
        ({"hidden_size": None}, "missing field 'hidden_size', expected a whole number"),
        ({"hidden_size": "big"}, "hidden_size: expected a whole number, got 'big'"),
        ({"num_hidden_layers": 0}, "at least one group"),
    ],
)
def test_malformed_config_json(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | change))
    with pytest.raises(BadFile, match=message):
        loader.model_card(str(path))


def test_unreadable_config_json(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(BadFile, match="not readable as JSON"):
        loader.model_card(str(path))
    with pytest.raises(BadFile, match="not readable as JSON"):
        loader.model_card(str(tmp_path / "absent.json"))


def test_engine_version_defaults_to_the_newest() -> None:
    engine: EngineProfile = loader.engine_profile("vllm")
    assert engine.version().version == "0.33.0"
    assert engine.version("0.30.0").kv_mem_fraction == 0.92
    with pytest.raises(BadInput, match=r"known: 0\.33\.0, 0\.32\.0, 0\.30\.0"):
        engine.version("0.1")
