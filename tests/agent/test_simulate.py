"""``inferasim simulate``: traces through the command, good and bad."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.cli.main import main
from agent.playing import play_trace
from inferasim import (
    Catalogue,
    Deployment,
    Layout,
    Mode,
    PrefillPool,
    Workload,
    engine_profile,
    model_card,
    platform,
)
from predictor.des.play import PlayRules
from predictor.des.trace_sim import TraceResult
from predictor.workload.block_size import BlockSize, Tail
from predictor.workload.blocks import NO_BLOCKS, BlockForest
from predictor.workload.trace import TraceRequest

DEPLOYMENT = ("--model", "Llama-3.1-8B", "--gpu", "MI355X", "--engine", "sglang")


def trace_file(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows(count: int) -> list[dict[str, Any]]:
    """Two prompts that share their first block, over and over; their lengths tell that a block has 512 tokens."""
    return [
        {
            "timestamp": index * 50,
            "input_length": (1024, 513)[index % 2],
            "output_length": 20,
            "hash_ids": [0, 1 + index % 2],
        }
        for index in range(count)
    ]


def simulate(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as leaving:
        main(["simulate", *arguments])
    captured = capsys.readouterr()
    return int(leaving.value.code or 0), captured.out, captured.err


def test_a_trace_is_played_and_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = trace_file(tmp_path, rows(40)), tmp_path / "requests.csv"
    code, text, _ = simulate(capsys, "--trace", str(path), *DEPLOYMENT, "--out", str(out), "--json")
    answer = json.loads(text)
    assert code == 0
    assert (answer["requests"], answer["block_tokens"], answer["mode"]) == (40, 512, "anchored")
    assert 0.5 < answer["token_hit_rate"] < 1.0
    assert answer["ttft_ms"]["p50"] <= answer["ttft_ms"]["p99"]
    with out.open() as file:
        exported = list(csv.DictReader(file))
    assert len(exported) == 40
    assert sum(int(row["output_tokens"]) for row in exported) == 40 * 20


def test_the_same_trace_gives_the_same_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace_file(tmp_path, rows(20))
    answers = []
    for _ in range(2):
        _, text, _ = simulate(
            capsys, "--trace", str(path), *DEPLOYMENT, "--replicas", "2", "--router", "random", "--json"
        )
        answers.append(json.loads(text))
        answers[-1].pop("wall_ms")
    assert answers[0] == answers[1]


def test_a_bad_record_is_named_by_line_or_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = rows(10)
    broken[4]["input_length"] = -3
    path = trace_file(tmp_path, broken)
    code, text, words = simulate(capsys, "--trace", str(path), *DEPLOYMENT, "--json")
    assert (code, text) == (2, "")
    assert "5" in words
    assert "input_length" in words
    code, text, _ = simulate(capsys, "--trace", str(path), *DEPLOYMENT, "--skip-bad-records", "--json")
    answer = json.loads(text)
    assert (code, answer["requests"], sum(answer["skipped_records"].values())) == (0, 9, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--trace", "/no/such/trace"), "no such file"), (("--router", "nearest"), "nearest"),
     (("--tp", "3"), "tp 3"), (("--mode", "guess"), "guess")],
)  # fmt: skip
def test_bad_input_is_one_line(
    arguments: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace_file(tmp_path, rows(3))
    code, text, words = simulate(capsys, "--trace", str(path), *DEPLOYMENT, *arguments)
    assert (code, text) == (2, "")
    assert said in words
    assert len(words.strip().splitlines()) == 1


def played(deployment: Deployment, served_before: bool = False) -> TraceResult:
    """Forty prompts of ten blocks that no other shares, eight sessions at a time."""
    catalogue = Catalogue(model_card("Llama-3.1-8B"), platform("MI355X"), engine_profile("sglang"))
    forest = BlockForest()
    requests = [
        TraceRequest(i, f"r{i}", f"s{i}", f"s{i}", 0.0, 640, 20 + i % 7, prompt=forest.fresh(NO_BLOCKS, 10))
        for i in range(40)
    ]
    return play_trace(
        deployment,
        Workload(640, 20, concurrency=8),
        catalogue,
        requests,
        BlockSize(64, Tail.FLOOR),
        PlayRules(slots=8),
        served_before=requests if served_before else (),
        mode=Mode.SIMULATE,
    ).result


def test_a_split_plays_a_trace_on_both_pools() -> None:
    """The prefill pool holds the prefix caches, prompts stall no decode, and TTFT holds the hand-off."""
    colocated = Deployment("Llama-3.1-8B", "MI355X", "SGLang")
    split = replace(colocated, prefill=PrefillPool(Layout(), 2, "mori"))
    alone, apart = played(colocated), played(split)
    assert (alone.gpus, apart.gpus, apart.simulation.completed) == (1, 3, 40)
    assert sorted(apart.hit_rates()) == [0, 1]
    assert apart.simulation.itl_ms.p99 < alone.simulation.itl_ms.p99


def test_a_server_that_served_the_trace_before_finds_all_of_it() -> None:
    deployment = Deployment("Llama-3.1-8B", "MI355X", "SGLang")
    cold, warm = (played(deployment, before).simulation for before in (False, True))
    assert cold.hit_rate == 0.0
    assert warm.hit_rate > 0.85
    assert warm.ttft_ms.mean < cold.ttft_ms.mean
