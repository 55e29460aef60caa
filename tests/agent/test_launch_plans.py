"""Launch plans of every engine: processes and ports, checkpoints, benchmark and flag tables."""

import json
import shlex
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.launch import LaunchPlan, Options, benchmark_line, launch_plan
from agent.launch.flags import engine_table, problems
from agent.launch.shell import addresses, environment
from evals.launch_cases import contexts, deployments
from predictor.errors import BadInput
from predictor.types import (
    Arrival,
    Deployment,
    Dtype,
    Kernels,
    Layout,
    Precision,
    PrefillPool,
    Workload,
)
from tests.agent.launch_examples import EXAMPLES, LLAMA, R1, WORKLOAD, flags, plan_of, server

# --- all engines ----------------------------------------------------------------------------------------------------

KNOWN_REFUSALS = (
    "'cutlass_mla' is not one of",  # SGLang 0.5.23 dropped it
    "ATOM serves a replica on one node",
)


@pytest.mark.parametrize("engine", ["vLLM", "SGLang", "ATOM", "TensorRT-LLM"])
def test_every_legal_seed_has_commands(engine: str) -> None:
    """Every lever's flag is written by one of these; what a release lacks is refused here, not by a server."""
    written, refused = 0, []
    for context in contexts(engine):
        for deployment, workload in deployments(context):
            try:
                plan = launch_plan(deployment, context.card, context.platform, context.engine, Options(workload))
            except BadInput as error:
                refused.append(str(error))
                continue
            written += 1
            assert sum(len(process.devices) for process in plan.processes) == deployment.gpus
    assert written > 200
    assert [message for message in refused if not any(known in message for known in KNOWN_REFUSALS)] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_processes_do_not_collide(name: str) -> None:
    """On one node no two processes share a GPU or a port, and no node is over-filled."""
    plan = plan_of(EXAMPLES[name])
    for node in range(plan.nodes):
        here = [process for process in plan.processes if process.node == node]
        devices = [device for process in here for device in process.devices]
        assert len(devices) == len(set(devices)) <= plan.gpus_per_node
        ports = [process.port for process in here if process.rank == 0]
        assert len(ports) == len(set(ports))


def test_a_large_fleet_keeps_its_ports_in_range() -> None:
    fleet = plan_of(
        replace(R1, engine="vLLM", layout=Layout(tp=1), replicas=128, prefill=PrefillPool(Layout(), 32, "mori"))
    )
    assert fleet.nodes == 20
    for process in fleet.processes:
        config = json.loads(flags(process).get("--kv-transfer-config", "{}")).get("kv_connector_extra_config", {})
        ports = [process.port, *(value for key, value in config.items() if key.endswith("_port"))]
        assert max(ports) < 2**16


def test_devices_are_named_only_where_a_node_is_shared() -> None:
    shared = plan_of(replace(LLAMA, layout=Layout(tp=2), replicas=2))
    host = addresses(shared)
    assert [environment(shared, process, host).get("HIP_VISIBLE_DEVICES") for process in shared.processes] == [
        "0,1",
        "2,3",
        None,
    ]
    whole = plan_of(replace(LLAMA, layout=Layout(tp=8)))
    assert "HIP_VISIBLE_DEVICES" not in environment(whole, whole.processes[0], addresses(whole))


def test_one_replica_needs_no_router() -> None:
    single = plan_of(LLAMA)
    assert [process.role for process in single.processes] == ["server"]
    assert (single.entry, single.entry_port) == ("server-0", 8000)
    several = plan_of(replace(LLAMA, replicas=2))
    assert (several.entry, several.entry_port) == ("router", 8000)


def test_a_value_the_release_does_not_take_is_refused_here() -> None:
    with pytest.raises(BadInput, match=r"kernels.moe is 'ck', which SGLang on AMD GPUs does not have; legal: aiter"):
        plan_of(replace(R1, layout=Layout(tp=8), kernels=Kernels(moe="ck")))
    old = replace(R1, engine="vLLM", engine_version="0.30.0", layout=Layout(tp=8, ep=8), kernels=Kernels(moe="mega"))
    with pytest.raises(BadInput, match=r"vLLM 0.30.0 would not start server-0: --moe-backend: 'aiter_mega_moe'"):
        plan_of(old)


def test_fusions_without_a_switch_are_told() -> None:
    asked = replace(LLAMA, kernels=Kernels(fusions=("norm_quant", "rope_kvstore")))
    note = next(note for note in plan_of(asked).notes if note.code == "fusion_not_switchable")
    assert "SGLang has no switch for norm_quant" in note.message
    assert "--enable-fused-qk-norm-rope" in flags(server(asked))


# --- weights --------------------------------------------------------------------------------------------------------


def checkpoint_of(deployment: Deployment) -> tuple[str, set[str]]:
    plan = plan_of(deployment)
    return flags(plan.processes[0])["--model-path"], {note.code for note in plan.notes}


