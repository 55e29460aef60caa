"""Closed loops of real engines, request by request: steps from the light loads, tails of all others.

Anchors by rule: of each drafting depth the sweep (one run a load) up to a quarter of its heaviest load, so that every
target lies within 4 times an anchor's load (paper §5.1). Their mean TPOT and TTFT are solved for step times through the
schedule (paper G.1); host time of a prompt token is the engine profile's. Targets are all other set-ups.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import log
from pathlib import Path
from statistics import NormalDist

import numpy as np

from evals.request_runs import (
    METRICS,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    RANGE_FRAC,
    STATISTICS,
    ClosedRun,
    Summary,
    closed_runs,
    harness_lengths,
    kv_pool_tokens,
    median_of_repeats,
    spread_pct,
)
from predictor.anchors.schedule import ClosedLoopRun
from predictor.anchors.solve import ServedPoint, solve_ladders
from predictor.des.clients import ClosedLoop
from predictor.des.fleet import ReplicaSpec, simulate_fleet
from predictor.des.metrics import HostTimes, Samples, SimulationResult
from predictor.des.request import Request
from predictor.des.schedulers import scheduler_rules
from predictor.des.schedulers.base import Replica
from predictor.profiles.loader import engine_profile
from predictor.step.anchored import AnchoredStepModel
from predictor.step.curve import DecodeCurve
from predictor.types import SchedulerSettings

COVERED_LOAD = 4  # an anchor covers targets within 4 times its load (paper §5.1)
SHAPE = (PROMPT_TOKENS, OUTPUT_TOKENS)
ENGINE = "vLLM"
P99 = NormalDist().inv_cdf(0.99)


@dataclass(frozen=True, slots=True)
class Solved:
    """What the light loads told: steps, pool, host time, and how acceptance differs between requests."""

    model: AnchoredStepModel
    draft_depth: int
    kv_tokens: int
    host: HostTimes
    acceptance_sigma: float = 0.0  # standard deviation of log(tokens a step) over requests


@dataclass(frozen=True, slots=True)
class TailRow:
    """One target: statistics measured (median over repeats) and simulated, ms."""

    name: str
    requests: int
    measured: Summary
    predicted: Summary
    repeats: int = 1
    spread_pct: Mapping[str, float] | None = None  # half-range over repeats


def is_sweep(run: ClosedRun) -> bool:
    """One run a load: the ladder anchors are taken from."""
    return "/sweep_c" in run.name


def anchor_runs(runs: Sequence[ClosedRun], draft_depth: int) -> list[ClosedRun]:
    """The sweep of one depth up to a quarter of its heaviest load."""
    sweep = [run for run in runs if run.draft_depth == draft_depth and is_sweep(run)]
    heaviest = max(run.clients for run in sweep)
    return [run for run in sweep if run.clients * COVERED_LOAD <= heaviest]


def tokens_per_step(anchors: Sequence[ClosedRun]) -> float:
    """Tokens a verify step commits: gaps are steps and TPOT is a token's part, pooled over requests."""
    if anchors[0].draft_depth == 0:
        return 1.0
    parts = [(run.measured["tpot_mean"] / run.measured["itl_mean"], run.requests) for run in anchors]
    return sum(weight for _, weight in parts) / sum(part * weight for part, weight in parts)


def solve(data: Path, runs: Sequence[ClosedRun], draft_depth: int) -> Solved:
    """Steps, pool and acceptance of one depth from its anchor runs."""
    anchors = anchor_runs(runs, draft_depth)
    profile = engine_profile(ENGINE)
    per_step = tokens_per_step(anchors)
    host = HostTimes(0.0, profile.host_us_per_prompt_token)
    host_ms = mean_host_ms(host)
    points = [
        ServedPoint(
            ClosedLoopRun(run.clients, *SHAPE, length_range_frac=RANGE_FRAC),
            run.measured["itl_mean"] / per_step,
            run.measured["ttft_mean"] - host_ms,
        )
        for run in anchors
    ]
    solved = solve_ladders({SHAPE: points}, lambda short, long, batch: 0.0)
    curve = solved.curves[SHAPE]
    steps = [step * per_step for step in curve.step_ms]
    tail = (steps[-1] - steps[-2]) / (curve.batches[-1] - curve.batches[-2])
    model = AnchoredStepModel(
        DecodeCurve(curve.batches, tuple(steps), curve.context_tokens, tail),
        0.0,
        solved.prefill,
        tokens_per_step=per_step,
    )
    heaviest = max(run.clients for run in anchors)
    pool = kv_pool_tokens(data, draft_depth, heaviest)
    found = Solved(model, draft_depth, pool, replace(host, ms_per_request=solved.host_ms))
    return replace(found, acceptance_sigma=acceptance_sigma(found, anchors)) if draft_depth else found


def mean_host_ms(host: HostTimes) -> float:
    """Host time of a mean prompt: the client's next request reaches the scheduler that much after the last ended."""
    return host.ms_per_request + host.us_per_prompt_token / 1000.0 * PROMPT_TOKENS * (1.0 + RANGE_FRAC) / 2.0


