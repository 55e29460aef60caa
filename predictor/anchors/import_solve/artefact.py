"""An anchor made of what a user already measured: runs or steps in, artefact and report out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from predictor.anchors.fit import fit_prefill
from predictor.anchors.import_formats.detect import read_benchmark
from predictor.anchors.import_formats.run import BenchRun, Fact, StepRun
from predictor.anchors.import_solve.checks import StepFloor, check_floor, check_run
from predictor.anchors.import_solve.facts import read_facts
from predictor.anchors.import_solve.ladder import (
    ServedRun,
    Shape,
    SolvedLadders,
    SolvedSweep,
    Statistics,
    solve_ladders,
)
from predictor.anchors.import_solve.scale import Scaled, scale_to_run
from predictor.anchors.import_solve.setting import (
    Lookups,
    Setting,
    known_version,
    kv_blocks,
    load_workload,
    resolve,
    rules_of,
    with_length_ranges,
)
from predictor.anchors.schema import SCHEMA_VERSION, Anchor, DecodeSweep, PrefillSweep, Source
from predictor.engines import effective_settings
from predictor.errors import BadFile, BadInput
from predictor.step.build_simulated import simulated_step
from predictor.step.model import PrefillCurve
from predictor.transfer.constants import default_constants
from predictor.transfer.context import KernelContext
from predictor.transfer.terms import step_terms
from predictor.types import Workload

# A run reproduced worse than this by the solved steps holds something no step explains; it is named.
ODD_RUN_PCT = 15.0


@dataclass(frozen=True, slots=True)
class BenchmarkFile:
    """One file: its name and text."""

    name: str
    text: str

    @property
    def source(self) -> Source:
        """Name and hash for the artefact's provenance."""
        return Source(name=self.name, sha256=sha256(self.text.encode()).hexdigest())


@dataclass(frozen=True, slots=True)
class Imported:
    """The artefact and how well it reproduces the runs it came from: statistic, recorded and reproduced, ms."""

    anchor: Anchor
    reproduced: Mapping[str, tuple[tuple[str, float, float], ...]]


def import_benchmark(
    files: Sequence[BenchmarkFile],
    stated: Mapping[str, Fact],
    find: Lookups,
    *,
    accepted_name: str | None = None,
    name: str | None = None,
) -> Imported:
    """Make one anchor of one deployment's benchmark files.

    Several loads (a ladder) are solved for their steps; one load scales the kernel models; ``bench_one_batch`` steps
    are taken as they are. Raises BadInput or BadFile with file, figure and what to do.
    """
    facts = read_facts(stated, "given")
    parsed = [read_benchmark(file.text, file.name) for file in files]
    runs = [run for one in parsed for run in one.runs]
    steps = [step for one in parsed for step in one.steps]
    if runs and steps:
        raise BadInput("served runs and bench_one_batch steps do not make one anchor; import them apart")
    tools = " and ".join(sorted({one.tool for one in parsed}))
    if steps:
        setting = resolve(steps, facts, find, accepted_name)
        return Imported(_from_steps(steps, setting, files, tools, name), {})
    for run in runs:
        check_run(run)
    setting = resolve(runs, facts, find, accepted_name)
    floor = step_floor(setting)
    for run in runs:
        check_floor(run, floor)
    shapes, notes = shapes_of(runs, setting, facts)
    loads = {(shape.isl_tokens, shape.osl_tokens, load) for shape in shapes for load in loads_of(shape)}
    if len(loads) == 1:
        return _scaled(shapes[0], setting, files, tools, name, notes)
    solved = solve_ladders(shapes)
    return Imported(_solved(solved, setting, files, tools, name, notes), solved.reproduced)


def loads_of(shape: Shape) -> set[tuple[int, float | None]]:
    """Distinct loads of a shape."""
    return {(run.workload.concurrency, run.workload.request_rate_per_s) for run in shape.runs}


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


def capture_sizes(setting: Setting) -> tuple[int, ...]:
    """Graph sizes of the deployment by its engine's rules."""
    version = known_version(setting)
    return effective_settings(
        setting.profile, version, setting.platform, setting.card, setting.deployment
    ).capture_sizes


def anchor_name(setting: Setting) -> str:
    """Model, GPU, engine, release, layout and weights."""
    wanted = setting.deployment
    parts = [wanted.model, wanted.gpu, wanted.engine, wanted.engine_version, wanted.layout.label()]
    parts.append(str(wanted.precision.weight))
    if wanted.speculation.active:
        parts.append(f"{wanted.speculation.method}{wanted.speculation.depth}")
    return "-".join("".join(c if c.isalnum() or c in ".-" else "-" for c in part) for part in parts if part).lower()


def _digits(value: float, digits: int = 6) -> float:
    return float(f"{value:.{digits}g}")


