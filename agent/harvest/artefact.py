"""From measurements to verdicts and the artefact."""

import platform as host
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from agent.harvest import checks
from agent.harvest.facts import EngineFacts
from agent.harvest.idle import Idle
from agent.harvest.request import Prepared
from agent.harvest.sweeps import CacheProbe, DecodeMeasurement, PackedMeasurement, PrefillMeasurement
from predictor.anchors.fit import PrefillFit
from predictor.anchors.naming import anchor_name
from predictor.anchors.schema import SCHEMA_VERSION, Anchor, Check, Signature, checked
from predictor.types import Deployment


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything the sweeps gave."""

    decode: tuple[DecodeMeasurement, ...]
    prefill: tuple[PrefillMeasurement, ...]
    packed: PackedMeasurement | None
    cache: CacheProbe
    fit: PrefillFit


def verdicts(prepared: Prepared, facts: EngineFacts, measured: Measured, idle: Idle) -> tuple[Check, ...]:
    """Every check of a harvest, in a fixed order."""
    request = prepared.request
    dummy = request.dummy_weights or bool(facts.dummy_weights)
    lengths = {one.tokens: one.counted_tokens for one in measured.prefill} if request.token_ids else {}
    off = max(lengths.items(), key=lambda pair: abs(pair[1] - pair[0]), default=None)
    apart = [(one.batch, one.disagreement_pct) for one in measured.decode]
    found = [
        Check(name="idle", passed=idle.idle, detail=idle.detail),
        checks.prefix_cache_off(facts.prefix_cache_on),
        checks.prompts_not_cached(
            measured.prefill[-1].ttft_ms, measured.cache.repeated_ms, measured.prefill[0].ttft_ms, measured.cache.hits
        ),
        checks.real_weights(dummy),
        checks.as_asked(effective_limits(prepared, facts)),
        *([checks.prompt_length(*off)] if off else []),
        checks.tokens_counted(
            max(one.tokens_per_chunk for one in measured.decode), all(one.ids_counted for one in measured.decode)
        ),
        checks.readings_agree(apart),
        checks.every_reading_agrees(apart),
        checks.repeats_agree([(one.batch, one.spread_pct) for one in measured.decode]),
    ]
    for prompt in sorted({one.prompt_tokens for one in measured.decode}):
        points = [(one.batch, one.step_ms) for one in measured.decode if one.prompt_tokens == prompt]
        found.append(checks.monotone(f"decode_{prompt}", points))
    found.append(checks.monotone("prefill", [(one.tokens, one.ttft_ms) for one in measured.prefill]))
    found.append(checks.fit_quality(measured.fit, [one.ttft_ms for one in measured.prefill]))
    if measured.packed is not None:
        tokens = measured.packed.sequences * measured.packed.tokens_each
        fit = measured.fit
        single = fit.fixed_ms + fit.per_token_ms * tokens + fit.per_token2_ms * tokens**2
        budget = facts.token_budget or prepared.settings.chunk_size
        found.append(
            checks.packing(
                measured.packed.sequences, measured.packed.tokens_each, measured.packed.step_ms, budget, single
            )
        )
    return tuple(found)


def effective_limits(prepared: Prepared, facts: EngineFacts) -> list[tuple[str, object, object]]:
    """What was asked for, beside what the engine says it runs with; only what both tell."""
    wanted, ranks = prepared.request.deployment.scheduler, prepared.request.deployment.layout.attn_dp
    rows: list[tuple[str, object, object]] = [
        ("max_running", wanted.max_running, facts.max_running),
        ("token_budget", wanted.token_budget, facts.token_budget),
    ]
    if ranks > 1:  # engines print a rank's or the replica's, by release
        rows = []
    if facts.capture_sizes is not None and prepared.settings.capture_sizes:
        rows.append(("graph sizes", prepared.settings.capture_sizes, facts.capture_sizes))
    return [row for row in rows if row[1] is not None and row[2] is not None]


def captured(prepared: Prepared, facts: EngineFacts) -> tuple[int, ...]:
    """Graph sizes: as printed, else by the engine's rules."""
    return prepared.settings.capture_sizes if facts.capture_sizes is None else facts.capture_sizes


