"""SGLang's scheduler: a prefill batch runs alone and first; admission estimates what running requests still need."""

from predictor.des.rules import Admission, RankRouting, RatioSchedule, SchedulerRules, Victim
from predictor.des.schedulers.base import Replica, overlap_depth, queue_policy
from predictor.profiles.loader import engine_profile
from predictor.types import SchedulerSettings

# On entry to attention DP the conservativeness is multiplied by this. source: SGLang 0.5.23 server arguments
DP_CONSERVATIVENESS = 0.3


def rules(version: str, settings: SchedulerSettings, replica: Replica = Replica()) -> SchedulerRules:
    """Rules of one release for one attention-DP rank; ``max_running`` and ``chunk_size`` are given for all ranks.

    ``token_budget`` is ``max_prefill_tokens``, the input of one prefill batch; ``chunk_size`` is
    ``chunked_prefill_size``. With mixed steps (``--enable-mixed-chunk``) chunks join decode under the chunk's budget,
    and admission asks that the prompt fits: the estimate of outstanding output is not modelled there.
    """
    profile = engine_profile("SGLang")
    release = profile.version(version)
    ranks = replica.attn_dp
    page = settings.block_size or release.block_size
    limit = settings.max_running or (profile.spec_max_running if replica.draft_tokens else None)
    running = max(1, limit // ranks) if limit else release.max_running
    budget = settings.token_budget or release.token_budget
    chunk = max(page, (settings.chunk_size or release.chunk_size) // ranks // page * page)
    chunked = True if replica.chunked_prefill is None else replica.chunked_prefill
    start, floor_frac, decay_steps = profile.estimate_ratio or (1.0, 1.0, 1)
    conservativeness = DP_CONSERVATIVENESS if ranks > 1 else 1.0
    mixed = bool(settings.mixed_steps)
    return SchedulerRules(
        engine=profile.name,
        version=release.version,
        max_running=max(1, running // replica.pp),
        token_budget=chunk if mixed else budget,
        block_tokens=page,
        chunk_tokens=chunk if chunked else None,
        mixed_steps=mixed,
        chunked_prefill=chunked,
        single_chunked_request=True,
        chunk_floor_tokens=page,
        admission=Admission.FITS_FULL_ISL if mixed else Admission.ESTIMATE_RATIO,
        victim=Victim.LAST if mixed else Victim.FEWEST_GENERATED,
        requeue_front=False,
        keep_hash_on_preempt=False,
        clip_max_new_tokens=profile.clip_max_new_tokens,
        ratio=RatioSchedule(min(start * conservativeness, 1.0), floor_frac, decay_steps),
        overlap_depth=overlap_depth(profile, replica),
        queue_policy=queue_policy(profile, settings.queue_policy),
        lpm_queue_limit=profile.lpm_queue_limit,
        draft_tokens=replica.draft_tokens,
        rank_routing=RankRouting.ROUND_ROBIN,
    )
