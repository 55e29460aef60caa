"""ATOM's scheduler: prefill first and alone; a prompt takes all its blocks when it enters."""

from predictor.des.rules import Admission, PrefillDelayer, SchedulerRules, Victim
from predictor.des.schedulers.base import Replica, long_prefill, overlap_depth, queue_policy
from predictor.errors import BadInput
from predictor.profiles.loader import engine_profile
from predictor.types import SchedulerSettings


def rules(version: str, settings: SchedulerSettings, replica: Replica = Replica()) -> SchedulerRules:
    """Rules of one release for one attention-DP rank, whose limits are its own.

    A chunk cut by the budget is a multiple of ``max(block, 64)`` tokens. Under attention DP prefill is held back until
    every rank has some (the delayer is on by default there).
    """
    profile = engine_profile("ATOM")
    release = profile.version(version)
    budget = settings.token_budget or release.token_budget
    block = settings.block_size or release.block_size
    if settings.mixed_steps:
        raise BadInput("mixed_steps is True: ATOM never mixes prefill into decode steps")
    return SchedulerRules(
        engine=profile.name,
        version=release.version,
        max_running=settings.max_running or release.max_running,
        token_budget=budget,
        block_tokens=block,
        mixed_steps=False,
        chunked_prefill=True if replica.chunked_prefill is None else replica.chunked_prefill,
        chunk_floor_tokens=max(block, profile.chunk_floor_tokens),
        admission=Admission.TAKE_FULL_PROMPT,
        victim=Victim.LAST,
        requeue_front=True,
        keep_hash_on_preempt=True,
        overlap_depth=overlap_depth(profile, replica),
        long_prefill_tokens=long_prefill(settings.chunk_size, budget),
        queue_policy=queue_policy(profile, settings.queue_policy),
        draft_tokens=replica.draft_tokens,
        delayer=PrefillDelayer() if profile.prefill_delayer and replica.attn_dp > 1 else None,
    )
