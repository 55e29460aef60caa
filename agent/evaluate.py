"""The one door: every candidate, whoever proposed it, is checked, priced and judged here, and nowhere else.

Structure (levers.legality) comes first, then the prediction, then memory and latency bounds. An illegal candidate is a
value with all its reasons, never an exception.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from levers.context import SearchContext
from levers.legality import illegal_reasons
from levers.legality.memory import memory_reasons
from levers.objectives import Objective, Slo, shortfall, violations
from levers.reasons import Reason
from predictor.errors import InferaSimError
from predictor.fusion import FusionOpportunity, opportunities
from predictor.predict import Catalogue, predict
from predictor.types import Deployment, Mode, Prediction, Workload


@dataclass(frozen=True, slots=True)
class Judged:
    """What one candidate gives. ``score`` is the objective's own value; None where nothing was priced."""

    legal: bool
    reasons: tuple[Reason, ...]
    score: float | None
    signed_score: float | None  # larger is better
    shortfall: float  # 0 when legal; else how far from it, for steering a search
    prediction: Prediction | None
    deployment: Deployment | None = None  # None for a seed that makes no deployment
    workload: Workload | None = None
    fusions: tuple[FusionOpportunity, ...] = ()

    def metrics(self) -> dict[str, float]:
        """Finite figures of the prediction by name."""
        return prediction_metrics(self.prediction) if self.prediction else {}


@dataclass(frozen=True, slots=True)
class Priced:
    """What does not depend on the objective or the bounds: the prediction or the expected error, and the fusions."""

    prediction: Prediction | InferaSimError
    fusions: tuple[FusionOpportunity, ...] = ()


# By deployment, workload, mode, method and whether fusions are told; shared by searches over one catalogue.
Memo = dict[tuple[Deployment, Workload, Mode | None, str, bool], Priced]


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Everything that stays the same over one search."""

    context: SearchContext
    catalogue: Catalogue
    objective: Objective
    slos: tuple[Slo, ...] = ()
    mode: Mode | None = None
    memo: Memo | None = None  # predictions shared with other searches over the same catalogue
    simulate_splits: bool = False  # split pools request by request too, whatever the bounds ask for
    tell_fusions: bool = True  # False for a sweep, which has no column for them

    def evaluate(self, deployment: Deployment, workload: Workload) -> Judged:
        """Check, price and judge one candidate."""
        reasons = illegal_reasons(deployment, workload, self.context)
        if reasons:
            return replace(refused(reasons), deployment=deployment, workload=workload)
        priced = self._priced(deployment, workload)
        prediction = priced.prediction
        if isinstance(prediction, InferaSimError):
            unpriced = refused((Reason(error_code(prediction), str(prediction)),))
            return replace(unpriced, deployment=deployment, workload=workload)
        reasons = (
            *memory_reasons(prediction.memory, workload.isl_tokens + workload.osl_tokens),
            *violations(prediction, self.slos),
        )
        score = self.objective.score(prediction)
        if score is None or not math.isfinite(score):
            missing = self.objective.missing(prediction)
            reasons = (*reasons, *((missing,) if missing else ()))
            score = None
        return Judged(
            deployment=deployment,
            workload=workload,
            legal=not reasons,
            reasons=reasons,
            score=score,
            signed_score=None if score is None else self.objective.signed(prediction),
            shortfall=shortfall(prediction, self.slos) if reasons else 0.0,
            prediction=prediction,
            fusions=priced.fusions,
        )

    def _priced(self, deployment: Deployment, workload: Workload) -> Priced:
        """The price, from the memo where another search has asked for it."""
        method = self._method(deployment)
        key = deployment, workload, self.mode, method, self.tell_fusions
        known = None if self.memo is None else self.memo.get(key)
        if known is not None:
            return known
        try:
            prediction = predict(deployment, workload, self.catalogue, mode=self.mode, method=method)
            found = Priced(prediction, self._fusions(deployment, prediction) if self.tell_fusions else ())
        except InferaSimError as error:
            found = Priced(error)
        if self.memo is not None:
            self.memo[key] = found
        return found

    def _method(self, deployment: Deployment) -> str:
        """Split pools are simulated where a bound asks for a percentile, which the closed form does not know."""
        percentile = any(slo.metric.endswith(("_p50", "_p90", "_p99")) for slo in self.slos)
        return "des" if (percentile or self.simulate_splits) and deployment.prefill is not None else "auto"

    def _fusions(self, deployment: Deployment, prediction: Prediction) -> tuple[FusionOpportunity, ...]:
        return opportunities(
            self.catalogue.card,
            self.catalogue.platform,
            deployment.layout,
            deployment.precision,
            max(1.0, prediction.running / deployment.replicas / deployment.layout.pp),
            prediction.extras["decode_step_ms"],
            deployment.kernels.fusions,
        )


def refused(reasons: tuple[Reason, ...]) -> Judged:
    """A candidate that was never priced."""
    return Judged(False, reasons, None, None, math.inf, None)


def error_code(error: InferaSimError) -> str:
    """The code under which an expected error is counted."""
    return _CODES.get(type(error).__name__, "unpriced")


_CODES = {
    "DoesNotFit": "does_not_fit",
    "AnchorRefused": "anchor_refused",
    "DataUnavailable": "data_unavailable",
    "BadInput": "bad_input",
}


def prediction_metrics(prediction: Prediction) -> dict[str, float]:
    """The figures of a prediction the ledger keeps, by name."""
    metrics = {
        "gpus": float(prediction.gpus),
        "output_tok_s": prediction.output_tok_s,
        "total_tok_s": prediction.total_tok_s,
        "output_tok_s_per_gpu": prediction.output_tok_s_per_gpu,
        "total_tok_s_per_gpu": prediction.total_tok_s_per_gpu,
        "interactivity_tok_s_user": prediction.interactivity_tok_s_user,
        "max_concurrency": float(prediction.max_concurrency),
        "running": prediction.running,
        "memory_bytes": prediction.memory.total_bytes,
        "kv_pool_tokens": float(prediction.memory.kv_pool_tokens),
    }
    for name, latency in (
        ("ttft_ms", prediction.ttft_ms),
        ("tpot_ms", prediction.tpot_ms),
        ("itl_ms", prediction.itl_ms),
        ("e2e_ms", prediction.e2e_ms),
    ):
        metrics[name] = latency.mean
        for statistic in ("p50", "p90", "p99"):
            value = getattr(latency, statistic)
            if value is not None:
                metrics[f"{name}_{statistic}"] = value
    metrics |= prediction.extras
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def fusion_json(fusion: FusionOpportunity) -> Mapping[str, Any]:
    """A fusion opportunity as the ledger and the commands show it."""
    return {
        "fusion": fusion.name,
        "replaces": fusion.replaces,
        "saved_ms_low": fusion.low_ms,
        "saved_ms_high": fusion.high_ms,
        "share_of_step": fusion.share_frac,
        "kernels_removed": fusion.kernels_removed,
    }
