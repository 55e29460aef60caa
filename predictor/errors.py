"""Exceptions of the predictor.

::

    InferaSimError
    ├── BadInput          the caller asked for something malformed; names the field, the value and what is legal
    │   ├── UnknownName   a model, GPU, engine, lever or objective nobody knows, with near matches
    │   └── BadFile       a file that does not hold what it should: file, field or line, what was expected
    ├── Refusal           the question is well-formed, and answering it would be wrong
    │   ├── AnchorRefused the anchor was measured on something else; every differing field is named
    │   └── DoesNotFit    weights, state and one request exceed the memory of the GPUs
    └── DataUnavailable   a number nobody has measured or published; it is never invented

Everything else that is raised is a bug and propagates with its traceback. All take one positional message, because
SimPy rebuilds a failed process's exception from its arguments.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class InferaSimError(Exception):
    """Base of every error that is meant for the person at the keyboard."""


class BadInput(InferaSimError):
    """Malformed input; the message names the field, the value and what is legal."""


class UnknownName(BadInput):
    """A name that is in no catalogue."""


class BadFile(BadInput):
    """A file that does not hold what it should."""


class Refusal(InferaSimError):
    """A well-formed question whose answer would be wrong."""


class AnchorRefused(Refusal):
    """The anchor was measured on another GPU, engine or kernel set."""


class DoesNotFit(Refusal):
    """The deployment exceeds the memory of its GPUs."""


class DataUnavailable(InferaSimError):
    """A figure that nobody has measured or published."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """Build the error for a name that is in no catalogue, with the nearest known names.

    >>> str(unknown_name("model", "Lama-3.1-8B", ["Llama-3.1-8B", "Qwen3-32B"]))
    "model 'Lama-3.1-8B' is not known; nearest: Llama-3.1-8B"
    """
    names = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in names}
    near = [lowered[match] for match in get_close_matches(name.lower(), lowered, n=3, cutoff=0.5)]
    hint = f"nearest: {', '.join(near)}" if near else f"known: {', '.join(names)}"
    return UnknownName(f"{kind} {name!r} is not known; {hint}")
