"""Routing over replicas by what the simulator itself knows of them."""

from collections.abc import Sequence

import numpy as np

from predictor.des.hub import Replica, Router
from predictor.des.request import Request
from predictor.errors import unknown_name


class LeastLoaded:
    """Fewest unfinished requests, lowest index first."""

    def pick(self, request: Request, replicas: Sequence[Replica]) -> int:
        """See :class:`predictor.des.hub.Router`."""
        loads = [replica.load for replica in replicas]
        return loads.index(min(loads))


class RoundRobin:
    """Replicas in turn."""

    def __init__(self) -> None:
        self._next = 0

    def pick(self, request: Request, replicas: Sequence[Replica]) -> int:
        """See :class:`predictor.des.hub.Router`."""
        position = self._next % len(replicas)
        self._next = position + 1
        return position


class Random:
    """Uniform, from the generator given."""

    def __init__(self, rng: "np.random.Generator") -> None:
        self._rng = rng

    def pick(self, request: Request, replicas: Sequence[Replica]) -> int:
        """See :class:`predictor.des.hub.Router`."""
        return int(self._rng.integers(len(replicas)))


ROUTERS = ("least_loaded", "round_robin", "random")


def router_named(name: str, seed: int) -> Router:
    """A router by name; ``seed`` serves the random one."""
    if name == "least_loaded":
        return LeastLoaded()
    if name == "round_robin":
        return RoundRobin()
    if name == "random":
        return Random(np.random.default_rng(np.random.SeedSequence([seed, 0x726F])))
    raise unknown_name("router", name, ROUTERS)
