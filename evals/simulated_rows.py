"""Corpus rows predicted from kernel models alone, through the public ``predict``: no anchor, nothing measured."""

from dataclasses import dataclass
from functools import lru_cache

from evals import amd_predict, nvidia_predict
from evals.amd_rows import AmdRow
from evals.candidates import CorpusScore
from evals.nvidia_rows import NvidiaRow, proxy_tok_s
from evals.scoring import Scored
from predictor.errors import DoesNotFit
from predictor.predict import Catalogue, predict
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.types import (
    Deployment,
    Kernels,
    Mode,
    Prediction,
    PrefillPool,
    SchedulerSettings,
    Speculation,
    StartMode,
    Workload,
)

ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "atom": "ATOM", "trtllm": "TensorRT-LLM"}
HANDOFF = {"vllm": "nixl", "sglang": "mori", "atom": "mooncake"}
UNCAPPED = 1 << 30  # the recipes' word for no cap


@lru_cache(maxsize=256)
def catalogue(gpu: str, model: str, engine: str) -> Catalogue:
    """Records of a stack, without anchors."""
    return Catalogue(model_card(model), platform(gpu), engine_profile(engine))


def amd_deployment(row: AmdRow) -> Deployment:
    """An AMD row as a deployment."""
    known, engine = amd_predict.recipe_of(row), ENGINES[row.engine]
    cap = known.cap(row.spec != "none")
    scheduler = SchedulerSettings(max_running=None if cap >= UNCAPPED else cap, token_budget=known.token_budget)
    prefill = None
    if row.disagg:
        pool = SchedulerSettings(token_budget=known.token_budget)
        prefill = PrefillPool(row.prefill_layout, row.prefill_workers, HANDOFF[row.engine], pool)
    return Deployment(
        model=amd_predict.card_of(row).name,
        gpu=platform(row.gpu).name,
        engine=engine,
        layout=row.layout,
        precision=amd_predict.formats(row.precision, known),
        kernels=Kernels(allreduce=known.allreduce),
        scheduler=scheduler,
        speculation=Speculation("mtp", known.draft_depth) if row.spec != "none" else Speculation(),
        replicas=row.decode_workers,
        prefill=prefill,
    )


def nvidia_deployment(row: NvidiaRow) -> Deployment:
    """A colocated NVIDIA row as a deployment."""
    known = nvidia_predict.recipe_of(row)
    cap = known.cap(False)
    return Deployment(
        model=nvidia_predict.card_of(row).name,
        gpu=platform(row.system.removesuffix("_sxm")).name,
        engine=ENGINES[row.backend],
        layout=row.layout,
        precision=nvidia_predict.formats(row.precision, known.kv),
        scheduler=SchedulerSettings(max_running=None if cap >= UNCAPPED else cap, token_budget=known.token_budget),
    )


def workload(row: AmdRow | NvidiaRow) -> Workload:
    """How a row was driven: a closed loop that starts in a burst; the gap-analysis harness starts one by one."""
    alone = isinstance(row, NvidiaRow) and row.gap_analysis
    return Workload(
        isl_tokens=row.isl,
        osl_tokens=row.osl,
        concurrency=row.clients,
        length_range_frac=1.0 if alone else 0.8,
        start=StartMode.STAGGERED if alone else StartMode.BURST,
    )


def simulate_row(row: AmdRow | NvidiaRow) -> Prediction:
    """Predict one row in simulate mode; raises DoesNotFit where the memory model leaves it no room."""
    deployment = amd_deployment(row) if isinstance(row, AmdRow) else nvidia_deployment(row)
    known = catalogue(deployment.gpu, deployment.model, deployment.engine)
    return predict(deployment, workload(row), known, mode=Mode.SIMULATE)


@dataclass(frozen=True, slots=True)
class Simulated:
    """Rows predicted from kernel models, and how many the memory model refuses though they ran."""

    score: CorpusScore
    does_not_fit: int


def resimulated(score: CorpusScore) -> Simulated:
    """The same targets and anchor rows, each predicted from kernel models."""
    found = [[_simulated(s) for s in rows] for rows in (score.scored, score.anchors)]
    scored, anchors = (tuple(s for s in rows if s is not None) for rows in found)
    return Simulated(CorpusScore(scored, anchors), sum(s is None for rows in found for s in rows))


def _simulated(scored: Scored) -> Scored | None:
    row: AmdRow | NvidiaRow = scored.labels["row"]
    try:
        found = simulate_row(row)
    except DoesNotFit:
        return None
    predicted = {"tpot": found.tpot_ms.mean, "ttft": found.ttft_ms.mean}
    predicted["interactivity"] = found.interactivity_tok_s_user
    if isinstance(row, AmdRow):
        predicted["total_tok_s_per_gpu"] = found.total_tok_s_per_gpu
    else:
        predicted["throughput_proxy"] = proxy_tok_s(row.clients, row.osl, found.ttft_ms.mean, found.tpot_ms.mean)
    return Scored(scored.measured, predicted, scored.labels)
