"""What a search is about: model, platform, engine release, cluster, workload and what the operator fixed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from predictor.cards import EngineProfile, EngineVersion, ModelCard, Platform
from predictor.types import Dtype, Workload

# A lever's value: counts, shares, names, switches, ``None`` for "the engine's default", names of fused patterns.
LeverValue = bool | int | float | str | None | tuple[str, ...]

GB = 1e9  # bytes; engine flags for host memory count decimal gigabytes


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes of one GPU type."""

    gpus_per_node: int
    nodes: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of the whole cluster."""
        return self.gpus_per_node * self.nodes


@dataclass(frozen=True, slots=True)
class SearchContext:
    """Everything that decides which lever values are legal, and nothing that a search changes.

    ``pins`` are lever values the operator fixed. ``free`` names the levers, or the groups ``"load"`` and
    ``"precision"``, that are opened; both groups are pinned to the workload and the checkpoint otherwise, so that a
    search for TTFT cannot answer "send one request at a time". ``validated`` lists the weight formats the operator has
    validated; empty means every checkpoint on hand.
    """

    card: ModelCard
    platform: Platform
    engine: EngineProfile
    engine_version: str
    cluster: Cluster
    workload: Workload
    pins: tuple[tuple[str, LeverValue], ...] = ()
    free: frozenset[str] = field(default_factory=frozenset)
    validated: tuple[Dtype, ...] = ()

    @property
    def pinned(self) -> Mapping[str, LeverValue]:
        """The operator's pins by lever name."""
        return dict(self.pins)

    @property
    def release(self) -> EngineVersion:
        """Defaults of the engine release, or of the newest tabled one where it is not."""
        names = [release.version for release in self.engine.versions]
        return self.engine.version(self.engine_version if self.engine_version in names else "")

    def at_least(self, version: str) -> bool:
        """Whether the engine release is ``version`` or later."""
        return version_key(self.engine_version) >= version_key(version)


NEWEST = (2**31,)  # development heads, and "the newest known"


@lru_cache(maxsize=1024)
def version_key(version: str) -> tuple[int, ...]:
    """Numbers of a release name, for comparing releases; marks after a number are dropped.

    A name that starts with no number is a development head, and an empty one the newest known release.

    >>> version_key("0.5.19") < version_key("v0.5.23-rocm720") < version_key("main-002f3cc3")
    True
    >>> version_key("0.30.0") == version_key("0.30")
    True
    """
    numbers: list[int] = []
    for part in version.lstrip("vV").replace("-", ".").split("."):
        digits = _leading_digits(part)
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers) or NEWEST


def _leading_digits(text: str) -> str:
    return text[: len(text) - len(text.lstrip("0123456789"))]
