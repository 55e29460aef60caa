"""``inferasim predict`` and ``inferasim reduce``."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.cli.deployment_options import with_deployment

if TYPE_CHECKING:
    from agent.predict_request import PredictRequest

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Anchors = Annotated[str | None, typer.Option(help="Folder or file of anchors to use instead of the cache.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("predict", help="Predict one deployment under one workload.")(with_deployment(predict))
    app.command("reduce", help="Say what to measure for a target, and which laws restore the rest.")(
        with_deployment(reduce)
    )


def predict(
    fields: dict[str, Any],
    mode: Annotated[str, typer.Option(help="auto, anchored or simulate.")] = "auto",
    method: Annotated[str, typer.Option(help="auto, des or analytic.")] = "auto",
    anchors: Anchors = None,
    plot: Annotated[
        str | None, typer.Option(help="Write step, memory, latencies and timeline as NAME-FIGURE.png or .svg.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Predict one deployment under one workload."""
    from agent.handlers import predict_once
    from agent.predict_request import PredictRequest, validated

    request = validated(PredictRequest, **fields)
    answer = predict_once(request, mode, anchors, method)
    if plot is not None:
        _draw(request, mode, anchors, plot)
    if json_output:
        from agent.cli.output import print_json

        print_json(answer)
    else:
        from agent.report import show_prediction

        show_prediction(answer)


def _draw(request: "PredictRequest", mode: str, anchors: str | None, plot: str) -> None:
    """The deployment's figures as pictures."""
    from pathlib import Path

    from agent.charts.deployments import deployment_figures, shown
    from agent.charts.files import write_pictures
    from agent.cli.output import note
    from agent.handlers import MODES, look_up

    catalogue, deployment = look_up(request, anchors if mode != "simulate" else None)
    name = f"{deployment.model} {deployment.layout.label()}"
    found = {name: shown(deployment, request.workload(), catalogue, MODES[mode])}
    for path in write_pictures(deployment_figures("deployment", found, name), Path(plot)):
        note(f"wrote {path}")


def reduce(fields: dict[str, Any], anchors: Anchors = None, json_output: Json = False) -> None:
    """Say what to measure for a target, and which laws restore the rest."""
    from agent.handlers import reduce_once
    from agent.predict_request import PredictRequest, validated

    answer = reduce_once(validated(PredictRequest, **fields), anchors)
    if json_output:
        from agent.cli.output import print_json

        print_json(answer)
    else:
        from agent.report import show_reduction

        show_reduction(answer)
