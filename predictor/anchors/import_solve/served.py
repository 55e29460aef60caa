"""Served runs grouped by shape and put as the solver takes them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from predictor.anchors.import_formats.run import BenchRun, Fact
from predictor.anchors.import_solve.checks import StepFloor
from predictor.anchors.import_solve.ladder import ServedRun, Shape, Statistics
from predictor.anchors.import_solve.setting import (
    Setting,
    known_version,
    kv_blocks,
    load_workload,
    rules_of,
    with_length_ranges,
)
from predictor.engines import effective_settings
from predictor.errors import BadInput
from predictor.transfer.constants import default_constants
from predictor.transfer.context import KernelContext
from predictor.transfer.terms import step_terms
from predictor.types import Workload


def side_of(setting: Setting, context_tokens: float, tokens_per_step: float = 1.0) -> KernelContext:
    """The deployment as the transfer laws see it."""
    wanted = setting.deployment
    depth = wanted.speculation.depth if wanted.speculation.active else 0
    return KernelContext(
        setting.card,
        setting.platform,
        wanted.layout,
        wanted.precision,
        wanted.engine,
        context_tokens,
        depth,
        tokens_per_step,
    )


def step_floor(setting: Setting) -> StepFloor:
    """Reading the weights that one request touches, at the GPU's full bandwidth."""
    terms = step_terms(side_of(setting, 1.0), 1.0, default_constants(setting.platform))
    return StepFloor(terms.dense_ms + terms.expert_ms, f"reading the weights of {setting.card.name}")


def context_slope_ms(setting: Setting, context_tokens: float, batch: int) -> float:
    """What one more token of total context adds to a step by its bytes, ms."""
    constants = default_constants(setting.platform)
    here = step_terms(side_of(setting, context_tokens), float(batch), constants)
    wider = step_terms(side_of(setting, 2.0 * context_tokens), float(batch), constants)
    return (wider.kv_ms - here.kv_ms) / (batch * context_tokens)


def capture_sizes(setting: Setting) -> tuple[int, ...]:
    """Graph sizes of the deployment by its engine's rules."""
    version = known_version(setting)
    return effective_settings(
        setting.profile, version, setting.platform, setting.card, setting.deployment
    ).capture_sizes


def shapes_of(
    runs: Sequence[BenchRun], setting: Setting, facts: Mapping[str, Fact]
) -> tuple[list[Shape], tuple[str, ...]]:
    """Runs grouped by prompt and answer length, ready to be solved, and what had to be assumed."""
    speculates = setting.deployment.speculation.active
    grouped: dict[tuple[int, int, float], list[tuple[BenchRun, Workload]]] = {}
    for run, share in with_length_ranges(runs, facts):
        if speculates and run.tokens_per_step is None:
            raise BadInput(f"{run.origin}: speculates and records no acceptance length: its steps cannot be told")
        workload = load_workload(run, share, setting, facts)
        key = (workload.isl_tokens, workload.osl_tokens, workload.length_range_frac)
        grouped.setdefault(_near(key, grouped), []).append((run, workload))
    # Acceptance belongs to the drafter and the text, not to the load: all runs share their mean.
    lengths = [run.tokens_per_step for run in runs if run.tokens_per_step is not None]
    acceptance = sum(lengths) / len(lengths) if speculates else 1.0
    shapes, notes = [], []
    for _, members in sorted(grouped.items()):
        shape, note = _shape(members, setting, acceptance)
        shapes.append(shape)
        notes += [note] if note else []
    return shapes, tuple(dict.fromkeys(notes))


def loads_of(shape: Shape) -> set[tuple[int, float | None]]:
    """Distinct loads of a shape."""
    return {(run.workload.concurrency, run.workload.request_rate_per_s) for run in shape.runs}


def _shape(
    members: Sequence[tuple[BenchRun, Workload]], setting: Setting, acceptance: float
) -> tuple[Shape, str | None]:
    """One shape: lengths are the mean over its runs, weighted by their requests, since each drew its own sample."""
    share = members[0][1].length_range_frac
    isl, osl = (
        round(sum(getattr(w, name) * r.requests for r, w in members) / sum(r.requests for r, _ in members))
        if any(r.requests for r, _ in members)
        else getattr(members[0][1], name)
        for name in ("isl_tokens", "osl_tokens")
    )
    middle = (1.0 + share) / 2.0
    rules = rules_of(setting)
    blocks, note = kv_blocks(setting, rules, round(middle * (isl + osl)), max(_ran_at_once(*m) for m in members))
    speculates = setting.deployment.speculation.active
    served = tuple(
        ServedRun(
            run.origin,
            replace(workload, isl_tokens=isl, osl_tokens=osl),
            rules,
            blocks,
            statistics(run, speculates),
            acceptance,
        )
        for run, workload in members
    )
    context = middle * (isl + osl / 2.0)
    batch = max(1, sorted(run.workload.concurrency for run in served)[len(served) // 2])
    slope = context_slope_ms(setting, context, batch)
    return Shape(isl, osl, context, slope, served, capture_sizes(setting)), note


def _ran_at_once(run: BenchRun, workload: Workload) -> float:
    """Requests that decoded at once on average, by Little's law: what fits is at least that many."""
    ttft, tpot = run.ttft.mean, run.tpot.mean
    if ttft is None or tpot is None or workload.request_rate_per_s is not None:
        return 0.0
    decode = tpot * (mean_answer(workload) - 1.0)
    return workload.concurrency * decode / (ttft + decode)


def mean_answer(workload: Workload) -> float:
    """Mean answer, tokens."""
    return workload.osl_tokens * (1.0 + workload.length_range_frac) / 2.0


def _near(key: tuple[int, int, float], known: Mapping[tuple[int, int, float], object]) -> tuple[int, int, float]:
    """A shape within 3% counts as the same: means of drawn lengths differ a little from run to run."""
    for other in known:
        if all(abs(a / b - 1.0) < 0.03 for a, b in zip(key, other, strict=True)):
            return other
    return key


def statistics(run: BenchRun, speculates: bool) -> Statistics:
    """What the solver compares. The median gap is a step only where a chunk is a token."""
    tpot, ttft = run.tpot, run.ttft
    closed = run.request_rate_per_s is None
    # Tools that cut warm-up off report a duration of the rest; the whole run's is count over rate.
    duration_ms = run.duration_s * 1e3 if run.duration_s is not None and closed else None
    if duration_ms is None and run.requests_per_s and run.requests and closed:
        duration_ms = run.requests / run.requests_per_s * 1e3
    return Statistics(
        tpot_ms=tpot.typical,
        ttft_ms=ttft.typical,
        itl_p50_ms=None if speculates or not run.itl.p50 else run.itl.p50,
        duration_ms=duration_ms,
        tpot_is_mean=tpot.mean is not None,
        ttft_is_mean=ttft.mean is not None,
    )
