"""The 36 levers, in display order. A lever is read from its one entry, and added by adding one."""

from levers.catalog import kernels, load, parallel, precision, runtime
from levers.lever import Lever, unique_by_name
from predictor.errors import unknown_name

LEVERS: tuple[Lever, ...] = (*parallel.LEVERS, *precision.LEVERS, *kernels.LEVERS, *runtime.LEVERS, *load.LEVERS)
BY_NAME = unique_by_name(LEVERS)


def lever(name: str) -> Lever:
    """The lever of this name; :class:`predictor.errors.UnknownName` with near matches otherwise."""
    if name not in BY_NAME:
        raise unknown_name("lever", name, BY_NAME)
    return BY_NAME[name]
