"""``inferasim mix``."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from agent.cli.sweep_options import deployment_name, how_to_run, shapes_of, sweep_progress, sweep_request, with_sweep

EXIT_NOTHING_LEGAL = 1


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("mix", help="One deployment for each model and latency tier, and a fleet divided among them.")(mix)


@with_sweep
def mix(
    typed: dict[str, Any],
    model: Annotated[list[str] | None, typer.Option(help="Model name or config.json; may repeat.")] = None,
    cluster: Annotated[str | None, typer.Option(help="What one deployment may take: GPU:N or GPU:NxNODES.")] = None,
    points: Annotated[
        str | None, typer.Option(help="Sweep file: candidates are read from it, or swept into it if it is new.")
    ] = None,
    shape: Annotated[str | None, typer.Option(help="ISL/OSL in tokens; 1024/1024 without a trace.")] = None,
    demand: Annotated[
        list[str] | None, typer.Option(help="MODEL:TIER=USERS, or MODEL:TIER=NUMBERtok/s; may repeat.")
    ] = None,
    fleet: Annotated[int | None, typer.Option(help="GPUs to divide; the cluster's if left out.")] = None,
    spare: Annotated[int, typer.Option(help="GPUs of the fleet to leave alone.")] = 0,
) -> None:
    """One deployment for each model and latency tier."""
    from pathlib import Path

    from agent.cli.output import print_json
    from agent.cluster import parse_cluster
    from agent.mix import parse_demands, plan_mix
    from agent.mix.plan import check_fleet, request_of
    from predictor.errors import BadInput

    how = how_to_run(typed)
    file = None if points is None else Path(points)
    if not model and file is not None and file.exists():
        request = request_of(file)
    elif model and cluster:
        request = sweep_request(
            typed, models=tuple(model), cluster=cluster, **shapes_of([shape] if shape else None, typed["trace"])
        )
    else:
        raise BadInput("--model and --cluster are left out: give both, or --points with the file of a finished sweep")
    traffic = (*request.shapes, *request.traces)
    if len(traffic) > 1:
        raise BadInput(f"traffic {', '.join(traffic)}: a mix is for one kind of traffic; sweep one shape or one trace")
    demands = parse_demands(demand or (), request.models, how["tiers"])
    gpus = check_fleet(fleet, parse_cluster(request.cluster)[1].gpus, demands)
    with sweep_progress() as step:
        found = plan_mix(request, demands=demands, fleet_gpus=gpus, keep_spare=spare, points=file, progress=step, **how)
    answer = found.as_json()
    if typed["json_output"]:
        print_json(answer)
    else:
        show(answer)
    if all(slot.pick is None for slot in found.slots):
        raise typer.Exit(EXIT_NOTHING_LEGAL)


def show(answer: Mapping[str, Any]) -> None:
    """Picks, short lists and the allocation as compact tables."""
    from agent.cli.output import facts, note, table

    for model in dict.fromkeys(slot["model"] for slot in answer["slots"]):
        slots = [slot for slot in answer["slots"] if slot["model"] == model]
        table(
            f"{model}: one pick a tier",
            ["tier", *FIGURES, "headroom", "deployment"],
            [_pick_row(slot) for slot in slots],
        )
        for slot in slots:
            _show_choices(slot)
    allocation = answer["allocation"]
    if allocation is not None:
        table(
            f"Fleet: {allocation['used_gpus']} of {allocation['fleet_gpus']} GPUs, {allocation['spare_gpus']} spare",
            ["model", "tier", "deployments", "GPUs", "deployment"],
            [
                [one["model"], one["tier"], one["deployments"], one["gpus"], deployment_name(one["row"])]
                for one in allocation["grants"]
            ],
        )
        for one in allocation["unserved"]:
            note(f"note: {one['model']} {one['tier']}: {one['share']:.0%} of the demand is not served")
    for text in answer["notes"]:
        note(f"note: {text}")
    facts(
        "Planned",
        [
            ("candidates", answer["candidates"]),
            ("seconds", answer["wall_s"]),
            ("file of points", answer["file"] or "none"),
        ],
    )


def _show_choices(slot: Mapping[str, Any]) -> None:
    """A slot's short list, or why it is empty."""
    from agent.cli.output import note, table

    if slot["pick"] is None:
        miss = slot["nearest_miss"]
        nearest = (
            "there is no candidate"
            if miss is None
            else f"nearest: {deployment_name(miss['row'])}: {'; '.join(miss['misses'])}"
        )
        note(f"note: {slot['model']}: nothing meets {slot['tier']}; {nearest}")
    elif len(slot["shortlist"]) > 1:
        rows = [[*_figures(row), deployment_name(row)] for row in slot["shortlist"]]
        table(f"{slot['model']}, {slot['tier']}: short list", [*FIGURES, "deployment"], rows)


FIGURES = ("tok/s/GPU", "tok/s/user", "TTFT ms", "clients")


def _figures(row: Mapping[str, Any]) -> list[object]:
    return [row["output_tok_s_per_gpu"], row["interactivity_tok_s_user"], row["ttft_ms"], row["concurrency"]]


def _pick_row(slot: Mapping[str, Any]) -> list[object]:
    pick = slot["pick"]
    if pick is None:
        return [slot["tier"], *[None] * len(FIGURES), None, "nothing meets it"]
    return [slot["tier"], *_figures(pick), slot["headroom"], deployment_name(pick)]
