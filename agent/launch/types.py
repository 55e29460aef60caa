"""Words of a launch: what is started, with which command, where.

A command may name another process's host by a token, ``@prefill-0@``: where a process runs is decided by who renders
the plan (a shell on known nodes, Docker Compose, Kubernetes), not by the engine's emitter.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from predictor.cards import EngineProfile, EngineVersion, ModelCard, Platform
from predictor.engines import Settings
from predictor.types import Deployment, Flag, Layout, SchedulerSettings, Workload

Role = Literal["server", "prefill", "decode", "router"]
TOKEN = re.compile(r"@([a-z0-9-]+)@")


def host_of(process: str) -> str:
    """Token that stands for the host a process runs on.

    >>> host_of("prefill-0")
    '@prefill-0@'
    """
    return f"@{process}@"


@dataclass(frozen=True, slots=True)
class LaunchFile:
    """A file a command reads, written beside it before it starts."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """What an engine's emitter yields for one process."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    files: tuple[LaunchFile, ...] = ()

    def with_env(self, more: tuple[tuple[str, str], ...]) -> "Command":
        """The command with more variables."""
        return replace(self, env=(*self.env, *more))


@dataclass(frozen=True, slots=True)
class Process:
    """One process to start: its command, and where it runs.

    ``replica`` counts replicas within the role; ``rank`` is the node's rank within a replica over ``replica_nodes``
    nodes. ``devices`` are GPU indices on ``node``; empty for a router. An empty command reserves its GPUs for a replica
    that another node starts.
    """

    name: str
    role: Role
    replica: int
    rank: int
    command: Command
    port: int
    replica_nodes: int = 1
    node: int = 0
    devices: tuple[int, ...] = ()

    def argv(self, host: Callable[[str], str]) -> tuple[str, ...]:
        """The command with hosts filled in."""
        return tuple(fill(part, host) for part in self.command.argv)

    def env(self, host: Callable[[str], str]) -> dict[str, str]:
        """The environment with hosts filled in."""
        return {name: fill(value, host) for name, value in self.command.env}

    def files(self, host: Callable[[str], str]) -> tuple[LaunchFile, ...]:
        """The files with hosts filled in."""
        return tuple(LaunchFile(file.name, fill(file.text, host)) for file in self.command.files)


def fill(text: str, host: Callable[[str], str]) -> str:
    """Replace every host token.

    >>> fill("http://@prefill-0@:8100", lambda name: "10.0.0.1")
    'http://10.0.0.1:8100'
    """
    return TOKEN.sub(lambda match: host(match[1]), text)


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything to start and to check one deployment."""

    engine: str
    version: str
    vendor: str
    processes: tuple[Process, ...]
    benchmark: tuple[str, ...]
    entry: str  # process that clients talk to
    nodes: int
    gpus_per_node: int
    notes: tuple[Flag, ...] = ()

    @property
    def entry_port(self) -> int:
        """Port that clients talk to."""
        return next(process.port for process in self.processes if process.name == self.entry)


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports of one process; side channels of engines take a run of ports from each."""

    http: int
    side: int  # first port of the KV hand-off's side channel
    bootstrap: int
    dist: int  # rendezvous of a replica's nodes


@dataclass(frozen=True, slots=True)
class ServerCase:
    """One engine process to write a command for.

    ``wanted`` are the scheduler limits as the operator gave them (None: engine default), ``settings`` what the engine
    makes of them. ``max_len`` is the longest request, None where the workload does not bound it.
    """

    name: str
    role: Role
    deployment: Deployment
    layout: Layout
    wanted: SchedulerSettings
    settings: Settings
    card: ModelCard
    platform: Platform
    profile: EngineProfile
    release: EngineVersion
    checkpoint: str
    quantize: str | None  # format the engine itself has to quantise the checkpoint to
    draft: str | None
    max_len: int | None
    ports: Ports
    nodes: int = 1
    rank: int = 0
    leader: str = ""  # process that holds rank 0
    router: str = "router"

    @property
    def vendor(self) -> str:
        """``amd`` or ``nvidia``."""
        return self.platform.vendor

    @property
    def handoff(self) -> str | None:
        """KV hand-off backend of a disaggregated deployment."""
        return self.deployment.prefill.handoff if self.deployment.prefill else None

    @property
    def gpus_here(self) -> int:
        """GPUs of this process."""
        return self.layout.gpus // self.nodes


@dataclass(frozen=True, slots=True)
class Options:
    """What only the operator knows."""

    workload: Workload
    checkpoint: str | None = None  # path or id of the weights; None: by the model card
    draft: str | None = None  # path or id of a drafter's weights
    hosts: tuple[str, ...] = ()  # addresses of the nodes
    own_network: bool = False  # every process has its own network (a pod): the same ports everywhere
    extra_env: Mapping[str, str] = field(default_factory=dict)
