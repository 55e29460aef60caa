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
    """Mean latencies of one replica under ``running`` of ``clients`` closed-loop clients, ms, and requests a second."""

    running: float
    decode_step_ms: float
    stall_ms_per_step: float
    tpot_ms: float
    ttft_ms: float
    e2e_ms: float
    requests_per_s: float
    mixed_step_frac: float


def mean_length(nominal_tokens: int, range_frac: float) -> float:
    """Mean of lengths uniform on ``[range_frac · nominal, nominal]``."""
    return nominal_tokens * (1.0 + range_frac) / 2.0


def cohort_ms(model: StepModel, prompts: float, isl_tokens: float) -> float:
    """Time of one prefill step over ``prompts`` whole prompts: the fixed part once, the rest each."""
    curve = model.prefill
    return curve.fixed_ms + prompts * (curve.chunk_ms(round(isl_tokens)) + curve.per_request_ms)


def closed_loop(
    model: StepModel,
    workload: Workload,
    *,
    clients: float,
    max_running: float,
    token_budget: int,
    stages: int = 1,
    host_ms: float = 0.0,
) -> ClosedLoop:
    """Means of a closed loop on one replica.

    ``model`` prices the step a token waits for (``stages`` > 1: the whole pipeline cycle, batch = a micro-batch of
    ``running / stages``). Requests beyond ``max_running`` wait a whole service time in the queue.

    Fixed lengths and a common start keep all clients in step: prompts are prefilled in cohorts of as many as the token
    budget holds, and a request is stalled only by the cohorts after its own, half of them on average; the first of
    ``stages`` stages is free again after 1/stages of a cohort's time, the last cohort still crosses all of them. Drawn
    lengths or a staggered start spread admissions out: every request is stalled by each of the others once an answer.
    """
    isl = mean_length(workload.isl_tokens, workload.length_range_frac) * (1.0 - workload.prefix_hit_frac)
    osl = mean_length(workload.osl_tokens, workload.length_range_frac)
    running = min(clients, max_running)
    gaps = max(1.0, osl - 1.0)
    batch = max(1, round(running / stages))
    context = batch * (mean_length(workload.isl_tokens, workload.length_range_frac) + osl / 2.0)
    step = model.decode_line(batch, context).at(context) / model.tokens_per_step
    in_step = workload.length_range_frac == 1.0 and workload.start is StartMode.BURST and workload.think_time_ms == 0.0
    per_cohort = max(1, min(ceil(running), int(token_budget // max(1.0, isl))))
    cohorts = ceil(running / per_cohort)
    cohort = cohort_ms(model, running / cohorts, isl)
    if in_step:
        wait = cohort * ((cohorts + 1) / 2.0 + stages - 1) / stages
        stall_total = cohort * (cohorts - 1) / 2.0 / stages
        ttft = wait
    else:
        alone = model.prefill.prompt_ms(round(isl))
        stall_total = (running - 1.0) * (alone - model.prefill.fixed_ms + model.prefill.mixed_fixed_ms) / stages
        burst = cohort * ((cohorts + 1) / 2.0 + stages - 1) / stages
        # A prompt that arrives during a step waits for half of it; its own chunks then share the step with the decodes.
        steady = alone + 0.5 * step * model.tokens_per_step
        waves = max(1, workload.requests_per_client)
        ttft = (burst + (waves - 1) * steady) / waves if workload.start is StartMode.BURST else steady
    tpot = step + stall_total / gaps
    service = ttft + gaps * tpot + host_ms
    queue = service * max(0.0, clients - running) / running
    cycle = service + queue + workload.think_time_ms
    busy_decode = gaps * step
    return ClosedLoop(
        running=running,
        decode_step_ms=step * model.tokens_per_step,
        stall_ms_per_step=stall_total / gaps * model.tokens_per_step,
        tpot_ms=tpot,
        ttft_ms=ttft + queue + host_ms,
        e2e_ms=service + queue,
        requests_per_s=clients / cycle * 1000.0,
        mixed_step_frac=min(1.0, running * ceil(isl / token_budget) / max(1.0, busy_decode / step)),
    )
