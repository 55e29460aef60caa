"""Flags that several commands take, declared once.

A command decorated with :func:`with_flags` declares only its own flags and a first parameter that receives, by name,
what the person typed for the shared ones.
"""

import inspect
from collections.abc import Callable
from typing import Annotated, Any


def with_flags(
    flags: Callable[..., None], *, shared_first: bool, optional: bool = False, leave_out: frozenset[str] = frozenset()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of ``flags``, a function that is only read, before or after its own in the help.

    With ``optional`` none of the shared flags is required: one that has no default is None where it was left out. The
    command has none of those to ``leave_out``.
    """
    declared = inspect.signature(flags, eval_str=True).parameters
    shared = [one for name, one in declared.items() if name not in leave_out]
    if optional:
        shared = [_optional(one) if one.default is one.empty else one for one in shared]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

        def run(**typed: Any) -> None:
            command({one.name: typed.pop(one.name) for one in shared}, **typed)

        order = (*shared, *own) if shared_first else (*own, *shared)
        keyword = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in order]
        run.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]  # read by typer
        run.__annotations__ = {one.name: one.annotation for one in keyword}
        run.__doc__ = command.__doc__
        return run

    return decorate


def _optional(parameter: inspect.Parameter) -> inspect.Parameter:
    """``name: Annotated[T, …]`` as ``name: Annotated[T | None, …] = None``."""
    made: Any = Annotated
    annotation = parameter.annotation
    return parameter.replace(default=None, annotation=made[(annotation.__origin__ | None, *annotation.__metadata__)])
