"""Records out of text, whatever the chunks."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.errors import BadFile
from predictor.workload.json_stream import Fault, documents, open_trace

records = st.lists(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5), max_size=3), max_size=6)


def chunked(text: str, sizes: list[int]) -> list[str]:
    chunks, at = [], 0
    for size in sizes:
        chunks.append(text[at : at + size])
        at += size
    return [chunk for chunk in [*chunks, text[at:]] if chunk]


@given(records, st.lists(st.integers(1, 9), max_size=40), st.sampled_from([None, 1]))
def test_an_array_is_the_same_in_any_chunks(values: list[dict[str, object]], sizes: list[int], indent: int) -> None:
    text = json.dumps(values, indent=indent)
    found = list(documents(chunked(text, sizes)))
    assert [document.value for document in found] == values
    assert all(document.fault is None for document in found)


@given(records)
def test_lines_and_array_hold_the_same_records(values: list[dict[str, object]]) -> None:
    lines = [json.dumps(value) + "\n" for value in values]
    found = list(documents(["\n", *lines]))
    assert [document.value for document in found] == values
    assert [document.line for document in found] == list(range(2, len(values) + 2))


def test_array_elements_know_their_line() -> None:
    assert [document.line for document in documents(['[\n{"a":1},\n\n{"a":\n2},', ' {"a":3}]'])] == [2, 4, 5]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"a": 1, "b', Fault.TRUNCATED),
        ('{"a": [1, 2', Fault.TRUNCATED),
        ('{"a" 1, "long": "after the fault there is a lot of text"}', Fault.NOT_JSON),
        ('{"a": NaN}', Fault.NOT_FINITE),
    ],
)
@pytest.mark.parametrize("opening", ["", "["])
def test_faults(text: str, kind: Fault, opening: str) -> None:
    (found,) = documents([opening + text])
    assert found.fault is not None
    assert found.kind is kind
    assert found.resumable is (opening == "")


def test_a_bad_line_does_not_hide_the_next() -> None:
    found = list(documents(['{"a": 1}\n', "oops\n", '{"a": 2}\n']))
    assert [document.value for document in found] == [{"a": 1}, None, {"a": 2}]
    assert found[1].kind is Fault.NOT_JSON


@pytest.mark.parametrize("text", ['[{"a":1}', '[{"a":1} {"a":2}]', '[{"a":1}] x'])
def test_a_damaged_array_ends_with_a_fault(text: str) -> None:
    *good, last = documents([text])
    assert [document.value for document in good] == [{"a": 1}]
    assert last.fault is not None
    assert not last.resumable


@pytest.mark.parametrize("text", ["", "\n\n", "[]", " [\n]\n"])
def test_nothing(text: str) -> None:
    assert list(documents([text])) == []


def test_files(tmp_path: Path) -> None:
    lines, array = '{"a": 1}\n{"a": 2}\n', '\n [{"a": 1}, {"a": 2}]'
    (tmp_path / "t.jsonl").write_text(lines)
    (tmp_path / "t.json").write_text(array)
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    for file in tmp_path.iterdir():
        assert [document.value for document in documents(open_trace(file))] == [{"a": 1}, {"a": 2}]


def test_damaged_files(tmp_path: Path) -> None:
    whole = gzip.compress(b'{"a": 1}\n' * 1000)
    (tmp_path / "cut.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "latin").write_bytes(b'{"a": "\xff"}')
    for name, said in (("cut.gz", "cut short"), ("latin", "not UTF-8"), ("absent", "no such file")):
        with pytest.raises(BadFile, match=said):
            list(documents(open_trace(tmp_path / name)))
