"""From a deployment to everything that has to be started."""

from agent.launch import atom, sglang, trtllm, vllm
from agent.launch.bench import benchmark
from agent.launch.checkpoint import Weights, weights
from agent.launch.flags import FlagTable, engine_table, problems, program_table
from agent.launch.notes import notes
from agent.launch.placement import Slot, slots
from agent.launch.routing import router
from agent.launch.types import LaunchPlan, Options, Ports, Process, ServerCase
from predictor.cards import EngineProfile, ModelCard, Platform
from predictor.engines import effective_settings
from predictor.errors import BadInput
from predictor.types import Arrival, Deployment, Workload

EMITTERS = {"vLLM": vllm.command, "SGLang": sglang.command, "ATOM": atom.command, "TensorRT-LLM": trtllm.command}
ROUTERS = ("trtllm-disaggregated", "vllm-router", "sglang-router", "atomesh")
ENTRY_PORT = 8000
SERVER_PORT = 8100  # first of a node's servers behind a router
# First ports of the side channels and the distance between two processes of one node: a channel takes a port for each
# rank. They stay below 32768, where Linux starts to hand out ports of its own.
SIDE_PORT, SIDE_STEP = 20000, 1000
BOOTSTRAP_PORT = 8998
DIST_PORT = 29500
BLOCK_TOKENS = 64  # request limits are multiples of this, and one more covers special tokens and the client's rounding


def launch_plan(
    deployment: Deployment, card: ModelCard, platform: Platform, profile: EngineProfile, options: Options
) -> LaunchPlan:
    """Commands, environment and files for every process of a deployment, and the benchmark that verifies it.

    Raises BadInput for a value the engine's release does not take, and for what does not fit the nodes.
    """
    loaded = weights(deployment, card, platform.vendor, options)
    placed = slots(deployment, platform.gpus_per_node)
    cases = [_case(slot, deployment, card, platform, profile, options, loaded) for slot in placed]
    extra = tuple(options.extra_env.items())
    processes = [_process(slot, case, extra) for slot, case in zip(placed, cases, strict=True)]
    heads = [process for process in processes if process.rank == 0]
    if len(heads) > 1:
        prefill = deployment.prefill
        ranks = prefill.layout.attn_dp if prefill else 1
        front = router(profile.name, heads, prefill.handoff if prefill else None, ranks, ENTRY_PORT)
        processes.append(Process("router", "router", 0, 0, front, ENTRY_PORT))
    entry = processes[-1] if len(heads) > 1 else heads[0]
    plan = LaunchPlan(
        engine=profile.name,
        version=cases[0].release.version,
        vendor=platform.vendor,
        processes=tuple(processes),
        benchmark=benchmark(entry.name, entry.port, loaded.checkpoint, options.workload),
        entry=entry.name,
        nodes=1 + max(slot.node for slot in placed),
        gpus_per_node=platform.gpus_per_node,
        notes=(*loaded.notes, *notes(next(case for case in cases if case.role != "prefill"))),
    )
    _check(plan)
    return plan


def _case(
    slot: Slot,
    deployment: Deployment,
    card: ModelCard,
    platform: Platform,
    profile: EngineProfile,
    options: Options,
    loaded: Weights,
) -> ServerCase:
    release = profile.version(deployment.engine_version)
    pool = deployment.prefill if slot.role == "prefill" else None
    kind = "prefill" if pool else "main"
    return ServerCase(
        name=slot.name,
        role=slot.role,
        deployment=deployment,
        layout=pool.layout if pool else deployment.layout,
        wanted=pool.scheduler if pool else deployment.scheduler,
        settings=effective_settings(profile, release.version, platform, card, deployment, kind),
        card=card,
        platform=platform,
        profile=profile,
        release=release,
        checkpoint=loaded.checkpoint,
        quantize=loaded.quantize,
        draft=loaded.draft,
        max_len=_max_len(options.workload, card),
        ports=_ports(
            0 if options.own_network else slot.ordinal, routed=deployment.prefill is not None or deployment.replicas > 1
        ),
        nodes=slot.nodes,
        rank=slot.rank,
        leader=slot.leader,
    )


def _process(slot: Slot, case: ServerCase, extra_env: tuple[tuple[str, str], ...]) -> Process:
    command = EMITTERS[case.profile.name](case).with_env(extra_env)
    return Process(
        slot.name, slot.role, slot.replica, slot.rank, command, case.ports.http, slot.nodes, slot.node, slot.devices
    )


def _ports(ordinal: int, *, routed: bool) -> Ports:
    """Distinct on a node, so that several processes fit one."""
    http = SERVER_PORT + ordinal if routed else ENTRY_PORT
    return Ports(http, SIDE_PORT + SIDE_STEP * ordinal, BOOTSTRAP_PORT + ordinal, DIST_PORT + ordinal)


def _max_len(workload: Workload, card: ModelCard) -> int | None:
    """The longest request, in whole blocks: engines refuse to start when one of the model's limit would not fit."""
    if workload.arrival is Arrival.TRACE:
        return None
    blocks = -(-(workload.isl_tokens + workload.osl_tokens) // BLOCK_TOKENS) + 1
    longest = blocks * BLOCK_TOKENS
    return longest if longest < card.max_context_tokens else None


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
