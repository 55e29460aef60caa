"""Pipelines on Table 20, and the bundled anchors that come from the same table."""

import argparse

import pytest

from agent.anchor_files import bundled_anchors
from evals import bundle_anchors, pipelines
from evals.corpus import CorpusAbsent, data_dir


@pytest.fixture(scope="module")
def corpus() -> str:
    try:
        return str(data_dir())
    except CorpusAbsent as absent:
        pytest.skip(str(absent))


def test_pipelines_meet_their_targets(corpus: str) -> None:
    models = pipelines.evaluate(argparse.Namespace(corpus=corpus))["models"]
    assert {name: entry["n"] for name, entry in models.items()} == {
        "Llama-3.1-8B": 24,
        "Qwen3-14B-FP8": 9,
        "Qwen3.6-35B-A3B": 9,
    }
    for name, entry in models.items():
        assert entry["tpot_median_ape_pct"] <= pipelines.TARGET_PCT[name]
        assert entry["tpot_median_ape_pct"] < entry["serial_tpot_median_ape_pct"]


def test_bundled_anchors_are_those_of_the_table(corpus: str) -> None:
    """Regenerate with ``python -m evals.bundle_anchors``."""
    made = {anchor.name: anchor for anchor in bundle_anchors.anchors(data_dir(corpus)).values()}
    assert made == {anchor.name: anchor for anchor in bundled_anchors()}
    assert all(anchor.provenance.coarse for anchor in made.values())
