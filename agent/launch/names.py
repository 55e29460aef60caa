"""From what levers call a backend to what an engine's flag takes."""

from collections.abc import Collection, Mapping, Sequence

from agent.launch.types import ServerCase
from levers.catalog.backends import A2A, ATTENTION, MOE
from levers.catalog.common import attention_class
from levers.fusions import GENERIC
from predictor.errors import BadInput


def attention_name(case: ServerCase) -> str | None:
    """Attention backend in the engine's spelling, None for the engine's own choice."""
    asked = case.deployment.kernels.attention
    if asked == "auto":
        return None
    backends = ATTENTION.get((case.profile.name, case.vendor, attention_class(case.card.attention)), ())
    return _translate(case, "attention", asked, {backend.name: backend.engine_name for backend in backends})


def moe_name(case: ServerCase) -> str | None:
    """MoE backend in the engine's spelling, None for the engine's own choice."""
    kernels = case.deployment.kernels
    names = {backend.name: backend.engine_name for backend in MOE.get((case.profile.name, case.vendor), ())}
    if kernels.moe != "auto":
        return _translate(case, "moe", kernels.moe, names)
    fused = "moe_expert" in kernels.fusions and case.layout.ep > 1
    return names.get("mega") if fused else None  # the fused expert kernel is a backend, for spread experts


def a2a_name(case: ServerCase) -> str | None:
    """All-to-all backend in the engine's spelling, None for none: a pool without expert parallelism needs none."""
    asked = case.deployment.kernels.a2a
    if asked == "none" or case.layout.ep == 1:
        return None
    return _translate(case, "a2a", asked, A2A.get((case.profile.name, case.vendor), {}))


def _translate(case: ServerCase, what: str, asked: str, names: Mapping[str, str]) -> str:
    if asked in names:
        return names[asked]
    if asked in names.values():
        return asked  # already the engine's own spelling
    where = f"{case.profile.name} on {case.vendor.upper()} GPUs"
    raise BadInput(f"kernels.{what} is {asked!r}, which {where} does not have; legal: {_listed(names)}")


def _listed(names: Mapping[str, str]) -> str:
    have: Sequence[str] = tuple(names)
    return ", ".join(have) if have else "the engine's own choice only"


def redundant_experts(case: ServerCase) -> int:
    """Copies of busy experts; a pool without expert parallelism has none."""
    return case.deployment.eplb_redundant if case.layout.ep > 1 else 0


def unswitchable(case: ServerCase, switches: Collection[str]) -> tuple[str, ...]:
    """Fusions the operator asked for by name and the engine has no switch for."""
    have = {*switches, *({"moe_expert"} if moe_name(case) else ()), GENERIC}
    return tuple(name for name in case.deployment.kernels.fusions if name not in have)
