"""The flags that describe one deployment and its workload, once for every command that takes them.

A command decorated with :func:`with_deployment` declares only its own flags and a first parameter ``fields``: what the
person typed, by field name of :class:`agent.predict_request.PredictRequest`.
"""

from typing import Annotated

import typer

from agent.cli.shared_flags import with_flags


def deployment_flags(
    model: Annotated[str, typer.Option(help="Model name, or the path of a Hugging Face config.json.")],
    gpu: Annotated[str, typer.Option(help="GPU type, such as MI355X or H200.")],
    engine: Annotated[str, typer.Option(help="vllm, sglang, atom or trtllm.")],
    isl: Annotated[int, typer.Option(help="Prompt tokens.")],
    osl: Annotated[int, typer.Option(help="Output tokens.")],
    tp: Annotated[int, typer.Option(help="Tensor-parallel width.")] = 1,
    ep: Annotated[int, typer.Option(help="Expert-parallel width.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline stages.")] = 1,
    attn_dp: Annotated[int, typer.Option("--attn-dp", help="Attention data-parallel ranks.")] = 1,
    dcp: Annotated[int, typer.Option(help="Decode context-parallel width.")] = 1,
    nodes: Annotated[int, typer.Option(help="Nodes one replica spans.")] = 1,
    replicas: Annotated[int, typer.Option(help="Replicas behind a router.")] = 1,
    concurrency: Annotated[int, typer.Option(help="Closed-loop clients over all replicas.")] = 1,
    arrival: Annotated[str, typer.Option(help="closed, poisson, constant or gamma.")] = "closed",
    request_rate: Annotated[float | None, typer.Option(help="Requests a second of open arrivals.")] = None,
    engine_version: Annotated[str, typer.Option(help="Engine release; that of an anchor, else the newest.")] = "",
    weight_dtype: Annotated[str | None, typer.Option(help="bf16, fp8 or fp4; the maker's own if left out.")] = None,
    kv_dtype: Annotated[str, typer.Option(help="bf16, fp8 or fp4.")] = "bf16",
    spec_method: Annotated[str, typer.Option(help="none, mtp, eagle3, dspark or ngram.")] = "none",
    spec_depth: Annotated[int, typer.Option(help="Draft tokens a step.")] = 0,
    prefill_tp: Annotated[int | None, typer.Option(help="Width of a separate prefill pool.")] = None,
    prefill_ep: Annotated[int, typer.Option(help="Expert-parallel width of the prefill pool.")] = 1,
    prefill_attn_dp: Annotated[int, typer.Option(help="Attention DP ranks of the prefill pool.")] = 1,
    prefill_replicas: Annotated[int, typer.Option(help="Replicas of the prefill pool.")] = 1,
    handoff: Annotated[str, typer.Option(help="KV hand-off of a prefill pool: nixl, mooncake or mori.")] = "",
    max_running: Annotated[int | None, typer.Option(help="Cap on running requests.")] = None,
    token_budget: Annotated[int | None, typer.Option(help="Tokens a step.")] = None,
    chunk_size: Annotated[int | None, typer.Option(help="Prompt tokens a chunk.")] = None,
    host_kv_gb: Annotated[float, typer.Option(help="Host memory for evicted KV, GB a GPU.")] = 0.0,
    length_range: Annotated[float, typer.Option(help="Shortest length over nominal; 1 is fixed.")] = 1.0,
    prefix_hit: Annotated[float, typer.Option(help="Share of the prompt already cached.")] = 0.0,
    usd_per_gpu_h: Annotated[float | None, typer.Option(help="Price of a GPU-hour, for usd_per_mtok.")] = None,
) -> None:
    """The shared flags; never called, only read."""


with_deployment = with_flags(deployment_flags, shared_first=True)

# A trace is the workload itself, and what serves it is described as for a prediction.
WORKLOAD_FLAGS = frozenset(
    {"isl", "osl", "concurrency", "arrival", "request_rate", "length_range", "prefix_hit", "usd_per_gpu_h"}
)
with_server = with_flags(deployment_flags, shared_first=True, leave_out=WORKLOAD_FLAGS)
