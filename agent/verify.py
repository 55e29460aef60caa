"""Close the loop: benchmark a live endpoint under a prediction's workload, compare, say what explains the gap.

A prediction is taken apart as the simulator puts it together: the decode step at the running batch, what admitted
prompts add to it, the prompt's own prefill, and waiting. The client's median gap between tokens is the step as measured
(stalls are rare, paper G.1), so each part can be held against its own measurement.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent.bench.adapters import CLIENTS, run_client
from agent.bench.client import Endpoint
from agent.bench.load import Say, run_benchmark
from agent.bench.prompts import PromptSource
from agent.bench.wave import read_wave, run_wave
from agent.harvest.facts import check_model, endpoint_of, read_endpoint
from predictor.anchors.import_formats.run import BenchRun, Fact, Latency
from predictor.anchors.import_solve.artefact import Base, Imported, import_runs
from predictor.anchors.import_solve.checks import check_run
from predictor.anchors.import_solve.setting import Lookups
from predictor.cards import ModelCard
from predictor.engines import effective_settings
from predictor.errors import BadInput
from predictor.predict import Catalogue
from predictor.profiles.loader import model_card
from predictor.step.build import anchored_step
from predictor.types import Deployment, Distribution, Prediction, Workload

STATISTICS = ("mean", "p50", "p90", "p99")
# A part is named as an explanation when it accounts for at least this share of the gap.
TELLING_SHARE = 0.25
# Gaps below this are what repeats of one run differ by.
NOISE_PCT = 5.0
ALONE_REPEATS = 3
CHOICES = ("built-in", *CLIENTS)


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure, predicted and measured; ``inside`` tells whether it fell into the prediction's 80% interval."""

    name: str
    predicted: float
    measured: float
    inside: bool | None = None

    @property
    def error_pct(self) -> float:
        """Predicted over measured."""
        return (self.predicted / self.measured - 1.0) * 100.0


@dataclass(frozen=True, slots=True)
class Probes:
    """Parts measured apart from the load: one prompt alone, and one decode step at the running batch; None: not."""

    prompt_alone_ms: float | None = None
    step_ms: float | None = None
    step_batch: int = 0


@dataclass(frozen=True, slots=True)
class Verification:
    """What was compared and what explains the difference."""

    run: BenchRun
    compared: tuple[Compared, ...]
    explained: tuple[str, ...]
    probes: Probes

    def error_pct(self, name: str) -> float:
        """Error of one figure."""
        return next(one.error_pct for one in self.compared if one.name == name)


def compare(prediction: Prediction, run: BenchRun) -> tuple[Compared, ...]:
    """Every statistic both sides have, and the throughputs."""
    rows: list[Compared] = []
    bounds = {} if prediction.interval_80 is None else prediction.interval_80.bounds
    pairs: tuple[tuple[str, Distribution, Latency], ...] = (
        ("ttft_ms", prediction.ttft_ms, run.ttft),
        ("tpot_ms", prediction.tpot_ms, run.tpot),
        ("e2e_ms", prediction.e2e_ms, run.e2e),
    )
    for name, predicted, measured in pairs:
        for statistic in STATISTICS:
            ours, theirs = getattr(predicted, statistic), getattr(measured, statistic)
            if ours is not None and theirs:
                inside = _within(bounds.get(name), theirs) if statistic == "mean" else None
                rows.append(Compared(f"{name}.{statistic}", ours, theirs, inside))
    for name, value, measured_value in (
        ("output_tok_s", prediction.output_tok_s, run.output_tok_s),
        ("total_tok_s", prediction.total_tok_s, run.total_tok_s),
    ):
        if measured_value:
            rows.append(Compared(name, value, measured_value, _within(bounds.get(name), measured_value)))
    if not rows:
        raise BadInput(f"{run.origin}: holds no figure that a prediction has")
    return tuple(rows)


def _within(bounds: tuple[float, float] | None, measured: float) -> bool | None:
    """Whether a measured mean lies in its interval; None without one."""
    return None if bounds is None else bounds[0] <= measured <= bounds[1]


def explain_gap(prediction: Prediction, run: BenchRun, probes: Probes = Probes()) -> tuple[str, ...]:
    """Which mechanism the difference sits in, as far as the parts were measured."""
    return (*_tpot_parts(prediction, run, probes), *_ttft_parts(prediction, run, probes), *_running(prediction, run))


