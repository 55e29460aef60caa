"""Complaints about the command line, each in one line: what is wrong, what is nearest, where the rest is described."""

from difflib import get_close_matches
from typing import Any

# Words one command uses for what another calls differently; the spelling alone would not lead there.
KIN = {"--cluster": "--gpu", "--gpu": "--cluster", "--output": "--out"}


def complaint(error: Exception, given: list[str]) -> str:
    """The line for an error of the parser."""
    wrong: Any = error  # click's, which typer ships inside itself: not importable by name
    message = str(wrong.format_message())
    context = getattr(wrong, "ctx", None)
    name = getattr(wrong, "option_name", None)
    if name and context is not None:
        return f"No such option: {name}; {nearest(name, options_of(context))}all options: {command(context)} --help"
    for option in getattr(getattr(wrong, "param", None), "opts", ()):
        if option in given[:-1]:
            value = given[len(given) - given[::-1].index(option)]  # the last one given is the one that counts
            return f"{option.lstrip('-')} {value!r}: {message.split(': ', 1)[-1]}"
    if message.startswith("No such command") and context is not None:
        return f"{message.rstrip('.')}; all commands: {command(context)} --help"
    return message


def options_of(context: Any) -> list[str]:
    """Every long option of a command but ``--help``, as typed."""
    parameters = context.command.get_params(context)
    names = [name for one in parameters for name in (*one.opts, *getattr(one, "secondary_opts", ()))]
    return [name for name in names if name.startswith("--") and name != "--help"]


def nearest(name: str, known: list[str]) -> str:
    """``nearest: --x; ``, or nothing where the command takes no options. Swapped letters are the likeliest slip.

    >>> nearest("--modell", ["--mode", "--model", "--nodes"])
    'nearest: --model; '
    >>> nearest("--modle", ["--mode", "--model", "--nodes"])
    'nearest: --model; '
    """
    kin = KIN.get(name)
    swapped = [one for one in known if sorted(one) == sorted(name)]
    found = [kin] if kin in known else swapped or get_close_matches(name, known, 1, 0.0)
    return f"nearest: {found[0]}; " if found else ""


def command(context: Any) -> str:
    """The command as a person types it."""
    names = []
    while context.parent is not None:
        names.append(context.info_name)
        context = context.parent
    return " ".join(("inferasim", *reversed(names)))
