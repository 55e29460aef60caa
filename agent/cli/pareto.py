"""``inferasim pareto``."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

EXIT_NOTHING_LEGAL = 1


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("pareto", help="Sweep deployments: throughput per GPU against interactivity, tier by tier.")(pareto)


def pareto(
    model: Annotated[list[str], typer.Option(help="Model name or config.json; may repeat.")],
    cluster: Annotated[str, typer.Option(help="GPU:N or GPU:NxNODES, such as MI355X:8 or H200:8x2.")],
    engine: Annotated[
        list[str] | None, typer.Option(help="Engine; may repeat. All that run there if left out.")
    ] = None,
    engine_version: Annotated[str, typer.Option(help="Engine release; the anchors' or the newest.")] = "",
    shape: Annotated[list[str] | None, typer.Option(help="ISL/OSL in tokens; may repeat. 1024/1024.")] = None,
    concurrency: Annotated[list[int] | None, typer.Option(help="Clients; may repeat. 1 to 256 by doublings.")] = None,
    weight_dtype: Annotated[list[str] | None, typer.Option(help="Weight format; may repeat. All there are.")] = None,
    kv_dtype: Annotated[list[str] | None, typer.Option(help="Cache format; may repeat. All there are.")] = None,
    depth: Annotated[
        list[int] | None, typer.Option(help="Draft depth; may repeat. 1 to 8; 1, 3, 5, 7 on split pools.")
    ] = None,
    drafters: Annotated[bool, typer.Option(help="Sweep speculation.")] = True,
    splits: Annotated[bool, typer.Option(help="Sweep split prefill and decode pools.")] = True,
    pipelines: Annotated[bool, typer.Option(help="Sweep pipeline stages.")] = True,
    schedules: Annotated[bool, typer.Option(help="Sweep scheduler settings.")] = True,
    simulate_splits: Annotated[
        bool, typer.Option(help="Simulate split pools request by request; in closed form otherwise, faster.")
    ] = True,
    length_range: Annotated[float, typer.Option(help="Shortest length over nominal; 1 is fixed.")] = 1.0,
    mode: Annotated[str, typer.Option(help="auto, anchored or simulate.")] = "auto",
    usd_per_gpu_h: Annotated[float | None, typer.Option(help="Price of a GPU-hour, for usd_per_mtok.")] = None,
    most_points: Annotated[
        int | None, typer.Option("--points", help="Thin the space to about so many points, evenly.")
    ] = None,
    tiers: Annotated[str | None, typer.Option(help="TOML file of latency tiers to use instead of the four.")] = None,
    out: Annotated[str | None, typer.Option(help="File of points, .jsonl or .parquet; a killed sweep resumes.")] = None,
    anchors: Annotated[str | None, typer.Option(help="Folder or file of anchors to use instead of the cache.")] = None,
    jobs: Annotated[int, typer.Option(help="Worker processes.")] = 1,
    backend: Annotated[str, typer.Option(help="loky, ray or dask.")] = "loky",
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Sweep deployments of models on a cluster."""
    from pathlib import Path

    from agent.cli.output import print_json
    from agent.cli.sweep_options import sweep_progress
    from agent.pareto import SweepRequest, run_sweep
    from agent.predict_request import validated
    from agent.tiers import read_tiers
    from predictor.errors import BadInput

    if jobs < 1:
        raise BadInput(f"jobs {jobs}: must be at least 1")
    given: dict[str, Any] = {
        "engines": engine,
        "shapes": shape,
        "concurrencies": concurrency,
        "weight_dtypes": weight_dtype,
        "kv_dtypes": kv_dtype,
        "depths": depth,
        "split_depths": depth,
    }
    request = validated(
        SweepRequest,
        models=tuple(model),
        cluster=cluster,
        engine_version=engine_version,
        **{name: tuple(value) for name, value in given.items() if value},
        drafters=drafters,
        splits=splits,
        pipelines=pipelines,
        schedules=schedules,
        simulate_splits=simulate_splits,
        length_range=length_range,
        mode=mode,
        usd_per_gpu_h=usd_per_gpu_h,
        most_points=most_points,
    )
    with sweep_progress() as step:
        sweep = run_sweep(
            request,
            out=None if out is None else Path(out),
            tiers=read_tiers(tiers),
            anchors=anchors,
            jobs=jobs,
            backend=backend,
            progress=step,
        )
    answer = sweep.as_json()
    if json_output:
        print_json(answer)
    else:
        show(answer)
    if not sweep.priced:
        raise typer.Exit(EXIT_NOTHING_LEGAL)


def show(answer: Mapping[str, Any]) -> None:
    """Each chart's frontier and tiers as compact tables."""
    from agent.cli.output import facts, table
    from agent.cli.sweep_options import deployment_name

    for chart in answer["charts"]:
        title = f"{chart['model']}, {chart['isl']} in, {chart['osl']} out"
        table(
            f"{title}: frontier of {chart['points']} points",
            ["tok/s/user", "output tok/s/GPU", "TTFT ms", *_cost_head(chart["frontier"]), "clients", "deployment"],
            [
                [
                    row["interactivity_tok_s_user"],
                    row["output_tok_s_per_gpu"],
                    row["ttft_ms"],
                    *_cost(row),
                    row["concurrency"],
                    deployment_name(row),
                ]
                for row in chart["frontier"]
            ],
        )
        table(
            f"{title}: tiers",
            ["tier", "output tok/s/GPU", "deployment", "split or colocated", "gain", "without drafters"],
            [
                [
                    tier["tier"],
                    tier["best"]["output_tok_s_per_gpu"] if tier["best"] else None,
                    deployment_name(tier["best"]) if tier["best"] else "nothing meets it",
                    tier["verdict"],
                    _gain(tier),
                    f"{tier['without_drafters']['verdict']} {_gain(tier['without_drafters'])}".strip(),
                ]
                for tier in chart["tiers"]
            ],
        )
    refused = {**answer["left_out"], **answer["refused"]}
    facts(
        "Sweep",
        [
            ("points", f"{answer['priced']} priced of {answer['points']}"),
            ("refused", ", ".join(f"{code} {count}" for code, count in refused.items()) or "none"),
            ("simulated request by request", f"{answer['simulated_share']:.0%}"),
            ("seconds", answer["wall_s"]),
            ("file", answer["file"] or "none; give --out to keep every point"),
        ],
    )


def _gain(found: Mapping[str, Any]) -> str:
    return "" if found["gain"] is None else f"{found['gain']:.2f}x"


def _cost_head(rows: list[dict[str, Any]]) -> list[str]:
    return ["USD/Mtok"] if rows and rows[0]["usd_per_mtok"] is not None else []


def _cost(row: Mapping[str, Any]) -> list[float]:
    return [] if row["usd_per_mtok"] is None else [row["usd_per_mtok"]]