def _tpot_parts(prediction: Prediction, run: BenchRun, probes: Probes) -> list[str]:
    """TPOT = step + stalls; the median gap, or a wave at the running batch, is the step."""
    measured, predicted = run.tpot.mean, prediction.tpot_ms.mean
    tokens = prediction.extras.get("tokens_per_step", 1.0)
    step = prediction.extras.get("decode_step_ms")
    seen = probes.step_ms if probes.step_ms is not None else run.itl.p50 if tokens == 1.0 else None
    if not measured or step is None or abs(predicted / measured - 1.0) * 100.0 < NOISE_PCT:
        return []
    if not seen:
        return ["TPOT: the client saw no gap of single tokens, so step and stalls cannot be told apart"]
    step = step / tokens
    gap = predicted - measured
    by_step, by_stalls = step - seen, (predicted - step) - (measured - seen)
    found = []
    if abs(by_step) >= TELLING_SHARE * abs(gap):
        how = f"wave of {probes.step_batch}" if probes.step_ms is not None else "median gap"
        found.append(
            f"decode step: {step:.3g} ms predicted, {seen:.3g} measured ({how}): {_share(by_step, gap)} of TPOT"
        )
    if abs(by_stalls) >= TELLING_SHARE * abs(gap):
        found.append(
            f"prefill stalls: {predicted - step:.3g} ms a token predicted, {measured - seen:.3g} measured: "
            f"{_share(by_stalls, gap)} of TPOT"
        )
    return found


def _ttft_parts(prediction: Prediction, run: BenchRun, probes: Probes) -> list[str]:
    """TTFT = the prompt's own prefill + waiting (burst, queue, steps in flight)."""
    measured, predicted = run.ttft.mean, prediction.ttft_ms.mean
    if not measured or abs(predicted / measured - 1.0) * 100.0 < NOISE_PCT:
        return []
    alone = sum(prediction.prefill_step_ms.values()) + prediction.extras.get("host_ms", 0.0)
    if probes.prompt_alone_ms is None or alone <= 0.0:
        return [f"TTFT: {predicted:.4g} ms predicted, {measured:.4g} measured; no prompt was timed alone to tell why"]
    gap = predicted - measured
    by_prefill = alone - probes.prompt_alone_ms
    by_waiting = (predicted - alone) - (measured - probes.prompt_alone_ms)
    found = []
    if abs(by_prefill) >= TELLING_SHARE * abs(gap):
        found.append(
            f"prefill: one prompt alone takes {alone:.4g} ms predicted, {probes.prompt_alone_ms:.4g} measured: "
            f"{_share(by_prefill, gap)} of TTFT"
        )
    if abs(by_waiting) >= TELLING_SHARE * abs(gap):
        found.append(
            f"waiting: {predicted - alone:.4g} ms predicted, {measured - probes.prompt_alone_ms:.4g} measured "
            f"(start-up burst, queue, steps in flight): {_share(by_waiting, gap)} of TTFT"
        )
    return found


def _running(prediction: Prediction, run: BenchRun) -> list[str]:
    """Requests in decode by Little's law: fewer than predicted means a smaller KV pool or running cap than assumed."""
    rate, tpot, tokens = run.requests_per_s, run.tpot.mean, run.mean_output_tokens
    if not rate or not tpot or not tokens:
        return []
    seen = rate * tpot * (tokens - 1.0) / 1e3
    if prediction.running <= 2.0 or 0.8 < seen / prediction.running < 1.25:
        return []
    cause = "a smaller KV pool or running cap than assumed" if seen < prediction.running else "more room than assumed"
    return [f"running requests: {prediction.running:.0f} predicted, {seen:.0f} measured: {cause}"]


def _share(part: float, gap: float) -> str:
    return f"{part / gap * 100.0:.0f}% of the gap" if gap else "all of the gap"


