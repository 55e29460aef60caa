"""The trace reader: formats, aliases, references, and one clear error for each kind of malformed record."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from predictor.errors import BadFile, BadInput
from predictor.workload.block_size import BlockSize, Tail
from predictor.workload.fields import BadRecord
from predictor.workload.trace import TraceReader, TraceRequest

B512 = BlockSize(512, Tail.CEIL)
B64 = BlockSize(64, Tail.FLOOR)


def lines(*records: dict[str, Any]) -> list[str]:
    return [json.dumps(record) + "\n" for record in records]


def read(*records: dict[str, Any], block_size: BlockSize | None = B512, **options: Any) -> list[TraceRequest]:
    return list(TraceReader(lines(*records), block_size=block_size, **options))


def plain(input_length: int = 700, **fields: Any) -> dict[str, Any]:
    return {"timestamp": 0, "input_length": input_length, "output_length": 10, **fields}


def test_mooncake_row() -> None:
    (request,) = read({"timestamp": 27482, "input_length": 1030, "output_length": 52, "hash_ids": [46, 47, 48]})
    assert (request.arrival_ms, request.input_tokens, request.output_tokens) == (27482, 1030, 52)
    assert request.prompt is not None
    assert request.prompt.blocks == 3
    assert request.waits_on == ()


def test_array_reads_as_lines_do() -> None:
    records = [plain(700, hash_ids=[1, 2]), plain(1030, hash_ids=[1, 3, 4])]
    from_array = list(TraceReader([json.dumps(records, indent=1)], block_size=B512))
    assert [(r.row, r.input_tokens, r.prompt and r.prompt.blocks) for r in from_array] == [(0, 700, 2), (1, 1030, 3)]
    assert shared(from_array) == shared(read(*records)) == 1


def shared(requests: Iterable[TraceRequest]) -> int:
    first, second, *_ = requests
    assert first.prompt is not None
    assert second.prompt is not None
    return first.prompt.shared_blocks(second.prompt)


def test_aliases() -> None:
    (request,) = read({"created_time": 1.5, "input_tokens": 5, "output_tokens": 6, "delay_ms": 7, "session_id": 8})
    assert (request.arrival_ms, request.input_tokens, request.output_tokens) == (1.5, 5, 6)
    assert (request.think_time_ms, request.session_id) == (7, "8")


def test_rows_may_lack_timestamps_and_ids() -> None:
    (request,) = read({"input_length": 5, "output_length": 0}, block_size=None)
    assert request.arrival_ms is None
    assert request.prompt is None


def test_compact_and_explicit_rows_give_the_same_sharing() -> None:
    compact = read(
        plain(64 * 4, request_id="a", new_blocks=4),
        plain(64 * 5, request_id="b", prefix_from="a", prefix_blocks=3, new_blocks=2),
        plain(64 * 6, request_id="c", prefix_from="b", prefix_blocks=5, new_blocks=1),
        plain(64 * 2, request_id="d", prefix_from="c", prefix_blocks=2, new_blocks=0),
        block_size=B64,
    )
    explicit = read(
        plain(64 * 4, hash_ids=[0, 1, 2, 3]),
        plain(64 * 5, hash_ids=[0, 1, 2, 4, 5]),
        plain(64 * 6, hash_ids=[0, 1, 2, 4, 5, 6]),
        plain(64 * 2, hash_ids=[0, 1]),
        block_size=B64,
    )
    for mine in compact:
        for i, other in enumerate(compact):
            theirs = explicit[mine.row].prompt
            assert mine.prompt is not None
            assert other.prompt is not None
            assert theirs is not None
            assert mine.prompt.shared_blocks(other.prompt) == theirs.shared_blocks(explicit[i].prompt or theirs)


def test_compact_prefix_with_named_rest() -> None:
    first, second, third = read(
        plain(64 * 3, request_id="a", hash_ids=["x", "y", "z"]),
        plain(64 * 3, request_id="b", prefix_from="a", prefix_blocks=2, hash_ids=["w"]),
        plain(64 * 3, request_id="c", hash_ids=["x", "y", "w"]),
        block_size=B64,
    )
    assert shared([first, second]) == 2
    assert shared([second, third]) == 3


def test_a_row_of_a_session_waits_for_the_previous_one() -> None:
    requests = read(
        plain(session_id="s", request_id="s:0"),
        plain(session_id="t", request_id="t:0"),
        plain(session_id="s", request_id="s:1", delay=20),
        plain(session_id="s", request_id="s:2", wait_on="s:0", joins=["t:0", "s:0"]),
        plain(session_id="t", request_id="t:1", wait_for=["s:0", "s:1"]),
    )
    assert [request.waits_on for request in requests] == [(), (), ("s:0",), ("s:0", "t:0"), ("s:0", "s:1")]


def test_sub_agents_belong_to_the_tree_that_spawned_them() -> None:
    requests = read(
        plain(session_id="root", request_id="1"),
        plain(session_id="root/a", request_id="2", parent_session_id="root"),
        plain(session_id="root/a", request_id="3"),
        plain(session_id="deep", request_id="4", parent_session_id="root/a"),
        plain(request_id="alone"),
    )
    assert [request.tree_id for request in requests] == ["root", "root", "root", "root", "alone"]


def test_block_size_is_inferred_and_checked() -> None:
    prompts = {6758: 14, 71_169: 140, 71_680: 140}
    rows = [plain(tokens, request_id=str(tokens), new_blocks=blocks) for tokens, blocks in prompts.items()]
    reader = TraceReader(lines(*rows))
    assert [request.input_tokens for request in reader] == list(prompts)
    assert reader.block_size == BlockSize(512, Tail.CEIL)


def test_whole_blocks_say_nothing_about_the_tail() -> None:
    assert read(plain(64, hash_ids=[1]), plain(4288, hash_ids=[*range(2, 69)]), block_size=None)[1].row == 1


def test_one_id_for_a_partial_and_a_full_block_is_read() -> None:
    # ai-dynamo/aiperf #1219: refusing such a trace loses it; the shared block is simply a shared block
    requests = read(plain(700, hash_ids=[1, 2]), plain(1500, hash_ids=[1, 2, 3]))
    assert shared(requests) == 2


def test_complete_prompts_of_a_session_are_not_added_up() -> None:
    # ai-dynamo/aiperf #1393: rows that are complete prompts were replayed as deltas
    requests = read(plain(700, session_id="s", hash_ids=[1, 2]), plain(1200, session_id="s", hash_ids=[1, 2, 3]))
    assert [request.input_tokens for request in requests] == [700, 1200]
    assert [request.prompt and request.prompt.blocks for request in requests] == [2, 3]


BAD: list[tuple[str, str, BadRecord]] = [
    ('{"input_length": 5', "not JSON", BadRecord.TRUNCATED),
    ("[1]", "found list", BadRecord.NOT_AN_OBJECT),
    ("7", "found int", BadRecord.NOT_AN_OBJECT),
    (json.dumps({"output_length": 3}), "'input_length' is missing", BadRecord.MISSING_FIELD),
    (json.dumps(plain(0)), "at least 1", BadRecord.NON_POSITIVE_LENGTH),
    (json.dumps(plain(-4)), "at least 1", BadRecord.NON_POSITIVE_LENGTH),
    (json.dumps(plain(5) | {"output_length": -1}), "at least 0", BadRecord.NON_POSITIVE_LENGTH),
    (json.dumps(plain(5) | {"timestamp": -1}), "'timestamp' is -1", BadRecord.NEGATIVE_TIME),
    (json.dumps(plain(5) | {"input_length": "5"}), "is a number, found '5'", BadRecord.WRONG_TYPE),
    (json.dumps(plain(5) | {"input_length": True}), "is a number, found True", BadRecord.WRONG_TYPE),
    (json.dumps(plain(5) | {"input_length": 5.5}), "whole number", BadRecord.WRONG_TYPE),
    (json.dumps(plain(5) | {"session_id": [1]}), "is a name", BadRecord.WRONG_TYPE),
    (json.dumps(plain(5, hash_ids=[1.5])), "integers or strings", BadRecord.WRONG_TYPE),
    (json.dumps(plain(5, hash_ids="1")), "integers or strings", BadRecord.WRONG_TYPE),
    (json.dumps(plain(5, new_blocks=-1)), "is a count", BadRecord.WRONG_TYPE),
    ('{"timestamp": NaN, "input_length": 5, "output_length": 1}', "NaN", BadRecord.NOT_FINITE),
    ('{"timestamp": 1e999, "input_length": 5, "output_length": 1}', "inf", BadRecord.NOT_FINITE),
    (json.dumps(plain(5, input_tokens=6)), "differ", BadRecord.CONFLICTING_FIELDS),
    (json.dumps(plain(5, hash_ids=[9], new_blocks=1)), "exclude each other", BadRecord.CONFLICTING_FIELDS),
    (json.dumps(plain(5, prefix_from="good")), "go together", BadRecord.MISSING_FIELD),
    (json.dumps(plain(5, request_id="good")), "names an earlier record", BadRecord.DUPLICATE_ID),
    (json.dumps(plain(5, wait_on="nobody")), "'nobody', which is none of", BadRecord.DANGLING_REFERENCE),
    (json.dumps(plain(5, joins=["nobody"])), "'nobody', which is none of", BadRecord.DANGLING_REFERENCE),
    (json.dumps(plain(5, request_id="me", wait_on="me")), "waits on itself", BadRecord.CYCLE),
    (json.dumps(plain(5, prefix_from="good", prefix_blocks=3)), "has 2 blocks", BadRecord.PREFIX_TOO_LONG),
    (json.dumps(plain(5, hash_ids=[2])), "was block 1", BadRecord.CHAIN_VIOLATION),
    (json.dumps(plain(5, hash_ids=[1, 2])), "2 block ids for 5 tokens", BadRecord.BLOCK_COUNT),
    (json.dumps(plain(900, hash_ids=[1])), "1 block ids for 900 tokens", BadRecord.BLOCK_COUNT),
]


@pytest.mark.parametrize(("row", "message", "kind"), BAD)
def test_each_malformed_record_is_named_and_can_be_skipped(row: str, message: str, kind: BadRecord) -> None:
    good = lines(plain(700, request_id="good", hash_ids=[1, 2]))
    with pytest.raises(BadFile, match=message) as refused:
        list(TraceReader([*good, "\n", row], name="t.jsonl", block_size=B512))
    assert str(refused.value).startswith("t.jsonl line 3: ")
    reader = TraceReader([*good, "\n", row], block_size=B512, skip_bad_records=True)
    assert [request.request_id for request in reader] == ["good"]
    assert reader.skipped == {kind: 1}


def test_what_refers_to_a_skipped_record_is_skipped() -> None:
    reader = TraceReader(
        lines(
            plain(0, request_id="bad", session_id="s"),
            plain(5, request_id="next", wait_on="bad"),
            plain(5, request_id="after", wait_on="next"),
            plain(5, request_id="other"),
        ),
        skip_bad_records=True,
    )
    assert [request.request_id for request in reader] == ["other"]
    assert reader.skipped == {BadRecord.NON_POSITIVE_LENGTH: 1, BadRecord.FOLLOWS_SKIPPED: 2}


def test_cycles_and_forward_references_are_told_apart() -> None:
    with pytest.raises(BadFile, match=r"line 1: a cycle .* a -> c -> b -> a"):
        read(plain(request_id="a", wait_on="c"), plain(request_id="b", wait_on="a"), plain(request_id="c", joins=["b"]))
    with pytest.raises(BadFile, match="'c', a later record: sort the trace"):
        read(plain(request_id="a", wait_on="c"), plain(request_id="c"))


@pytest.mark.parametrize("ids", [[1], [1, 2, 3, 4]])
def test_hand_written_examples_with_a_wrong_number_of_ids(ids: list[int]) -> None:
    # ai-dynamo/aiperf #581, vllm-project/guidellm #948
    with pytest.raises(BadFile, match=f"{len(ids)} block ids for 1500 tokens: blocks of 512 .ceil tail. make 3"):
        read(plain(1500, hash_ids=ids))


def test_ambiguous_block_size_is_refused() -> None:
    with pytest.raises(BadFile, match=r"ambiguous: 500..999 .ceil tail. or 334..500 .floor tail.; say which"):
        read(plain(1000, hash_ids=[1, 2]), block_size=None)


def test_a_damaged_array_stops_even_where_bad_records_are_skipped() -> None:
    reader = TraceReader(['[{"input_length": 5, "output_length": 1}, {"input'], skip_bad_records=True)
    with pytest.raises(BadFile, match="line 1: not JSON"):
        list(reader)


def test_memory_is_bounded_by_the_history() -> None:
    def endless() -> Iterable[str]:
        for row in range(400):
            yield from lines(plain(700, request_id=f"r{row}", session_id=f"s{row}", hash_ids=[2 * row, 2 * row + 1]))

    reader = TraceReader(endless(), block_size=B512, history_records=40)
    assert sum(1 for _ in reader) == 400
    assert reader.remembered <= 4 * 50  # records, sessions, two ids a record; swept every quarter of the history


def test_a_reference_beyond_the_history_says_how_far_it_reaches() -> None:
    rows = [plain(request_id=f"r{row}") for row in range(5)]
    with pytest.raises(BadFile, match="'r0', which is none of the last 3 records"):
        read(*rows, plain(wait_on="r0"), history_records=3)
    with pytest.raises(BadInput, match="history_records"):
        TraceReader([], history_records=0)
