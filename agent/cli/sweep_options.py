"""What ``pareto`` and ``mix`` share: flags and the request they make, the progress bar, a point in a few words.

A command decorated with :data:`with_sweep` declares only its own flags and a first parameter ``typed``: what the person
typed for the shared ones, by name.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.cli.shared_flags import with_flags

if TYPE_CHECKING:
    from agent.pareto import SweepRequest


def sweep_flags(
    engine: Annotated[
        list[str] | None, typer.Option(help="Engine; may repeat. All that run there if left out.")
    ] = None,
    concurrency: Annotated[list[int] | None, typer.Option(help="Clients; may repeat. 1 to 256 by doublings.")] = None,
    weight_dtype: Annotated[list[str] | None, typer.Option(help="Weight format; may repeat. All there are.")] = None,
    kv_dtype: Annotated[list[str] | None, typer.Option(help="Cache format; may repeat. All there are.")] = None,
    depth: Annotated[
        list[int] | None, typer.Option(help="Draft depth; may repeat. 1 to 8; 1, 3, 5, 7 on split pools.")
    ] = None,
    drafters: Annotated[bool, typer.Option(help="Sweep speculation.")] = True,
    splits: Annotated[bool, typer.Option(help="Sweep split prefill and decode pools.")] = True,
    pipelines: Annotated[bool, typer.Option(help="Sweep pipeline stages.")] = True,
    schedules: Annotated[bool, typer.Option(help="Sweep scheduler settings.")] = True,
    simulate_splits: Annotated[
        bool, typer.Option(help="Simulate split pools request by request; in closed form otherwise, faster.")
    ] = True,
    host_tiers: Annotated[bool, typer.Option(help="Sweep host memory for evicted KV, on traces.")] = True,
    trace: Annotated[
        list[str] | None, typer.Option(help="Trace that is played instead of, or beside, a shape; may repeat.")
    ] = None,
    trace_requests: Annotated[int, typer.Option(help="First requests of a trace that are played.")] = 300,
    length_range: Annotated[float, typer.Option(help="Shortest length over nominal; 1 is fixed.")] = 1.0,
    usd_per_gpu_h: Annotated[float | None, typer.Option(help="Price of a GPU-hour, for usd_per_mtok.")] = None,
    tiers: Annotated[str | None, typer.Option(help="TOML file of latency tiers to use instead of the four.")] = None,
    anchors: Annotated[str | None, typer.Option(help="Folder or file of anchors to use instead of the cache.")] = None,
    jobs: Annotated[int, typer.Option(help="Worker processes.")] = 1,
    backend: Annotated[str, typer.Option(help="loky, ray or dask.")] = "loky",
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """The shared flags; never called, only read."""


with_sweep = with_flags(sweep_flags, shared_first=False)

# Axes of a sweep, by the flag that lists their values; the request names them in the plural.
AXES = {
    "engine": ("engines",),
    "concurrency": ("concurrencies",),
    "weight_dtype": ("weight_dtypes",),
    "kv_dtype": ("kv_dtypes",),
    "depth": ("depths", "split_depths"),
    "trace": ("traces",),
}
AS_TYPED = (
    "drafters",
    "splits",
    "pipelines",
    "schedules",
    "host_tiers",
    "trace_requests",
    "simulate_splits",
    "length_range",
    "usd_per_gpu_h",
)


def shapes_of(shapes: list[str] | None, traces: list[str] | None) -> dict[str, tuple[str, ...]]:
    """The shapes that are asked for; with a trace alone there is none, and without either the request's own default."""
    return {"shapes": tuple(shapes)} if shapes else {"shapes": ()} if traces else {}


def sweep_request(typed: Mapping[str, Any], **own: Any) -> "SweepRequest":
    """The request of the shared flags and a command's own fields; an axis that nobody named stays the catalogue's."""
    from agent.pareto import SweepRequest
    from agent.predict_request import validated

    listed = {field: tuple(typed[flag]) for flag, fields in AXES.items() if typed[flag] for field in fields}
    return validated(SweepRequest, **own, **listed, **{name: typed[name] for name in AS_TYPED})


def how_to_run(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Latency tiers, anchors and workers of a run, checked."""
    from agent.tiers import read_tiers
    from predictor.errors import BadInput

    if typed["jobs"] < 1:
        raise BadInput(f"jobs {typed['jobs']}: must be at least 1")
    return {"tiers": read_tiers(typed["tiers"]), **{name: typed[name] for name in ("anchors", "jobs", "backend")}}


@contextmanager
def sweep_progress() -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on a terminal's stderr; nothing in a pipe."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("points", total=None)
        yield lambda done, points: progress.update(task, completed=done, total=points)


def deployment_name(row: Mapping[str, Any]) -> str:
    """A point's deployment in a few words."""
    drafter = "" if row["drafter"] == "none" else f" {row['drafter']}-{row['depth']}"
    tier = f" host {row['host_kv_gb']:.0f} GB" if row["host_kv_gb"] else ""
    return f"{row['engine']} {row['weight']} kv {row['kv']} {row['label']}{drafter}{tier}"
