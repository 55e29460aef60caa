"""One request's time by term, additive: what a user waits for, and what a GPU is busy with.

TPOT is the bare decode step by term over the tokens a step commits, plus what prompts of others add to it; TTFT is host
time, the request's own prefill, a hand-off, and waiting. GPU time an output token, ``1000 / output tokens a second and
GPU``, is shared out over what a request does in service: waiting costs users, not GPUs. Of a split deployment the
prefill pool's share of the GPUs goes to prefill, and the rest to the terms of a decode step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from agent.explain.mechanisms import mechanisms
from agent.explain.sides import Side
from predictor import analytic
from predictor.disagg import handoff_backend, handoff_ms
from predictor.engines import effective_settings
from predictor.memory import memory
from predictor.predict import predict
from predictor.types import Arrival, Prediction, Workload

METRICS = {
    "ttft_ms": "ms to the first token",
    "tpot_ms": "ms a token after the first",
    "e2e_ms": "ms from request to last token",
    "gpu_ms_per_output_token": "GPU-ms an output token",
}


@dataclass(frozen=True, slots=True)
class Terms:
    """One side: its prediction and, by metric, its terms in the file's order."""

    prediction: Prediction
    by_metric: Mapping[str, Mapping[str, float]]
    total: Mapping[str, float]


def terms(side: Side) -> Terms:
    """Decompose one side. Each metric's terms add up to the predicted figure."""
    prediction = predict(side.deployment, side.workload, side.catalogue)
    uncached = prediction
    if side.workload.prefix_hit_frac:
        uncached = predict(side.deployment, replace(side.workload, prefix_hit_frac=0.0), side.catalogue)
    osl = analytic.mean_length(side.workload.osl_tokens, side.workload.length_range_frac)
    ttft = first_token_terms(side, uncached)
    tpot = token_terms(side, uncached)
    e2e = {name: ttft.get(name, 0.0) + tpot.get(name, 0.0) * (osl - 1.0) for name in mechanisms().terms}
    e2e["queueing"] += uncached.e2e_ms.mean - sum(e2e.values())  # drawn lengths: a mean of products is no product
    gpu = gpu_terms(side, uncached, e2e, tpot)
    by_metric = {"ttft_ms": ttft, "tpot_ms": tpot, "e2e_ms": e2e, "gpu_ms_per_output_token": gpu}
    total = totals(prediction)
    for metric, found in by_metric.items():
        found["cache"] = total[metric] - totals(uncached)[metric]
    return Terms(prediction, by_metric, total)


def gpu_terms(
    side: Side, prediction: Prediction, e2e: Mapping[str, float], tpot: Mapping[str, float]
) -> dict[str, float]:
    """GPU time an output token by term."""
    whole = 1000.0 / prediction.output_tok_s_per_gpu
    pool = side.deployment.prefill
    if pool is None:
        return shared_out(whole, {name: value for name, value in e2e.items() if name != "queueing"})
    prefill = whole * pool.layout.gpus * pool.replicas / side.deployment.gpus
    return {**shared_out(whole - prefill, tpot), "prefill": prefill}


def shared_out(whole: float, parts: Mapping[str, float]) -> dict[str, float]:
    """``whole`` divided as the parts are.

    >>> shared_out(10.0, {"weights": 1.0, "experts": 3.0})
    {'weights': 2.5, 'experts': 7.5}
    """
    scale = whole / sum(parts.values())
    return {name: value * scale for name, value in parts.items()}


def totals(prediction: Prediction) -> dict[str, float]:
    """The figures that the terms add up to."""
    return {
        "ttft_ms": prediction.ttft_ms.mean,
        "tpot_ms": prediction.tpot_ms.mean,
        "e2e_ms": prediction.e2e_ms.mean,
        "gpu_ms_per_output_token": 1000.0 / prediction.output_tok_s_per_gpu,
    }


def token_terms(side: Side, prediction: Prediction) -> dict[str, float]:
    """TPOT by term: the bare step at the served batch, and what prompts of others add."""
    committed = prediction.extras["tokens_per_step"]
    bare_ms = prediction.extras["decode_step_ms"] / committed
    parts = step_terms(side, prediction)
    scale = bare_ms / sum(parts.values())
    return {
        **{name: value * scale for name, value in parts.items()},
        "stalls": prediction.tpot_ms.mean - bare_ms,
    }


def step_terms(side: Side, prediction: Prediction) -> dict[str, float]:
    """A decode step by term, of the batch that runs: where requests queue that is fewer than the clients."""
    step = prediction.step_ms
    queued = any(flag.code == "queued" for flag in prediction.flags)
    if queued or side.workload.arrival is not Arrival.CLOSED:
        step = predict(side.deployment, _running(side.workload, prediction), side.catalogue, method="analytic").step_ms
    found = dict.fromkeys(mechanisms().terms, 0.0)
    for member, value in step.items():
        found[mechanisms().term_of(member)] += value
    return {name: value for name, value in found.items() if value}


def _running(workload: Workload, prediction: Prediction) -> Workload:
    clients = max(1, round(prediction.running))
    return replace(workload, concurrency=clients, arrival=Arrival.CLOSED, request_rate_per_s=None)


def first_token_terms(side: Side, prediction: Prediction) -> dict[str, float]:
    """TTFT by term; what no other term explains is waiting."""
    left = prediction.ttft_ms.mean
    found: dict[str, float] = {}
    own = (
        ("host", prediction.extras["host_ms"]),
        ("prefill", sum(prediction.prefill_step_ms.values())),
        ("handoff", handed_over_ms(side)),
    )
    for name, value in own:
        found[name] = min(value, left)
        left -= found[name]
    found["queueing"] = left
    return {name: value for name, value in found.items() if value}


def handed_over_ms(side: Side) -> float:
    """Exposed KV hand-off of one prompt; 0 for a colocated deployment."""
    deployment, catalogue = side.deployment, side.catalogue
    if deployment.prefill is None:
        return 0.0
    card, hardware = catalogue.card, catalogue.platform
    settings = effective_settings(catalogue.profile, deployment.engine_version, hardware, card, deployment, "prefill")
    held = memory(card, hardware, deployment, settings, pool="prefill")
    backend = handoff_backend(hardware, deployment.prefill.handoff)
    return handoff_ms(backend, held.kv_bytes_per_token * side.workload.isl_tokens, card.layers)
