"""Collectives: ``t = α + m/B`` on two tiers, and ``m/B`` alone inside a step (paper §5.2, App. B.2, G.2, Table 19).

Messages ``m`` are bytes a rank: the buffer of an all-reduce, the input of a reduce-scatter or all-to-all, the output of
an all-gather, the data of a send. A platform's measured records (:class:`predictor.cards.Collective`) give ``α`` and
``B`` of a kernel over a range of sizes; where none was measured, ``B`` follows from the wires::

    B(op, g) = W(g) / traffic(op, g)
    mesh     W(g) = B_node · η · (g − 1) / (N − 1)       N GPUs, each with N − 1 links; a group of g uses g − 1
    switch   W(g) = link · η
    traffic  all-reduce 2 (g−1)/g; all-gather, reduce-scatter, all-to-all (g−1)/g; send 1

η = 0.6: on MI355X the measured all-to-all B of 408.8, 205.5 and 113.3 GB/s at 8, 4 and 2 GPUs (Table 19) are this law
with B_node = 600 GB/s to 1, 1 and 10%, and it meets the custom all-reduce at 8 MiB on 8 GPUs (79.8 against 79.2 µs). On
NVLink one η of 0.6 serves graph-captured all-reduce tables of nine GPUs and three engines (7% median error).

Across nodes a measured record of the network tier is scaled by the share of data that leaves the node; without one, a
hierarchical collective reduces inside the node, crosses on every GPU's own NIC, and spreads inside the node.

Inside a step only ``m/B`` is charged: α is launch and occupancy, which the step already pays for every kernel (4.98 µs
measured against one-shot floors of 4.9–6.4). A hop over the network keeps a few µs of wire latency.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from predictor.cards import Collective, Platform
from predictor.errors import BadInput
from predictor.expert_dispatch import CollectiveOp, groups_reached

Variant = Literal["auto", "custom", "quick", "fused_rms", "rccl"]
VARIANTS: tuple[Variant, ...] = ("auto", "custom", "quick", "fused_rms", "rccl")

WIRE_EFFICIENCY = 0.6  # η; see the module docstring
# Above this the engines' own all-reduce kernels hand over to RCCL or NCCL (paper B.2).
CUSTOM_MAX_BYTES = 8 * 2**20
_CUSTOM_GROUPS = (2, 4, 6, 8)  # world sizes the custom kernel accepts, one node with full xGMI or NVLink
# α of library collectives without a record: AMD, median of Table 19's node rows; NVIDIA, 8-GPU NVLink all-reduce at
# 32 KiB (github.com/kvcache-ai/Mooncake/pull/3484).
_LIBRARY_ALPHA_US = {"amd": 39.0, "nvidia": 18.7}
# α of custom all-reduce in a graph without a record: vLLM 4.3-4.8 us on Hopper, 6-8 on Blackwell, SGLang and
# TensorRT-LLM 2.5-5.6 (communication tables of aiconfigurator-core 0.12.0); AMD, one-shot floors of Table 19.
_CUSTOM_ALPHA_US = {"amd": 6.4, "nvidia": 4.5}
# α of a standalone network collective without a record: send/recv between two MI355X nodes (Table 19).
_NETWORK_ALPHA_US = 44.2
# α of an expert all-to-all kernel in a node: MoRI on MI300X at 128 tokens a rank takes 35 us, 14 of them wire
# (ROCm/mori@624002c8 README).
_EXCHANGE_ALPHA_US = 21.0
# Share of the datasheet NIC that one-sided RDMA kernels reach: B of 48.8 GB/s through every other size of the RDMA read
# benchmark of the same source, over 50 GB/s.
RDMA_EFFICIENCY = 0.976
# "A few microseconds of wire latency" a NIC hop inside a step (paper C.2: at most 10 us a token over two hops).
NETWORK_WIRE_US = 3.0


def variant_named(name: str) -> Variant:
    """The variant of an all-reduce setting; names that no law knows leave the choice to the size.

    >>> variant_named("rccl"), variant_named("nccl")
    ('rccl', 'auto')
    """
    return next((variant for variant in VARIANTS if variant == name), "auto")


@dataclass(frozen=True, slots=True)
class Piece:
    """One kernel's ``α + m/B`` from ``min_bytes`` up."""

    min_bytes: float
    alpha_us: float
    bandwidth_gb_s: float
    variant: str
    source: str

    def wire_us(self, size_bytes: float) -> float:
        """``m/B``."""
        return size_bytes / (self.bandwidth_gb_s * 1e3)


