"""The AMD loader reproduces the public protocol file from rules alone."""

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from evals.amd_anchors import assign
from evals.amd_rows import AmdRow, load_rows
from evals.corpus import CorpusAbsent, data_dir


@pytest.fixture(scope="module")
def corpus() -> Iterator[Path]:
    try:
        yield data_dir()
    except CorpusAbsent as absent:
        pytest.skip(str(absent))


@pytest.fixture(scope="module")
def rows(corpus: Path) -> list[AmdRow]:
    return load_rows(corpus)


@pytest.fixture(scope="module")
def published(corpus: Path) -> list[dict[str, str]]:
    with (corpus / "measured/amd_protocol_rows.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_stacks_gpus_and_dropped_rows(rows: list[AmdRow], published: list[dict[str, str]]) -> None:
    for row, line in zip(rows, published, strict=True):
        assert row.stack == line["stack"]
        assert row.gpus == int(line["n_gpus"])
        assert row.bad == (line["bad"] == "1")


@pytest.mark.parametrize("protocol", ["P1", "P2"])
def test_kinds_and_anchors_by_rule(rows: list[AmdRow], published: list[dict[str, str]], protocol: str) -> None:
    for a, line in zip(assign(rows, protocol), published, strict=True):
        expected = line[f"kind_A2{protocol}"]
        assert a.kind.replace("no colocated row in stack", "no colocated rows in stack") == expected
        if not expected.startswith("uncovered"):
            assert a.id_gap == int(line[f"id_gap_A2{protocol}"])
            assert a.in_4x == (line[f"in_4x_A2{protocol}"] == "1")


def test_extra_rows_are_never_anchors(corpus: Path, tmp_path: Path) -> None:
    source = corpus / "measured/inferencex_2026_07_amd.csv"
    lines = source.read_text().splitlines()
    extra = tmp_path / "extra.csv"
    extra.write_text("\n".join([lines[0], *lines[1:40]]) + "\n")
    rows = load_rows(corpus, extra)
    before = {a.row.index: a.kind for a in assign(load_rows(corpus), "P2")}
    for a in assign(rows, "P2"):
        if a.row.extra:
            assert a.kind != "anchor"
        else:
            assert a.kind == before[a.row.index]
