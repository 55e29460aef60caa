"""``inferasim pareto``."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from agent.cli.sweep_options import deployment_name, how_to_run, shapes_of, sweep_progress, sweep_request, with_sweep

EXIT_NOTHING_LEGAL = 1


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("pareto", help="Sweep deployments: throughput per GPU against interactivity, tier by tier.")(pareto)


@with_sweep
def pareto(
    typed: dict[str, Any],
    model: Annotated[list[str], typer.Option(help="Model name or config.json; may repeat.")],
    cluster: Annotated[str, typer.Option(help="GPU:N or GPU:NxNODES, such as MI355X:8 or H200:8x2.")],
    engine_version: Annotated[str, typer.Option(help="Engine release; the anchors' or the newest.")] = "",
    shape: Annotated[list[str] | None, typer.Option(help="ISL/OSL in tokens; may repeat. 1024/1024.")] = None,
    mode: Annotated[str, typer.Option(help="auto, anchored or simulate.")] = "auto",
    most_points: Annotated[
        int | None, typer.Option("--points", help="Thin the space to about so many points, evenly.")
    ] = None,
    out: Annotated[str | None, typer.Option(help="File of points, .jsonl or .parquet; a killed sweep resumes.")] = None,
    plot: Annotated[str | None, typer.Option(help="Write the frontier charts as NAME-CHART.png or .svg.")] = None,
) -> None:
    """Sweep deployments of models on a cluster."""
    from pathlib import Path

    from agent.cli.output import print_json
    from agent.pareto import run_sweep

    how = how_to_run(typed)
    request = sweep_request(
        typed,
        models=tuple(model),
        cluster=cluster,
        engine_version=engine_version,
        mode=mode,
        most_points=most_points,
        **shapes_of(shape, typed["trace"]),
    )
    with sweep_progress() as step:
        sweep = run_sweep(request, out=None if out is None else Path(out), progress=step, **how)
    if plot is not None:
        from agent.charts.files import write_pictures
        from agent.charts.sweep_report import anchors_by_name, frontier_figures
        from agent.cli.output import note

        anchors = anchors_by_name(how["anchors"])
        figures = [figure for chart in sweep.charts for figure in frontier_figures(chart, anchors)]
        for path in write_pictures(figures, Path(plot)):
            note(f"wrote {path}")
    answer = sweep.as_json()
    if typed["json_output"]:
        print_json(answer)
    else:
        show(answer)
    if not sweep.priced:
        raise typer.Exit(EXIT_NOTHING_LEGAL)


def show(answer: Mapping[str, Any]) -> None:
    """Each chart's frontier and tiers as compact tables."""
    from agent.cli.output import facts, table

    for chart in answer["charts"]:
        traffic = chart["trace"] or f"{chart['isl']} in, {chart['osl']} out"
        title = f"{chart['model']}, {traffic}"
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