@dataclass(frozen=True, slots=True)
class CollectivePrice:
    """A price with its parts: what ``explain`` prints."""

    ms: float
    alpha_us: float
    wire_us: float
    bandwidth_gb_s: float
    variant: str
    tier: str
    source: str


@dataclass(frozen=True, slots=True)
class CollectiveLaw:
    """Price of one collective on one group as a function of message size: pieces by rising ``min_bytes``."""

    op: CollectiveOp
    gpus: int
    tier: Literal["none", "node", "network"]
    pieces: tuple[Piece, ...]

    def piece(self, size_bytes: float) -> Piece:
        """The kernel that carries this size."""
        chosen = self.pieces[0]
        for piece in self.pieces[1:]:
            if size_bytes > piece.min_bytes:
                chosen = piece
        return chosen

    def us(self, size_bytes: float) -> float:
        """Standalone: α + m/B. It may drop at a size where the engine switches to a faster kernel."""
        if self.tier == "none" or size_bytes <= 0:
            return 0.0
        piece = self.piece(size_bytes)
        return piece.alpha_us + piece.wire_us(size_bytes)

    def in_step_us(self, size_bytes: float) -> float:
        """Inside a step: m/B, and the wire latency of the network tier.

        Never less than the largest message of the kernel before: where one with more bandwidth and more α takes over,
        the α that is not charged here must not make a larger message cheaper.
        """
        if self.tier == "none" or size_bytes <= 0:
            return 0.0
        cost, reached = 0.0, self.pieces[0]
        for piece in self.pieces[1:]:
            if size_bytes <= piece.min_bytes:
                break
            cost, reached = max(cost, reached.wire_us(piece.min_bytes)), piece
        cost = max(cost, reached.wire_us(size_bytes))
        return cost + self.latency_us

    def uncharged_alpha_us(self, size_bytes: float, launch_us: float) -> float:
        """α beyond the launch that a step charges for this kernel: what :meth:`in_step_us` leaves out."""
        if self.tier != "node" or size_bytes <= 0:
            return 0.0
        return max(0.0, self.piece(size_bytes).alpha_us - launch_us)

    @property
    def latency_us(self) -> float:
        """Latency that stays inside a step: the wire of a network hop."""
        return NETWORK_WIRE_US if self.tier == "network" else 0.0


def collective_ms(
    platform: Platform,
    op: CollectiveOp,
    size_bytes: float,
    gpus: int,
    *,
    variant: Variant = "auto",
    in_step: bool = True,
    nodes: int = 1,
) -> float:
    """Time of one collective over ``gpus`` GPUs on ``nodes`` nodes, ms; see :func:`collective_law` for many sizes."""
    law = collective_law(platform, op, gpus, variant=variant, nodes=nodes)
    return (law.in_step_us(size_bytes) if in_step else law.us(size_bytes)) / 1e3


def explain_collective(
    platform: Platform,
    op: CollectiveOp,
    size_bytes: float,
    gpus: int,
    *,
    variant: Variant = "auto",
    in_step: bool = True,
    nodes: int = 1,
) -> CollectivePrice:
    """The same price with its kernel, constants and source."""
    law = collective_law(platform, op, gpus, variant=variant, nodes=nodes)
    if law.tier == "none":
        return CollectivePrice(0.0, 0.0, 0.0, 0.0, "none", "none", "one GPU talks to nobody")
    piece = law.piece(size_bytes)
    us = law.in_step_us(size_bytes) if in_step else law.us(size_bytes)
    alpha_us = law.latency_us if in_step else piece.alpha_us
    return CollectivePrice(
        us / 1e3, alpha_us, us - alpha_us, piece.bandwidth_gb_s, piece.variant, law.tier, piece.source
    )


