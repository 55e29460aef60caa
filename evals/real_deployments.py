"""What :mod:`evals.real_engine` starts and harvests: deployments, commands and harvest requests of the real engines."""

import socket
from dataclasses import dataclass, replace
from pathlib import Path

from agent.harvest.engine import EngineCommand
from agent.harvest.plan import HarvestPlan, make_plan
from agent.harvest.request import HarvestRequest, Prepared, prepare
from evals.real_environment import LLAMA_SERVER, VLLM, LlamaServer, RealEngine, environment
from evals.real_machine import cpu_platform, has_avx512
from predictor.cards import EngineProfile, ModelCard
from predictor.profiles.hf import read_config
from predictor.profiles.loader import engine_profile
from predictor.types import Deployment, Kernels, Layout, SchedulerSettings

MAX_RUNNING, TOKEN_BUDGET, CONTEXT = 16, 512, 2048
BLOCK_TOKENS = 128  # vLLM's CPU build: block_size in cache_config_info
BATCHES = (1, 2, 4, 8, 16)
PROMPT, SECOND_PROMPT = 96, 288
WIDTH_PROMPT, WIDTH_BATCHES = 32, (1, 4, 8, 16)
START_LIMIT_S = 420.0
LLAMA_SLOTS, LLAMA_PROMPT, LLAMA_BATCHES = 2, 16, (1, 2)


@dataclass(frozen=True, slots=True)
class Limits:
    """Scheduler limits of one start."""

    max_running: int = MAX_RUNNING
    token_budget: int = TOKEN_BUDGET


USUAL = Limits()


def machine_profile() -> EngineProfile:
    """vLLM's rules at the release that is started, without asynchronous scheduling."""
    known = engine_profile("vllm")
    release = replace(known.versions[0], version=VLLM, block_size=BLOCK_TOKENS)
    return replace(known, versions=(release,), overlap_depth=0)


def model_card_of(folder: Path) -> ModelCard:
    """A served folder's card, from its own config."""
    return read_config(folder / "config.json")


def served_dtype(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What the CPU build computes in: without AVX-512 every bf16 product falls back to a slow one."""
    return "bfloat16" if has_avx512(cpuinfo) else "float32"


def deployment(model: str, limits: Limits = USUAL, tp: int = 1) -> Deployment:
    """One replica; eager, as the CPU build runs."""
    return Deployment(
        model,
        "CPU",
        "vLLM",
        VLLM,
        layout=Layout(tp=tp),
        kernels=Kernels(graph_mode="none"),
        scheduler=SchedulerSettings(
            max_running=limits.max_running, token_budget=limits.token_budget, prefix_cache=False
        ),
    )


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def vllm_command(
    engine: RealEngine, model: Path, port: int, log: Path, limits: Limits = USUAL, tp: int = 1
) -> EngineCommand:
    """How to start vLLM's CPU build. Each rank gets a core by name: its own choice wants a NUMA node a rank."""
    argv = [str(engine.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--no-enable-prefix-caching"]
    argv += ["--no-async-scheduling", "--max-model-len", str(CONTEXT), "--max-num-seqs", str(limits.max_running)]
    argv += ["--max-num-batched-tokens", str(limits.token_budget)]
    argv += ["--dtype", served_dtype()]
    env = environment() | {"PYTHONPATH": str(engine.patient())}
    if model == engine.dummy:
        argv += ["--load-format", "dummy"]
    if tp > 1:
        argv += ["--tensor-parallel-size", str(tp)]
        env["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(str(core) for core in range(tp))
    return EngineCommand(tuple(argv), port, log, env, ready_limit_s=START_LIMIT_S)


def anchor_request(engine: RealEngine, folder: Path) -> Prepared:
    """The real model at TP1: two prompt lengths, so that the cost of context is measured."""
    card = model_card_of(engine.model)
    command = vllm_command(engine, engine.model, free_port(), folder / "harvest.log")
    request = _request(card, machine_profile(), deployment(card.name), folder, command)
    return prepare(
        replace(request, prompt_tokens=PROMPT, second_prompt_tokens=SECOND_PROMPT, batches=BATCHES, repeats=2)
    )


def width_request(engine: RealEngine, tp: int, folder: Path) -> Prepared:
    """The dummy model at one width."""
    card = model_card_of(engine.dummy)
    command = vllm_command(engine, engine.dummy, free_port(), folder / "harvest.log", tp=tp)
    request = _request(card, machine_profile(), deployment(card.name, tp=tp), folder, command)
    return prepare(
        replace(request, prompt_tokens=WIDTH_PROMPT, batches=WIDTH_BATCHES, repeats=2, probe=False, dummy_weights=True)
    )


def llama_command(server: LlamaServer, port: int, log: Path) -> EngineCommand:
    """How to start llama.cpp's server with a few slots."""
    argv = (str(server.python), "-c", LLAMA_SERVER, str(server.weights), str(port), str(LLAMA_SLOTS))
    return EngineCommand(argv, port, log, environment(), ready_limit_s=START_LIMIT_S)


def llama_plan() -> HarvestPlan:
    """A few waves and prompts: that all works, not how fast it is."""
    return make_plan(LLAMA_PROMPT, batches=LLAMA_BATCHES, longest=CONTEXT, probe=False, window_steps=24, repeats=2)


def _request(
    card: ModelCard, profile: EngineProfile, wanted: Deployment, folder: Path, command: EngineCommand
) -> HarvestRequest:
    return HarvestRequest(
        deployment=wanted,
        card=card,
        platform=cpu_platform(),
        profile=profile,
        window_steps=24,
        even_busy=True,  # a busy machine is judged by the eval, which says so
        state_folder=folder / "state",
        command=command,
        timeout_s=300.0,
    )
