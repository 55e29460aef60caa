"""A cluster as an operator writes it: ``MI355X:8`` (one node of eight), ``H200:8x2`` (two such nodes)."""

import re

from levers.context import Cluster
from predictor.errors import BadInput

_FORM = re.compile(r"^(?P<gpu>[A-Za-z0-9_.-]+):(?P<per_node>\d+)(?:x(?P<nodes>\d+))?$")


def parse_cluster(text: str) -> tuple[str, Cluster]:
    """Read ``GPU:N`` or ``GPU:NxNODES`` into the GPU's name and the cluster.

    >>> parse_cluster("H200:8x2")
    ('H200', Cluster(gpus_per_node=8, nodes=2))
    >>> parse_cluster("H200")
    Traceback (most recent call last):
    predictor.errors.BadInput: cluster 'H200': expected GPU:N or GPU:NxNODES, for example MI355X:8 or H200:8x2
    """
    match = _FORM.match(text.strip())
    if match is None:
        raise BadInput(f"cluster {text!r}: expected GPU:N or GPU:NxNODES, for example MI355X:8 or H200:8x2")
    per_node, nodes = int(match["per_node"]), int(match["nodes"] or 1)
    if per_node < 1 or nodes < 1:
        raise BadInput(f"cluster {text!r}: GPUs per node and nodes must be at least 1")
    return match["gpu"], Cluster(per_node, nodes)