@lru_cache(maxsize=4096)
def collective_law(
    platform: Platform, op: CollectiveOp, gpus: int, *, variant: Variant = "auto", nodes: int = 1
) -> CollectiveLaw:
    """Pieces of one collective on one group; ``gpus`` counts all nodes, an NVLink domain over nodes is one tier."""
    if variant not in VARIANTS:
        raise BadInput(f"collective variant is {variant!r}; legal is {', '.join(VARIANTS)}")
    if gpus < 1 or nodes < 1 or gpus % nodes:
        raise BadInput(f"{gpus} GPUs on {nodes} nodes; legal is one or more GPUs on each node, equally many")
    if gpus == 1:
        return CollectiveLaw(op, gpus, "none", ())
    one_link_domain = gpus <= (platform.link_domain_gpus or 0)
    if nodes > 1 and not one_link_domain:
        return CollectiveLaw(op, gpus, "network", (_network_piece(platform, op, gpus, nodes),))
    if gpus > platform.gpus_per_node and not one_link_domain:
        raise BadInput(f"{gpus} GPUs do not fit one {platform.name} node of {platform.gpus_per_node}")
    pair_or_group = 2 if op == "send_recv" else gpus
    return CollectiveLaw(op, gpus, "node", _node_pieces(platform, op, pair_or_group, variant))


def traffic(op: CollectiveOp, gpus: int) -> float:
    """Bytes each GPU sends over its wires for one byte of message."""
    if op == "send_recv":
        return 1.0
    share = (gpus - 1) / gpus
    return 2.0 * share if op == "all_reduce" else share


def wire_gb_s(platform: Platform, gpus: int) -> float:
    """Bandwidth one GPU can use inside a group of ``gpus``, GB/s: the mesh or the switch law."""
    if platform.vendor == "nvidia":
        return platform.link_bytes_per_s * WIRE_EFFICIENCY / 1e9
    node = platform.node_mesh_bytes_per_s or platform.link_bytes_per_s
    return node * WIRE_EFFICIENCY * (gpus - 1) / (platform.gpus_per_node - 1) / 1e9


def expert_exchange_us(
    platform: Platform, token_bytes: float, topk: int, gpus: int, *, nodes: int = 1, in_step: bool = True
) -> float:
    """One dispatch or combine of an expert all-to-all; ``token_bytes`` are a rank's tokens times one row's bytes.

    A token travels once to each rank that holds one of its experts, and over the network once to each such node, where
    it is passed on over the links::

        t = α + token_bytes · ( G(k, g) · (p − 1)/p / W(p) + (G(k, n) · (n − 1)/n) / NIC )

    with ``G`` of :func:`predictor.expert_dispatch.groups_reached`, ``p`` GPUs a node. Low-precision dispatch enters by
    the bytes of a row. Range: uniform routing; the network rate is that of RDMA kernels (MoRI, DeepEP), not of RCCL.
    """
    if gpus == 1 or token_bytes <= 0:
        return 0.0
    gb = token_bytes / 1e3  # GB/s times us
    per_node = gpus // nodes
    us = 0.0 if in_step else _EXCHANGE_ALPHA_US
    if per_node > 1:
        us += gb * groups_reached(topk, gpus) * (per_node - 1) / per_node / wire_gb_s(platform, per_node)
    if nodes > 1 and gpus > (platform.link_domain_gpus or 0):
        us += gb * groups_reached(topk, nodes) * _leaving(nodes) / (platform.nic_bytes_per_s * RDMA_EFFICIENCY / 1e9)
        us += NETWORK_WIRE_US if in_step else _NETWORK_ALPHA_US - _EXCHANGE_ALPHA_US
    return us


# ---- inside a node -------------------------------------------------------------------------------------------------


def _node_pieces(platform: Platform, op: CollectiveOp, gpus: int, variant: Variant) -> tuple[Piece, ...]:
    library = _library_pieces(platform, op, gpus)
    if op != "all_reduce" or variant == "rccl" or gpus not in _CUSTOM_GROUPS:
        return library
    custom = _custom_pieces(platform, gpus)
    if variant == "quick":
        # Unquantised quick-reduce is a two-shot kernel that serves large messages too; assumed: the custom one's pair.
        return (*custom[:-1], _renamed(custom[-1], "quick"))
    if variant == "fused_rms":
        # The fused kernel moves the same bytes; the norm it absorbs is priced as a fusion.
        custom = tuple(_renamed(piece, "fused_rms") for piece in custom)
    return (*custom, _from(library[-1], CUSTOM_MAX_BYTES))


def _custom_pieces(platform: Platform, gpus: int) -> tuple[Piece, ...]:
    """One-shot and two-shot kernels of the engines, measured or from the wires."""
    records = sorted(
        (r for r in _records(platform, "all_reduce", "node", gpus) if r.variant.startswith("custom")),
        key=lambda r: r.min_bytes,
    )
    if records:
        return tuple(_piece(record) for record in records)
    bandwidth = wire_gb_s(platform, gpus) / traffic("all_reduce", gpus)
    source = f"no record at {gpus} GPUs: α assumed, B from the links of {platform.name}"
    return (Piece(0.0, _CUSTOM_ALPHA_US[platform.vendor], bandwidth, "custom", source),)


