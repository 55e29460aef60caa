"""The mix planner: one pick a model and tier, and how a fleet is divided among them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from agent.launching import launch_json
from agent.mix.allocate import Allocation, allocate
from agent.mix.demand import Demand
from agent.mix.pick import Filler, Miss, Row, Slot
from agent.pareto.price import point_deployment
from agent.pareto.request import SweepRequest
from agent.pareto.store import read_header
from agent.pareto.sweep import Progress, run_sweep
from agent.tiers import Tier
from predictor.errors import BadInput


@dataclass(frozen=True, slots=True)
class Mix:
    """Slots in the order of models and tiers, and the allocation where a demand was given."""

    request: SweepRequest
    slots: tuple[Slot, ...]
    candidates: int
    allocation: Allocation | None
    anchors: str | None
    file: str | None
    wall_s: float

    def as_json(self) -> dict[str, Any]:
        """The keys of ``mix --json``."""
        return {
            "request": self.request.model_dump(mode="json"),
            "file": self.file,
            "candidates": self.candidates,
            "slots": [slot_json(slot, self.request, self.anchors) for slot in self.slots],
            "empty": [f"{slot.model}:{slot.tier.name}" for slot in self.slots if slot.pick is None],
            "allocation": None if self.allocation is None else allocation_json(self.allocation),
            "notes": notes(self.slots),
            "wall_s": self.wall_s,
        }


def plan_mix(
    request: SweepRequest,
    tiers: Sequence[Tier],
    demands: Sequence[Demand] = (),
    *,
    fleet_gpus: int = 0,
    keep_spare: int = 0,
    points: Path | None = None,
    anchors: str | None = None,
    jobs: int = 1,
    backend: str = "loky",
    progress: Progress | None = None,
) -> Mix:
    """Pick for every model and tier; candidates come from ``points``, which is swept first where it is not complete."""
    started = perf_counter()
    sweep = run_sweep(request, out=points, tiers=tiers, anchors=anchors, jobs=jobs, backend=backend, progress=progress)
    fillers = {model: [Filler(model, tier) for tier in tiers] for model in request.models}
    for row in sweep.rows():
        for filler in fillers[row["model"]]:
            filler.add(row)
    slots = tuple(filler.slot() for group in fillers.values() for filler in group)
    return Mix(
        request=request,
        slots=slots,
        candidates=sweep.priced,
        allocation=allocate(slots, demands, fleet_gpus, keep_spare) if demands else None,
        anchors=anchors,
        file=None if points is None else str(points),
        wall_s=perf_counter() - started,
    )


def request_of(points: Path) -> SweepRequest:
    """The request in a sweep's file, for a mix from it."""
    return SweepRequest.model_validate(read_header(points)["request"])


def slot_json(slot: Slot, request: SweepRequest, anchors: str | None) -> dict[str, Any]:
    """A slot as plain JSON; the pick comes with its launch commands."""
    return {
        "model": slot.model,
        "tier": slot.tier.name,
        "min_tok_s_user": slot.tier.min_tok_s_user,
        "max_ttft_ms": slot.tier.max_ttft_ms,
        "qualified": slot.qualified,
        "pick": None if slot.pick is None else dict(slot.pick),
        "headroom": slot.headroom,
        "shortlist": [dict(row) for row in slot.shortlist],
        "nearest_miss": None if slot.nearest is None else miss_json(slot.nearest),
        "launch": [] if slot.pick is None else launch_commands(slot.pick, request, anchors),
    }


def launch_commands(row: Row, request: SweepRequest, anchors: str | None) -> list[str]:
    """What starts a point's deployment."""
    deployment, workload, catalogue = point_deployment(request, anchors, row)
    found = launch_json(deployment, workload, catalogue.card, catalogue.platform, catalogue.profile)
    return list(found["commands"])


def miss_json(miss: Miss) -> dict[str, Any]:
    """The nearest miss as plain JSON."""
    return {"row": dict(miss.row), "shortfall": miss.shortfall, "misses": list(miss.misses)}


def allocation_json(allocation: Allocation) -> dict[str, Any]:
    """The allocation as plain JSON."""
    return {
        "fleet_gpus": allocation.fleet_gpus,
        "used_gpus": allocation.used_gpus,
        "spare_gpus": allocation.spare_gpus,
        "grants": [
            {
                "model": grant.model,
                "tier": grant.tier,
                "deployments": grant.deployments,
                "gpus": grant.gpus,
                "row": dict(grant.row),
            }
            for grant in allocation.grants
        ],
        "unserved": [
            {"model": demand.model, "tier": demand.tier, "share": share} for demand, share in allocation.unserved
        ],
    }


def notes(slots: Iterable[Slot]) -> list[str]:
    """What to keep in mind when reading the picks."""
    picks = [slot.pick for slot in slots if slot.pick is not None]
    said: list[str] = []
    if any(row["mode"] == "simulate" for row in picks):
        said.append(
            "some picks come from kernel models alone: they rank within one engine, so measure their short list"
        )
    if any(row["coverage"] == "projected" for row in picks):
        said.append("some picks are projected from an anchor that does not cover them: for ranking only")
    return said


def check_fleet(fleet_gpus: int | None, cluster_gpus: int, demands: Sequence[Demand]) -> int:
    """The fleet's size: as given, else the cluster's."""
    fleet = cluster_gpus if fleet_gpus is None else fleet_gpus
    if fleet < 1:
        raise BadInput(f"fleet {fleet}: must be at least 1 GPU")
    if fleet_gpus is not None and not demands:
        raise BadInput("fleet: say what it has to serve with --demand MODEL:TIER=USERS")
    return fleet
