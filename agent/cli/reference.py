"""The command-line reference, made from the commands themselves: ``python -m agent.cli.reference > docs/cli.md``."""

import sys
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from agent.cli.main import assemble

HEAD = """# Command line

Made from the commands by `python -m agent.cli.reference > docs/cli.md`; a test holds it current.

`--json` prints one JSON object on stdout and nothing else; words go to stderr. Exit codes: 0 done; 1 nothing legal;
2 bad input; 3 a dependency failed. `--debug` on any command shows the traceback of an internal error.
"""


def reference() -> str:
    """The page."""
    return "\n".join((HEAD, *_sections(get_command(assemble()), ("inferasim",))))


def _sections(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    """One section a command, groups before what is in them."""
    for name, child in sorted(getattr(command, "commands", {}).items()):
        here = (*path, name)
        yield f"## {' '.join(here)}\n\n{(child.help or '').strip()}\n"
        rows = [row for parameter in child.params if (row := _row(parameter)) is not None]
        if rows:
            yield "| option | default | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n"
        yield from _sections(child, here)


def _row(parameter: Any) -> str | None:
    """One line of the table; the help flag is left out."""
    names = [name for name in (*parameter.opts, *parameter.secondary_opts) if name not in ("--help", "-h")]
    if not names:
        return None
    argument = parameter.param_type_name == "argument"
    shown = f"`{parameter.name.upper()}`" if argument else ", ".join(f"`{name}`" for name in names)
    default = "required" if parameter.required else _default(parameter.default)
    text = (getattr(parameter, "help", None) or "").replace("|", "\\|")
    return f"| {shown} | {default} | {text} |"


def _default(value: object) -> str:
    return "" if value in (None, "", False, ()) or callable(value) else f"`{value}`"


if __name__ == "__main__":
    sys.stdout.write(reference())
