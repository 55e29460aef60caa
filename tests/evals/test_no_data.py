"""Without the measured data every scoring eval ends with exit 3, an empty stdout and a line that says where to look."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from evals import corpus_amd, corpus_nvidia, frontier, intervals, mix, ranking
from evals.corpus import EXIT_NO_DATA


@pytest.mark.parametrize(
    "main",
    [corpus_amd.main, corpus_nvidia.main, frontier.main, intervals.main, mix.main, ranking.main],
    ids=["corpus_amd", "corpus_nvidia", "frontier", "intervals", "mix", "ranking"],
)
def test_absent_data_is_exit_three(
    main: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["eval", "--json", "--corpus", str(tmp_path / "nowhere")])
    assert main() == EXIT_NO_DATA
    told = capsys.readouterr()
    assert told.out == ""
    assert len(told.err.strip().splitlines()) == 1
    assert "--corpus DIR" in told.err
