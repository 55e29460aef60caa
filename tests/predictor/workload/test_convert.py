"""Other writers' formats, and that their records mean what ours do."""

import json
from typing import Any

import pytest

from predictor.errors import BadFile, UnknownName
from predictor.workload.block_size import BlockSize, Tail
from predictor.workload.convert import CONVERTERS, converter
from predictor.workload.fields import BadRecord
from predictor.workload.trace import TraceReader, TraceRequest


def read(name: str, *rows: Any, size: BlockSize | None = None, **options: Any) -> list[TraceRequest]:
    text = [row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows]
    return list(TraceReader(converter(name)(text), block_size=size, **options))


def blocks_shared(first: TraceRequest, second: TraceRequest) -> int:
    assert first.prompt is not None
    assert second.prompt is not None
    return first.prompt.shared_blocks(second.prompt)


def test_delta_rows_add_up() -> None:
    rows = [
        {"session_id": "s", "input_length": 1024, "output_length": 9, "hash_ids": [1, 2]},
        {"session_id": "t", "input_length": 512, "output_length": 9, "hash_ids": [7]},
        {"session_id": "s", "input_length": 600, "output_length": 9, "hash_ids": [3, 4], "delay": 5},
    ]
    first, other, second = read("mooncake-delta", *rows, size=BlockSize(512, Tail.CEIL))
    assert (second.input_tokens, second.think_time_ms) == (1624, 5)
    assert blocks_shared(first, second) == 2
    assert second.prompt is not None
    assert second.prompt.blocks == 4
    assert second.waits_on == (first.request_id,)
    assert other.waits_on == ()


def test_dynamo_v1_adds_the_tool_wait_to_the_delay() -> None:
    first, second = read(
        "dynamo-agentic",
        {"request_id": "a", "input_length": 8, "output_length": 1},
        {
            "request_id": "b",
            "input_length": 8,
            "output_length": 1,
            "wait_for": ["a"],
            "delay": 10,
            "tool_wait_ms": 32.5,
        },
    )
    assert second.waits_on == (first.request_id,)
    assert second.think_time_ms == 42.5


def test_dynamo_v2() -> None:
    rows = [
        {"schema": "v2", "block_size": 16, "hash_id_scope": "local"},
        {
            "request_id": "a",
            "play_id": "p",
            "not_before_ms": 7,
            "input_length": 16,
            "output_length": 1,
            "hash_ids": [1],
        },
        {
            "request_id": "b",
            "play_id": "q",
            "not_before_ms": 9,
            "input_length": 16,
            "output_length": 1,
            "hash_ids": [1],
        },
        {
            "request_id": "c",
            "play_id": "p",
            "session_id": "p/2",
            "input_length": 32,
            "output_length": 1,
            "hash_ids": [1, 2],
            "dependencies": [{"request_id": "a", "trigger": "completion", "relation": "spawn", "delay_ms": 3}],
        },
    ]
    a, b, c = read("dynamo-agentic", *rows, size=BlockSize(16, Tail.CEIL))
    assert (a.arrival_ms, b.arrival_ms, c.arrival_ms) == (7, 9, None)
    assert (blocks_shared(a, c), blocks_shared(a, b)) == (1, 0)  # ids are local to a play
    assert (c.waits_on, c.think_time_ms, c.tree_id) == (("a",), 3, "p")


@pytest.mark.parametrize(
    "dependencies",
    [
        [{"request_id": "a", "trigger": "dispatch"}],
        [{"request_id": "a", "delay_ms": 1}, {"request_id": "b", "delay_ms": 2}],
    ],
)
def test_what_v2_can_say_and_we_cannot_is_refused(dependencies: list[dict[str, Any]]) -> None:
    rows = [{"request_id": name, "input_length": 8, "output_length": 1} for name in "ab"]
    last = {"request_id": "c", "input_length": 8, "output_length": 1, "dependencies": dependencies}
    with pytest.raises(BadFile, match="line 3: unsupported: "):
        read("dynamo-agentic", *rows, last)
    reader = TraceReader(converter("dynamo-agentic")(map(json.dumps, [*rows, last])), skip_bad_records=True)
    assert len(list(reader)) == 2
    assert reader.skipped == {BadRecord.UNSUPPORTED: 1}


