"""``--extra FILE``: rows held out of a corpus are scored as targets, apart, and change nothing else."""

import argparse
import csv
from pathlib import Path
from typing import Any

import pytest

from evals import corpus_amd, corpus_nvidia, nvidia_rows
from evals.corpus import CorpusAbsent, data_dir

STACK = {"hardware": "mi355x", "framework": "vllm", "model": "llama70b", "precision": "fp8"}
NVIDIA_STACK = "h200_sxm/vllm/"
# Keys that extra rows do not have of their own.
ABOUT_THE_CORPUS = {"rule", "protocol", "law", "anchors", "cleaning", "noise_floor_pct", "paper", "refused", "extra"}


@pytest.fixture(scope="module")
def corpus() -> Path:
    try:
        return data_dir()
    except CorpusAbsent as absent:
        pytest.skip(str(absent))


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, lines: list[dict[str, str]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, lines[0].keys())
        writer.writeheader()
        writer.writerows(lines)
    return path


def arguments(folder: Path, extra: Path | None = None) -> argparse.Namespace:
    return argparse.Namespace(
        corpus=str(folder), extra=None if extra is None else str(extra), protocol="P2", law="combined"
    )


def amd(folder: Path, lines: list[dict[str, str]], extra: list[dict[str, str]]) -> dict[str, Any]:
    write(folder / "measured/inferencex_2026_07_amd.csv", lines)
    return corpus_amd.evaluate(arguments(folder, write(folder / "extra.csv", extra) if extra else None))


def test_amd_rows_held_out_are_scored_apart_and_alike(corpus: Path, tmp_path: Path) -> None:
    every = [
        line
        for line in read(corpus / "measured/inferencex_2026_07_amd.csv")
        if all(line[name] == value for name, value in STACK.items())
    ]
    held = [line for line in every if line["decode_tp"] == "8"]
    kept = [line for line in every if line not in held]
    assert held
    assert kept
    whole, apart = amd(tmp_path / "whole", every, []), amd(tmp_path / "apart", kept, held)
    extra = apart["extra"]
    assert "extra" not in whole
    assert extra["rows"] == len(held)
    assert apart["anchors"] == whole["anchors"]
    assert extra["covered_pct"] == 100.0
    assert extra["colocated"]["n"] + apart["colocated"]["n"] == whole["colocated"]["n"]
    told = {row["transfer"]: row for row in whole["by_transfer"]}
    wide = {row["transfer"]: row for row in extra["by_transfer"]}
    assert wide
    assert all(told[name] == row for name, row in wide.items())
    about_the_corpus = {
        "rule",
        "protocol",
        "law",
        "anchors",
        "cleaning",
        "noise_floor_pct",
        "paper",
        "refused",
        "extra",
    }
    assert apart.keys() - extra.keys() <= about_the_corpus


def test_amd_rows_of_an_unknown_stack_are_uncovered(corpus: Path, tmp_path: Path) -> None:
    every = [
        line
        for line in read(corpus / "measured/inferencex_2026_07_amd.csv")
        if all(line[name] == value for name, value in STACK.items())
    ]
    held = [{**every[0], "precision": "bf16"}]
    extra = amd(tmp_path, every, held)["extra"]
    assert (extra["rows"], extra["covered_pct"], extra["colocated"]["n"]) == (1, 0.0, 0)
    assert sum(extra["uncovered"].values()) == 1


def test_nvidia_rows_held_out_are_scored_apart(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        raw = read(nvidia_rows.silicon_file())
    except CorpusAbsent as absent:
        pytest.skip(str(absent))
    lines = read(corpus / nvidia_rows.PROTOCOL_FILE)
    of_stack = [
        (line, row)
        for line, row in zip(lines, raw, strict=True)
        if line["stack"].startswith(NVIDIA_STACK) and line["use"] == "1" and line["mode"] != "disagg"
    ]
    held = [row for line, row in of_stack if line["kind_P2"].startswith("TPx")]
    kept = [(line, row) for line, row in of_stack if not line["kind_P2"].startswith("TPx")]
    assert held
    write(tmp_path / nvidia_rows.PROTOCOL_FILE, [line for line, _ in kept])
    silicon = write(tmp_path / "silicon.csv", [row for _, row in kept])
    monkeypatch.setattr(nvidia_rows, "silicon_file", lambda: silicon)
    report = corpus_nvidia.evaluate(arguments(tmp_path, write(tmp_path / "extra.csv", held)))
    extra = report["extra"]
    assert extra["rows"] == len(held)
    assert report["wider_tp"]["n"] == 0
    assert extra["wider_tp"]["n"] > 0
    assert extra["covered_pct"] > 50.0
    assert report.keys() - extra.keys() <= ABOUT_THE_CORPUS | {"other_load", "two_widths"}
