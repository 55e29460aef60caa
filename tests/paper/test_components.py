"""Component figures of the paper: every row of the eval holds its bound."""

import pytest

from evals.components import ladder_rows, published_rows
from evals.corpus import CorpusAbsent, data_dir

ROWS = {row["what"]: row for row in published_rows()}


@pytest.mark.parametrize("what", ROWS)
def test_published_figure(what: str) -> None:
    row = ROWS[what]
    assert row["ok"], f"{row['ours']} against {row['paper']}, {row['diff_pct']}% of {row['bound_pct']}% allowed"


def test_pipeline_ladders_of_table_20() -> None:
    try:
        path = data_dir() / "paper" / "table20_pipeline.csv"
    except CorpusAbsent as absent:
        pytest.skip(str(absent))
    rows = list(ladder_rows(path))
    assert len(rows) == 12
    assert [row for row in rows if not row["ok"]] == []
