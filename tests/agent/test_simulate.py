"""``inferasim simulate``: traces through the command, good and bad."""

import csv
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from agent.anchor_files import bundled_anchors
from agent.cli.main import main
from agent.playing import EntryPool, entry_pool, play_trace, tier_of
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
from predictor.anchors.schema import Host
from predictor.des.play import PlayRules
from predictor.des.trace_sim import TraceResult
from predictor.engines import effective_settings
from predictor.memory import memory
from predictor.predict import step_for
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


LLAMA = Catalogue(model_card("Llama-3.1-8B"), platform("MI355X"), engine_profile("sglang"), bundled_anchors())
LAYOUTS = [
    (Layout(), 1, None),
    (Layout(tp=2), 2, None),
    (Layout(tp=4, attn_dp=2), 1, None),
    (Layout(tp=4), 1, PrefillPool(Layout(tp=2), 3, "mori")),
    (Layout(), 5, PrefillPool(Layout(tp=4), 1, "nixl")),
]


def entry(deployment: Deployment, catalogue: Catalogue, isl_tokens: int) -> tuple[EntryPool, float]:
    """The pool that requests come to, and the host time of a request that its steps were priced with."""
    settings = effective_settings(catalogue.profile, "", catalogue.platform, catalogue.card, deployment)
    held = memory(catalogue.card, catalogue.platform, deployment, settings)
    step, _, _ = step_for(deployment, Workload(isl_tokens, 20, 8), catalogue, settings, None, None)
    return entry_pool(deployment, catalogue, settings, held, step, isl_tokens), step.host_ms


@pytest.mark.parametrize(("layout", "replicas", "prefill"), LAYOUTS)
def test_host_memory_is_that_of_each_gpu_that_holds_a_prefix_cache(
    layout: Layout, replicas: int, prefill: PrefillPool | None
) -> None:
    """A tier holds ``host_kv_gb`` a GPU in tokens of the pool that caches, however many GPUs and pools there are."""
    deployment = Deployment(
        "Llama-3.1-8B", "MI355X", "SGLang", layout=layout, replicas=replicas, prefill=prefill, host_kv_gb=30.0
    )
    pool, _ = entry(deployment, LLAMA, 640)
    tier = tier_of(deployment, LLAMA, pool)
    assert tier is not None
    assert tier.capacity_tokens == int(30e9 / pool.memory.kv_bytes_per_token)
    caching = layout if prefill is None else prefill.layout
    assert (pool.layout, pool.gpus) == (caching, caching.gpus * (replicas if prefill is None else prefill.replicas))
    heads = LLAMA.card.attention.kv_heads
    assert pool.memory.kv_bytes_per_token * min(caching.attn_tp, heads) == pytest.approx(131072)  # 32 layers, 8 heads
    assert tier_of(replace(deployment, host_kv_gb=0.0), LLAMA, pool) is None


@pytest.mark.parametrize("isl_tokens", [64, 640, 8000])
@pytest.mark.parametrize(("layout", "replicas", "prefill"), LAYOUTS)
def test_host_time_of_a_trace_is_the_steps_own(
    layout: Layout, replicas: int, prefill: PrefillPool | None, isl_tokens: int
) -> None:
    """Colocated: the anchor's, or the profile's without one. Split: twice that, a quarter of it on the prefill step."""
    deployment = Deployment("Llama-3.1-8B", "MI355X", "SGLang", layout=layout, replicas=replicas, prefill=prefill)
    with_host = replace(
        LLAMA,
        anchors=tuple(replace(one, host=Host(per_request_ms=41.0, per_prompt_token_us=3.0)) for one in LLAMA.anchors),
    )
    for catalogue in (with_host, replace(LLAMA, anchors=())):
        pool, host_ms = entry(deployment, catalogue, isl_tokens)
        latency_ms = pool.host.ms_per_request + pool.host.us_per_prompt_token * isl_tokens / 1000.0
        bare = entry(replace(deployment, prefill=None), catalogue, isl_tokens)[0]
        servers = 1 if prefill is None else 2
        priced, alone = (model.prefill.per_request_ms + model.prefill.chunk_ms(isl_tokens) for model in (
            pool.model, pool.decode.step_model if pool.decode is not None else bare.model
        ))  # fmt: skip
        assert host_ms > 0.0
        assert latency_ms + (priced - alone) == pytest.approx(servers * host_ms)
        assert priced - alone == pytest.approx(0.5 * host_ms if prefill is not None else 0.0, abs=1e-9)
    assert asdict(pool.host)["poll_interval_steps"] == LLAMA.profile.poll_interval_steps


def test_prompts_of_a_split_queue_behind_each_others_host_time() -> None:
    """Two prompts at once on one prefill replica: with 80 ms of host time the second waits 40 ms more for the first."""
    split = Deployment("Llama-3.1-8B", "MI355X", "SGLang", prefill=PrefillPool(Layout(), 1, "mori"))
    forest = BlockForest()
    requests = [
        TraceRequest(i, f"r{i}", f"s{i}", f"s{i}", 0.0, 16384, 4, prompt=forest.fresh(NO_BLOCKS, 256)) for i in range(2)
    ]
    last = []
    for host_ms in (0.0, 80.0):
        anchors = tuple(replace(one, host=Host(per_request_ms=host_ms)) for one in LLAMA.anchors)
        played = play_trace(
            split,
            Workload(16384, 4, 2),
            replace(LLAMA, anchors=anchors),
            requests,
            BlockSize(64, Tail.FLOOR),
            PlayRules(),
            mode=Mode.ANCHORED,
        ).result.simulation.requests["ttft_ms"]
        last.append(sorted(played.tolist()))
    (first_cold, second_cold), (first, second) = last
    host = first - first_cold  # serial and latency parts
    assert host > 0.0
    assert second - second_cold == pytest.approx(host * 1.25)


@pytest.mark.parametrize("slots", [(), ("--slots", "4")])
def test_the_command_describes_both_pools_as_predict_does(
    slots: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A split of two prefill replicas of TP2 and one decode GPU: the flags of ``predict``, the GPUs of both pools."""
    path = trace_file(tmp_path, rows(40))
    pools = ("--prefill-tp", "2", "--prefill-replicas", "2", "--handoff", "mori", "--router", "round-robin")
    code, text, _ = simulate(capsys, "--trace", str(path), *DEPLOYMENT, *pools, *slots, "--json")
    answer = json.loads(text)
    assert (code, answer["requests"], answer["gpus"]) == (0, 40, 5)
    assert len(answer["token_hit_rate_by_replica"]) == 2
    code, text, words = simulate(capsys, "--trace", str(path), *DEPLOYMENT, "--prefill-tp", "2", "--json")
    assert (code, text) == (2, "")
    assert "nixl, mooncake, mori" in words
