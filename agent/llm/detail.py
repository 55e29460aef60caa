"""How much of each input a prompt holds. The ladder goes from everything down to the least that still makes sense.

What costs most and teaches least goes first: older trials, then their figures, then values that a tool can tell, and
what the operator said last. Every rung keeps what the rung before left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

RECENT_TRIALS = 40  # paper App. J
NOTES_SHOWN = 12  # of the scratchpad, the newest
GUIDANCE_LENGTH = 1000  # characters
ALL = 1_000  # more values, levers or words than there are


@dataclass(frozen=True, slots=True)
class Detail:
    """What a prompt holds; the defaults are everything."""

    trials: int = RECENT_TRIALS
    figures: bool = True  # of each trial beside its score
    fixed_levers: bool = True  # the values of levers that have but one
    notes: int = NOTES_SHOWN
    values: int = ALL  # of each lever
    card: bool = True  # the architecture record's minor fields
    goal: bool = True  # the objective's definition in words
    tools: bool = True  # described in full
    plan: bool = True  # with its words
    guidance: int = GUIDANCE_LENGTH
    instructions: bool = True  # in full
    demonstrations: bool = True  # of a compiled program

    def cut(self) -> list[str]:
        """What is left out beside older trials, in words."""
        return [WORDS[one.name] for one in fields(self) if one.name in WORDS and getattr(self, one.name) != one.default]


WORDS = {
    "figures": "the trials' figures beside the score",
    "fixed_levers": "the levers that have but one value",
    "notes": "older notes",
    "values": "some of the levers' legal values",
    "card": "minor fields of the architecture",
    "goal": "the objective's definition",
    "tools": "the description of the tools",
    "plan": "the plan's words",
    "guidance": "the end of the guidance",
    "instructions": "most of the instructions",
    "demonstrations": "the compiled program's demonstrations",
}
FULL = Detail()
STEPS: tuple[dict[str, Any], ...] = (
    {"trials": 26}, {"trials": 17}, {"trials": 11}, {"trials": 7}, {"figures": False}, {"fixed_levers": False},
    {"trials": 4, "notes": 6}, {"values": 6}, {"card": False}, {"tools": False}, {"goal": False},
    {"trials": 2, "notes": 3}, {"values": 3}, {"plan": False, "notes": 1}, {"guidance": 300},
    {"instructions": False}, {"trials": 0, "values": 2}, {"demonstrations": False}, {"notes": 0, "guidance": 80},
)  # fmt: skip


def _ladder() -> tuple[Detail, ...]:
    rungs = [FULL]
    for step in STEPS:
        rungs.append(replace(rungs[-1], **step))
    return tuple(rungs)


LADDER = _ladder()
Prompt = TypeVar("Prompt")


def fit(
    build: Callable[[Detail], Prompt], tokens: Callable[[Prompt], int], room: int, rungs: Sequence[Detail] = LADDER
) -> tuple[Prompt, Detail] | None:
    """The fullest prompt of at most ``room`` tokens; None where even the last rung is too long.

    Prompts shrink from rung to rung, so their counts, which may cost a request each, are bisected.
    """
    low, high, found = 0, len(rungs) - 1, None
    while low <= high:
        middle = 0 if found is None and low == 0 and high == len(rungs) - 1 else (low + high) // 2
        prompt = build(rungs[middle])
        if tokens(prompt) <= room:
            found, high = (prompt, rungs[middle]), middle - 1
        else:
            low = middle + 1
    return found
