"""Every format gives back the figures that were written into it, in ms, and says only what the file says."""

import json
from typing import Any

import numpy as np
import pytest

from evals import benchmark_files as write
from predictor.anchors.import_formats import BenchRun, read_benchmark
from predictor.des.metrics import SimulationResult
from predictor.des.schedulers import scheduler_rules
from predictor.des.simulator import simulate
from predictor.errors import BadFile
from predictor.step.model import PrefillCurve, TableStepModel
from predictor.types import SchedulerSettings, Workload

LOAD = write.Load(4, 1024, 128, 0.8, "meta-llama/Llama-3.1-8B-Instruct")
MODEL = TableStepModel((8.0, 8.5, 9.0, 9.5), (1e-4,) * 4, PrefillCurve(5.0, 0.02, 0.0, 0.0))


def run_of() -> SimulationResult:
    rules = scheduler_rules("vllm", "", SchedulerSettings(max_running=64, token_budget=4096))
    return simulate(MODEL, Workload(1024, 128, 4, length_range_frac=0.8), rules, kv_blocks=100_000)


RESULT = run_of()
FIGURES = write.figures(RESULT, write.Noise(0.0, 0))
CONFIGURATION = {
    "hw": "mi355x",
    "framework": "sglang",
    "precision": "fp4",
    "spec_decoding": "none",
    "disagg": False,
    "is_multinode": "false",
    "tp": 4,
    "pp": 1,
    "ep": 4,
    "dp_attention": "true",
    "image": "lmsysorg/sglang:v0.5.19-rocm700",
}


def only(text: str, name: str = "run.json") -> BenchRun:
    runs = read_benchmark(text, name).runs
    assert len(runs) == 1
    return runs[0]


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        (write.vllm(FIGURES, LOAD), "vllm bench serve"),
        (write.vllm(FIGURES, LOAD, RESULT), "vllm bench serve"),
        (write.atom(FIGURES, LOAD), "ATOM benchmark_serving"),
        (write.sglang(FIGURES, LOAD, None), "SGLang bench_serving"),
        (write.aiperf_summary(FIGURES, LOAD), "AIPerf"),
        (write.aiperf_records(LOAD, RESULT, write.Noise(0.0, 0), 0.0), "AIPerf"),
        (write.inferencex(FIGURES, LOAD, CONFIGURATION), "InferenceX"),
        (write.guidellm([(FIGURES, LOAD)]), "GuideLLM"),
        (write.plain_csv([(FIGURES, LOAD)]), "CSV"),
    ],
)
def test_figures_come_back_in_ms(text: str, tool: str) -> None:
    run = only(text)
    assert run.tool == tool
    assert run.concurrency == 4
    assert run.ttft.mean == pytest.approx(RESULT.ttft_ms.mean, rel=1e-9)
    assert run.tpot.mean == pytest.approx(RESULT.tpot_ms.mean, rel=1e-9)
    if run.e2e.mean is not None:
        assert run.e2e.mean == pytest.approx(RESULT.e2e_ms.mean, rel=1e-9)
    if run.duration_s is not None and tool != "AIPerf":
        assert run.duration_s == pytest.approx(RESULT.duration_ms / 1e3)
    assert run.failed == 0
    assert run.requests == 40


def test_a_detailed_file_keeps_every_request() -> None:
    run = only(write.vllm(FIGURES, LOAD, RESULT))
    assert len(run.details) == 40
    assert sum(one.prompt_tokens for one in run.details) == RESULT.totals.prompt_tokens
    assert np.mean([one.ttft_ms for one in run.details]) == pytest.approx(RESULT.ttft_ms.mean)
    lengths = [one.prompt_tokens for one in run.details]
    assert run.prompt_range == (min(lengths), max(lengths))


def test_the_vllm_client_does_not_tell_the_engine_but_its_metadata_may() -> None:
    row = json.loads(write.vllm(FIGURES, LOAD)) | {"tp": "8", "gpu": "H200", "version": "0.33.0"}
    recorded = only(json.dumps(row)).recorded
    assert "engine" not in recorded
    assert recorded["tp"] == 8
    assert recorded["gpu"] == "H200"
    assert recorded["engine_version"] == "0.33.0"
    assert recorded["speculates"] is False


def test_an_acceptance_length_says_that_the_run_speculated() -> None:
    row = json.loads(write.vllm(FIGURES, LOAD)) | {"spec_decode_acceptance_length": 2.4}
    run = only(json.dumps(row))
    assert run.tokens_per_step == 2.4
    assert run.recorded["speculates"] is True


def test_an_sglang_server_tells_its_own_arguments_after_every_clamp() -> None:
    server = {
        "version": "0.5.19",
        "model_path": "Qwen/Qwen3-32B",
        "tp_size": 8,
        "dp_size": 8,
        "enable_dp_attention": True,
        "ep_size": 8,
        "kv_cache_dtype": "fp8_e4m3",
        "quantization": None,
        "disable_radix_cache": True,
        "max_running_requests": 512,
        "max_prefill_tokens": 16384,
        "chunked_prefill_size": 8192,
        "max_total_num_tokens": 900_000,
        "attention_backend": "aiter",
        "moe_runner_backend": "auto",
        "load_format": "auto",
        "speculative_algorithm": None,
    }
    recorded = only(write.sglang(FIGURES, LOAD, server)).recorded
    assert recorded["engine"] == "SGLang"
    assert (recorded["tp"], recorded["ep"], recorded["attn_dp"]) == (8, 8, 8)
    assert recorded["kv_dtype"] == "fp8"
    assert "weight_dtype" not in recorded  # the checkpoint's own: the file does not say
    assert "moe_backend" not in recorded  # auto says nothing
    assert recorded["prefix_cache"] == "off"
    assert recorded["kv_pool_tokens"] == 900_000
    assert recorded["real_weights"] is True
    assert (recorded["isl"], recorded["osl"], recorded["length_range"]) == (1024, 128, 0.8)


