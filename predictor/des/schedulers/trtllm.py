"""TensorRT-LLM's PyTorch executor with GUARANTEED_NO_EVICT: whole requests are reserved, and nothing is preempted."""

from predictor.des.rules import Admission, SchedulerRules, Victim
from predictor.des.schedulers.base import Replica, overlap_depth, queue_policy
from predictor.errors import BadInput
from predictor.profiles.loader import engine_profile
from predictor.types import SchedulerSettings


def rules(version: str, settings: SchedulerSettings, replica: Replica = Replica()) -> SchedulerRules:
    """Rules of one release for one attention-DP rank, whose limits are its own.

    Chunked prefill is off by default: a context that does not fit the step's budget ends the pass, and a prompt longer
    than ``max_num_tokens`` is refused. Asking for a chunk size turns it on; chunks are multiples of a block.
    """
    profile = engine_profile("TensorRT-LLM")
    release = profile.version(version)
    block = settings.block_size or release.block_size
    chunked = settings.chunk_size is not None if replica.chunked_prefill is None else replica.chunked_prefill
    if settings.mixed_steps is False:
        raise BadInput("mixed_steps is False: TensorRT-LLM always schedules context and generation together")
    return SchedulerRules(
        engine=profile.name,
        version=release.version,
        max_running=settings.max_running or release.max_running,
        token_budget=settings.token_budget or release.token_budget,
        block_tokens=block,
        chunked_prefill=chunked,
        chunk_floor_tokens=block if chunked else 1,
        admission=Admission.RESERVE_MAX_OUTPUT,
        victim=Victim.LAST,
        overlap_depth=overlap_depth(profile, replica),
        queue_policy=queue_policy(profile, settings.queue_policy),
        draft_tokens=replica.draft_tokens,
    )
