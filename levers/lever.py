"""What a lever is: one setting of a deployment or of its load, with its legal values and its engine flags.

A lever is data. Its ``owner`` and ``field`` say which part of the deployment it sets, ``candidates`` which values a
search tries, ``accepts`` which further values are legal, and ``exclusions`` why a value is not legal for this model,
engine, platform or cluster, whatever the other levers are. What depends on several levers at once is in
:mod:`levers.legality`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from levers.context import LeverValue, SearchContext, version_key
from levers.reasons import Reason


class Kind(StrEnum):
    """How a change of the lever is priced."""

    ANCHOR = "A"  # changes the kernels: needs its own anchor
    TRANSFERABLE = "T"  # moved from an anchor by the transfer laws
    SCHEDULER = "S"  # a parameter of the simulated scheduler
    LOAD = "load"  # what the clients do


class Group(StrEnum):
    """Display groups, in catalogue order."""

    PARALLEL = "parallel"
    DISAGGREGATION = "disaggregation"
    PRECISION = "precision"
    KERNELS = "kernels"
    GRAPH = "graph"
    COLLECTIVES = "collectives"
    SCHEDULER = "scheduler"
    SPECULATION = "speculation"
    MEMORY = "memory"
    LOAD = "load"


PINNED_GROUPS = (Group.PRECISION, Group.LOAD)  # pinned unless the operator frees them
NOT_AVAILABLE = "—"


@dataclass(frozen=True, slots=True)
class EngineFlag:
    """How one engine spells a lever, from one release on."""

    engine: str
    text: str  # the flag or argument, or NOT_AVAILABLE
    default: str = ""
    note: str = ""
    since: str = ""  # first release with this spelling; empty: every release in the tables


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers a lever takes beside its listed candidates."""

    low: float
    high: float
    integer: bool = True
    multiple: int = 1
    default_allowed: bool = False  # None, the engine's own default, is legal too

    def refuse(self, name: str, value: LeverValue) -> Reason | None:
        """Why ``value`` is outside the range, or None."""
        if value is None and self.default_allowed:
            return None
        if isinstance(value, bool) or not isinstance(value, int if self.integer else int | float):
            wanted = "a whole number" if self.integer else "a number"
            return Reason("bad_type", f"{name} takes {wanted}, not {value!r}")
        if not self.low <= value <= self.high:
            return Reason("out_of_range", f"{name}={value} is outside {self.low:g} to {self.high:g}")
        if self.multiple > 1 and value % self.multiple:
            return Reason("out_of_range", f"{name}={value} is not a multiple of {self.multiple}")
        return None


Candidates = Callable[[SearchContext], tuple[LeverValue, ...]]
Exclusion = Callable[[SearchContext, LeverValue], Reason | None]
Default = Callable[[SearchContext], LeverValue]


@dataclass(frozen=True, slots=True)
class Lever:
    """One catalogue entry.

    ``governor`` names another lever and the value of it at which this one has no effect: such a lever is kept at its
    default, so that two settings that launch the same deployment are equal.
    """

    number: int
    name: str
    group: Group
    kind: Kind
    what: str
    owner: str  # part of the deployment: "", layout, prefill, prefill_layout, precision, kernels, scheduler, ...
    field: str
    candidates: Candidates
    default: Default
    flags: tuple[EngineFlag, ...]
    exclusions: tuple[Exclusion, ...] = ()
    accepts: Range | None = None
    governor: tuple[str, LeverValue] | None = None

    def pinned_value(self, context: SearchContext) -> tuple[LeverValue, str] | None:
        """The only value the operator allows, with who fixed it; None for an open lever."""
        if self.name in context.pinned:
            return context.pinned[self.name], "the operator"
        closed = self.group in PINNED_GROUPS and self.name not in context.free and self.group not in context.free
        return (self.default(context), "default (free it to search it)") if closed else None

    def illegal(self, context: SearchContext, value: LeverValue) -> Reason | None:
        """Why the value is not legal whatever the pins and the other levers are, or None."""
        if not self._listed(context, value):
            outside = self.accepts.refuse(self.name, value) if self.accepts else self._unlisted(context, value)
            if outside:
                return outside
        return next((reason for rule in self.exclusions if (reason := rule(context, value))), None)

    def refuse(self, context: SearchContext, value: LeverValue) -> Reason | None:
        """Why a search may not set the value, or None."""
        pinned = self.pinned_value(context)
        if pinned and not _same(pinned[0], value):
            return Reason("pinned", f"{self.name}={show(value)}: pinned to {show(pinned[0])} by {pinned[1]}")
        return self.illegal(context, value)

    def values(self, context: SearchContext) -> tuple[LeverValue, ...]:
        """Values a search may try, in catalogue order."""
        pinned = self.pinned_value(context)
        if pinned:
            return (pinned[0],)
        return tuple(value for value in self.candidates(context) if self.illegal(context, value) is None)

    def left_out(self, context: SearchContext) -> tuple[tuple[LeverValue, Reason], ...]:
        """Candidate values a search may not try, each with its reason."""
        refused = ((value, self.refuse(context, value)) for value in self.candidates(context))
        return tuple((value, reason) for value, reason in refused if reason is not None)

    def flag(self, engine: str, version: str) -> EngineFlag | None:
        """The spelling in this release: the entry with the latest ``since`` that the release has reached."""
        spelled = [flag for flag in self.flags if flag.engine == engine]
        reached = [flag for flag in spelled if not flag.since or version_key(flag.since) <= version_key(version)]
        return max(reached, key=lambda flag: version_key(flag.since) if flag.since else (), default=None)

    def _listed(self, context: SearchContext, value: LeverValue) -> bool:
        return any(_same(value, candidate) for candidate in self.candidates(context))

    def _unlisted(self, context: SearchContext, value: LeverValue) -> Reason:
        legal = ", ".join(show(candidate) for candidate in self.values(context))
        return Reason("out_of_set", f"{self.name}={show(value)} is not in its legal set: {legal}")


def _same(left: LeverValue, right: LeverValue) -> bool:
    """Equality that keeps ``True`` apart from 1."""
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def show(value: LeverValue) -> str:
    """A value as a person writes it.

    >>> show(None), show(True), show(("act_quant", "norm_quant")), show(())
    ('default', 'on', 'act_quant+norm_quant', 'none')
    """
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return "+".join(value) or "none"
    return str(value)


def unique_by_name(levers: tuple[Lever, ...]) -> Mapping[str, Lever]:
    """The levers by name; a repeated name or a gap in the numbers is a bug in the catalogue."""
    by_name = {lever.name: lever for lever in levers}
    numbers = [lever.number for lever in levers]
    if len(by_name) != len(levers) or numbers != list(range(1, len(levers) + 1)):
        raise ValueError(f"lever names must differ and numbers run from 1: {[(x.number, x.name) for x in levers]}")
    return by_name
