"""Why one deployment beats another: time by term, each with its mechanism, and what each change of setting gave."""

from agent.explain.compare import explain
from agent.explain.sides import Side, read_side

__all__ = ["Side", "explain", "read_side"]
