"""Deployments to write launch commands for: every legal seed of many searches, so that each lever's flag is written."""

from collections.abc import Iterator

from levers.baseline import baseline
from levers.build import search_context
from levers.context import SearchContext
from levers.seeds import seed_settings
from levers.space import to_deployment
from predictor.errors import InferaSimError
from predictor.types import Deployment, Workload

# model, GPU, engine, nodes: dense and MoE, GQA, MLA, sparse and compressed attention, both vendors, one node and two
SEARCHES = (
    ("Llama-3.1-8B", "MI355X", "vLLM", 1),
    ("DeepSeek-R1", "MI355X", "vLLM", 2),
    ("DeepSeek-V3.2", "MI355X", "vLLM", 1),
    ("Qwen3-32B", "H200", "vLLM", 1),
    ("DeepSeek-R1", "H200", "vLLM", 2),
    ("Qwen3-235B-A22B", "B200", "vLLM", 1),
    ("Llama-3.1-8B", "MI355X", "SGLang", 1),
    ("DeepSeek-R1", "MI355X", "SGLang", 2),
    ("DeepSeek-V3.2", "H200", "SGLang", 1),
    ("DeepSeek-R1", "B200", "SGLang", 2),
    ("Qwen3-235B-A22B", "H200", "SGLang", 1),
    ("Llama-3.1-70B", "MI355X", "ATOM", 1),
    ("DeepSeek-R1", "MI355X", "ATOM", 2),
    ("DeepSeek-V4-Pro", "MI355X", "ATOM", 1),
    ("Llama-3.1-70B", "H200", "TensorRT-LLM", 1),
    ("DeepSeek-R1", "B200", "TensorRT-LLM", 2),
)
WORKLOAD = Workload(isl_tokens=1024, osl_tokens=1024, concurrency=64, length_range_frac=0.8)


def contexts(engine: str | None = None, version: str = "") -> Iterator[SearchContext]:
    """The searches, of one engine and release if asked."""
    for model, gpu, name, nodes in SEARCHES:
        if engine in (None, name):
            yield search_context(
                model=model,
                gpu=gpu,
                engine=name,
                engine_version=version,
                workload=WORKLOAD,
                nodes=nodes,
                free=("load", "precision"),
            )


def deployments(context: SearchContext) -> Iterator[tuple[Deployment, Workload]]:
    """The baseline and every legal seed around it."""
    try:
        base = baseline(context)
    except InferaSimError:
        return
    yield to_deployment(base, context)
    for seed in seed_settings(context, base):
        yield to_deployment(seed.setting, context)