def test_bailian_ids_mean_their_prefix_only_after_rekeying() -> None:
    rows = [
        {
            "chat_id": 1,
            "parent_chat_id": -1,
            "timestamp": 1.5,
            "input_length": 48,
            "output_length": 2,
            "hash_ids": [5, 6, 7],
        },
        {
            "chat_id": 2,
            "parent_chat_id": 1,
            "timestamp": 2.5,
            "input_length": 48,
            "output_length": 2,
            "hash_ids": [9, 6, 7],
        },
        {
            "chat_id": 3,
            "parent_chat_id": 1,
            "timestamp": 3.5,
            "input_length": 48,
            "output_length": 2,
            "hash_ids": [5, 6, 5],
        },
    ]
    first, second, third = read("bailian", *rows, size=BlockSize(16, Tail.CEIL))
    assert (first.arrival_ms, first.request_id) == (1500, "1")
    assert blocks_shared(first, second) == 0
    assert blocks_shared(first, third) == 2


def test_weka_tree() -> None:
    turn = {"in": 64, "out": 1, "hash_ids": [1], "api_time": 2.0}
    trace = {
        "id": "w",
        "hash_id_scope": "local",
        "requests": [
            {"t": 0.0, "think_time": 0.0, **turn},
            {
                "t": 20.0,
                "type": "subagent",
                "status": "completed",
                "duration_ms": 15_000,
                "requests": [{"t": 0.0, **turn}, {"t": 6.0, **turn, "hash_ids": [1]}],
            },
            {"t": 4.0, "type": "subagent", "status": "async_launched", "requests": [{"t": 0.0, **turn}]},
            {"t": 30.0, "think_time": 28.0, **turn},
        ],
    }
    requests = {request.request_id: request for request in read("weka", trace, size=BlockSize(64, Tail.FLOOR))}
    assert list(requests) == ["w:0", "w/a2:0", "w/a1:0", "w/a1:1", "w:1"]
    assert requests["w/a1:0"].arrival_ms == 5_000
    assert requests["w/a1:0"].waits_on == ("w:0",)
    assert requests["w/a1:0"].think_time_ms == 3_000
    assert requests["w/a1:1"].think_time_ms == 4_000  # no recorded pause: from the end of the turn before
    assert requests["w:1"].waits_on == ("w:0", "w/a1:1")
    assert requests["w:1"].think_time_ms == 10_000  # from the last completion, not the recorded 28 s
    assert {request.tree_id for request in requests.values()} == {"w"}


def test_weka_faults() -> None:
    with pytest.raises(BadFile, match="line 1: a trace is an object with 'id' and 'requests'"):
        read("weka", {"id": "w"})
    with pytest.raises(BadFile, match=r"missing or no number .'in'"):
        read("weka", {"id": "w", "requests": [{"t": 0.0, "out": 1}]})


def test_azure_csv() -> None:
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens\n", "2023-12-31 23:59:59.5000000,4808,10\n"]
    first, second = read("azure", *rows, "2024-01-01 00:00:01.2500000,3180,8\n")
    assert (first.arrival_ms, first.input_tokens, first.output_tokens) == (0, 4808, 10)
    assert second.arrival_ms == 1750
    assert second.prompt is None


def test_lengths_csv() -> None:
    (request,) = read("lengths", "input_length,output_length\n", "3772,54\n")
    assert (request.input_tokens, request.output_tokens, request.arrival_ms) == (3772, 54, None)


def test_csv_faults_name_the_line() -> None:
    with pytest.raises(BadFile, match="header lacks GeneratedTokens"):
        read("azure", "TIMESTAMP,ContextTokens\n")
    with pytest.raises(BadFile, match="line 3: not a row of numbers"):
        read("lengths", "input_length,output_length\n", "1,2\n", "1,x\n")


def test_our_own_records_and_unknown_formats() -> None:
    (request,) = read("mooncake", {"timestamp": 1, "input_length": 5, "output_length": 1})
    assert request.arrival_ms == 1
    assert len(CONVERTERS) == 7
    with pytest.raises(UnknownName, match="nearest: weka"):
        converter("wekka")
