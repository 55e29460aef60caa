"""Closed-form predictor: means of a closed loop of C clients, from one step model and no simulation.

Used where a search needs thousands of points and where there is no queue to simulate; the simulator replaces it
wherever tails, arrivals or caches matter. Both use the same :class:`~predictor.step.model.StepModel`, and agree where
nothing queues.
"""

from dataclasses import dataclass
from math import ceil

from predictor.step.model import StepModel
from predictor.types import StartMode, Workload


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Means of one scheduler (a replica, or one attention-DP rank of it): ms, and requests a second."""

    running: float
    decode_step_ms: float  # uncontended: no prefill in it
    mixed_step_ms: float  # a decode step that carries one chunk of a prompt, or waits for one
    mixed_step_frac: float
    tpot_ms: float
    ttft_ms: float
    e2e_ms: float
    requests_per_s: float


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a scheduler: requests at once, prompt tokens a step, and pipeline stages with their hop."""

    max_running: float
    prefill_tokens_per_step: int
    stages: int = 1
    stage_hops_ms: float = 0.0  # what all boundaries together add to one way through the stages


def mean_length(nominal_tokens: int, range_frac: float) -> float:
    """Mean of lengths uniform on ``[range_frac · nominal, nominal]``."""
    return nominal_tokens * (1.0 + range_frac) / 2.0


def in_step(workload: Workload) -> bool:
    """Whether all clients stay in step: fixed lengths, sent at once, no pause between requests."""
    return workload.length_range_frac == 1.0 and workload.start is StartMode.BURST and workload.think_time_ms == 0.0


def closed_loop(
    model: StepModel, workload: Workload, clients: float, limits: Limits, host_ms: float = 0.0
) -> ClosedLoop:
    """Means of ``clients`` closed-loop clients on one scheduler.

    With several stages ``model`` prices the cycle a token waits for, at one micro-batch of ``running / stages``.
    Requests beyond the running cap wait in the queue, and by Little's law a whole service time each per place.

    *In step*, prompts are prefilled in cohorts of as many as a step holds; a request is stalled by the cohorts after
    its own, half of them on average. With p stages a cohort occupies the first for 1/p of its time, and the last cohort
    still crosses all of them: ``wait = T·((k + 1)/2 + p − 1)/p``.

    *Spread out* (drawn lengths or a staggered start), every request is stalled once by each of the others in an answer,
    by the prompt's variable cost; the start-up burst is in the mean TTFT of the first wave.
    """
    curve = model.prefill
    isl = mean_length(workload.isl_tokens, workload.length_range_frac)
    osl = mean_length(workload.osl_tokens, workload.length_range_frac)
    prompt = max(1.0, isl * (1.0 - workload.prefix_hit_frac))
    cached = isl - prompt
    running = max(1.0, min(clients, limits.max_running))
    gaps = max(1.0, osl - 1.0)
    batch = max(1, round(running / limits.stages))
    context = batch * (isl + osl / 2.0)
    decode_step = model.decode_line(batch, context).at(context)
    step_per_token = decode_step / model.tokens_per_step
    variable = curve.chunk_ms(round(prompt), round(cached)) + curve.per_request_ms
    steps_a_prompt = ceil(prompt / limits.prefill_tokens_per_step)
    alone = curve.fixed_ms * steps_a_prompt + variable
    per_cohort = max(1, int(limits.prefill_tokens_per_step // prompt))
    cohorts = ceil(running / per_cohort)
    cohort = curve.fixed_ms * steps_a_prompt + running / cohorts * variable
    burst = cohort * ((cohorts + 1) / 2.0 + limits.stages - 1) / limits.stages
    if in_step(workload):
        stall = cohort * (cohorts - 1) / 2.0 / limits.stages
        ttft = burst
    else:
        stall = (running - 1.0) * (variable + curve.mixed_fixed_ms * steps_a_prompt) / limits.stages
        waves = max(1, workload.requests_per_client)
        steady = alone + 0.5 * decode_step
        ttft = (burst + (waves - 1) * steady) / waves if workload.start is StartMode.BURST else steady
    tpot = step_per_token + stall / gaps
    service = ttft + limits.stage_hops_ms + gaps * tpot + host_ms
    queue = service * max(0.0, clients - running) / running
    decode_steps = gaps / model.tokens_per_step
    prefill_steps = cohorts if in_step(workload) else running * steps_a_prompt
    return ClosedLoop(
        running=running,
        decode_step_ms=decode_step,
        mixed_step_ms=decode_step
        + min(variable, curve.chunk_ms(limits.prefill_tokens_per_step))
        + curve.mixed_fixed_ms,
        mixed_step_frac=min(1.0, prefill_steps / decode_steps),
        tpot_ms=tpot,
        ttft_ms=ttft + limits.stage_hops_ms + queue + host_ms,
        e2e_ms=service + queue,
        requests_per_s=clients / (service + queue + workload.think_time_ms) * 1000.0,
    )