def _prefill(curve: PrefillCurve, lengths: Sequence[int], residual_ms: float | None) -> PrefillSweep:
    if curve.per_token_ms <= 0.0:
        raise BadInput(
            "prefill cannot be told from these runs: its cost a token comes out as zero; add a run with a TTFT at one "
            "client, or another prompt length"
        )
    return PrefillSweep.model_validate(
        {
            "points": [{"tokens": n, "step_ms": _digits(curve.prompt_ms(n))} for n in sorted(set(lengths))],
            "fixed_ms": _digits(curve.fixed_ms),
            "per_token_ms": _digits(curve.per_token_ms),
            "per_token2_ms": _digits(curve.per_token2_ms),
            "rms_residual_ms": None if residual_ms is None else _digits(residual_ms, 3),
        }
    )


def _assemble(
    setting: Setting,
    files: Sequence[BenchmarkFile],
    source: str,
    name: str | None,
    decode: Sequence[DecodeSweep],
    prefill: PrefillSweep,
    *,
    tools: str,
    tokens_per_step: float = 1.0,
    host_ms: float = 0.0,
    coarse: bool = False,
    notes: Sequence[str] = (),
) -> Anchor:
    said = list(notes)
    if setting.prefix_cache == "cold":
        said.append("prefix cache on, prompts without a shared prefix: nothing was read from it")
    return Anchor.model_validate(
        {
            "schema_version": SCHEMA_VERSION,
            "name": name or anchor_name(setting),
            "signature": setting.signature,
            "decode": tuple(decode),
            "prefill": prefill,
            "tokens_per_step": _digits(tokens_per_step),
            "kv_pool_tokens": setting.kv_pool_tokens,
            "host": {"per_request_ms": _digits(host_ms)},
            "provenance": {
                "real_weights": setting.real_weights,
                "prefix_cache_off": True,
                "command": tools,
                "source": source,
                "coarse": coarse,
                "inputs": tuple(file.source for file in files),
                "notes": tuple(said),
            },
        }
    )


def _solved(
    solved: SolvedLadders,
    setting: Setting,
    files: Sequence[BenchmarkFile],
    tools: str,
    name: str | None,
    notes: Sequence[str],
) -> Anchor:
    sweeps = [_served_sweep(sweep, setting.deployment.layout.attn_dp) for sweep in solved.sweeps]
    said = [*notes, *solved.notes, *odd_runs(solved)]
    ttft = "" if solved.ttft_residual_pct is None else f", TTFT to {solved.ttft_residual_pct:.1f}%"
    said.append(f"solved steps reproduce TPOT to {solved.tpot_residual_pct:.1f}%{ttft} at the median")
    runs = sum(len(sweep.shape.runs) for sweep in solved.sweeps)
    lengths = [round(sweep.shape.isl_tokens * _middle(sweep.shape)) for sweep in solved.sweeps]
    return _assemble(
        setting,
        files,
        f"steps solved from {runs} served runs",
        name,
        sweeps,
        _prefill(solved.prefill, lengths, None),
        tools=tools,
        tokens_per_step=solved.sweeps[0].shape.runs[0].tokens_per_step,
        host_ms=solved.host_ms,
        notes=said,
    )


def odd_runs(solved: SolvedLadders) -> list[str]:
    """Runs that the solved steps do not explain, by name and figure."""
    found = []
    for origin, rows in solved.reproduced.items():
        worst = max(rows, key=lambda row: abs(row[2] / row[1] - 1.0))
        off = (worst[2] / worst[1] - 1.0) * 100.0
        if abs(off) > ODD_RUN_PCT:
            word = worst[0].removesuffix("_ms").upper()
            found.append(f"{origin}: {word} comes out {off:+.0f}% off: it holds something no step time explains")
    return found


def _middle(shape: Shape) -> float:
    return (1.0 + shape.runs[0].workload.length_range_frac) / 2.0


def _served_sweep(sweep: SolvedSweep, ranks: int) -> DecodeSweep:
    shape, middle = sweep.shape, _middle(sweep.shape)
    tpot = {run.workload.concurrency: run.recorded.tpot_ms for run in shape.runs}
    return DecodeSweep.model_validate(
        {
            "prompt_tokens": round(shape.isl_tokens * middle),
            "output_tokens": round(shape.osl_tokens * middle),
            "kind": "served",
            "points": [
                {
                    "batch": knot * ranks,
                    "step_ms": _digits(step),
                    "served_tpot_ms": tpot.get(knot),
                    "error_pct": None if error == float("inf") else _digits(error, 2),
                }
                for knot, step, error in zip(sweep.knots, sweep.step_ms, sweep.error_pct, strict=True)
            ],
            "residual_pct": _digits(sweep.residual_pct, 3),
            "determined": sweep.determined,
        }
    )