def _library_pieces(platform: Platform, op: CollectiveOp, gpus: int) -> tuple[Piece, ...]:
    """RCCL or NCCL: measured records; where none was measured, the wire law."""
    records = sorted(
        (r for r in _records(platform, op, "node", gpus) if not r.variant.startswith("custom")),
        key=lambda r: r.min_bytes,
    )
    if records:
        first, *rest = records
        return (_from(_piece(first), 0.0), *(_piece(record) for record in rest))
    name = "nccl" if platform.vendor == "nvidia" else "rccl"
    bandwidth = wire_gb_s(platform, gpus) / traffic(op, gpus)
    source = f"no record of {op} at {gpus} GPUs: α assumed, B from the links of {platform.name}"
    return (Piece(0.0, _LIBRARY_ALPHA_US[platform.vendor], bandwidth, name, source),)


# ---- across nodes --------------------------------------------------------------------------------------------------


def _network_piece(platform: Platform, op: CollectiveOp, gpus: int, nodes: int) -> Piece:
    """A measured record scaled to this group, or the hierarchical law over the NICs."""
    per_node = gpus // nodes
    halves = op in ("all_gather", "reduce_scatter")
    records = _records(platform, "all_reduce" if halves else op, "network")
    # Table 19 measures two nodes: 2 GPUs is one a node, 16 is all of them.
    alike = [record for record in records if op == "send_recv" or (record.gpus == 2) == (per_node == 1)]
    if alike:
        record = min(alike, key=lambda r: (abs(r.gpus - gpus), r.gpus))
        scale = 1.0 if op == "send_recv" else _leaving(2) / _leaving(nodes)
        bandwidth = record.bandwidth_gb_s * scale * (2.0 if halves else 1.0)
        return Piece(0.0, record.alpha_us, bandwidth, record.variant, record.source)
    seconds_per_gb = _hierarchical_s_per_gb(platform, op, per_node, nodes)
    source = f"datasheet NIC of {platform.name} at {platform.nic_efficiency:g}, α of MI355X send/recv assumed"
    return Piece(0.0, _NETWORK_ALPHA_US, 1.0 / seconds_per_gb, "hierarchical", source)


def _leaving(nodes: int) -> float:
    """Share of a message that goes to other nodes."""
    return (nodes - 1) / nodes


def _hierarchical_s_per_gb(platform: Platform, op: CollectiveOp, per_node: int, nodes: int) -> float:
    """Seconds a GB of message: in-node part plus the part that leaves, spread over every GPU's NIC.

    All-reduce: reduce-scatter in the node, all-reduce of 1/p across, all-gather in the node. All-to-all: what stays
    moves on the links and what leaves on each GPU's own NIC; the sum is charged.
    """
    nic = platform.nic_bytes_per_s * platform.nic_efficiency / 1e9
    if op == "send_recv":
        return 1.0 / nic
    across = 2.0 * _leaving(nodes) if op == "all_reduce" else _leaving(nodes)
    if op == "all_to_all":
        inside = traffic(op, per_node) / nodes / wire_gb_s(platform, per_node) if per_node > 1 else 0.0
        return inside + across / nic
    inside = traffic(op, per_node) / wire_gb_s(platform, per_node) if per_node > 1 else 0.0
    return inside + across / per_node / nic


# ---- records -------------------------------------------------------------------------------------------------------


def _records(platform: Platform, op: str, tier: str, gpus: int | None = None) -> list[Collective]:
    return [r for r in platform.collectives if r.op == op and r.tier == tier and gpus in (None, r.gpus)]


def _piece(record: Collective) -> Piece:
    return Piece(record.min_bytes, record.alpha_us, record.bandwidth_gb_s, record.variant, record.source)


def _from(piece: Piece, min_bytes: float) -> Piece:
    return Piece(min_bytes, piece.alpha_us, piece.bandwidth_gb_s, piece.variant, piece.source)


def _renamed(piece: Piece, variant: str) -> Piece:
    return Piece(piece.min_bytes, piece.alpha_us, piece.bandwidth_gb_s, variant, piece.source)
