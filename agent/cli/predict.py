"""``inferasim predict``."""

from typing import Annotated

import typer

ROWS = (
    ("TTFT, mean", "ttft_ms", "ms"),
    ("TPOT, mean", "tpot_ms", "ms"),
    ("E2E, mean", "e2e_ms", "ms"),
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("predict", help="Predict one deployment under one workload.")(predict)


def predict(
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
    engine_version: Annotated[str, typer.Option(help="Engine release; the newest profile if left out.")] = "",
    weight_dtype: Annotated[str | None, typer.Option(help="bf16, fp8 or fp4; the maker's own if left out.")] = None,
    kv_dtype: Annotated[str, typer.Option(help="bf16, fp8 or fp4.")] = "bf16",
    spec_method: Annotated[str, typer.Option(help="none, mtp, eagle3, dspark or ngram.")] = "none",
    spec_depth: Annotated[int, typer.Option(help="Draft tokens a step.")] = 0,
    prefill_tp: Annotated[int | None, typer.Option(help="Width of a separate prefill pool.")] = None,
    prefill_replicas: Annotated[int, typer.Option(help="Replicas of the prefill pool.")] = 1,
    handoff: Annotated[str, typer.Option(help="KV hand-off of a prefill pool: nixl, mooncake or mori.")] = "",
    max_running: Annotated[int | None, typer.Option(help="Cap on running requests.")] = None,
    token_budget: Annotated[int | None, typer.Option(help="Tokens a step.")] = None,
    length_range: Annotated[float, typer.Option(help="Shortest length over nominal; 1 is fixed.")] = 1.0,
    prefix_hit: Annotated[float, typer.Option(help="Share of the prompt already cached.")] = 0.0,
    usd_per_gpu_h: Annotated[float | None, typer.Option(help="Price of a GPU-hour, for usd_per_mtok.")] = None,
    mode: Annotated[str, typer.Option(help="auto, anchored or simulate.")] = "auto",
    anchors: Annotated[str | None, typer.Option(help="Folder or file of anchors to use instead of the cache.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict one deployment under one workload."""
    from agent.handlers import predict_once
    from agent.predict_request import PredictRequest, validated

    request = validated(
        PredictRequest,
        model=model,
        gpu=gpu,
        engine=engine,
        isl=isl,
        osl=osl,
        tp=tp,
        ep=ep,
        pp=pp,
        attn_dp=attn_dp,
        dcp=dcp,
        nodes=nodes,
        replicas=replicas,
        concurrency=concurrency,
        engine_version=engine_version,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        spec_method=spec_method,
        spec_depth=spec_depth,
        prefill_tp=prefill_tp,
        prefill_replicas=prefill_replicas,
        handoff=handoff,
        max_running=max_running,
        token_budget=token_budget,
        length_range=length_range,
        prefix_hit=prefix_hit,
        usd_per_gpu_h=usd_per_gpu_h,
    )
    answer = predict_once(request, mode, anchors)
    if json_output:
        from agent.cli.output import print_json

        print_json(answer)
    else:
        from agent.report import show_prediction

        show_prediction(answer)
