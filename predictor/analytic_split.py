"""Closed-form predictor of a disaggregated deployment: prefill replicas, a KV hand-off, decode replicas.

Clients cycle through two stations. Prefill serves one prompt at a time a replica; decode gives every request the same
step. The residence times solve Little's law over the cycle, with the arrival theorem for the queue a prompt finds at
prefill (approximate mean value analysis, Schweitzer 1979; prompts of a fixed time, Reiser 1979):

    X = C / (R_p + H + R_d),   R_p = S·(1 + max(0, Q·(C - 1)/C - X·S/2 - (P - 1))/P),   Q = X·R_p,   R_d = gaps·s(B)/L

and X never exceeds P/S. No prefill step stalls a decode. A run that starts in one burst and ends when its last answer
does is not busy throughout: its throughput is X times the share of the clients that are (:func:`busy_share`).
"""

from dataclasses import dataclass
from math import ceil

from predictor.analytic import ClosedLoop, mean_length
from predictor.anchors.schedule import ClosedLoopRun, schedule
from predictor.step.model import StepModel
from predictor.types import StartMode, Workload

# The fixed point is damped by half each time: 80 rounds end far below rounding of any printed figure.
_ROUNDS = 80


@dataclass(frozen=True, slots=True)
class SplitPools:
    """What bounds the two pools: replicas, requests a decode replica runs, ranks that share its batch, hand-off."""

    prefill_replicas: int
    decode_replicas: int
    decode_ranks: int
    max_running: float  # of one decode replica
    prefill_tokens_per_step: int
    handoff_ms: float
    serial_host_ms: float  # on the prefill step that admits a request
    latency_host_ms: float


def busy_share(workload: Workload, clients: int) -> float:
    """Share of the clients that are busy on average between a burst and the last answer, with steps of equal length.

    >>> busy_share(Workload(1024, 1024, concurrency=16), 16)
    1.0
    """
    if workload.start is not StartMode.BURST or workload.think_time_ms > 0.0:
        return 1.0
    run = ClosedLoopRun(
        clients, 1, workload.osl_tokens, workload.length_range_frac, max(1, workload.requests_per_client)
    )
    plan = schedule(run)
    return plan.mean_running / clients


def split_loop(model: StepModel, workload: Workload, clients: float, pools: SplitPools) -> ClosedLoop:
    """Means of ``clients`` closed-loop clients; ``running`` counts decoding requests of all decode replicas.

    ``model`` prices one rank's decode line, and prompts at the prefill pool's layout.
    """
    isl = mean_length(workload.isl_tokens, workload.length_range_frac)
    osl = mean_length(workload.osl_tokens, workload.length_range_frac)
    prompt = max(1.0, isl * (1.0 - workload.prefix_hit_frac))
    curve, gaps = model.prefill, max(1.0, osl - 1.0)
    steps_a_prompt = ceil(prompt / pools.prefill_tokens_per_step)
    variable = curve.chunk_ms(round(prompt), round(isl - prompt)) + curve.per_request_ms
    service = curve.fixed_ms * steps_a_prompt + variable + pools.serial_host_ms
    # Waiting prompts share a step as far as its token budget goes, and its fixed part with it. In steps back to back
    # the host launches ahead of the GPU, so a step costs its launches or its work, whichever is longer.
    per_step = max(1.0, pools.prefill_tokens_per_step / prompt)
    packed = max(curve.fixed_ms / per_step, variable) + pools.serial_host_ms
    capacity_per_ms = pools.prefill_replicas / packed
    slots = pools.max_running * pools.decode_replicas
    running = min(clients, slots) / 2.0
    prefill_ms = service
    step = decode_ms = throughput = 0.0
    for _ in range(_ROUNDS):
        batch = max(1, round(running / pools.decode_replicas / pools.decode_ranks))
        context = batch * (isl + osl / 2.0)
        step = model.decode_line(batch, context).at(context)
        decode_ms = gaps * step / model.tokens_per_step
        cycle = prefill_ms + pools.handoff_ms + pools.latency_host_ms + decode_ms + workload.think_time_ms
        throughput = min(clients / cycle, capacity_per_ms, slots / decode_ms)
        queue = throughput * prefill_ms * (clients - 1.0) / clients
        # A prompt takes a fixed time, so those in service have half of theirs left on average (Reiser 1979).
        busy = throughput * packed
        waiting = max(0.0, queue - busy / 2.0 - (pools.prefill_replicas - 1)) / pools.prefill_replicas
        prefill_ms += 0.5 * (service + waiting * packed - prefill_ms)
        running += 0.5 * (min(slots, throughput * decode_ms) - running)
    # Little's law over the cycle: whoever neither decodes nor is handed over is at prefill or waits for a decode slot.
    first_token_ms = clients / throughput - decode_ms - workload.think_time_ms
    burst_ms = service + packed * max(0.0, clients / pools.prefill_replicas - 1.0) / 2.0
    burst_ms += pools.handoff_ms + pools.latency_host_ms
    waves = max(1, workload.requests_per_client)
    steady = first_token_ms
    if workload.start is StartMode.BURST:
        first_token_ms = (max(burst_ms, steady) + (waves - 1) * steady) / waves
    e2e = first_token_ms + decode_ms
    return ClosedLoop(
        running=running,
        decode_step_ms=step,
        mixed_step_ms=step,
        mixed_step_frac=0.0,
        tpot_ms=decode_ms / gaps,
        ttft_ms=first_token_ms,
        e2e_ms=e2e,
        requests_per_s=clients / (e2e + workload.think_time_ms) * 1000.0 * busy_share(workload, max(1, round(clients))),
    )
