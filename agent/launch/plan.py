"""From a deployment to everything that has to be started."""

from collections.abc import Iterable
from dataclasses import replace

from agent.launch import atom, sglang, trtllm, vllm
from agent.launch.bench import benchmark
from agent.launch.checkpoint import drafter, weights
from agent.launch.flags import FlagTable, engine_table, problems, program_table
from agent.launch.names import unswitchable
from agent.launch.routing import router
from agent.launch.types import Command, LaunchPlan, Options, Ports, Process, Role, ServerCase
from predictor.cards import EngineProfile, ModelCard, Platform
from predictor.engines import Pool, effective_settings
from predictor.errors import BadInput
from predictor.types import Arrival, Deployment, Flag, Layout, SchedulerSettings

EMITTERS = {"vLLM": vllm.command, "SGLang": sglang.command, "ATOM": atom.command, "TensorRT-LLM": trtllm.command}
SWITCHES = {"vLLM": vllm.SWITCHES, "SGLang": sglang.SWITCHES, "ATOM": atom.SWITCHES, "TensorRT-LLM": trtllm.SWITCHES}
ENTRY_PORT = 8000
SERVER_PORT = 8100  # first of the servers behind a router
# First ports of the side channels and the distance between two processes of one node: a channel takes a port for each
# rank. They stay below 32768, where Linux starts to hand out ports of its own.
SIDE_PORT, SIDE_STEP = 20000, 1000
BOOTSTRAP_PORT = 8998
DIST_PORT = 29500
ROUTERS = ("trtllm-disaggregated", "vllm-router", "sglang-router", "atomesh")
BLOCK_TOKENS = 64  # request limits are multiples of this, and one more covers special tokens and the client's rounding


def launch_plan(
    deployment: Deployment, card: ModelCard, platform: Platform, profile: EngineProfile, options: Options
) -> LaunchPlan:
    """Commands, environment and files for every process of a deployment, and the benchmark that verifies it.

    Raises BadInput for a value the engine's release does not take, and for what does not fit the nodes.
    """
    checkpoint, quantize, notes = weights(deployment, card, platform.vendor, options.checkpoint)
    draft, more = drafter(deployment, options.draft)
    base = _Builder(deployment, card, platform, profile, options, checkpoint, quantize, draft)
    servers = _place(base.servers(), platform.gpus_per_node)
    heads = [process for process in servers if process.rank == 0]
    processes = servers
    entry = heads[0].name
    if len(heads) > 1:
        ranks = deployment.prefill.layout.attn_dp if deployment.prefill else 1
        front = router(profile.name, heads, base.handoff, ranks, ENTRY_PORT)
        processes = (*servers, Process("router", "router", 0, 0, front, ENTRY_PORT))
        entry = "router"
    port = next(process.port for process in processes if process.name == entry)
    plan = LaunchPlan(
        engine=profile.name,
        version=base.release.version,
        vendor=platform.vendor,
        processes=processes,
        benchmark=benchmark(entry, port, checkpoint, options.workload),
        entry=entry,
        nodes=1 + max(process.node for process in servers),
        gpus_per_node=platform.gpus_per_node,
        notes=(*notes, *more, *base.notes()),
    )
    _check(plan)
    return plan


