"""``inferasim doctor``."""

from typing import Annotated

import typer

EXIT_DEPENDENCY = 3


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor", help="Check catalogue, anchors, ledger and language model, and say how to mend each.")(doctor)


def doctor(
    model: Annotated[str | None, typer.Option(help="Model to look for, or the path of its config.json.")] = None,
    ledger: Annotated[str | None, typer.Option(help="File or postgresql:// URL of the ledger.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask the language model.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check catalogue, anchors, ledger and language model, and say how to mend each."""
    from agent.cli.output import print_json, table
    from agent.llm.doctor import examine

    checks = examine(model, ledger, ask_llm=not offline)
    healthy = all(check.status != "failed" for check in checks)
    if json_output:
        print_json({"ok": healthy, "checks": [check.as_json() for check in checks]})
    else:
        table("Doctor", ["check", "", "found"], [[one.name, one.status, one.message] for one in checks])
        for one in checks:
            if one.fix:
                typer.echo(f"{one.name}: {one.fix}")
    if not healthy:
        raise typer.Exit(EXIT_DEPENDENCY)
