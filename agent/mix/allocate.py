"""How many of each pick a fleet runs: an integer program, solved by HiGHS through scipy.

Whole deployments are counted. As much of the demand as possible is served first, every slot weighing alike; of the
allocations that do, the one that leaves most GPUs spare is taken, and of these the one that follows the short lists.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from agent.mix.demand import Demand
from agent.mix.pick import Row, Slot
from agent.pareto.frontier import Y
from predictor.errors import BadInput

RANK_SHARE = 1e-3  # of a GPU: a tie between options is decided by their place on the short list


@dataclass(frozen=True, slots=True)
class Grant:
    """So many deployments of one option for one slot."""

    model: str
    tier: str
    row: Row
    deployments: int

    @property
    def gpus(self) -> int:
        """GPUs of all of them."""
        return self.deployments * int(self.row["gpus"])


@dataclass(frozen=True, slots=True)
class Allocation:
    """A fleet's use."""

    fleet_gpus: int
    grants: tuple[Grant, ...]
    unserved: tuple[tuple[Demand, float], ...]  # with the share that is not served

    @property
    def used_gpus(self) -> int:
        """GPUs in use."""
        return sum(grant.gpus for grant in self.grants)

    @property
    def spare_gpus(self) -> int:
        """GPUs left."""
        return self.fleet_gpus - self.used_gpus


@dataclass(frozen=True, slots=True)
class _Option:
    demand: int  # position among the demands
    slot: Slot
    row: Row
    rank: int
    share: float  # of the demand that one deployment serves


def allocate(slots: Sequence[Slot], demands: Sequence[Demand], fleet_gpus: int, keep_spare: int = 0) -> Allocation:
    """Serve the demands on the fleet with ``keep_spare`` GPUs left alone."""
    if not 0 <= keep_spare < fleet_gpus:
        raise BadInput(f"spare {keep_spare}: must be at least 0 and below the fleet's {fleet_gpus} GPUs")
    options = [option for position, demand in enumerate(demands) for option in _options(position, demand, slots)]
    counts, missing = _solve(options, len(demands), fleet_gpus - keep_spare)
    grants = tuple(
        Grant(option.slot.model, option.slot.tier.name, option.row, count)
        for option, count in zip(options, counts, strict=True)
        if count
    )
    unserved = tuple((demand, share) for demand, share in zip(demands, missing, strict=True) if share > 1e-9)
    return Allocation(fleet_gpus, grants, unserved)


def _options(position: int, demand: Demand, slots: Sequence[Slot]) -> list[_Option]:
    """The short list of a demand's slot, with what one deployment of each serves."""
    return [
        _Option(position, slot, row, rank, served(row, demand))
        for slot in slots
        if (slot.model, slot.tier.name) == (demand.model, demand.tier)
        for rank, row in enumerate(slot.shortlist)
    ]


def served(row: Row, demand: Demand) -> float:
    """Share of a demand that one deployment serves at the load it was predicted at."""
    if demand.users:
        return float(row["concurrency"]) / demand.users
    return float(row[Y]) * float(row["gpus"]) / demand.tok_s


def _solve(options: Sequence[_Option], demands: int, gpus: int) -> tuple[list[int], list[float]]:
    """Deployments of each option, and the share of each demand left unserved.

    Minimise ``W·Σ unserved + Σ GPUs``; W exceeds any number of GPUs that serving one more percent of a demand may take.
    """
    if not options:
        return [], [1.0] * demands
    try:
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint, milp
    except ImportError:
        raise BadInput("allocation: scipy is not installed; pip install 'inferasim[decisions]'") from None
    count = len(options)
    weight = 100.0 * (gpus + 1)
    cost = np.array(
        [option.row["gpus"] * (1.0 + RANK_SHARE * option.rank) for option in options] + [weight] * demands, float
    )
    serving = np.zeros((demands, count + demands))
    for column, option in enumerate(options):
        serving[option.demand, column] = option.share
    serving[:, count:] = np.eye(demands)
    fleet = np.array([option.row["gpus"] for option in options] + [0.0] * demands, float)
    most = [ceil(1.0 / option.share) for option in options]
    solved = milp(
        cost,
        constraints=[LinearConstraint(serving, lb=1.0), LinearConstraint(fleet, ub=float(gpus))],
        integrality=np.array([1] * count + [0] * demands),
        bounds=Bounds(0.0, np.array([*most, *[1.0] * demands], float)),
    )
    if solved.x is None:  # serving nothing is always possible
        raise RuntimeError(f"the allocation's solver failed: {solved.message}")
    counts = [round(float(value)) for value in solved.x[:count]]
    covered = serving[:, :count] @ np.array(counts, float)
    return counts, [max(0.0, 1.0 - float(value)) for value in covered]
