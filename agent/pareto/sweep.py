"""Run a sweep: enumerate, price what is not in the file yet, and read charts, tiers and verdicts off it."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from agent.anchor_files import load_anchors
from agent.pareto.frontier import Chart, chart_json, charts
from agent.pareto.parallel import mapped
from agent.pareto.price import MODES, Task, Variant, price_task
from agent.pareto.request import SweepRequest, check_backend
from agent.pareto.space import Place, Space, place_context, places, space, thinned
from agent.pareto.store import SweepFile, header_line, write_parquet
from agent.tiers import Tier, read_tiers
from agent.tune import anchor_text, catalogue_sha256, record_text
from predictor.errors import BadInput
from predictor.profiles.loader import model_card
from predictor.version import __version__

# Variants of a task, each under every load: a second or two of work, so that a killed sweep loses little.
TASK_VARIANTS = 32
TASK_SPLITS = 6  # split pools and traces are simulated on a clock, which takes ten times as long

Progress = Callable[[int, int], None]  # points done, points in all


@dataclass(frozen=True, slots=True)
class Sweep:
    """A finished sweep: its charts, and where its points are."""

    request: SweepRequest
    charts: tuple[Chart, ...]
    spaces: tuple[Space, ...]
    points: int
    priced: int
    resumed: int
    refused: Mapping[str, int]
    simulated: int
    traced: int
    file: str | None
    wall_s: float
    listing_cpu_s: float  # of listing the points, before any is priced
    store: SweepFile

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every priced point, dominated ones too."""
        return (row for row in self.store.rows() if "refused" not in row)

    def as_json(self) -> dict[str, Any]:
        """The keys of ``pareto --json``."""
        left_out: Counter[str] = Counter()
        for one in self.spaces:
            left_out.update(one.left_out)
        return {
            "request": self.request.model_dump(mode="json"),
            "file": self.file,
            "points": self.points,
            "priced": self.priced,
            "refused": dict(self.refused),
            "left_out": dict(sorted(left_out.items(), key=lambda pair: (-pair[1], pair[0]))),
            "resumed_points": self.resumed,
            "trace_points": self.traced,
            "trace_requests": self.request.trace_requests if self.request.traces else None,
            "simulated_share": self.simulated / self.priced if self.priced else 0.0,
            "charts": [chart_json(chart) for chart in self.charts],
            "wall_s": self.wall_s,
        }


def run_sweep(
    request: SweepRequest,
    *,
    out: Path | None = None,
    tiers: Sequence[Tier] | None = None,
    anchors: str | None = None,
    jobs: int = 1,
    backend: str = "loky",
    one_task_in: int = 1,
    progress: Progress | None = None,
) -> Sweep:
    """Sweep ``request``; points stream to ``out`` (JSON lines, or Parquet by its suffix) and a killed run resumes.

    ``one_task_in`` prices a share of the tasks only, to tell how long the whole takes.
    """
    started = perf_counter()
    check_backend(backend)
    if request.mode not in MODES:
        raise BadInput(f"mode {request.mode!r}: must be one of {', '.join(MODES)}")
    bounds = read_tiers() if tiers is None else tiers
    spaces, identity, listing = enumerate_spaces(request, anchors, jobs if backend == "loky" else 1)
    tasks = list(all_tasks(request, spaces))
    points = sum(task.points for task in tasks)
    log = None if out is None else log_path(out)
    file = SweepFile(log, header_line(request.model_dump(mode="json"), identity, points))
    resumed = len(file.done)
    try:
        for done, lines in price_all(request, anchors, tasks[::one_task_in], file.done, jobs, backend):
            file.write(lines)
            if progress is not None:
                progress(done, points)
    finally:
        file.close()
    refused: Counter[str] = Counter()
    simulated: Counter[str] = Counter()
    found = charts(counted(file.rows(), refused, simulated), bounds)
    if out is not None and out != log:
        write_parquet(out, file.rows())
    return Sweep(
        request=request,
        charts=found,
        spaces=spaces,
        points=points,
        priced=sum(simulated.values()),
        resumed=resumed,
        refused=dict(sorted(refused.items(), key=lambda pair: (-pair[1], pair[0]))),
        simulated=simulated["des"] + simulated["trace"],
        traced=simulated["trace"],
        file=None if out is None else str(out),
        wall_s=perf_counter() - started,
        listing_cpu_s=listing,
        store=file,
    )


def log_path(out: Path) -> Path:
    """Where points stream to: the file itself, or beside a Parquet file, which cannot be appended to."""
    return out.with_name(f"{out.name}.jsonl") if out.suffix == ".parquet" else out


