"""Corpus rows as candidates: targets predicted, anchors as measured, and the same rows from kernel models."""

import csv
from pathlib import Path

import pytest

from evals.amd_rows import AmdRow
from evals.candidates import CorpusScore, amd_candidate, amd_measured, amd_score, candidates, layout_name
from evals.corpus import CorpusAbsent, data_dir
from evals.interval_rows import amd_residuals
from evals.simulated_rows import resimulated

STACK = {"hardware": "mi355x", "framework": "vllm", "model": "kimik2.5"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of one model's rows."""
    try:
        corpus = data_dir()
    except CorpusAbsent as absent:
        pytest.skip(str(absent))
    with (corpus / "measured/inferencex_2026_07_amd.csv").open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if all(line[k] == v for k, v in STACK.items())]
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "measured").mkdir()
    with (folder / "measured/inferencex_2026_07_amd.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, lines[0].keys())
        writer.writeheader()
        writer.writerows(lines)
    return folder


@pytest.fixture(scope="module")
def scored(folder: Path) -> CorpusScore:
    return amd_score(folder)


def test_anchors_stand_for_what_they_measured(scored: CorpusScore) -> None:
    every = candidates(scored, amd_candidate)
    anchors = [c for c in every if not c.is_prediction]
    assert scored.refused == {}
    assert len(every) == len(scored.scored) + len(scored.anchors)
    assert scored.scored
    assert all((c.predicted_tpot_ms, c.predicted_tok_s) == (c.tpot_ms, c.tok_s) for c in anchors)
    for one, candidate in zip(scored.scored, every, strict=False):
        row: AmdRow = one.labels["row"]
        assert candidate.per_gpu == pytest.approx(row.total_tok_s_per_gpu)
        assert candidate.interactivity == pytest.approx(1e3 / row.tpot_ms)
        assert candidate.layout == layout_name(row)
        assert candidate.predicted_per_gpu == pytest.approx(one.predicted["total_tok_s_per_gpu"])


def test_kernel_models_are_asked_for_the_same_rows(folder: Path, scored: CorpusScore) -> None:
    measured = amd_measured(folder)
    names = [s.labels["row"].index for s in scored.scored]
    assert [s.labels["row"].index for s in measured.scored] == names
    assert len(measured.anchors) == len(scored.anchors)
    again = resimulated(CorpusScore(measured.scored[:2], measured.anchors[:1]))
    assert (len(again.scored), len(again.anchors), again.refused) == (2, 1, {})
    for s in (*again.scored, *again.anchors):
        assert s.predicted["tpot"] > 0.0
        assert s.predicted["tpot"] != s.measured["tpot"]


def test_residuals_have_the_kinds_of_the_product(scored: CorpusScore) -> None:
    found = amd_residuals(scored)
    assert {one.metric for one in found} == {"tpot", "throughput"}
    assert {one.kind for one in found} <= {"TPx2", "TPx4", "TPx8", "EP", "same width", "disaggregated"}
    assert len({one.stack for one in found}) >= 1
