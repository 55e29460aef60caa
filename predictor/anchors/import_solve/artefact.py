"""An anchor made of what a user already measured: runs or steps in, artefact and report out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from predictor.anchors.fit import fit_prefill
from predictor.anchors.import_formats.detect import read_benchmark
from predictor.anchors.import_formats.run import BenchRun, Fact, StepRun
from predictor.anchors.import_solve.checks import check_floor, check_run
from predictor.anchors.import_solve.facts import read_facts
from predictor.anchors.import_solve.ladder import (
    ServedRun,
    Shape,
    SolvedLadders,
    SolvedSweep,
    solve_ladders,
)
from predictor.anchors.import_solve.scale import Scaled, scale_to_run
from predictor.anchors.import_solve.served import loads_of, shapes_of, step_floor
from predictor.anchors.import_solve.setting import (
    Lookups,
    Setting,
    known_version,
    resolve,
)
from predictor.anchors.import_solve.untimed import solve_without_ttft, solves_without_ttft
from predictor.anchors.naming import anchor_name
from predictor.anchors.schema import SCHEMA_VERSION, Anchor, DecodeSweep, PrefillSweep, Source, checked
from predictor.engines import effective_settings
from predictor.errors import BadFile, BadInput
from predictor.step.build_simulated import simulated_step
from predictor.step.model import PrefillCurve, StepModel

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


@dataclass(frozen=True, slots=True)
class Base:
    """A step model to scale, what it is, and the host time that goes with it.

    ``measured``: how its steps grow with load and context was measured, so a factor does not make it a simulation.
    """

    model: StepModel
    host_ms: float
    what: str
    measured: bool = False


def kernel_models(shape: Shape, setting: Setting) -> Base:
    """The kernel models' steps for one deployment."""
    version = known_version(setting)
    deployment = replace(setting.deployment, engine_version=version or setting.profile.versions[0].version)
    settings = effective_settings(setting.profile, version, setting.platform, setting.card, deployment)
    workload = shape.runs[0].workload
    wanted = replace(workload, concurrency=workload.concurrency * deployment.layout.attn_dp)
    step = simulated_step(deployment, wanted, setting.card, setting.platform, setting.profile, settings)
    return Base(step.model, step.host_ms, "kernel models")


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
    return import_runs(runs, facts, find, files=files, accepted_name=accepted_name, name=name)


def import_runs(
    runs: Sequence[BenchRun],
    facts: Mapping[str, Fact],
    find: Lookups,
    *,
    files: Sequence[BenchmarkFile] = (),
    accepted_name: str | None = None,
    name: str | None = None,
    base: Base | None = None,
) -> Imported:
    """Make an anchor of served runs; ``base`` is what one load scales instead of the kernel models."""
    for run in runs:
        check_run(run)
    setting = resolve(runs, facts, find, accepted_name)
    floor = step_floor(setting)
    for run in runs:
        check_floor(run, floor)
    tools = " and ".join(sorted({run.tool for run in runs}))
    shapes, notes = shapes_of(runs, setting, facts)
    loads = {(shape.isl_tokens, shape.osl_tokens, load) for shape in shapes for load in loads_of(shape)}
    if len(loads) == 1:
        return _scaled(shapes[0], setting, base or kernel_models(shapes[0], setting), files, tools, name, notes)
    untimed = solves_without_ttft(shapes, setting)
    solved = solve_without_ttft(shapes, setting) if untimed else solve_ladders(shapes)
    return Imported(_solved(solved, setting, files, tools, name, notes), solved.reproduced)


def _digits(value: float, digits: int = 6) -> float:
    return float(f"{value:.{digits}g}")


def _prefill(curve: PrefillCurve, lengths: Sequence[int], residual_ms: float | None) -> PrefillSweep:
    if curve.per_token_ms <= 0.0:
        raise BadInput(
            "prefill cannot be told from these runs: its cost a token comes out as zero; add a run with a TTFT at one "
            "client, or another prompt length"
        )
    return checked(
        PrefillSweep,
        {
            "points": [{"tokens": n, "step_ms": _digits(curve.prompt_ms(n))} for n in sorted(set(lengths))],
            "fixed_ms": _digits(curve.fixed_ms),
            "per_token_ms": _digits(curve.per_token_ms),
            "per_token2_ms": _digits(curve.per_token2_ms),
            "mixed_fixed_ms": _digits(curve.mixed_fixed_ms),
            "rms_residual_ms": None if residual_ms is None else _digits(residual_ms, 3),
        },
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
    return checked(
        Anchor,
        {
            "schema_version": SCHEMA_VERSION,
            "name": name or anchor_name(setting.deployment),
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
        },
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
    return checked(
        DecodeSweep,
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
        },
    )


def _scaled(
    shape: Shape,
    setting: Setting,
    base: Base,
    files: Sequence[BenchmarkFile],
    tools: str,
    name: str | None,
    notes: Sequence[str],
) -> Imported:
    ranks = setting.deployment.layout.attn_dp
    run = replace(shape.runs[0], tokens_per_step=base.model.tokens_per_step)
    scaled = scale_to_run(run, base.model, base.host_ms)
    middle = _middle(shape)
    sweep = checked(
        DecodeSweep,
        {
            "prompt_tokens": round(shape.isl_tokens * middle),
            "output_tokens": round(shape.osl_tokens * middle),
            "kind": "served" if base.measured else "scaled",
            "points": [
                {"batch": batch * ranks, "step_ms": _digits(_step_ms(scaled, batch, shape.context_tokens))}
                for batch in scaled_batches(run)
            ],
            "residual_pct": _digits(scaled.residual_pct, 3),
            "determined": False,
        },
    )
    said = [
        *notes,
        *scaled.notes,
        f"{base.what} times {scaled.model.decode:.3f} (decode) and {scaled.model.prompt:.3f} (prefill): one run scales "
        f"it, its shape over batch is {'that of an earlier measurement' if base.measured else 'not measured'}",
    ]
    anchor = _assemble(
        setting,
        files,
        f"{base.what} scaled to one served run",
        name,
        [sweep],
        _prefill(scaled.model.prefill, [round(shape.isl_tokens * middle)], None),
        tools=tools,
        tokens_per_step=base.model.tokens_per_step,
        host_ms=base.host_ms,
        coarse=not base.measured,
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
        checked(
            DecodeSweep,
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
            },
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
        checked(PrefillSweep, prefill),
        tools=tools,
        notes=notes,
    )


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2.0


def _spread_pct(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / _median(values) * 100.0
