"""The mechanisms file: terms of a request's time and changes of a deployment, each with its reference."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A named mechanism, and where it is published or modelled."""

    label: str
    mechanism: str
    reference: str
    members: tuple[str, ...] = ()  # names of the step models' terms that it takes in


@dataclass(frozen=True, slots=True)
class Mechanisms:
    """Terms in the order they are shown, and changes in the order they are applied."""

    terms: Mapping[str, Mechanism]
    changes: Mapping[str, Mechanism]

    def term_of(self, member: str) -> str:
        """The term that takes in a step model's term; what nobody lists is launch and fixed cost."""
        return next((name for name, term in self.terms.items() if member in term.members), "launch")


@lru_cache(maxsize=1)
def mechanisms() -> Mechanisms:
    """Read the file that lies beside this module."""
    data = tomllib.loads(files(__package__).joinpath("mechanisms.toml").read_text(encoding="utf-8"))
    return Mechanisms(_table(data["terms"]), _table(data["changes"]))


def _table(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, Mechanism]:
    return {
        name: Mechanism(entry["label"], entry["mechanism"], entry["reference"], tuple(entry.get("members", ())))
        for name, entry in entries.items()
    }
