"""What all engines' rules share: limits from the settings, else the release's defaults in the engine's profile."""

from dataclasses import dataclass
from typing import Protocol

from predictor.cards import EngineProfile
from predictor.des.rules import QueuePolicy, SchedulerRules
from predictor.errors import BadInput
from predictor.types import SchedulerSettings


@dataclass(frozen=True, slots=True)
class Replica:
    """What a scheduler's limits depend on beside its settings.

    ``draft_tokens`` are those a decode row carries for verification; ``chunked_prefill`` None is the engine's default.
    """

    draft_tokens: int = 0
    attn_dp: int = 1
    pp: int = 1
    chunked_prefill: bool | None = None


class RulesOf(Protocol):
    """Builds the scheduler rules of one engine's release, for one attention-DP rank."""

    def __call__(self, version: str, settings: SchedulerSettings, replica: Replica = Replica()) -> SchedulerRules:
        """Rules under these settings; an empty version is the newest known."""
        ...


def queue_policy(profile: EngineProfile, name: str) -> QueuePolicy:
    """A queue policy the engine has and the simulator models."""
    known = [policy.value for policy in QueuePolicy if policy.value in profile.queue_policies]
    if name not in known:
        raise BadInput(f"queue_policy {name!r} of {profile.name} is not simulated; legal: {', '.join(known)}")
    return QueuePolicy(name)


def overlap_depth(profile: EngineProfile, replica: Replica) -> int:
    """Steps the scheduler works ahead of the GPU; engines that turn overlap off under PP work none ahead there."""
    return profile.overlap_depth if replica.pp == 1 or profile.overlap_under_pp else 0


def long_prefill(chunk_size: int | None, token_budget: int) -> int:
    """Cap on one prompt's tokens a step where a chunk below the budget was asked for; 0: none."""
    return chunk_size if chunk_size is not None and 0 < chunk_size < token_budget else 0
