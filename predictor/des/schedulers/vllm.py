"""vLLM's V1 scheduler: running requests first, then the queue; prompts and decode share every step."""

from predictor.des.rules import Admission, SchedulerRules, Victim
from predictor.des.schedulers.base import Replica, long_prefill, overlap_depth, queue_policy
from predictor.errors import BadInput
from predictor.profiles.loader import engine_profile
from predictor.types import SchedulerSettings


def rules(version: str, settings: SchedulerSettings, replica: Replica = Replica()) -> SchedulerRules:
    """Rules of one release; limits are those of one attention-DP rank, as vLLM's are.

    ``scheduler-reserve-full-isl`` is on (the default): a sequence enters only if all of it fits now. A chunk size below
    the budget is ``long-prefill-token-threshold``. Requests are preempted from the tail of the running list and go back
    to the queue's front; their blocks stay in the prefix cache.
    """
    profile = engine_profile("vLLM")
    release = profile.version(version)
    budget = settings.token_budget or release.token_budget
    running = settings.max_running or min(release.max_running, budget)
    if settings.mixed_steps is False:
        raise BadInput("mixed_steps is False: vLLM always mixes prefill into decode steps")
    return SchedulerRules(
        engine=profile.name,
        version=release.version,
        max_running=running,
        token_budget=budget,
        block_tokens=settings.block_size or release.block_size,
        chunked_prefill=True if replica.chunked_prefill is None else replica.chunked_prefill,
        admission=Admission.FITS_FULL_ISL,
        watermark_frac=profile.watermark_frac,
        victim=Victim.LAST,
        requeue_front=True,
        keep_hash_on_preempt=True,
        overlap_depth=overlap_depth(profile, replica),
        long_prefill_tokens=long_prefill(settings.chunk_size, budget),
        queue_policy=queue_policy(profile, settings.queue_policy),
        draft_tokens=replica.draft_tokens,
    )