def test_inferencex_is_in_seconds_and_names_its_deployment() -> None:
    row = json.loads(write.inferencex(FIGURES, LOAD, CONFIGURATION))
    assert row["mean_tpot"] == pytest.approx(RESULT.tpot_ms.mean / 1e3)
    recorded = only(json.dumps(row)).recorded
    assert recorded["gpu"] == "MI355X"
    assert recorded["engine"] == "SGLang"
    assert recorded["engine_version"] == "v0.5.19-rocm700"
    assert (recorded["tp"], recorded["ep"], recorded["attn_dp"]) == (4, 4, 4)
    assert recorded["weight_dtype"] == "fp4"
    assert recorded["length_range"] == 0.8


def test_aiperf_states_its_units_and_they_are_read() -> None:
    row = json.loads(write.aiperf_summary(FIGURES, LOAD))
    for statistic in ("avg", "p50", "p90", "p99"):
        row["time_to_first_token"][statistic] /= 1e3
    row["time_to_first_token"]["unit"] = "s"
    assert only(json.dumps(row)).ttft.mean == pytest.approx(RESULT.ttft_ms.mean)
    row["time_to_first_token"]["unit"] = "fortnights"
    with pytest.raises(BadFile, match=r"time_to_first_token\.unit is 'fortnights'"):
        read_benchmark(json.dumps(row), "run.json")


def test_aiperf_warm_up_requests_are_dropped() -> None:
    text = write.aiperf_records(LOAD, RESULT, write.Noise(0.0, 0), 0.0)
    assert len(text.splitlines()) == 41
    assert only(text).requests == 40


def test_guidellm_per_token_time_of_the_whole_request_is_not_taken_for_tpot() -> None:
    report = json.loads(write.guidellm([(FIGURES, LOAD)]))
    report["benchmarks"][0]["metrics"]["time_per_output_token_ms"] = {"successful": {"mean": 99.0}}
    assert only(json.dumps(report)).tpot.mean == pytest.approx(RESULT.tpot_ms.mean)


def test_a_report_of_several_loads_gives_one_run_each() -> None:
    other = write.Load(8, 1024, 128, 0.8, LOAD.model_id)
    runs = read_benchmark(write.guidellm([(FIGURES, LOAD), (FIGURES, other)]), "b.json").runs
    assert [run.concurrency for run in runs] == [4, 8]
    lines = write.sglang(FIGURES, LOAD, None) + "\n" + write.sglang(FIGURES, other, None) + "\n"
    assert [run.origin for run in read_benchmark(lines, "b.jsonl").runs] == ["b.jsonl line 1", "b.jsonl line 2"]


def test_one_batch_steps_are_seconds() -> None:
    parsed = read_benchmark(write.one_batch([(4, 1024, 16, 80.0, 9.0)], write.Noise(0.0, 0)), "s.jsonl")
    assert parsed.steps[0].prefill_ms == pytest.approx(80.0)
    assert parsed.steps[0].decode_step_ms == pytest.approx(9.0)
    assert parsed.steps[0].recorded["engine"] == "SGLang"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"batch_size": 1, "input_len": 8, "last_ttft": 0.1, "last_gen_throughput": 5.0}, "reports no step"),
        (
            json.loads(write.inferencex(FIGURES, LOAD, CONFIGURATION)) | {"disagg": "true"},
            "anchors are made of colocated runs",
        ),
        (json.loads(write.sglang(FIGURES, LOAD, None)) | {"request_rate": "trace"}, "replayed trace"),
        (json.loads(write.aiperf_summary(FIGURES, LOAD)) | {"was_cancelled": True}, "incomplete AIPerf run"),
        (json.loads(write.vllm(FIGURES, LOAD)) | {"completed": 0}, "no request of this run finished"),
        ({"hello": 1}, "no known benchmark result"),
    ],
)
def test_what_cannot_be_an_anchor_is_refused_with_the_reason(row: dict[str, Any], said: str) -> None:
    with pytest.raises(BadFile, match=said):
        read_benchmark(json.dumps(row), "run.json")


def test_a_csv_latency_without_a_unit_is_refused() -> None:
    with pytest.raises(BadFile, match=r"column 'ttft' is not known; a latency needs its unit: ttft_ms or ttft_s"):
        read_benchmark("concurrency,ttft,mean_tpot_ms\n1,20,5\n", "t.csv")
    run = only("concurrency,ttft_s,tpot_us\n1,0.02,5000\n", "t.csv")
    assert (run.ttft.mean, run.tpot.mean) == pytest.approx((20.0, 5.0))