class _Builder:
    """Server processes of one deployment, before they are placed."""

    def __init__(
        self,
        deployment: Deployment,
        card: ModelCard,
        platform: Platform,
        profile: EngineProfile,
        options: Options,
        checkpoint: str,
        quantize: str | None,
        draft: str | None,
    ) -> None:
        self.deployment, self.card, self.platform, self.profile = deployment, card, platform, profile
        self.options, self.checkpoint, self.quantize, self.draft = options, checkpoint, quantize, draft
        self.release = profile.version(deployment.engine_version)
        self.handoff = deployment.prefill.handoff if deployment.prefill else None
        self.case: ServerCase | None = None  # the newest built: of the main pool once all are
        self.routed = deployment.prefill is not None or deployment.replicas > 1

    def servers(self) -> tuple[Process, ...]:
        """Prefill pool first, then the replicas."""
        deployment, made = self.deployment, list[Process]()
        if deployment.prefill:
            pool = deployment.prefill
            made += self._pool("prefill", pool.layout, pool.scheduler, pool.replicas, "prefill", 0)
        role: Role = "decode" if deployment.prefill else "server"
        made += self._pool(role, deployment.layout, deployment.scheduler, deployment.replicas, "main", len(made))
        return tuple(made)

    def _pool(
        self, role: Role, layout: Layout, wanted: SchedulerSettings, replicas: int, pool: Pool, before: int
    ) -> list[Process]:
        settings = effective_settings(
            self.profile, self.release.version, self.platform, self.card, self.deployment, pool
        )
        nodes = max(layout.nodes, -(-layout.gpus // self.platform.gpus_per_node))
        if layout.gpus % nodes:
            raise BadInput(f"layout {layout.label()}: {layout.gpus} GPUs do not divide over {nodes} nodes")
        processes = []
        for replica in range(replicas):
            for rank in range(nodes):
                name = f"{role}-{replica}" + (f"-node{rank}" if rank else "")
                case = ServerCase(
                    name=name,
                    role=role,
                    deployment=self.deployment,
                    layout=layout,
                    wanted=wanted,
                    settings=settings,
                    card=self.card,
                    platform=self.platform,
                    profile=self.profile,
                    release=self.release,
                    checkpoint=self.checkpoint,
                    quantize=self.quantize,
                    draft=self.draft,
                    max_len=self._max_len(),
                    ports=self._ports(before + replica),
                    nodes=nodes,
                    rank=rank,
                    leader=f"{role}-{replica}",
                )
                self.case = case
                devices = tuple(range(layout.gpus // nodes))
                command = self._command(case)
                processes.append(Process(name, role, replica, rank, command, case.ports.http, nodes, devices=devices))
        return processes

    def _command(self, case: ServerCase) -> Command:
        command = EMITTERS[case.profile.name](case)
        return replace(command, env=(*command.env, *self.options.extra_env.items()))

    def _ports(self, index: int) -> Ports:
        """Distinct on a node, so that several replicas fit one; the same everywhere where each has its own network."""
        at = 0 if self.options.own_network else index
        http = SERVER_PORT + at if self.routed else ENTRY_PORT
        return Ports(http, SIDE_PORT + SIDE_STEP * at, BOOTSTRAP_PORT + at, DIST_PORT + at)

    def _max_len(self) -> int | None:
        """The longest request, in whole blocks: engines refuse to start when one of the model's limit would not fit."""
        workload = self.options.workload
        if workload.arrival is Arrival.TRACE:
            return None
        blocks = -(-(workload.isl_tokens + workload.osl_tokens) // BLOCK_TOKENS) + 1
        longest = blocks * BLOCK_TOKENS
        return longest if longest < self.card.max_context_tokens else None

    def notes(self) -> tuple[Flag, ...]:
        """What the operator should know about these commands."""
        notes: list[Flag] = []
        if self._max_len() and self.profile.name != "SGLang":
            text = (
                f"servers take requests of up to {self._max_len()} tokens, as this workload sends; raise it for longer"
            )
            notes.append(Flag("length_limit", text))
        if self.handoff:
            devices = "name the cluster's RDMA devices for the KV hand-off if the engine does not find them"
            notes.append(Flag("rdma_devices", devices))
        assert self.case is not None  # every deployment has a main pool
        settings, ranks = self.case.settings, self.deployment.layout.attn_dp
        if missing := unswitchable(self.case, SWITCHES[self.profile.name]):
            text = f"{self.profile.name} has no switch for {', '.join(missing)}: it fuses by itself where it can"
            notes.append(Flag("fusion_not_switchable", text))
        if self.profile.name == "SGLang" and ranks > 1:
            each = f"{settings.chunk_size} prompt tokens and {settings.max_running} requests"
            notes.append(Flag("per_rank", f"SGLang divides its limits by {ranks}: each attention-DP rank gets {each}"))
        if self.profile.name == "TensorRT-LLM" and settings.capture_sizes and not settings.graph_padding:
            text = "graph padding is off, as by default: unlisted batch sizes run eager; set graph_max_bs to turn it on"
            notes.append(Flag("graph_padding", text))
        return tuple(notes)


def _place(processes: Iterable[Process], gpus_per_node: int) -> tuple[Process, ...]:
    """First node with enough free GPUs, in order; a replica over several nodes takes whole ones."""
    used: list[int] = []
    placed = []
    for process in processes:
        need = len(process.devices)
        node = next((at for at, taken in enumerate(used) if taken + need <= gpus_per_node), len(used))
        if node == len(used):
            used.append(0)
        devices = tuple(range(used[node], used[node] + need))
        used[node] += need
        placed.append(replace(process, node=node, devices=devices))
    return tuple(placed)


def _check(plan: LaunchPlan) -> None:
    """Hold every command to the flag tables: what a release does not take is refused here, not by a server."""
    for process in plan.processes:
        argv = process.command.argv
        if not argv:
            continue
        if process.role == "router":
            found = problems(_router_table(argv), argv)
        else:
            table = engine_table(plan.engine)
            found = problems(table, argv[argv.index(table.prefix[0]) :], plan.version)  # MPI's launcher comes before
        if found:
            raise BadInput(f"{plan.engine} {plan.version} would not start {process.name}: {'; '.join(found)}")


def _router_table(argv: tuple[str, ...]) -> FlagTable:
    tables = (program_table(name) for name in ROUTERS)
    return next(table for table in tables if argv[: len(table.prefix)] == table.prefix)
