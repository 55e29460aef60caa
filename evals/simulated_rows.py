"""Corpus rows predicted from kernel models alone, through the public facade: no anchor, nothing measured."""

from collections import Counter

from evals import amd_predict, nvidia_predict
from evals.amd_rows import AmdRow
from evals.candidates import CorpusScore
from evals.nvidia_rows import NvidiaRow, proxy_tok_s
from evals.scoring import Scored
from inferasim import InferaSimError, Mode, Prediction, predict


def simulate_row(row: AmdRow | NvidiaRow) -> Prediction:
    """Predict one row in simulate mode."""
    case = amd_predict.case_of(row) if isinstance(row, AmdRow) else nvidia_predict.case_of(row)
    return predict(case.deployment, case.workload, case.catalogue(), mode=Mode.SIMULATE)


def resimulated(score: CorpusScore) -> CorpusScore:
    """The same targets and anchor rows, each predicted from kernel models."""
    refused: Counter[str] = Counter()

    def simulated(rows: tuple[Scored, ...]) -> tuple[Scored, ...]:
        found = []
        for scored in rows:
            try:
                found.append(_simulated(scored))
            except InferaSimError as error:
                refused[type(error).__name__] += 1
        return tuple(found)

    scored, anchors = simulated(score.scored), simulated(score.anchors)
    return CorpusScore(scored, anchors, dict(refused))


def _simulated(scored: Scored) -> Scored:
    row: AmdRow | NvidiaRow = scored.labels["row"]
    told = simulate_row(row)
    predicted = {
        "tpot": told.tpot_ms.mean,
        "ttft": told.ttft_ms.mean,
        "interactivity": told.interactivity_tok_s_user,
    }
    if isinstance(row, AmdRow):
        predicted["total_tok_s_per_gpu"] = told.total_tok_s / row.gpus
    else:
        predicted["throughput_proxy"] = proxy_tok_s(row.clients, row.osl, told.ttft_ms.mean, told.tpot_ms.mean)
    return Scored(scored.measured, predicted, scored.labels)
