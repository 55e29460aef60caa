"""A tuning request in typed form: what the command line, a file or HTTP asks for, before anything is looked up."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from agent.cluster import parse_cluster
from agent.price import priced
from agent.release import release
from levers.catalog import BY_NAME
from levers.context import LeverValue, SearchContext
from levers.objectives import Slo, parse_slo
from levers.space import normalised
from predictor.anchors.schema import Anchor
from predictor.errors import BadInput, unknown_name
from predictor.profiles.loader import engine_names, engine_profile, model_card, platform
from predictor.structure import check_workload
from predictor.types import Arrival, Dtype, Workload

# What a request without lengths or load means; shown as assumed in the answer.
DEFAULT_ISL_TOKENS = 1024
DEFAULT_OSL_TOKENS = 1024
DEFAULT_CONCURRENCY = 64


class TuningRequest(BaseModel):
    """One search: the model and cluster, what to optimise, what must hold, and what is fixed."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    model: str
    cluster: str
    engine: str
    engine_version: str = ""
    objective: str
    slos: tuple[str, ...] = ()
    isl: int = DEFAULT_ISL_TOKENS
    osl: int = DEFAULT_OSL_TOKENS
    concurrency: int = DEFAULT_CONCURRENCY
    arrival: Arrival = Arrival.CLOSED
    request_rate: float | None = None
    length_range: float = 1.0
    prefix_hit: float = 0.0
    pins: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    validated: tuple[Dtype, ...] = ()
    usd_per_gpu_h: Annotated[float | None, Field(gt=0)] = None
    budget: Annotated[int, Field(ge=1, le=100_000)] = 300
    guidance: Annotated[str, Field(max_length=2000)] = ""  # hints for a language model; data to it, not orders

    def parsed_slos(self) -> tuple[Slo, ...]:
        """The bounds; an unknown metric is refused with near matches."""
        return tuple(parse_slo(text) for text in self.slos)

    def context(self, anchors: Sequence[Anchor] = ()) -> SearchContext:
        """Look everything up; every fault names the field, the value and what is legal.

        Without a release the one the anchors were measured on is meant, else the newest profile.
        """
        gpu, cluster = parse_cluster(self.cluster)
        card, hardware = model_card(self.model), priced(platform(gpu), self.usd_per_gpu_h)
        engine = engine_profile(self.engine)
        if hardware.vendor not in engine.vendors:
            legal = [name for name in engine_names() if hardware.vendor in engine_profile(name).vendors]
            raise BadInput(f"engine {self.engine!r}: does not run on {hardware.name}; legal: {', '.join(legal)}")
        workload = Workload(
            isl_tokens=self.isl,
            osl_tokens=self.osl,
            concurrency=self.concurrency,
            arrival=self.arrival,
            request_rate_per_s=self.request_rate,
            length_range_frac=self.length_range,
            prefix_hit_frac=self.prefix_hit,
        )
        check_workload(workload, card)
        context = SearchContext(
            card=card,
            platform=hardware,
            engine=engine,
            engine_version=release(engine, self.engine_version, anchors, card.name, hardware.name),
            cluster=cluster,
            workload=workload,
            free=frozenset(self.free),
            validated=self.validated,
        )
        for name in self.free:
            if name not in BY_NAME and name not in ("load", "precision"):
                raise unknown_name("lever", name, (*BY_NAME, "load", "precision"))
        return _pinned(context, self.pins)


def _pinned(context: SearchContext, pins: tuple[str, ...]) -> SearchContext:
    """The context with the operator's pins, each read from ``lever=value`` and legal on its own."""
    pairs: list[tuple[str, LeverValue]] = []
    for text in pins:
        name, separator, raw = text.partition("=")
        if not separator or not raw:
            raise BadInput(f"pin {text!r}: write LEVER=VALUE, such as tp=4")
        if name not in BY_NAME:
            raise unknown_name("lever", name, BY_NAME)
        value = normalised(name, literal(raw))
        reason = BY_NAME[name].illegal(context, value)
        if reason is not None:
            raise BadInput(f"pin {text!r}: {reason.message}")
        pairs.append((name, value))
    return replace(context, pins=tuple(pairs))


def literal(raw: str) -> LeverValue:
    """A lever value as typed: number, switch, list of names or word.

    >>> literal("4"), literal("0.9"), literal("off"), literal("default"), literal("norm_quant+act_quant")
    (4, 0.9, False, None, ('norm_quant', 'act_quant'))
    """
    words: dict[str, LeverValue] = {"true": True, "on": True, "false": False, "off": False, "default": None}
    if raw.lower() in words:
        return words[raw.lower()]
    for convert in (int, float):
        try:
            return convert(raw)
        except ValueError:
            continue
    return tuple(raw.split("+")) if "+" in raw else raw
