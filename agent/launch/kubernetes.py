"""A launch plan as Kubernetes manifests: a StatefulSet and a headless Service for each role, a Service for clients.

Every pod has its own network, so all replicas of a role share one command, in which the pod's own address is
``$(POD_IP)`` and another process is named by its pod's DNS name. A replica over several nodes is one StatefulSet a
node, because its commands differ by rank.
"""

from collections.abc import Sequence
from itertools import groupby

import yaml

from agent.launch.types import LaunchPlan, Process
from predictor.errors import BadInput

RESOURCE = {"amd": "amd.com/gpu", "nvidia": "nvidia.com/gpu"}
WORKDIR = "/launch"
POD_IP = "$(POD_IP)"
STARTUP_S, PERIOD_S = 3600, 10  # loading a terabyte of weights takes most of an hour on slow storage
HEALTH = "/health"


class Plain(yaml.SafeDumper):  # type: ignore[misc]  # untyped library
    """YAML without anchors: people read and edit manifests."""

    def ignore_aliases(self, data: object) -> bool:
        """Write every object in full."""
        return True


def kubernetes(plan: LaunchPlan, name: str) -> str:
    """Manifests as YAML documents, for ``envsubst '$IMAGE $ROUTER_IMAGE' | kubectl apply -f -``.

    ``plan`` has to be made with ``own_network``, ``name`` prefixes every object. Raises BadInput for what needs MPI.
    """
    if any(not process.command.argv for process in plan.processes):
        raise BadInput("a TensorRT-LLM replica over several nodes is started through MPI; use an MPIJob or one node")
    documents: list[dict[str, object]] = []
    for _, members in groupby(plan.processes, key=_set_key):
        documents += _stateful_set(plan, name, list(members))
    documents.append(_front(plan, name))
    head = [
        f"# {plan.engine} {plan.version} on {plan.vendor.upper()} GPUs. Apply with:",
        "#   IMAGE=… ROUTER_IMAGE=… envsubst '$IMAGE $ROUTER_IMAGE' < FILE | kubectl apply -f -",
        *(f"# {note.message}" for note in plan.notes),
    ]
    text: str = yaml.dump_all(documents, Dumper=Plain, sort_keys=False, width=100_000)
    return "\n".join([*head, text])


def _set_key(process: Process) -> tuple[str, int, int]:
    """Replicas on one node each share a StatefulSet; the nodes of a wide replica have one each."""
    return (process.role, process.replica if _wide(process) else -1, process.rank)


def _wide(process: Process) -> bool:
    return process.replica_nodes > 1


def _set_name(process: Process) -> str:
    return process.name if _wide(process) else process.role


def _pod(name: str, process: Process) -> str:
    """DNS name of a process's pod: ordinal within its set, under the set's headless Service."""
    own = _set_name(process)
    return f"{name}-{own}-{0 if _wide(process) else process.replica}.{name}-{own}"


def _stateful_set(plan: LaunchPlan, name: str, members: Sequence[Process]) -> list[dict[str, object]]:
    first = members[0]
    own = f"{name}-{_set_name(first)}"
    pods = {process.name: _pod(name, process) for process in plan.processes}

    def host(process: str) -> str:
        return POD_IP if process in {member.name for member in members} else pods[process]

    if len({(process.argv(host), tuple(process.env(host).items()), process.port) for process in members}) > 1:
        raise BadInput(f"replicas of {first.role} differ in their ports; make the plan with own_network")
    labels = {"app": name, "role": own}
    documents: list[dict[str, object]] = []
    if files := first.files(host):
        data = {file.name: file.text for file in files}
        documents.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": own}, "data": data})
    documents.append(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": own},
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,  # the nodes of a replica meet before any of them is ready
                "selector": labels,
                "ports": [{"name": "http", "port": first.port}],
            },
        }
    )
    spec = {
        "serviceName": own,
        "replicas": len(members),
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": labels},
        "template": {
            "metadata": {"labels": labels},
            "spec": _pod_spec(
                _container(plan, first, list(first.argv(host)), first.env(host), bool(files)),
                _volumes(first, own, bool(files)),
            ),
        },
    }
    documents.append({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": own}, "spec": spec})
    return documents


def _pod_spec(container: dict[str, object], volumes: list[dict[str, object]]) -> dict[str, object]:
    return {"containers": [container], **({"volumes": volumes} if volumes else {})}


def _container(
    plan: LaunchPlan, process: Process, argv: list[str], env: dict[str, str], has_files: bool
) -> dict[str, object]:
    router = process.role == "router"
    pod_ip = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    container: dict[str, object] = {
        "name": process.role,
        "image": "${ROUTER_IMAGE}" if router else "${IMAGE}",
        "command": argv,
        "env": [pod_ip, *({"name": key, "value": value} for key, value in env.items())],
    }
    if process.rank == 0:
        container["ports"] = [{"name": "http", "containerPort": process.port}]
        probe = {"httpGet": {"path": HEALTH, "port": "http"}, "periodSeconds": PERIOD_S}
        container["startupProbe"] = {**probe, "failureThreshold": STARTUP_S // PERIOD_S}
        container["readinessProbe"] = probe
    if not router:
        container["resources"] = {"limits": {RESOURCE[plan.vendor]: len(process.devices)}}
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}  # pinned memory of RDMA hand-offs
    mounts = (
        [] if router else [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "models", "mountPath": "/root/.cache"}]
    )
    mounts += [{"name": "launch", "mountPath": WORKDIR}] if has_files else []
    if mounts:
        container["volumeMounts"] = mounts
    return container | ({"workingDir": WORKDIR} if has_files else {})


def _volumes(process: Process, own: str, has_files: bool) -> list[dict[str, object]]:
    volumes: list[dict[str, object]] = []
    if process.role != "router":
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})  # ranks of one replica talk through it
        volumes.append({"name": "models", "hostPath": {"path": "/var/cache/models", "type": "DirectoryOrCreate"}})
    return volumes + ([{"name": "launch", "configMap": {"name": own}}] if has_files else [])


def _front(plan: LaunchPlan, name: str) -> dict[str, object]:
    entry = next(process for process in plan.processes if process.name == plan.entry)
    selector = {"app": name, "role": f"{name}-{_set_name(entry)}"}
    ports = [{"name": "http", "port": plan.entry_port, "targetPort": "http"}]
    spec = {"selector": selector, "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