def test_the_checkpoint_has_the_wanted_format() -> None:
    fp4 = Precision(Dtype.FP4, Dtype.FP4, Dtype.FP4, Dtype.FP8)
    assert checkpoint_of(R1) == ("deepseek-ai/DeepSeek-R1", set())
    assert checkpoint_of(replace(R1, precision=fp4)) == ("amd/DeepSeek-R1-0528-MXFP4", set())
    assert checkpoint_of(replace(R1, gpu="B200", precision=fp4)) == ("CHECKPOINT", {"checkpoint_unknown"})
    fp8 = Deployment("Qwen3-32B", "H200", "SGLang", precision=replace(fp4, weight=Dtype.FP8))
    assert checkpoint_of(fp8) == ("Qwen/Qwen3-32B-FP8", set())


def test_an_engine_may_quantise_while_loading() -> None:
    llama = replace(LLAMA, precision=Precision(weight=Dtype.FP8, linear=Dtype.FP8))
    assert checkpoint_of(llama) == ("meta-llama/Llama-3.1-8B-Instruct", {"quantised_on_load"})
    assert flags(server(llama))["--quantization"] == "fp8"


# --- benchmark ------------------------------------------------------------------------------------------------------


def bench(workload: Workload) -> list[str]:
    return shlex.split(benchmark_line(plan_of(LLAMA, workload=workload)))


def option(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


@given(
    isl=st.integers(64, 100_000), osl=st.integers(16, 4000), frac=st.floats(0.1, 1.0), concurrency=st.integers(1, 1024)
)
@settings(deadline=None, max_examples=50)
def test_the_benchmark_sends_the_predicted_workload(isl: int, osl: int, frac: float, concurrency: int) -> None:
    """The client draws from ``n·(1 ± r)``; its ends are those of the prediction, ``[f·nominal, nominal]``."""
    workload = Workload(isl, osl, concurrency, length_range_frac=frac)
    argv = bench(workload)
    spread = float(option(argv, "--random-range-ratio")) if "--random-range-ratio" in argv else 0.0
    assert 0.0 <= spread < 1.0
    for nominal, flag in ((isl, "--random-input-len"), (osl, "--random-output-len")):
        middle = int(option(argv, flag))
        assert middle * (1 + spread) == pytest.approx(nominal, abs=1.0, rel=1e-4)
        assert middle * (1 - spread) == pytest.approx(frac * nominal, abs=1.0, rel=1e-4)
    assert option(argv, "--num-prompts") == str(10 * concurrency)
    assert option(argv, "--max-concurrency") == str(concurrency)
    assert "--ignore-eos" in argv


def test_open_arrivals() -> None:
    poisson = bench(replace(WORKLOAD, arrival=Arrival.POISSON, request_rate_per_s=2.5))
    assert option(poisson, "--request-rate") == "2.5"
    assert "--max-concurrency" not in poisson
    assert "--burstiness" not in poisson
    gamma = bench(replace(WORKLOAD, arrival=Arrival.GAMMA, request_rate_per_s=2.5, burstiness=0.5))
    assert option(gamma, "--burstiness") == "0.5"


def test_servers_take_what_the_benchmark_sends() -> None:
    found = flags(server(replace(LLAMA, engine="vLLM")))
    assert int(found["--max-model-len"]) >= 2 * 1024 + 4
    trace = plan_of(replace(LLAMA, engine="vLLM"), workload=replace(WORKLOAD, arrival=Arrival.TRACE))
    assert "--max-model-len" not in flags(trace.processes[0])


# --- flag tables ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (("vllm", "serve", "m", "--tp", "8"), "--tp: vLLM 0.33.0 has no such flag"),
        (("vllm", "serve", "m", "--port", "x"), "--port: 'x' is not an integer"),
        (("vllm", "serve", "m", "--port"), "--port: misses its value"),
        (("vllm", "serve", "m", "--port", "1", "--port", "2"), "--port: given twice"),
        (("vllm", "serve", "m", "--headless", "yes"), "'yes' belongs to no flag"),
        (("vllm", "serve", "--headless"), "misses its positional argument"),
        (("vllm", "serve", "m", "--eplb-config", "{"), "--eplb-config: not JSON"),
        (("vllm", "serve", "m", "--eplb-config", '{"experts": 1}'), "--eplb-config: unknown keys experts"),
        (("vllm", "run", "m"), "does not start with vllm serve"),
    ],
)
def test_a_table_finds_what_a_parser_would(argv: tuple[str, ...], problem: str) -> None:
    assert any(found.startswith(problem) for found in problems(engine_table("vLLM"), argv, "0.33.0"))


def test_a_plan_is_a_value() -> None:
    plan: LaunchPlan = plan_of(EXAMPLES["vllm-mi355x-colocated"])
    assert plan == plan_of(EXAMPLES["vllm-mi355x-colocated"])
    assert hash(plan.processes[0].command) == hash(plan_of(EXAMPLES["vllm-mi355x-colocated"]).processes[0].command)
