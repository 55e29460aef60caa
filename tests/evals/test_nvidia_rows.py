"""The NVIDIA loader: counts of the public protocol file, widths and builds of extra rows by the same rules."""

import csv
from pathlib import Path

import pytest

from evals.corpus import CorpusAbsent, data_dir
from evals.nvidia_rows import (
    NvidiaRow,
    assign,
    assign_extra,
    build_of,
    corrected_widths,
    ladder_rows,
    load_extra,
    load_rows,
    silicon_file,
)


@pytest.fixture(scope="module")
def loaded() -> tuple[list[NvidiaRow], list[dict[str, str]]]:
    try:
        silicon_file()
        return load_rows(data_dir())
    except CorpusAbsent as absent:
        pytest.skip(str(absent))


def raw_rows() -> list[dict[str, str]]:
    with silicon_file().open(newline="") as file:
        return list(csv.DictReader(file))


def test_targets_of_the_published_protocol(loaded: tuple[list[NvidiaRow], list[dict[str, str]]]) -> None:
    rows, lines = loaded
    counts = {}
    for protocol in ("P1", "P2", "P3"):
        assignments = assign(rows, lines, protocol)
        counts[protocol] = (
            len(ladder_rows(assignments)),
            sum(a.target and a.row.clean and not a.row.split for a in assignments),
        )
    assert counts == {"P1": (75, 1821), "P2": (134, 1578), "P3": (395, 846)}


def test_widths_and_builds_by_rule(loaded: tuple[list[NvidiaRow], list[dict[str, str]]]) -> None:
    _, lines = loaded
    builds_differing = 0
    for raw, line in zip(raw_rows(), lines, strict=True):
        builds_differing += build_of(raw) != line["build"]
        if line["mode"] == "agg" and line["tp"]:
            assert corrected_widths(raw) == tuple(int(float(line[name])) for name in ("tp", "ep", "dp"))
    # Runs whose container is named in a job file that the table does not carry.
    assert builds_differing == 53


def test_extra_rows_land_where_the_protocol_puts_them(
    loaded: tuple[list[NvidiaRow], list[dict[str, str]]], tmp_path: Path
) -> None:
    """Targets given again as extra rows keep stack, build, layout and kind."""
    rows, lines = loaded
    assignments = assign(rows, lines, "P2")
    targets = {a.row.id: a for a in assignments if a.target and a.row.clean and not a.row.split and a.same_build}
    chosen = [raw for raw in raw_rows() if raw["id"] in targets][:300]
    extra_file = tmp_path / "extra.csv"
    with extra_file.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(chosen[0]))
        writer.writeheader()
        writer.writerows(chosen)
    placed = assign_extra(load_extra(extra_file, rows, len(lines)), ladder_rows(assignments))
    assert len(placed) == len(chosen)
    for a in placed:
        known = targets[a.row.id]
        assert (a.row.stack, a.row.build, a.row.layout) == (known.row.stack, known.row.build, known.row.layout)
        assert a.kind == known.kind
        assert a.anchor == known.anchor
