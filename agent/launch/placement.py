"""Which GPUs of which node each server process gets."""

from collections.abc import Iterable
from dataclasses import dataclass

from agent.launch.types import Role
from predictor.errors import BadInput
from predictor.types import Deployment, Layout


@dataclass(frozen=True, slots=True)
class Slot:
    """Place of one server process: ``ordinal`` counts those of its node, ``rank`` is the node's within the replica."""

    role: Role
    replica: int
    rank: int
    nodes: int
    node: int
    devices: tuple[int, ...]
    ordinal: int

    @property
    def leader(self) -> str:
        """Name of the process that holds rank 0 of the replica."""
        return f"{self.role}-{self.replica}"

    @property
    def name(self) -> str:
        """Name of the process."""
        return f"{self.leader}-node{self.rank}" if self.rank else self.leader


def slots(deployment: Deployment, gpus_per_node: int) -> tuple[Slot, ...]:
    """Prefill pool first, then the replicas: each on the first node with enough free GPUs, wide ones on whole nodes.

    >>> [(slot.name, slot.node, slot.devices) for slot in slots(Deployment("m", "g", "e", replicas=2), 8)]
    [('server-0', 0, (0,)), ('server-1', 0, (1,))]
    """
    used: list[list[int]] = []  # GPUs of each process of each node
    found = []
    for role, replica, rank, layout in _processes(deployment, gpus_per_node):
        nodes = _nodes(layout, gpus_per_node)
        need = layout.gpus // nodes
        node = next((at for at, taken in enumerate(used) if sum(taken) + need <= gpus_per_node), len(used))
        if node == len(used):
            used.append([])
        first, ordinal = sum(used[node]), len(used[node])
        used[node].append(need)
        found.append(Slot(role, replica, rank, nodes, node, tuple(range(first, first + need)), ordinal))
    return tuple(found)


def _processes(deployment: Deployment, gpus_per_node: int) -> Iterable[tuple[Role, int, int, Layout]]:
    main: Role = "decode" if deployment.prefill else "server"
    pools: list[tuple[Role, int, Layout]] = [(main, deployment.replicas, deployment.layout)]
    if deployment.prefill:
        pools.insert(0, ("prefill", deployment.prefill.replicas, deployment.prefill.layout))
    for role, replicas, layout in pools:
        for replica in range(replicas):
            for rank in range(_nodes(layout, gpus_per_node)):
                yield role, replica, rank, layout


def _nodes(layout: Layout, gpus_per_node: int) -> int:
    """Nodes that one replica takes."""
    nodes = max(layout.nodes, -(-layout.gpus // gpus_per_node))
    if layout.gpus % nodes:
        raise BadInput(f"layout {layout.label()}: {layout.gpus} GPUs do not divide over {nodes} nodes")
    return nodes
