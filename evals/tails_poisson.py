"""Llama-3.1-405B FP8 under Poisson load on 8 H100 and 8 MI300X, from steps of the offline batch table.

The served runs have no lighter load than the scored one, so steps come from the same benchmark's offline batches: short
prompts tell the decode step, longer prompts what a prompt token adds. Each request's
lengths are recorded, its send time is the harness's seeded draw.

vLLM 0.6 on H100 chunks prompts by default for models of more than 32k positions, 512 tokens a step of at most 256
sequences. Its GEMMs are bound by the tokens of a step, whoever they belong to: a full step costs what 512 prompt tokens
cost, so beyond the largest batch measured a token of either kind costs the rest of that. MI300X ran multi-step
scheduling, which chunks nothing and puts prompts first; its cap is not recorded, and 1024 is what public recipes for
this model and GPU set. Only 32k prompts were measured beside the short ones there, so the cost of a short prompt's
token is an upper bound, and TTFT with it: 16 requests a second bring a token every 0.29 ms.

37.9% of the requests came back without a token (``ttft_ms`` 0). They count in the source's percentiles and not here;
simulated, they cost their prompt and one token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from evals.request_runs import (
    LLAMA_OFFLINE,
    METRICS,
    STATISTICS,
    OpenRun,
    Summary,
    llama_run,
    poisson_arrivals_ms,
    rows,
)
from evals.tails_closed import TailRow
from predictor.des.clients import OpenArrivals
from predictor.des.fleet import ReplicaSpec, simulate_fleet
from predictor.des.metrics import Samples
from predictor.des.request import Request
from predictor.des.rules import SchedulerRules
from predictor.step.anchored import AnchoredStepModel
from predictor.step.curve import DecodeCurve
from predictor.step.model import PrefillCurve

SHORT_TOKENS, ANSWER_TOKENS = 128, 2048  # prompt and answer of the offline table's decode rows
LIGHT = 8  # sequences up to which longer prompts change the decode step least
CHUNKED = SchedulerRules("vLLM", 256, 512, 16, version="0.6")
# source: vLLM 0.6 engine arguments: 512 tokens a step and 256 sequences with chunked prefill, on above 32k positions
PROMPTS_FIRST = SchedulerRules("vLLM", 1024, 131072, 16, version="0.6", mixed_steps=False, chunked_prefill=False)
# source: multi-step scheduling excludes chunked prefill; --max-num-seqs=1024 of substratus.ai's MI300X recipe for 405B
UNBOUND_BLOCKS = 1 << 20  # 8 GPUs hold the KV of all 1000 requests at a mean of 336 tokens


@dataclass(frozen=True, slots=True)
class Setup:
    """One served run: its offline table, the longer prompt measured there, and the scheduler."""

    gpu: str
    table: str
    long_tokens: int
    one_wave: int  # sequences; of a larger offline batch the KV pool holds a part at a time
    rules: SchedulerRules


# One wave: 8 × 80 GB hold 320 000 tokens of KV beside 405 GB of weights, so 128 but not 256 sequences of 2176 tokens;
# 8 × 192 GB hold all 256.
SETUPS = (
    Setup("h100", "8xH100 1FP8-meta", 2048, 128, CHUNKED),
    Setup("mi300x", "8xMi300x 1FP8-meta", 32784, 256, PROMPTS_FIRST),
)


def offline_s(data: Path, table: str, prompt_tokens: int) -> dict[int, float]:
    """Seconds of a whole batch, by sequences."""
    return {
        int(row["batch_size"]): float(row["e2e_latency_s"])
        for row in rows(data / LLAMA_OFFLINE)
        if row["setup"] == table and int(row["input_len"]) == prompt_tokens
    }


def prompt_token_ms(short: Mapping[int, float], long: Mapping[int, float], added_tokens: int) -> float:
    """What one more prompt token adds to a batch, median over light batches; no more than a decode row adds.

    Very long prompts charge a token the attention over thousands before it. A row of a large GEMM costs the same
    whoever it belongs to, so what a decode row adds between the two largest batches bounds a short prompt's token.
    """
    shared = [batch for batch in short if batch in long and batch <= LIGHT]
    added = median((long[batch] - short[batch]) * 1e3 / (batch * added_tokens) for batch in shared)
    *_, low, high = sorted(short)
    row = (short[high] - short[low]) * 1e3 / (ANSWER_TOKENS * (high - low))
    return min(added, row)


def offline_steps(short: Mapping[int, float], per_token_ms: float) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Batches and decode steps: what remains of a batch without its prompts, over the steps."""
    batches = tuple(sorted(short))
    prompts = {batch: batch * SHORT_TOKENS * per_token_ms for batch in batches}
    return batches, tuple((short[batch] * 1e3 - prompts[batch]) / (ANSWER_TOKENS - 1) for batch in batches)