def signature_of(wanted: Deployment, capture_sizes: tuple[int, ...]) -> Signature:
    """Every anchor-defining field of a deployment."""
    precision, kernels = wanted.precision, wanted.kernels
    return checked(
        Signature,
        {
            "gpu": wanted.gpu,
            "engine": wanted.engine,
            "engine_version": wanted.engine_version,
            "model": wanted.model,
            "weight_dtype": precision.weight,
            "linear_dtype": precision.linear,
            "expert_dtype": precision.expert,
            "kv_dtype": precision.kv,
            "attention_backend": kernels.attention,
            "sparse_topk": kernels.sparse_topk,
            "moe_backend": kernels.moe,
            "a2a_backend": kernels.a2a,
            "graph_mode": kernels.graph_mode,
            "capture_sizes": capture_sizes,
            "fusions": kernels.fusions,
            "spec_method": wanted.speculation.method,
            "spec_depth": wanted.speculation.depth,
            "tp": wanted.layout.tp,
            "ep": wanted.layout.ep,
            "attn_dp": wanted.layout.attn_dp,
            "dcp": wanted.layout.dcp,
        },
    )


def artefact(
    prepared: Prepared, facts: EngineFacts, measured: Measured, given: Sequence[Check], skipped: Sequence[str]
) -> Anchor:
    """The anchor, with its checks in its provenance."""
    request, fit = prepared.request, measured.fit
    wanted = replace(request.deployment, engine_version=facts.version or request.deployment.engine_version)
    speculates = wanted.speculation.active
    accepted = max(one.tokens_per_chunk for one in measured.decode) if speculates else 1.0
    notes = list(skipped)
    if facts.version and facts.version != request.deployment.engine_version:
        notes.append(f"the engine says it is {facts.version}; {request.deployment.engine_version} was asked for")
    if speculates:
        notes.append(f"{accepted:.2f} tokens a step on random prompts: real text is accepted otherwise")
    probe = measured.packed
    return checked(
        Anchor,
        {
            "schema_version": SCHEMA_VERSION,
            "name": request.name or anchor_name(wanted),
            "signature": signature_of(wanted, captured(prepared, facts)),
            "decode": [
                _sweep([one for one in measured.decode if one.prompt_tokens == prompt], accepted)
                for prompt in sorted({one.prompt_tokens for one in measured.decode})
            ],
            "prefill": {
                "points": [
                    {"tokens": one.counted_tokens or one.tokens, "step_ms": _digits(one.ttft_ms)}
                    for one in measured.prefill
                ],
                "fixed_ms": _digits(fit.fixed_ms),
                "per_token_ms": _digits(fit.per_token_ms),
                "per_token2_ms": _digits(fit.per_token2_ms),
                "rms_residual_ms": _digits(fit.rms_residual_ms),
            },
            "packed_probe": None
            if probe is None
            else {
                "sequences": probe.sequences,
                "tokens_each": probe.tokens_each,
                "step_ms": _digits(probe.step_ms),
                "token_budget": facts.token_budget or prepared.settings.chunk_size,
            },
            "tokens_per_step": _digits(max(1.0, accepted)),
            "kv_pool_tokens": facts.kv_pool_tokens,
            "provenance": {
                "harvested_at": datetime.now(UTC).isoformat(timespec="seconds"),
                "node": host.node(),
                "real_weights": not (request.dummy_weights or bool(facts.dummy_weights)),
                "prefix_cache_off": True,
                "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
                "source": f"harvested from {facts.model} ({'started' if prepared.command else request.url})",
                "checks": tuple(given),
                "notes": tuple(notes),
            },
        },
    )


def _sweep(points: Sequence[DecodeMeasurement], tokens_per_step: float) -> dict[str, object]:
    answers = sorted(one.answer_tokens for one in points)
    return {
        "prompt_tokens": points[0].counted_prompt_tokens or points[0].prompt_tokens,
        "output_tokens": answers[len(answers) // 2],
        "points": [
            {
                "batch": one.batch,
                "step_ms": _digits(one.step_ms * tokens_per_step),
                "error_pct": _digits(min(one.spread_pct, 1000.0), 3),
                "readings": {
                    "median_gap_ms": _digits(one.median_gap_ms),
                    "span_ms": _digits(one.span_ms),
                    "server_ms": None if one.server_ms is None else _digits(one.server_ms),
                },
            }
            for one in points
        ],
    }


def _digits(value: float, digits: int = 6) -> float:
    return float(f"{value:.{digits}g}")
