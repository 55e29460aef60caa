"""What to harvest, and every choice made before anything is started: pure but for reading profiles."""

from dataclasses import dataclass, replace
from pathlib import Path

from agent.anchor_files import cache_folder
from agent.harvest.engine import EngineCommand
from agent.harvest.launcher import harvest_command
from agent.harvest.plan import HarvestPlan, make_plan, wave_batches
from predictor.cards import EngineProfile, ModelCard, Platform
from predictor.engines import Settings, effective_settings
from predictor.errors import BadInput, DoesNotFit, InferaSimError, Refusal
from predictor.memory import max_concurrency, memory
from predictor.step.model import StepModel
from predictor.step.simulate import simulate_step_model
from predictor.types import Deployment


class HarvestRefused(Refusal):
    """A check failed that makes the numbers describe something else; there is no artefact."""


@dataclass(frozen=True, slots=True)
class HarvestRequest:
    """What to harvest and how. ``url`` None starts an engine; 0 and empty choose from the deployment."""

    deployment: Deployment  # one replica without pipeline stages
    card: ModelCard
    platform: Platform
    profile: EngineProfile
    prompt_tokens: int = 1024
    second_prompt_tokens: int = 0
    batches: tuple[int, ...] = ()
    window_steps: int = 48
    repeats: int = 3
    probe: bool = True
    url: str | None = None
    port: int = 8000
    checkpoint: str | None = None
    dummy_weights: bool = False
    even_busy: bool = False
    name: str | None = None
    state_folder: Path | None = None
    log: Path | None = None
    ready_limit_s: float = 3600.0
    timeout_s: float = 600.0
    token_ids: bool = True
    seed: int = 0
    command: EngineCommand | None = None  # how to start the engine, where it is not one of the launchers


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request with all choices made."""

    request: HarvestRequest
    settings: Settings
    plan: HarvestPlan
    command: EngineCommand | None
    minutes: float

    @property
    def gpu_minutes(self) -> float:
        """Minutes times GPUs."""
        return self.minutes * self.request.deployment.layout.gpus


def prepare(request: HarvestRequest) -> Prepared:
    """Choose batches, lengths and the command; nothing is started and nobody is asked."""
    wanted = request.deployment
    if wanted.layout.pp > 1 or wanted.replicas > 1 or wanted.prefill is not None:
        raise BadInput("a harvest measures one colocated replica without pipeline stages: reduce the target first")
    wanted = replace(wanted, scheduler=replace(wanted.scheduler, prefix_cache=False))
    request = replace(request, deployment=wanted)
    settings = effective_settings(request.profile, wanted.engine_version, request.platform, request.card, wanted)
    longest = request.card.max_context_tokens
    batches = request.batches or _batches(request, settings)
    plan = make_plan(
        request.prompt_tokens,
        batches=batches,
        longest=longest,
        second_prompt_tokens=request.second_prompt_tokens,
        token_budget=settings.chunk_size,
        probe=request.probe,
        window_steps=request.window_steps,
        repeats=request.repeats,
    )
    command = request.command
    if command is None and request.url is None:
        command = harvest_command(
            wanted,
            request.card,
            request.platform,
            request.profile,
            plan,
            port=request.port,
            checkpoint=request.checkpoint,
            log=request.log or state_folder_of(request) / "engine.log",
            ready_limit_s=request.ready_limit_s,
        )
    return Prepared(request, settings, plan, command, plan.minutes(_model(request, settings)))


def _batches(request: HarvestRequest, settings: Settings) -> tuple[int, ...]:
    wanted = request.deployment
    ranks = wanted.layout.attn_dp
    try:
        breakdown = memory(request.card, request.platform, wanted, settings)
        held = max_concurrency(breakdown, request.prompt_tokens + 4 * request.window_steps, wanted.layout) // ranks
    except DoesNotFit:
        held = settings.max_running
    sizes = wave_batches(settings.capture_sizes, settings.max_running, max(1, held))
    return tuple(size * ranks for size in sizes)


def _model(request: HarvestRequest, settings: Settings) -> StepModel | None:
    try:
        return simulate_step_model(request.card, request.platform, request.deployment, settings)
    except InferaSimError:
        return None


def state_folder_of(request: HarvestRequest) -> Path:
    return request.state_folder or cache_folder().parent / "harvest"
