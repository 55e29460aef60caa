"""``inferasim launch``: the files and commands that start a recorded trial."""

import sys
from typing import Annotated

import typer

FORMATS = ("shell", "compose", "kubernetes")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("launch", help="Print what starts a recorded trial: shell, Docker Compose or Kubernetes.")(launch)


def launch(
    trial: Annotated[str, typer.Argument(help="SEARCH for its best trial, or SEARCH:TRIAL.")],
    file_format: Annotated[str, typer.Option("--format", help="shell, compose or kubernetes.")] = "shell",
    host: Annotated[list[str] | None, typer.Option(help="Address of a node, in order; may repeat.")] = None,
    name: Annotated[str, typer.Option(help="Name of the Kubernetes objects.")] = "inferasim",
    ledger: Annotated[str | None, typer.Option("--ledger", help="File or postgresql:// URL of the ledger.")] = None,
) -> None:
    """Print what starts a recorded trial."""
    from agent.cli.ledger import open_existing
    from agent.launch import Options, compose, kubernetes, launch_plan, script
    from agent.recorded import parse_trial, recorded_trial
    from predictor.errors import BadInput

    if file_format not in FORMATS:
        raise BadInput(f"format {file_format!r}: must be one of {', '.join(FORMATS)}")
    with open_existing(ledger) as book:
        found = recorded_trial(book, *parse_trial(trial))
    context = found.context
    options = Options(found.workload, own_network=file_format == "kubernetes")
    plan = launch_plan(found.deployment, context.card, context.platform, context.engine, options)
    hosts = tuple(host or ())
    text = {
        "shell": lambda: script(plan, hosts),
        "compose": lambda: compose(plan, hosts),
        "kubernetes": lambda: kubernetes(plan, name),
    }[file_format]()
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