def step_model(data: Path, setup: Setup) -> AnchoredStepModel:
    """Steps and prompt costs of a set-up."""
    short, long = (offline_s(data, setup.table, tokens) for tokens in (SHORT_TOKENS, setup.long_tokens))
    short = {batch: seconds for batch, seconds in short.items() if batch <= setup.one_wave}
    per_token = prompt_token_ms(short, long, setup.long_tokens - SHORT_TOKENS)
    batches, steps = offline_steps(short, per_token)
    context = SHORT_TOKENS + ANSWER_TOKENS / 2.0
    if not setup.rules.mixed_steps:
        tail = (steps[-1] - steps[-2]) / (batches[-1] - batches[-2])
        return AnchoredStepModel(
            DecodeCurve(batches, steps, context, tail), 0.0, PrefillCurve(0.0, per_token, 0.0, 0.0)
        )
    budget = setup.rules.token_budget
    full_ms = per_token * budget
    marginal = (full_ms - steps[-1]) / (budget - batches[-1])
    prefill = PrefillCurve(full_ms - marginal * budget, marginal, 0.0, 0.0)
    return AnchoredStepModel(DecodeCurve(batches, steps, context, marginal), 0.0, prefill)


def measured(run: OpenRun) -> Summary:
    """Client statistics over the requests that got a token."""
    answered = [request for request in run.requests if request.output_tokens > 0]
    spans = [sum(request.gaps_ms) for request in answered]
    return _summary(
        [request.ttft_ms for request in answered],
        [gap for request in answered for gap in request.gaps_ms],
        [span / len(r.gaps_ms) for r, span in zip(answered, spans, strict=True) if r.gaps_ms],
        [request.ttft_ms + span for request, span in zip(answered, spans, strict=True)],
    )


def simulated(model: AnchoredStepModel, rules: SchedulerRules, run: OpenRun) -> Summary:
    """The same run through the simulator; statistics over the same requests."""
    arrivals = poisson_arrivals_ms(run.rate_per_s, len(run.requests))
    gaps = [0.0, *np.diff(arrivals).tolist()]
    sent = [Request(i, r.prompt_tokens, max(1, r.output_tokens)) for i, r in enumerate(run.requests)]
    result = simulate_fleet(
        ReplicaSpec(model, rules, UNBOUND_BLOCKS), source=lambda clock: OpenArrivals(sent, iter(gaps), clock)
    )
    columns = result.requests
    answered = np.array([r.output_tokens > 0 for r in run.requests])[columns["id"].astype(int)]
    tpot = columns["tpot_ms"][answered]
    summary = _summary(
        columns["ttft_ms"][answered].tolist(),
        [0.0],
        tpot[~np.isnan(tpot)].tolist(),
        columns["e2e_ms"][answered].tolist(),
    )
    gaps_ms = {f"itl_{name}": float(getattr(result.itl_ms, name)) for name in STATISTICS}
    return {**summary, **gaps_ms}


def _summary(ttft: Sequence[float], itl: Sequence[float], tpot: Sequence[float], e2e: Sequence[float]) -> Summary:
    samples = dict(zip(METRICS, (Samples.of(each) for each in (ttft, itl, tpot, e2e)), strict=True))
    return {f"{metric}_{name}": float(getattr(each, name)) for metric, each in samples.items() for name in STATISTICS}


def poisson_rows(data: Path) -> list[TailRow]:
    """Both runs, simulated."""
    result = []
    for setup in SETUPS:
        run = llama_run(data, setup.gpu)
        predicted = simulated(step_model(data, setup), setup.rules, run)
        name = f"{setup.gpu.upper()} Llama-3.1-405B FP8 vLLM 0.6, {run.rate_per_s:g} requests a second"
        result.append(TailRow(name, len(run.requests), measured(run), predicted))
    return result
