"""A workload on a priced deployment: through the simulator where it covers the deployment, in closed form elsewhere.

Both read the same step model and agree where nothing queues; only the simulator knows distributions.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from predictor import analytic
from predictor.cards import EngineProfile
from predictor.des.metrics import HostTimes, SimulationResult
from predictor.des.request import Request
from predictor.des.rules import SchedulerRules
from predictor.des.schedulers import scheduler_rules
from predictor.des.schedulers.base import Replica
from predictor.des.simulator import simulate
from predictor.engines import Settings
from predictor.errors import BadInput
from predictor.step.build import PricedStep
from predictor.step.model import DecodeLine, PrefillCurve, StepModel
from predictor.types import Arrival, Deployment, Distribution, Layout, MemoryBreakdown, SchedulerSettings, Workload

if TYPE_CHECKING:
    from predictor.analytic_split import SplitPools


@dataclass(frozen=True, slots=True)
class Served:
    """What the whole deployment serves: latencies, requests a second, and named figures of the method."""

    method: str
    ttft_ms: Distribution
    tpot_ms: Distribution
    itl_ms: Distribution
    e2e_ms: Distribution
    requests_per_s: float
    running: float
    extras: dict[str, float] = field(default_factory=dict)
    result: SimulationResult | None = None  # request by request, where it was simulated


@dataclass(frozen=True, slots=True)
class FixedShare:
    """A prefix cache that always holds the same share of a prompt: a workload that states its hit rate."""

    share: float

    def lookup(self, request: Request) -> int:
        """Cached tokens of a prompt; its last token is always computed."""
        return min(int(request.prompt_tokens * self.share), request.prompt_tokens - 1)

    def insert(self, request: Request) -> None:
        """Nothing changes."""


def stated_cache(workload: Workload) -> Callable[[], FixedShare] | None:
    """Makes the prefix caches of a workload that states its hit rate; None where it states none."""
    share = workload.prefix_hit_frac
    return (lambda: FixedShare(share)) if share else None


def covers(deployment: Deployment) -> bool:
    """Whether one scheduler stands for the whole deployment, so that simulating it is cheap."""
    return deployment.layout.pp == 1 and deployment.prefill is None


def closed_form(
    deployment: Deployment,
    workload: Workload,
    settings: Settings,
    cap: int,
    step: PricedStep,
    split: "SplitPools | None",
) -> Served:
    """Means of a closed loop; ``cap`` bounds the running requests of one replica."""
    if workload.arrival is not Arrival.CLOSED:
        raise BadInput(f"arrival {workload.arrival}: the closed form covers closed loops only; simulate open arrivals")
    layout = deployment.layout
    if split is not None:
        from predictor.analytic_split import split_loop  # only splits need their schedule

        loop = split_loop(step.model, workload, workload.concurrency, split)
        requests_per_s, running = loop.requests_per_s, loop.running
    else:
        ranks = layout.attn_dp * deployment.replicas
        limits = analytic.Limits(max(1.0, cap / layout.attn_dp), settings.chunk_size, layout.pp, step.hop_ms)
        loop = analytic.closed_loop(step.model, workload, workload.concurrency / ranks, limits, step.host_ms)
        requests_per_s, running = loop.requests_per_s * ranks, loop.running * ranks
    return Served(
        method="analytic",
        ttft_ms=Distribution(loop.ttft_ms),
        tpot_ms=Distribution(loop.tpot_ms),
        itl_ms=Distribution(loop.tpot_ms * step.model.tokens_per_step),
        e2e_ms=Distribution(loop.e2e_ms),
        requests_per_s=requests_per_s,
        running=running,
        extras={
            "decode_step_ms": loop.decode_step_ms,
            "mixed_step_ms": loop.mixed_step_ms,
            "mixed_step_frac": loop.mixed_step_frac,
        },
    )


def simulated(
    deployment: Deployment,
    workload: Workload,
    profile: EngineProfile,
    settings: Settings,
    memory: MemoryBreakdown,
    cap: int,
    step: PricedStep,
) -> Served:
    """One scheduler (a replica, or one of its attention-DP ranks) simulated request by request, times their number.

    Ranks and replicas get equal shares of the load, so they are alike and one stands for all. Ranks that step together
    and whose prompts were measured over the replica are one scheduler, with the room of all: a prompt stalls them all.
    """
    if step.prompts_over_replica and deployment.layout.attn_dp > 1:
        width = deployment.layout.attn_dp
        step = replace(step, model=RanksTogether(step.model, width))
        settings = replace(
            settings,
            token_budget=settings.token_budget * width,
            chunk_size=settings.chunk_size * width,
            max_running=settings.max_running * width,
        )
        deployment = replace(deployment, layout=replace(deployment.layout, attn_dp=1))
    ranks = deployment.layout.attn_dp
    schedulers = ranks * deployment.replicas
    share = workload.concurrency / schedulers
    clients = max(1, round(share))
    closed = workload.arrival is Arrival.CLOSED
    most = max(1, min(settings.max_running, cap // ranks))
    rate = None if workload.request_rate_per_s is None else workload.request_rate_per_s / schedulers
    # A cap above the clients of a closed loop never binds; equal rules share one schedule.
    rules = pool_rules(deployment, profile, settings, min(most, clients) if closed else most, deployment.layout)
    depth = draft_depth(deployment)
    host = HostTimes(step.host_ms, 0.0, profile.poll_interval_steps, profile.first_wave_stall_ms)
    result = simulate(
        step.model,
        replace(workload, concurrency=clients, request_rate_per_s=rate),
        rules,
        kv_blocks=pool_blocks(memory, workload, cap // ranks, rules.block_tokens, clients if closed else None, depth),
        prefix_cache=cache() if (cache := stated_cache(workload)) is not None else None,
        host=host,
        seed=workload.seed,
    )
    scale = schedulers * (share / clients if closed else 1.0)
    running = result.totals.decoding_ms / result.duration_ms
    batch = max(1, round(min(clients, cap / ranks) if closed else running))
    context = batch * (workload.isl_tokens + workload.osl_tokens / 2.0)
    bare_step = step.model.decode_line(batch, context).at(context)
    extras = simulated_extras(result, step, workload, bare_step)
    return served_by_simulation(result, running=running, extras=extras, copies=scale)


@dataclass(slots=True)
class RanksTogether:
    """Attention-DP ranks in lockstep as one scheduler: a replica's batch and context, spread evenly over its ranks."""

    rank: StepModel
    ranks: int

    @property
    def prefill(self) -> PrefillCurve:
        """As measured over the replica."""
        return self.rank.prefill

    @property
    def tokens_per_step(self) -> float:
        """As of one rank."""
        return self.rank.tokens_per_step

    def decode_line(self, batch: int, context_tokens: float = 0.0) -> DecodeLine:
        """The line of the fullest rank, in the replica's context."""
        line = self.rank.decode_line(-(-batch // self.ranks), context_tokens / self.ranks)
        return DecodeLine(line.intercept_ms, line.slope_ms_per_token / self.ranks, line.end_context_tokens * self.ranks)


def served_by_simulation(
    result: SimulationResult, *, running: float, extras: dict[str, float], copies: float = 1.0
) -> Served:
    """What a simulation says of a deployment of ``copies`` times the scheduler that was simulated."""
    return Served(
        method="des",
        ttft_ms=result.ttft_ms.distribution(),
        tpot_ms=result.tpot_ms.distribution(),
        itl_ms=result.itl_ms.distribution(),
        e2e_ms=result.e2e_ms.distribution(),
        requests_per_s=result.completed / result.duration_ms * 1000.0 * copies,
        running=running * copies,
        extras=extras,
        result=result,
    )


def mean_decoding(result: SimulationResult) -> float:
    """Requests in decode over a run, by Little's law on the time after the first token."""
    return result.completed / result.duration_ms * (result.e2e_ms.mean - result.ttft_ms.mean)


def draft_depth(deployment: Deployment) -> int:
    """Draft tokens a decode row carries."""
    return deployment.speculation.depth if deployment.speculation.active else 0


def pool_rules(
    deployment: Deployment, profile: EngineProfile, settings: Settings, max_running: int, layout: Layout
) -> SchedulerRules:
    """Rules of one rank of a pool; engines whose flags count all ranks get them counted so and divide again."""
    counted = 1 if profile.caps_per_rank else layout.attn_dp
    wanted = SchedulerSettings(
        max_running=max_running * counted,
        token_budget=settings.token_budget,
        chunk_size=settings.chunk_size * counted,
        block_size=settings.block_size,
        mixed_steps=settings.mixed_steps if settings.mixed_steps != profile.mixed_steps else None,
        queue_policy=deployment.scheduler.queue_policy,
    )
    replica = Replica(
        draft_tokens=draft_depth(deployment), attn_dp=layout.attn_dp, chunked_prefill=settings.chunked_prefill
    )
    return scheduler_rules(profile.name, deployment.engine_version, wanted, replica)


def pool_blocks(
    memory: MemoryBreakdown, workload: Workload, held: int, block_tokens: int, clients: int | None, depth: int = 0
) -> int:
    """KV pool of one scheduler in blocks.

    Window layers and recurrent state make a request cheaper or dearer than its tokens, so the pool is at least what the
    memory model says it holds. More than every client of a closed loop can fill changes nothing, and is left out so
    that deployments which differ only there share one schedule. A request that drafts also needs room for what the last
    verify step commits and for what it drafts.
    """
    drafted = 2 * (depth + 1) if depth else 0
    a_request = -(-(workload.isl_tokens + workload.osl_tokens + drafted) // block_tokens)
    pool = max(memory.kv_pool_tokens // block_tokens, max(1, held) * a_request)
    return pool if clients is None else min(pool, clients * (a_request + 1))


def simulated_extras(
    result: SimulationResult, step: PricedStep, workload: Workload, bare_step_ms: float
) -> dict[str, float]:
    """Named figures of a simulation."""
    totals, curve = result.totals, step.model.prefill
    rates = result.requests["output_tokens"] / result.requests["e2e_ms"] * 1000.0
    return {
        "decode_step_ms": bare_step_ms,
        "mixed_step_ms": bare_step_ms + curve.mixed_fixed_ms + curve.chunk_ms(workload.isl_tokens),
        "mixed_step_frac": totals.prompt_steps / totals.steps,
        "request_tok_s": float(rates.mean()),
        "ttft_from_admission_ms": result.ttft_from_admission_ms.mean,
        "preemptions": float(totals.preemptions),
    }
