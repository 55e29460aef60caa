"""What a sweep is asked for, in typed form."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from predictor.errors import BadInput, unknown_name
from predictor.profiles.loader import engine_names, engine_profile, platform
from predictor.types import Dtype

# Powers of two: each doubling about halves interactivity, so the points lie evenly along a frontier.
# The paper sweeps to 256 clients (App. D.4).
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class SweepRequest(BaseModel):
    """Models on a cluster, and which axes are swept. An empty tuple leaves an axis to the catalogue.

    ``drafters``, ``splits``, ``pipelines`` and ``schedules`` open their axes; ``most_points`` thins the space to about
    so many points, evenly over all its axes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    models: Annotated[tuple[str, ...], Field(min_length=1)]
    cluster: str
    engines: tuple[str, ...] = ()
    engine_version: str = ""
    shapes: tuple[str, ...] = ("1024/1024",)
    traces: tuple[str, ...] = ()  # files of recorded requests, each played on every point of its own
    trace_requests: Annotated[int, Field(ge=1)] = 300  # the sample of a trace that is played: its first requests
    concurrencies: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] = CONCURRENCIES
    weight_dtypes: tuple[Dtype, ...] = ()
    kv_dtypes: tuple[Dtype, ...] = ()
    depths: tuple[Annotated[int, Field(ge=1)], ...] = tuple(range(1, 9))
    split_depths: tuple[Annotated[int, Field(ge=1)], ...] = (1, 3, 5, 7)  # coarser: each simulates both pools
    drafters: bool = True
    splits: bool = True
    pipelines: bool = True
    schedules: bool = True
    host_tiers: bool = True  # host memory for evicted KV, on traces: prompts that share nothing never come again
    simulate_splits: bool = True  # False: split pools in closed form, ten times faster, without their queues' bursts
    length_range: float = 1.0
    mode: str = "auto"
    usd_per_gpu_h: Annotated[float | None, Field(gt=0)] = None
    most_points: Annotated[int | None, Field(ge=1)] = None

    @model_validator(mode="after")
    def _some_traffic(self) -> "SweepRequest":
        if not self.shapes and not self.traces:
            raise ValueError("shapes and traces are both empty: name one")
        return self

    def lengths(self) -> tuple[tuple[int, int], ...]:
        """Prompt and output tokens of each shape."""
        return tuple(parse_shape(text) for text in self.shapes)

    def engine_list(self, gpu: str) -> tuple[str, ...]:
        """The engines asked for, or all that run on the GPU."""
        vendor = platform(gpu).vendor
        runs = [name for name in engine_names() if vendor in engine_profile(name).vendors]
        for name in self.engines:
            if engine_profile(name).name not in runs:
                raise BadInput(f"engine {name!r}: does not run on {gpu}; legal: {', '.join(runs)}")
        return tuple(engine_profile(name).name for name in self.engines) or tuple(runs)


def parse_shape(text: str) -> tuple[int, int]:
    """``ISL/OSL``.

    >>> parse_shape("8192/1024")
    (8192, 1024)
    """
    isl, _, osl = text.partition("/")
    if not (isl.isdecimal() and osl.isdecimal() and int(isl) and int(osl)):
        raise BadInput(f"shape {text!r}: write ISL/OSL in tokens, such as 8192/1024")
    return int(isl), int(osl)


BACKENDS = ("loky", "ray", "dask")


def check_backend(name: str) -> str:
    """A backend's name, or a refusal with the known ones."""
    if name not in BACKENDS:
        raise unknown_name("backend", name, BACKENDS)
    return name
