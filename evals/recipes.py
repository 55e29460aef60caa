"""What an operator knows of a corpus row beside its columns: settings of the public launch recipes."""

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from predictor.anchors.schedule import Discipline
from predictor.types import Dtype

_HERE = Path(__file__).parent
NO_CAP = 1 << 30  # running requests, where nothing limits them


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of one launch; 0 means no cap."""

    kv: Dtype
    token_budget: int
    discipline: Discipline
    draft_depth: int
    running_cap: int = 0
    spec_running_cap: int = 0
    allreduce: str = "custom"
    poll_steps: tuple[tuple[int, int], ...] = ((1, 1),)  # (clients from, decode steps between polls)
    expert: Dtype | None = None  # of expert weights, where not the label's

    def poll(self, clients: int) -> int:
        """Decode steps between polls for new requests at a load."""
        return next((steps for least, steps in reversed(self.poll_steps) if clients >= least), 1)

    def cap(self, speculates: bool) -> int:
        """Most requests that run at once; a very large number where nothing limits them."""
        caps = [self.running_cap, self.spec_running_cap if speculates else 0]
        return min((cap for cap in caps if cap), default=NO_CAP)


@lru_cache(maxsize=8)
def _file(name: str) -> dict[str, Any]:
    with (_HERE / name).open("rb") as file:
        return tomllib.load(file)


@lru_cache(maxsize=4096)
def recipe(file: str, engine: str, gpu: str, model: str, precision: str, spec: str) -> Recipe:
    """Settings of one stack: the engine's defaults, then the first rule that matches."""
    known = {"engine": engine, "gpu": gpu, "model": model, "precision": precision, "spec": spec}
    data = _file(file)
    settings: dict[str, Any] = dict(data["defaults"][engine])
    for rule in data["rule"]:
        if all(known[name] == value for name, value in rule["match"].items()):
            settings |= {name: value for name, value in rule.items() if name != "match"}
            break
    polls = tuple((int(least), int(steps)) for least, steps in settings.pop("poll_steps", [[1, 1]]))
    expert = settings.pop("expert", None)
    return Recipe(
        **{**settings, "kv": Dtype(settings["kv"]), "poll_steps": polls, "expert": Dtype(expert) if expert else None}
    )