def probe(endpoint: Endpoint, workload: Workload, card: ModelCard, batch: int, seed: int) -> Probes:
    """Time one prompt alone, and a short wave at the batch the prediction runs."""
    prompts = PromptSource(seed + 104729, card.vocab, endpoint.token_ids)
    middle = (1.0 + workload.length_range_frac) / 2.0
    prompt = max(1, round(workload.isl_tokens * middle))
    alone = sorted(run_wave(endpoint, prompts, 1, prompt, 2).completions[0].ttft_ms for _ in range(ALONE_REPEATS + 1))
    reading = read_wave(run_wave(endpoint, prompts, batch, prompt, max(32, min(workload.osl_tokens, 48 + 2 * batch))))
    return Probes(alone[len(alone) // 2], reading.span_ms if reading else None, batch)


def verify(
    prediction: Prediction,
    deployment: Deployment,
    workload: Workload,
    card: ModelCard,
    url: str,
    *,
    client: str = "built-in",
    tokenizer: str | None = None,
    with_probes: bool = True,
    seed: int = 0,
    timeout_s: float = 600.0,
    token_ids: bool = True,
    say: Say = lambda text: None,
) -> Verification:
    """Benchmark the endpoint and compare. The engine is left as it was found."""
    if client not in CHOICES:
        raise BadInput(f"client {client!r}: must be one of {', '.join(CHOICES)}")
    facts = read_endpoint(url)
    check_model(facts.model, card, model_card)
    endpoint = endpoint_of(url, facts, deployment.engine, timeout_s, token_ids)
    found = Probes()
    if with_probes:
        batch = max(1, round(prediction.running / deployment.replicas))
        found = probe(endpoint, workload, card, batch, seed)
        say(f"one prompt alone {found.prompt_alone_ms:.4g} ms")
    if client == "built-in":
        run = run_benchmark(endpoint, workload, card.vocab, seed=seed, say=say)
    else:
        run = run_client(client, endpoint, workload, tokenizer or facts.model)
    return held_against(prediction, run, found)


def held_against(prediction: Prediction, run: BenchRun, probes: Probes = Probes()) -> Verification:
    """Compare a run that was measured elsewhere."""
    check_run(run)
    return Verification(run, compare(prediction, run), explain_gap(prediction, run, probes), probes)


def deployment_facts(deployment: Deployment, engine_version: str | None) -> dict[str, Fact]:
    """What a re-anchoring has to be told, from the deployment that was verified."""
    precision, layout = deployment.precision, deployment.layout
    facts: dict[str, Fact] = {
        "model": deployment.model,
        "gpu": deployment.gpu,
        "engine": deployment.engine,
        "engine_version": engine_version or deployment.engine_version,
        "tp": layout.tp,
        "ep": layout.ep,
        "attn_dp": layout.attn_dp,
        "dcp": layout.dcp,
        "pp": layout.pp,
        "replicas": deployment.replicas,
        "weight_dtype": str(precision.weight),
        "linear_dtype": str(precision.linear),
        "expert_dtype": str(precision.expert),
        "kv_dtype": str(precision.kv),
        "graph_mode": deployment.kernels.graph_mode,
        "spec_method": deployment.speculation.method,
        "spec_depth": deployment.speculation.depth,
        "prefix_cache": "cold",
    }
    limits = {"max_running": deployment.scheduler.max_running, "token_budget": deployment.scheduler.token_budget}
    return facts | {name: value for name, value in limits.items() if value is not None}


def reanchor(
    runs: Sequence[BenchRun],
    deployment: Deployment,
    workload: Workload,
    find: Lookups,
    *,
    real_weights: bool,
    engine_version: str | None = None,
    base: Base | None = None,
    name: str | None = None,
) -> Imported:
    """An anchor of what was measured: one load scales ``base`` (or kernel models), several are solved for steps."""
    facts = deployment_facts(deployment, engine_version) | {
        "real_weights": real_weights,
        "length_range": workload.length_range_frac,
    }
    # What the server calls its model was held against the deployment before.
    written = {run.recorded.get("model_name") for run in runs} - {None}
    accepted = str(written.pop()) if len(written) == 1 else None
    return import_runs(runs, facts, find, accepted_name=accepted, name=name, base=base)


def anchored_base(
    prediction: Prediction, deployment: Deployment, workload: Workload, catalogue: Catalogue
) -> Base | None:
    """The anchored step model behind a prediction, to be scaled; None where kernel models priced it."""
    used = next((one for one in catalogue.anchors if one.name == prediction.anchor), None)
    if used is None:
        return None
    card, hardware, profile = catalogue.card, catalogue.platform, catalogue.profile
    settings = effective_settings(profile, deployment.engine_version, hardware, card, deployment)
    step = anchored_step(used, deployment, workload, card, hardware, profile, settings)
    return Base(step.model, step.host_ms, f"anchor {used.name}", measured=True)


def facts_json(verification: Verification) -> dict[str, Any]:
    """What the ledger's note and ``verify --json`` hold."""
    run = verification.run
    return {
        "client": run.tool,
        "requests": run.requests,
        "failed": run.failed,
        "duration_s": run.duration_s,
        "compared": {
            one.name: {
                "predicted": one.predicted,
                "measured": one.measured,
                "error_pct": one.error_pct,
                **({} if one.inside is None else {"inside_80": one.inside}),
            }
            for one in verification.compared
        },
        "explained": list(verification.explained),
        "prompt_alone_ms": verification.probes.prompt_alone_ms,
        "step_ms": verification.probes.step_ms,
    }
