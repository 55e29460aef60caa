"""Disaggregated pools: the price of handing a request's KV cache over, and where its host time goes (paper App. D.4).

::

    hand-off = floor + exposed bytes / B        over each prefill GPU's own link

MoRI streams the cache layer by layer while prefill runs, so that only the last layer is exposed (120 µs a batched
transfer, 47.9 GB/s). NIXL and Mooncake send the whole cache after prefill (5 µs and 400 GB/s, 10 µs and 200 GB/s).

A split pays the anchor's host time on both servers: measured DeepSeek-V4-Pro ATOM splits sit 158 ms above GPU prefill
at 8k, twice the 80 ms of the colocated anchor. Half of the anchor's host time is serial on the prefill step that
admits a request, so that later prompts queue behind it; the rest is only latency. The first token is stamped when a
decode replica admits the request.
"""

from dataclasses import dataclass

from predictor.cards import Handoff, Platform
from predictor.errors import BadInput, unknown_name

_SERVERS = 2.0  # host time is paid by the prefill and by the decode server
_SERIAL_SHARE = 0.5  # of the anchor's host time, on the prefill step (paper D.4: split TTFT error 23 to 17%)


@dataclass(frozen=True, slots=True)
class SplitHostTime:
    """Host time of one request in a split: serial on its prefill step, and plain latency before the first token."""

    serial_ms: float
    latency_ms: float


def handoff_backend(platform: Platform, backend: str) -> Handoff:
    """Hand-off constants of a backend on a platform."""
    for handoff in platform.handoffs:
        if handoff.backend == backend:
            return handoff
    raise unknown_name(f"hand-off backend on {platform.name}", backend, (h.backend for h in platform.handoffs))


def handoff_ms(handoff: Handoff, kv_bytes_per_gpu: float, layers: int) -> float:
    """Time from the end of prefill until the decode pool holds the cache.

    ``kv_bytes_per_gpu``: one prefill GPU's part of the request's cache, its shard of the heads or its own latent copy.

    >>> mori = Handoff(backend="mori", floor_us=120.0, bandwidth_gb_s=47.9, layer_streamed=True, source="Table 5")
    >>> round(handoff_ms(mori, 479e6, 100), 3)
    0.22
    """
    if kv_bytes_per_gpu < 0 or layers < 1:
        raise BadInput(f"hand-off of {kv_bytes_per_gpu} bytes in {layers} layers; legal is ≥ 0 bytes, ≥ 1 layers")
    exposed = kv_bytes_per_gpu / layers if handoff.layer_streamed else kv_bytes_per_gpu
    return handoff.floor_us / 1e3 + exposed / (handoff.bandwidth_gb_s * 1e6)


def split_host_time(anchor_host_ms: float) -> SplitHostTime:
    """Host time of a split from a colocated anchor's host time a request.

    >>> split_host_time(80.0)
    SplitHostTime(serial_ms=40.0, latency_ms=120.0)
    """
    serial = _SERIAL_SHARE * anchor_host_ms
    return SplitHostTime(serial, _SERVERS * anchor_host_ms - serial)
