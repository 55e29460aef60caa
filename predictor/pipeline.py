"""Pipelines: what stages add to a decode step, inside a node and across nodes (paper §5.3, App. B.4, C, Eq. 4).

::

    s_PP(C) = s(C/p) + p · (t_p2p + o) + p · H(C/p)

``s`` is the full-depth forward at the micro-batch, ``t_p2p`` one activation transfer, ``o`` the engine's overhead a
hop, ``H`` the host time a step that the engine stops hiding under PP. A step makes ``p`` hops: ``p − 1`` activation
sends and the token's return to stage 0. ``H`` is paid by every stage as soon as two or more micro-batches are in
flight; with one client the hop overhead was measured with it inside. Stages are contiguous over nodes: ``n − 1``
forward boundaries and the token return cross the network, all other hops stay on the node's links.

Measured on SGLang only (o = 970 µs, H = 0.33 ms + 6.3 µs · b); other engines take its hop overhead, marked as assumed,
and pay host time only where they turn overlap off under PP.
"""

from dataclasses import dataclass

from predictor.cards import EngineProfile, ModelCard, Platform
from predictor.comm import collective_ms
from predictor.errors import BadInput
from predictor.types import Flag, Layout

# SGLang on MI355X (paper Table 5): used for engines that nobody measured, with a flag.
ASSUMED_HOP_US = 970.0
ASSUMED_HOST_MS = (0.33, 0.0063)
_ACTIVATION_BYTES = 2  # engines send bf16 hidden states between stages


@dataclass(frozen=True, slots=True)
class PipelineCosts:
    """Engine costs of a pipeline: overhead a hop, and host time ``a + b · batch`` a stage and step."""

    hop_us: float
    host_base_ms: float
    host_per_request_ms: float
    flags: tuple[Flag, ...] = ()

    def host_ms(self, batch: float) -> float:
        """H(b): host time a step of one stage that PP stops hiding."""
        return self.host_base_ms + self.host_per_request_ms * batch


@dataclass(frozen=True, slots=True)
class Hops:
    """Hops of one step: inside a node, and over the network."""

    node: int
    network: int


def pipeline_step_ms(
    step_at_microbatch_ms: float, pp: int, hop_us: float, p2p_ms: float, host_ms: float, microbatches: int | None = None
) -> float:
    """Eq. 4 with one transfer time for all hops; ``microbatches`` in flight, ``pp`` when left out.

    One stage adds nothing, and one micro-batch pays no host time (see the module docstring).

    >>> round(pipeline_step_ms(5.0, 4, 970.0, 0.01, 0.43), 3)
    10.64
    """
    if pp == 1:
        return step_at_microbatch_ms
    in_flight = pp if microbatches is None else microbatches
    host = host_ms if in_flight > 1 else 0.0
    return step_at_microbatch_ms + pp * (p2p_ms + hop_us / 1e3) + pp * host


def microbatch(clients: float, pp: int) -> tuple[float, int]:
    """Requests in one micro-batch and micro-batches in flight: ``C`` clients split over ``p`` stages.

    >>> microbatch(64, 4), microbatch(1, 8)
    ((16.0, 4), (1.0, 1))
    """
    in_flight = max(1, min(pp, int(clients)))
    return max(1.0, clients / in_flight), in_flight


def stage_hops(pp: int, nodes: int) -> Hops:
    """Hops of one step under contiguous placement, token return included.

    >>> stage_hops(4, 1), stage_hops(4, 2)
    (Hops(node=4, network=0), Hops(node=2, network=2))
    """
    if pp == 1:
        return Hops(0, 0)
    if nodes < 1 or nodes > pp:
        raise BadInput(f"{pp} stages on {nodes} nodes; legal is 1 to {pp} nodes, whole stages on each")
    crossing = nodes if nodes > 1 else 0  # n − 1 forward boundaries and the return
    return Hops(pp - crossing, crossing)


def pipeline_costs(engine: EngineProfile) -> PipelineCosts:
    """Hop and host costs of an engine, measured or assumed (flag ``pp_assumed``)."""
    host = engine.pp_host_ms or ((0.0, 0.0) if engine.overlap_under_pp else ASSUMED_HOST_MS)
    if engine.pp_hop_us is not None:
        return PipelineCosts(engine.pp_hop_us, *host)
    message = f"pipeline hop overhead of {engine.name} was never measured; SGLang's {ASSUMED_HOP_US:g} us is assumed"
    return PipelineCosts(ASSUMED_HOP_US, *host, flags=(Flag("pp_assumed", message),))


def hop_transfer_ms(card: ModelCard, platform: Platform, tokens: float, *, network: bool) -> float:
    """t_p2p inside a step: one launch, the wire, and the activations of ``tokens`` tokens.

    Each TP rank sends to its peer of the next stage; the hidden state is replicated over the TP group, so every rank
    carries it whole.
    """
    size_bytes = tokens * card.hidden * _ACTIVATION_BYTES
    wire_ms = collective_ms(platform, "send_recv", size_bytes, 2, nodes=2 if network else 1)
    return platform.kernel_launch_us / 1e3 + wire_ms


def mean_transfer_ms(card: ModelCard, platform: Platform, layout: Layout, tokens: float) -> float:
    """Mean t_p2p over the hops of a step, for :func:`pipeline_step_ms`."""
    hops = stage_hops(layout.pp, layout.nodes)
    if layout.pp == 1:
        return 0.0
    node = hops.node * hop_transfer_ms(card, platform, tokens, network=False) if hops.node else 0.0
    network = hops.network * hop_transfer_ms(card, platform, tokens, network=True) if hops.network else 0.0
    return (node + network) / layout.pp