def _scaled(
    shape: Shape,
    setting: Setting,
    files: Sequence[BenchmarkFile],
    tools: str,
    name: str | None,
    notes: Sequence[str],
) -> Imported:
    run = shape.runs[0]
    version = known_version(setting)
    deployment = replace(setting.deployment, engine_version=version or setting.profile.versions[0].version)
    settings = effective_settings(setting.profile, version, setting.platform, setting.card, deployment)
    ranks = deployment.layout.attn_dp
    wanted = replace(run.workload, concurrency=run.workload.concurrency * ranks)
    step = simulated_step(deployment, wanted, setting.card, setting.platform, setting.profile, settings)
    run = replace(run, tokens_per_step=step.model.tokens_per_step)
    scaled = scale_to_run(run, step.model, step.host_ms)
    middle = _middle(shape)
    sweep = DecodeSweep.model_validate(
        {
            "prompt_tokens": round(shape.isl_tokens * middle),
            "output_tokens": round(shape.osl_tokens * middle),
            "kind": "scaled",
            "points": [
                {"batch": batch * ranks, "step_ms": _digits(_step_ms(scaled, batch, shape.context_tokens))}
                for batch in scaled_batches(run)
            ],
            "residual_pct": _digits(scaled.residual_pct, 3),
            "determined": False,
        }
    )
    said = [
        *notes,
        *scaled.notes,
        f"kernel models times {scaled.model.decode:.3f} (decode) and {scaled.model.prompt:.3f} (prefill): one run "
        "scales a simulation, its shape over batch is not measured",
    ]
    anchor = _assemble(
        setting,
        files,
        "kernel models scaled to one served run",
        name,
        [sweep],
        _prefill(scaled.model.prefill, [round(shape.isl_tokens * middle)], None),
        tools=tools,
        tokens_per_step=step.model.tokens_per_step,
        host_ms=step.host_ms,
        coarse=True,
        notes=said,
    )
    return Imported(anchor, {})


def _step_ms(scaled: Scaled, batch: int, context_tokens: float) -> float:
    context = batch * context_tokens
    return scaled.model.decode_line(batch, context).at(context)


def scaled_batches(run: ServedRun) -> list[int]:
    """Powers of two up to four times the run's load, and the load itself."""
    load, sizes, size = run.workload.concurrency, set(), 1
    while size <= min(4 * load, run.rules.running_cap):
        sizes.add(size)
        size *= 2
    return sorted(sizes | {min(load, run.rules.running_cap)})


def _from_steps(
    steps: Sequence[StepRun], setting: Setting, files: Sequence[BenchmarkFile], tools: str, name: str | None
) -> Anchor:
    """Steps timed without a server: a decode sweep at each shape, and a prefill fit over all prefilled tokens."""
    shapes: dict[tuple[int, int], dict[int, list[float]]] = {}
    prompts: dict[int, list[float]] = {}
    for step in steps:
        batches = shapes.setdefault((step.prompt_tokens, step.output_tokens), {})
        batches.setdefault(step.batch, []).append(step.decode_step_ms)
        if step.batch == 1:
            prompts.setdefault(step.prompt_tokens, []).append(step.prefill_ms)
    if not prompts:
        raise BadFile(
            f"{steps[0].origin}: no line at batch 1: prefill of one prompt is not in it; add --batch-size 1 to the run"
        )
    sweeps = [
        DecodeSweep.model_validate(
            {
                "prompt_tokens": prompt,
                "output_tokens": output,
                "points": [
                    {
                        "batch": batch,
                        "step_ms": _digits(_median(times)),
                        "error_pct": _digits(_spread_pct(times), 2) if len(times) > 1 else None,
                    }
                    for batch, times in sorted(batches.items())
                ],
            }
        )
        for (prompt, output), batches in sorted(shapes.items())
    ]
    lengths = sorted(prompts)
    times = [_median(prompts[n]) for n in lengths]
    fit = fit_prefill(lengths, times)
    notes = [] if len(lengths) > 1 else ["one prompt length: fixed and per-token prefill cost cannot be told apart"]
    prefill: dict[str, Any] = {
        "points": [{"tokens": n, "step_ms": _digits(t)} for n, t in zip(lengths, times, strict=True)],
        "fixed_ms": _digits(fit.fixed_ms),
        "per_token_ms": _digits(fit.per_token_ms),
        "per_token2_ms": _digits(fit.per_token2_ms),
        "rms_residual_ms": _digits(fit.rms_residual_ms, 3),
    }
    return _assemble(
        setting,
        files,
        f"{len(steps)} steps timed without a server",
        name,
        sweeps,
        PrefillSweep.model_validate(prefill),
        tools=tools,
        notes=notes,
    )


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2.0


def _spread_pct(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / _median(values) * 100.0
