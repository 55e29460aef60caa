"""The command that starts an engine for a harvest: the launch artefact's own, on this machine alone."""

from collections.abc import Sequence
from pathlib import Path

from agent.harvest.engine import EngineCommand
from agent.harvest.plan import HarvestPlan
from agent.launch import launch_plan
from agent.launch.shell import addresses, environment
from agent.launch.types import Options
from predictor.cards import EngineProfile, ModelCard, Platform
from predictor.errors import BadInput
from predictor.types import Deployment, Workload

PORT_FLAGS = ("--port", "--server-port")
HOST_FLAGS = ("--host",)


def harvest_command(
    deployment: Deployment,
    card: ModelCard,
    platform: Platform,
    profile: EngineProfile,
    plan: HarvestPlan,
    *,
    port: int,
    checkpoint: str | None,
    log: Path,
    ready_limit_s: float,
) -> EngineCommand:
    """The engine's command for the anchor's configuration, listening on this machine only."""
    longest = min(plan.longest, card.max_context_tokens - 1)
    options = Options(Workload(longest - 1, 1), checkpoint=checkpoint)
    launch = launch_plan(deployment, card, platform, profile, options)
    if len(launch.processes) != 1:
        raise BadInput(f"a harvest starts one process on one node, this deployment needs {len(launch.processes)}")
    process = launch.processes[0]
    host = addresses(launch)
    argv = with_values(process.argv(host.__getitem__), {PORT_FLAGS: str(port), HOST_FLAGS: "127.0.0.1"})
    return EngineCommand(
        argv,
        port,
        log,
        environment(launch, process, host),
        cwd=log.parent,
        ready_limit_s=ready_limit_s,
        files=tuple((file.name, file.text) for file in process.files(host.__getitem__)),
    )


def with_values(argv: Sequence[str], values: dict[tuple[str, ...], str]) -> tuple[str, ...]:
    """The command with other values for flags it already has.

    >>> with_values(["serve", "--port", "8000"], {("--port",): "9000"})
    ('serve', '--port', '9000')
    """
    out = list(argv)
    for flags, value in values.items():
        for at, word in enumerate(out[:-1]):
            if word in flags:
                out[at + 1] = value
    return tuple(out)
