"""The Markdown report from a small JSON one."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from evals.markdown import (
    Target,
    beside,
    look_up,
    markdown,
    summaries,
    table,
    targets,
    targets_of,
    with_targets,
    worst,
)

ROW = {"n": 3, "tpot_median_ape_pct": 4.2, "within_20_pct": {"tpot": 90.0}}
REPORT: dict[str, Any] = {
    "rule": "A2",
    "protocol": "P2",
    "rows": 12,
    "anchors": {"layouts": 1, "rows": 4},
    "noise_floor_pct": {"tpot_same_build": 0.1},
    "uncovered": {"no ladder of 4 loads": 2, "no colocated rows in stack": 5},
    "cleaning": {"spike": 1},
    "colocated": ROW,
    "wider_tp": {"n": 0, "within_20_pct": {}},
    "by_transfer": [{"transfer": "TPx2", **ROW}, {"transfer": "EP", **ROW, "tpot_median_ape_pct": 9.9}],
    "worst": [{"row": 7, "tpot_ms": 9.0, "flags": ["drops"], "step_ms": {"dense": 3.0, "kv": 0.0}}],
}


def test_paths_reach_keys_and_rows_of_breakdowns() -> None:
    assert look_up(REPORT, "colocated.tpot_median_ape_pct") == 4.2
    assert look_up(REPORT, "by_transfer[EP].tpot_median_ape_pct") == 9.9
    assert look_up(REPORT, "by_transfer[TPx8].tpot_median_ape_pct") is None
    assert look_up(REPORT, "nowhere.at.all") is None


def test_what_stands_beside_is_a_figure_or_a_path() -> None:
    assert beside(REPORT, "11.3") == "11.3"
    assert beside(REPORT, "noise_floor_pct.tpot_same_build") == "0.1"
    assert beside(REPORT, "rival.colocated") == "–"
    assert beside(REPORT, "") == "–"


def test_a_target_has_all_its_neighbours_in_one_line() -> None:
    wanted = Target(
        "TPOT, %", "colocated.tpot_median_ape_pct", "≤ 7.0", "6.0", "10.9", "noise_floor_pct.tpot_same_build", "50"
    )
    assert targets(REPORT, [wanted])[2] == "| TPOT, % | 4.2 | ≤ 7.0 | 6.0 | 10.9 | 0.1 | 50 |"


def test_breakdowns_and_worst_rows() -> None:
    assert summaries("by transfer", REPORT["by_transfer"])[2:5] == [
        "| transfer | n | TPOT, % | TPOT within 20%, % |",
        "|---|---|---|---|",
        "| TPx2 | 3 | 4.2 | 90.0 |",
    ]
    assert worst(REPORT["worst"])[-2] == "| 7 | 9.0 | drops | dense 3.0 |"
    assert summaries("nothing", []) == []
    assert worst([]) == []
    assert table(("a",), []) == []


def test_the_whole_report_names_every_part() -> None:
    text = markdown("Title", REPORT, [Target("TPOT", "colocated.tpot_median_ape_pct")])
    for part in (
        "# Title",
        "## Targets",
        "## Noise floor",
        "## Rows without an anchor",
        "### by transfer",
        "## Worst 1",
    ):
        assert part in text
    assert text.index("no colocated rows in stack | 5") < text.index("no ladder of 4 loads | 2")
    extra = markdown("Title", {**REPORT, "extra": {**REPORT, "covered_pct": 50.0}}, [])
    assert "## Extra rows (12, covered 50.0%)" in extra


@pytest.mark.parametrize("corpus", ["amd", "nvidia"])
def test_targets_are_data(corpus: str) -> None:
    found = targets_of(corpus)
    assert len({one.what for one in found}) == len(found) > 10


def test_an_eval_writes_it_where_asked(tmp_path: Path) -> None:
    def evaluate(args: argparse.Namespace) -> dict[str, Any]:
        return REPORT

    reported = with_targets(evaluate, "amd")
    told = dict(reported(argparse.Namespace(markdown=None)))
    first = told.pop("targets")[0]
    assert told == REPORT
    assert first.keys() == {"what", "here", "target", "paper", "rival", "noise_floor", "gpu_count_rule"}
    reported(argparse.Namespace(markdown=str(tmp_path / "amd.md")))
    assert (tmp_path / "amd.md").read_text().startswith("# Accuracy on public AMD served runs")