def counted(rows: Iterable[dict[str, Any]], refused: Counter[str], methods: Counter[str]) -> Iterator[dict[str, Any]]:
    """Priced rows; refusals and methods are counted on the way."""
    for row in rows:
        if "refused" in row:
            refused[row["refused"]] += 1
        else:
            methods[row["method"]] += 1
            yield row


def enumerate_spaces(request: SweepRequest, anchors: str | None, jobs: int = 1) -> tuple[tuple[Space, ...], str, float]:
    """The space of every place, the identity of everything that decides the sweep's figures, and CPU seconds."""
    on_hand = load_anchors(anchors)
    wanted = places(request)
    texts = {__version__, catalogue_sha256(), *(anchor_text(one) for one in on_hand)}
    for place in wanted:
        if not over_context(place):
            context = place_context(request, place, on_hand)
            texts |= {record_text(context.card), record_text(context.platform), record_text(context.engine)}
    timed = list(mapped(partial(_listed, request, anchors), wanted, jobs))
    spaces = [found for found, _ in timed]
    if request.most_points is not None:
        spaces = list(thinned(spaces, request.most_points / len(request.concurrencies)))
    return tuple(spaces), sha256(json.dumps(sorted(texts)).encode()).hexdigest(), sum(cpu_s for _, cpu_s in timed)


def over_context(place: Place) -> bool:
    """Whether most of a trace is no request of this model."""
    return bool(place.trace) and model_card(place.model).max_context_tokens < place.isl_tokens + place.osl_tokens


def _listed(request: SweepRequest, anchors: str | None, place: Place) -> tuple[Space, float]:
    """One place's space, and the CPU seconds it took."""
    begun = process_time()
    if over_context(place):
        found = Space(place, (), {"trace_over_context": 1})
    else:
        found = space(request, place, place_context(request, place, load_anchors(anchors)))
    return found, process_time() - begun


def all_tasks(request: SweepRequest, spaces: Sequence[Space]) -> Iterator[Task]:
    """Tasks of all places: within an engine and shape, what shares schedules lies in one task as far as it can."""
    loads = len(request.concurrencies)
    first = 0
    for group in grouped(spaces):
        variants: list[Variant] = []
        for one in group:
            for changes in one.variants:
                variants.append(Variant(first, one.place, changes))
                first += loads
        kinds: dict[tuple[str, ...], list[Variant]] = {}
        for variant in variants:
            kinds.setdefault(schedule_kind(variant), []).append(variant)
        for splits in (False, True):
            alike = [variant for kind in sorted(kinds) for variant in kinds[kind] if is_split(variant) is splits]
            size = TASK_SPLITS if splits or group[0].place.trace else TASK_VARIANTS
            for start in range(0, len(alike), size):
                yield Task(tuple(alike[start : start + size]), loads)


# Levers that decide a schedule, whatever a step costs. Drafted tokens are accepted at a rate of the model's own.
_SCHEDULE_LEVERS = ("attn_dp", "replicas", "token_budget", "chunk_size", "spec_method", "spec_depth")


def schedule_kind(variant: Variant) -> tuple[str, ...]:
    """What two variants must have in common to share a schedule under one load."""
    changes = dict(variant.changes)
    model = variant.place.model if changes.get("spec_method", "none") != "none" else ""
    return (*(str(changes.get(name)) for name in _SCHEDULE_LEVERS), model)


def is_split(variant: Variant) -> bool:
    """Whether prefill and decode have pools of their own."""
    return any(name == "disagg" for name, _ in variant.changes)


def grouped(spaces: Sequence[Space]) -> Iterator[list[Space]]:
    """Spaces of one engine and shape together, in order."""
    found: dict[tuple[str, int, int, str], list[Space]] = {}
    for one in spaces:
        found.setdefault(_group(one.place), []).append(one)
    yield from found.values()


def _group(place: Place) -> tuple[str, int, int, str]:
    return place.engine, place.isl_tokens, place.osl_tokens, place.trace


def price_all(
    request: SweepRequest, anchors: str | None, tasks: Sequence[Task], done: set[int], jobs: int, backend: str
) -> Iterator[tuple[int, str]]:
    """Lines of every task that is not done, with how many points are done after it."""
    left = [(task, frozenset(done.intersection(task.numbers))) for task in tasks]
    left = [(task, has) for task, has in left if len(has) < task.points]
    count = len(done)
    for lines in mapped(partial(_priced, request, anchors), left, jobs, backend):
        count += lines.count("\n")
        yield count, lines


def _priced(request: SweepRequest, anchors: str | None, item: tuple[Task, frozenset[int]]) -> str:
    return price_task(request, anchors, *item)
