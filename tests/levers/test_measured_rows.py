"""Layouts that somebody ran are legal: every row of the recorded corpora whose model is bundled."""

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from evals.corpus import CorpusAbsent, data_dir
from levers.build import search_context
from levers.legality import illegal_reasons
from levers.space import defaults, merge, to_deployment
from predictor.types import Workload

AMD_MODELS = {
    "dsr1": "DeepSeek-R1",
    "dsv4": "DeepSeek-V4-Pro",
    "glm5": "GLM-5",
    "gptoss120b": "gpt-oss-120b",
    "kimik2.5": "Kimi-K2.5",
    "llama70b": "Llama-3.1-70B",
    "minimaxm2.5": "MiniMax-M2.5",
    "minimaxm3": "MiniMax-M3",
    "qwen3.5": "Qwen3.5-397B-A17B",
}
ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "atom": "ATOM", "trtllm": "TensorRT-LLM"}
# recorded with ep 1, and the engine refuses to load such a split (vllm-project/vllm#48173): the switch was not noted
UNRECORDED_EP = {("vLLM", "MiniMax-M2.5", "fp8", 8)}


def folder() -> Path:
    try:
        return data_dir() / "measured"
    except CorpusAbsent as absent:
        pytest.skip(str(absent))


def rows(name: str) -> list[dict[str, str]]:
    with (folder() / name).open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def colocated() -> Iterator[tuple[str, str, str, str, int, int, int]]:
    """Distinct (GPU, engine, model, precision, tp, ep, attention DP) of the colocated rows."""
    seen = set()
    for row in rows("inferencex_2026_07_amd.csv"):
        if row["disagg"] == "0" and row["model"] in AMD_MODELS and row["framework"] in ENGINES:
            tp, ep = int(row["decode_tp"]), int(row["decode_ep"])
            dp = tp if row["decode_dp_attention"] == "1" else 1
            key = (row["hardware"], row["framework"], AMD_MODELS[row["model"]], row["precision"], tp, ep, dp)
            seen.add(key)
    for row in rows("nvidia_protocol_rows.csv"):
        if row["mode"] == "agg" and row["tp"] and int(row["gpus"]) <= 8:
            dp = int(row["dp"])
            model = row["model"].removesuffix("-FP8").removesuffix("-Instruct")
            gpu = row["system"].removesuffix("_sxm")
            key = (gpu, row["backend"], model, row["precision"], int(row["tp"]) * dp, int(row["ep"]), dp)
            seen.add(key)
    yield from sorted(seen)


def test_recorded_layouts_are_legal() -> None:
    load = Workload(isl_tokens=1024, osl_tokens=1024, concurrency=64)
    refused, checked = {}, 0
    for gpu, framework, model, precision, tp, ep, dp in colocated():
        here = search_context(
            model=model, gpu=gpu, engine=ENGINES[framework], workload=load, gpus_per_node=8, free=("precision",)
        )
        weight = "fp4" if precision in ("int4", "fp4") else precision
        formats = here.card.weight_dtypes
        own_experts = here.card.expert_dtype is not None
        partial = {"tp": tp, "ep": ep, "attn_dp": dp}
        if not own_experts and weight in formats:
            partial |= {"weight_dtype": weight}
        merged = merge(partial, defaults(here), here)
        checked += 1
        reasons = merged.reasons
        if merged.setting is not None:
            reasons = illegal_reasons(*to_deployment(merged.setting, here), here)
        if reasons and (ENGINES[framework], model, precision, tp) not in UNRECORDED_EP:
            refused[gpu, framework, model, precision, tp, ep, dp] = [reason.message for reason in reasons]
    assert checked > 150
    assert refused == {}
