"""Exports: the same ledger gives the same bytes, and two runs of one search differ only in ids, times and costs."""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ledger import LedgerError, NoteRecord, SearchEnd, SearchRecord, TrialRecord, open_ledger
from ledger.export import FORMATS, export, jsonl, write_export
from ledger.store import Ledger

Trials = tuple[TrialRecord, ...]


def run(ledger: Ledger, search: SearchRecord, trials: Trials, minutes: int = 0, *, backwards: bool = False) -> int:
    """One whole search, ``minutes`` later than the records say."""
    late = timedelta(minutes=minutes)
    search_id = ledger.create_search(replace(search, created_at=search.created_at + late))
    for trial in reversed(trials) if backwards else trials:
        ledger.add_trial(search_id, replace(trial, recorded_at=search.created_at + late))
    ledger.add_note(search_id, NoteRecord("stop", {"why": "budget"}, {"wall_s": minutes + 0.1}, 2, search.created_at))
    end = SearchEnd("done", search.created_at + late, 0, {"scored": 2}, {"wall_s": 1.0 + minutes})
    ledger.finish_search(search_id, end)
    return search_id


def test_jsonl_golden(ledger: Ledger, search: SearchRecord, trials: Trials) -> None:
    lines = list(jsonl(ledger, [run(ledger, search, trials)], stable=True))
    assert [json.loads(line)["row"] for line in lines] == ["search", "trial", "trial", "trial", "note", "end"]
    assert lines[2] == (
        '{"anchor":null,"flags":[],"fusion_opportunities":[],"hypothesis":"","index":1,"legal":false,'
        '"levers":{"tp":3},"metrics":{},"mode":null,"origin":"seed:tp","reasons":[["tp_divides_heads",'
        '"TP3 does not divide 32 heads: use 1, 2, 4 or 8"],["gpus","3 of 8 GPUs"]],"row":"trial","score":null}\n'
    )
    assert '"output_tok_s":0.30000000000000004' in lines[1]
    assert '"max_concurrency":1e+22' in lines[1]
    assert lines[5] == '{"best_index":0,"row":"end","status":"done","summary":{"scored":2}}\n'


@pytest.mark.parametrize("file_format", FORMATS)
def test_two_runs_of_one_search_export_the_same(
    ledger: Ledger, search: SearchRecord, trials: Trials, file_format: str
) -> None:
    first, second = run(ledger, search, trials), run(ledger, search, trials, minutes=3, backwards=True)
    assert export(ledger, [first], file_format, stable=True) == export(ledger, [second], file_format, stable=True)
    assert export(ledger, [first], file_format) != export(ledger, [second], file_format)
    assert export(ledger, [first], file_format) == export(ledger, [first], file_format)


def test_every_back_end_exports_the_same_bytes(
    tmp_path: Path, new_database: Callable[[], str], search: SearchRecord, trials: Trials
) -> None:
    contents = []
    for url in (":memory:", str(tmp_path / "ledger.db"), new_database()):
        with open_ledger(url) as ledger:
            contents.append([export(ledger, [run(ledger, search, trials)], name) for name in FORMATS])
    assert contents[0] == contents[1] == contents[2]


def test_csv_is_one_row_a_trial(ledger: Ledger, search: SearchRecord, trials: Trials) -> None:
    text = export(ledger, [run(ledger, search, trials)], "csv").decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["index"] for row in rows] == ["0", "1", "2"]
    assert [row["lever.tp"] for row in rows] == ["4", "3", "1"]
    assert rows[0]["lever.fusions"] == '["norm_quant","act_quant"]'
    assert float(rows[0]["metric.output_tok_s"]) == 0.1 + 0.2
    assert [row["metric.tpot_ms"] for row in rows] == ["7.25", "", "21.0"]
    assert [row["legal"] for row in rows] == ["true", "false", "false"]
    assert json.loads(rows[1]["reasons"])[0][0] == "tp_divides_heads"


def test_parquet_has_typed_columns(ledger: Ledger, search: SearchRecord, trials: Trials, tmp_path: Path) -> None:
    path = tmp_path / "trials.parquet"
    write_export(path, export(ledger, [run(ledger, search, trials)], "parquet"))
    table = pq.read_table(path)
    types = {name: str(table.schema.field(name).type) for name in ("index", "legal", "score", "lever.tp", "origin")}
    assert types == {"index": "int64", "legal": "bool", "score": "double", "lever.tp": "int64", "origin": "string"}
    assert table["metric.tpot_ms"].to_pylist() == [7.25, None, 21.0]
    assert [path.name for path in tmp_path.iterdir() if "part" in path.suffix] == []


def test_parquet_keeps_mixed_columns_as_json(ledger: Ledger, search: SearchRecord, tmp_path: Path) -> None:
    search_id = ledger.create_search(search)
    for index, value in enumerate((1, "auto", 0.5)):
        ledger.add_trial(search_id, TrialRecord(index, {"mixed": value, "rate": index or 0.5}, "seed", True))
    path = tmp_path / "trials.parquet"
    path.write_bytes(export(ledger, [search_id], "parquet"))
    assert pq.read_table(path)["lever.mixed"].to_pylist() == ["1", '"auto"', "0.5"]
    assert pq.read_table(path)["lever.rate"].to_pylist() == [0.5, 1.0, 2.0]


def test_parquet_without_pyarrow(ledger: Ledger, search: SearchRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    search_id = ledger.create_search(search)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(LedgerError, match=r"needs pyarrow; pip install 'inferasim\[parquet\]'"):
        export(ledger, [search_id], "parquet")


def test_unknown_format_and_unwritable_path(ledger: Ledger, search: SearchRecord, tmp_path: Path) -> None:
    search_id = ledger.create_search(search)
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(LedgerError, match="'xml' is not known; legal: jsonl, csv, parquet"):
        export(ledger, [search_id], "xml")
    with pytest.raises(LedgerError, match="choose another path"):
        write_export(folder / "absent" / "x.csv", b"")
    with pytest.raises(LedgerError, match="choose another path"):
        write_export(folder, b"")
    assert list(folder.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".part"] == []
