"""A launch plan as a Docker Compose file: one service a process, the host's network, a profile a node."""

from collections.abc import Sequence

import yaml

from agent.launch.shell import addresses, environment
from agent.launch.types import LaunchPlan, Process
from predictor.errors import BadInput

WORKDIR = "/launch"
CACHE = "${MODEL_CACHE:-~/.cache/huggingface}:/root/.cache/huggingface"


def compose(plan: LaunchPlan, hosts: Sequence[str] = ()) -> str:
    """The file's text. With several nodes, run ``docker compose --profile nodeN up`` on each.

    Images are the operator's: ``IMAGE`` (and ``ROUTER_IMAGE``) in the environment or in ``.env``.
    """
    host = addresses(plan, hosts)
    services: dict[str, object] = {}
    configs: dict[str, object] = {}
    for process in plan.processes:
        if not process.command.argv:
            raise BadInput(f"{process.name} is started through MPI by another node; Compose has no such launcher")
        services[process.name] = _service(plan, process, host)
        for file in process.files(host.__getitem__):
            configs[_config(file.name)] = {"content": _literal(file.text)}
    head = [f"# {plan.engine} {plan.version}: set IMAGE to an image that holds it for {plan.vendor.upper()} GPUs"]
    head += [f"# {note.message}" for note in plan.notes]
    tree = {"services": services, **({"configs": configs} if configs else {})}
    text: str = yaml.safe_dump(tree, sort_keys=False, width=100_000)
    return "\n".join([*head, text])


def _service(plan: LaunchPlan, process: Process, host: dict[str, str]) -> dict[str, object]:
    router = process.role == "router"
    image = "${ROUTER_IMAGE:-${IMAGE}}" if router else "${IMAGE:?set IMAGE to an image of the engine}"
    service: dict[str, object] = {
        "image": image,
        "entrypoint": [_literal(part) for part in process.argv(host.__getitem__)],
        "network_mode": "host",
        "restart": "unless-stopped",
    }
    env = process.env(host.__getitem__) if plan.vendor == "nvidia" else environment(plan, process, host)
    if env:  # NVIDIA's devices are reserved below, AMD's are all visible and chosen by a variable
        service["environment"] = {name: _literal(value) for name, value in env.items()}
    if files := process.files(host.__getitem__):
        service["working_dir"] = WORKDIR
        service["configs"] = [{"source": _config(file.name), "target": f"{WORKDIR}/{file.name}"} for file in files]
    if plan.nodes > 1:
        service["profiles"] = [f"node{process.node}"]
    return service | ({} if router else _gpus(plan, process) | {"ipc": "host", "volumes": [CACHE]})


def _gpus(plan: LaunchPlan, process: Process) -> dict[str, object]:
    if plan.vendor == "amd":
        devices = ["/dev/kfd", "/dev/dri"]
        return {"devices": devices, "group_add": ["video"], "security_opt": ["seccomp=unconfined"]}
    ids = [str(device) for device in process.devices]
    reserved = [{"driver": "nvidia", "device_ids": ids, "capabilities": ["gpu"]}]
    return {"deploy": {"resources": {"reservations": {"devices": reserved}}}}


def _literal(text: str) -> str:
    """Compose fills in ``$NAME``; a doubled sign stands for itself."""
    return text.replace("$", "$$")


def _config(file: str) -> str:
    return file.replace(".", "-")
