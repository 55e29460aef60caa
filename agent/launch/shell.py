"""A launch plan as shell text: a line to paste for one process, a script for several."""

import shlex
from collections.abc import Mapping, Sequence

from agent.launch.types import LaunchFile, LaunchPlan, Process, fill

LOCAL = "127.0.0.1"
VISIBLE = {"amd": "HIP_VISIBLE_DEVICES", "nvidia": "CUDA_VISIBLE_DEVICES"}


def addresses(plan: LaunchPlan, hosts: Sequence[str] = ()) -> dict[str, str]:
    """Address of each process: of its node as given, this machine where one node is enough, else node0, node1, …"""
    named = tuple(hosts) or ((LOCAL,) if plan.nodes == 1 else tuple(f"node{at}" for at in range(plan.nodes)))
    return {process.name: named[process.node] for process in plan.processes}


def environment(plan: LaunchPlan, process: Process, host: Mapping[str, str]) -> dict[str, str]:
    """Variables of one process; devices are named where it shares its node."""
    env = process.env(host.__getitem__)
    if 0 < len(process.devices) < plan.gpus_per_node:
        env = {VISIBLE[plan.vendor]: ",".join(map(str, process.devices)), **env}
    return env


def command_line(plan: LaunchPlan, process: Process, hosts: Sequence[str] = ()) -> str:
    """One line to paste: variables, then the command."""
    return _line(plan, process, addresses(plan, hosts))


def _line(plan: LaunchPlan, process: Process, host: Mapping[str, str]) -> str:
    variables = [f"{name}={shlex.quote(value)}" for name, value in environment(plan, process, host).items()]
    return " ".join([*variables, shlex.join(process.argv(host.__getitem__))])


def benchmark_line(plan: LaunchPlan, hosts: Sequence[str] = ()) -> str:
    """The benchmark client's line."""
    host = addresses(plan, hosts)
    return shlex.join(fill(part, host.__getitem__) for part in plan.benchmark)


def launch_lines(plan: LaunchPlan, hosts: Sequence[str] = ()) -> tuple[str, ...]:
    """A line for each process that is started by hand."""
    return tuple(command_line(plan, process, hosts) for process in plan.processes if process.command.argv)


def script(plan: LaunchPlan, hosts: Sequence[str] = ()) -> str:
    """What to run on which node, then the benchmark, as commented POSIX shell; on one node it runs as it is."""
    host = addresses(plan, hosts)
    lines = [f"# {plan.engine} {plan.version}", *(f"# {note.message}" for note in plan.notes)]
    for node in range(plan.nodes):
        own = [process for process in plan.processes if process.node == node]
        lines += ["", f"# --- on {host[own[0].name]} ---"]
        files = dict.fromkeys(file for process in own for file in process.files(host.__getitem__))
        lines += [line for file in files for line in _write(file)]
        lines += [_start(plan, process, host) for process in own]
    entry = f"http://{host[plan.entry]}:{plan.entry_port}"
    lines += ["", "# --- wait until it answers, then compare with the prediction ---"]
    lines += [f"until curl --silent --fail --output /dev/null {entry}/health; do sleep 5; done"]
    return "\n".join([*lines, benchmark_line(plan, hosts), ""])


def _start(plan: LaunchPlan, process: Process, host: Mapping[str, str]) -> str:
    if not process.command.argv:
        return f"# GPUs {', '.join(map(str, process.devices))} serve {process.name.partition('-node')[0]} through MPI"
    return f"{_line(plan, process, host)} > {process.name}.log 2>&1 &"


def _write(file: LaunchFile) -> list[str]:
    return [f"cat > {shlex.quote(file.name)} <<'END'", *file.text.splitlines(), "END"]
