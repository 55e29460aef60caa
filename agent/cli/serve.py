"""``inferasim serve``: the HTTP service and its page, and the tokens of its callers."""

from typing import Annotated

import typer

Config = Annotated[str | None, typer.Option(help="TOML file of settings; INFERASIM_SERVE_CONFIG if left out.")]
Url = Annotated[str | None, typer.Option("--ledger", help="File or postgresql:// URL of the ledger.")]


def register(app: typer.Typer) -> None:
    """Add the group; without a subcommand it serves."""
    group = typer.Typer(help="Serve searches over HTTP, with a page for people.", invoke_without_command=True)
    group.callback()(serve)
    tokens = typer.Typer(help="Tokens of callers: add, list, revoke.", no_args_is_help=True)
    tokens.command("add", help="Make a token for a caller; it is printed once and stored as a hash.")(add)
    tokens.command("list", help="Callers and what they may.")(list_tokens)
    tokens.command("revoke", help="Refuse a caller's token from now on.")(revoke)
    group.add_typer(tokens, name="token")
    app.add_typer(group, name="serve")


def serve(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help="Address to listen on; 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 8080. 0 takes any free one and says which.")] = None,
    ledger: Url = None,
    anchors: Annotated[str | None, typer.Option(help="Folder of anchors; the user's cache if left out.")] = None,
    workers: Annotated[int | None, typer.Option(help="Search processes; 2. 0 only answers.")] = None,
    auth: Annotated[str | None, typer.Option(help="on, off or auto: off on loopback, on elsewhere.")] = None,
    config: Config = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the settings in force.")] = False,
) -> None:
    """Serve searches over HTTP, with a page for people."""
    if context.invoked_subcommand is not None:
        return
    import sys

    from agent.cli.output import note
    from agent.service.settings import load_settings

    given = {"host": host, "port": port, "ledger": ledger, "anchors": anchors, "workers": workers, "auth": auth}
    settings = load_settings(given, config)
    if print_config:
        sys.stdout.write(settings.as_toml())
        return
    try:
        from agent.service.run import run
    except ModuleNotFoundError as error:
        from agent.failures import DependencyFailed

        raise DependencyFailed(f"serve needs {error.name}: pip install 'inferasim[service]'") from None
    run(settings, lambda address: note(f"serving on {address}"))


def add(
    name: Annotated[str, typer.Argument(help="Who holds it.")],
    scope: Annotated[list[str], typer.Option(help="read, tune or admin; may repeat.")],
    ledger: Url = None,
    config: Config = None,
) -> None:
    """Make a token; it is printed once."""
    import sys

    from agent.service.settings import load_settings
    from ledger import open_ledger
    from ledger.tokens import Tokens

    with open_ledger(load_settings({"ledger": ledger}, config).ledger_url) as book:
        sys.stdout.write(Tokens(book).add(name, scope) + "\n")


def list_tokens(
    ledger: Url = None,
    config: Config = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Callers and what they may."""
    from dataclasses import asdict

    from agent.cli.output import print_json, table
    from agent.service.settings import load_settings
    from ledger import open_ledger
    from ledger.tokens import Tokens

    url = load_settings({"ledger": ledger}, config).ledger_url
    with open_ledger(url, create=False, write=False) as book:
        rows = [asdict(one) for one in Tokens(book).all()]
    if json_output:
        print_json({"tokens": rows})
        return
    columns = ("name", "scopes", "created_at", "revoked_at")
    table("Tokens", columns, [[" ".join(row[one]) if one == "scopes" else row[one] for one in columns] for row in rows])


def revoke(
    name: Annotated[str, typer.Argument(help="Whose.")],
    ledger: Url = None,
    config: Config = None,
) -> None:
    """Refuse a caller's token from now on."""
    from agent.service.settings import load_settings
    from ledger import open_ledger
    from ledger.tokens import Tokens

    with open_ledger(load_settings({"ledger": ledger}, config).ledger_url, create=False) as book:
        Tokens(book).revoke(name)