def acceptance_sigma(solved: Solved, anchors: Sequence[ClosedRun]) -> float:
    """How much tokens a step differ between requests, from the anchors' own tails of TPOT.

    What scheduling alone makes of the tail is simulated and taken out: ``σ² = (ln(p99/p50)/z99)² − (the simulated)²``,
    weighted with the number of requests; runs of fewer than 100 have no 99th percentile.
    """
    total, weight = 0.0, 0
    for run in anchors:
        if run.requests < 100:
            continue
        alone = simulated(solved, run.clients, run.requests)
        seen, plain = (log(each["tpot_p99"] / each["tpot_p50"]) / P99 for each in (run.measured, alone))
        total += max(0.0, seen * seen - plain * plain) * run.requests
        weight += run.requests
    return (total / weight) ** 0.5 if weight else 0.0


def simulated(solved: Solved, clients: int, requests: int) -> Summary:
    """What the client of one closed-loop run would report.

    Acceptance differs between requests: one that gets ``L·e^x`` tokens a step runs ``e^-x`` as many steps, which is
    simulated as an answer of that many times its tokens; its TPOT is over its true tokens.
    """
    prompts, outputs = harness_lengths(requests)
    slowness = request_slowness(solved, requests)
    sent = [
        Request(i, prompt, max(1, round(1 + (output - 1) * slow)))
        for i, (prompt, output, slow) in enumerate(zip(prompts, outputs, slowness, strict=True))
    ]
    rules = scheduler_rules(ENGINE, "", SchedulerSettings(), Replica(draft_tokens=solved.draft_depth))
    result = simulate_fleet(
        ReplicaSpec(solved.model, rules, solved.kv_tokens // rules.block_tokens),
        source=lambda clock: ClosedLoop(sent, clients, clock.ticks(mean_host_ms(solved.host))),
        host=solved.host,
    )
    return summarise(result, np.array(outputs, dtype=float))


def request_slowness(solved: Solved, requests: int) -> list[float]:
    """Steps a token of each request over their mean: lognormal of mean 1, between all and no drafts accepted."""
    sigma = solved.acceptance_sigma
    if sigma == 0.0:
        return [1.0] * requests
    drawn = np.random.default_rng(0).standard_normal(requests)
    per_step = solved.model.tokens_per_step
    slow = np.clip(np.exp(sigma * drawn - sigma * sigma / 2.0), per_step / (1 + solved.draft_depth), per_step)
    return [float(each) for each in slow / slow.mean()]


def summarise(result: SimulationResult, outputs: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> Summary:
    """Statistics of a simulation with the requests' true answer lengths, by request number."""
    columns = result.requests
    true = outputs[columns["id"].astype(int)]
    spans = columns["e2e_ms"] - columns["ttft_ms"]
    several = true > 1
    samples = {
        "ttft": result.ttft_ms,
        "itl": result.itl_ms,
        "tpot": Samples.of(spans[several] / (true[several] - 1.0)),
        "e2e": result.e2e_ms,
    }
    return {
        f"{metric}_{statistic}": float(getattr(samples[metric], statistic))
        for metric in METRICS
        for statistic in STATISTICS
    }


def target_groups(runs: Sequence[ClosedRun]) -> list[list[ClosedRun]]:
    """Repeats of each set-up that is no anchor's, repeats together."""
    anchors = {run.setup for depth in {r.draft_depth for r in runs} for run in anchor_runs(runs, depth)}
    rest = sorted((run for run in runs if run.setup not in anchors), key=lambda run: run.setup)
    return [list(group) for _, group in groupby(rest, key=lambda run: run.setup)]


def anchor_repeats(runs: Sequence[ClosedRun]) -> list[list[ClosedRun]]:
    """Repeats of the anchors' own set-ups: no targets, but they show the noise."""
    anchors = {run.setup for depth in {r.draft_depth for r in runs} for run in anchor_runs(runs, depth)}
    same = sorted((run for run in runs if run.setup in anchors), key=lambda run: run.setup)
    groups = [list(group) for _, group in groupby(same, key=lambda run: run.setup)]
    return [group for group in groups if len(group) > 1]


def closed_rows(data: Path) -> list[TailRow]:
    """All closed-loop targets, simulated."""
    runs = closed_runs(data)
    solved = {depth: solve(data, runs, depth) for depth in sorted({run.draft_depth for run in runs})}
    result = []
    for repeats in target_groups(runs):
        depth, clients, requests = repeats[0].setup
        kind = f"EAGLE-3 depth {depth}" if depth else "plain"
        measured = median_of_repeats(repeats)
        spread = {key: value for key in measured if (value := spread_pct(repeats, key)) is not None}
        result.append(
            TailRow(
                f"H200 gpt-oss-120b vLLM {kind}, {clients} clients, {requests} requests",
                requests,
                measured,
                simulated(solved[depth], clients, requests),
                len(repeats),
                spread or None,
            )
        )
    return result
