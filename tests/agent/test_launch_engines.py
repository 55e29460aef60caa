"""Launch commands engine by engine: the traps of each, and that what is written is what was predicted."""

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.launch import launch_lines, script
from agent.launch.flags import engine_table
from evals.launch_cases import contexts, deployments
from predictor.engines import effective_settings
from predictor.errors import BadInput
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.types import (
    Deployment,
    Dtype,
    Kernels,
    Layout,
    Precision,
    PrefillPool,
    SchedulerSettings,
    Speculation,
)
from tests.agent.launch_examples import EXAMPLES, LLAMA, R1, WIDE, env, flags, plan_of, server

# --- SGLang ---------------------------------------------------------------------------------------------------------


def test_sglang_limits_are_written_for_the_whole_server() -> None:
    """SGLang divides chunk and running cap by attention DP (sgl-project/sglang#20018)."""
    wide = replace(R1, layout=WIDE, scheduler=SchedulerSettings(max_running=512, chunk_size=32768))
    found = flags(server(wide))
    assert (found["--max-running-requests"], found["--chunked-prefill-size"]) == ("512", "32768")
    note = next(note for note in plan_of(wide).notes if note.code == "per_rank")
    assert "each attention-DP rank gets 4096 prompt tokens and 64 requests" in note.message


def test_sglang_running_cap_is_explicit_under_speculation() -> None:
    """Left out, it silently becomes 48 (sgl-project/sglang#33199)."""
    drafted = replace(LLAMA, model="DeepSeek-R1", layout=Layout(tp=8), speculation=Speculation("mtp", 3))
    found = flags(server(drafted))
    assert found["--max-running-requests"] == "48"
    assert found["--speculative-num-steps"] == "3"
    assert found["--speculative-eagle-topk"] == "1"
    assert found["--speculative-num-draft-tokens"] == "4"
    assert "--max-running-requests" not in flags(server(replace(drafted, speculation=Speculation())))


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.5.23", {"--attn-dp-size": "8"}), ("0.5.19", {"--dp-size": "8", "--enable-dp-attention": ""})],
)
def test_sglang_attention_dp_by_release(version: str, expected: dict[str, str]) -> None:
    found = flags(server(replace(R1, engine_version=version, layout=WIDE)))
    assert {name: value for name, value in found.items() if "dp" in name} == expected


def test_sglang_mori_dispatch_covers_the_chunk() -> None:
    mori = replace(R1, layout=Layout(tp=8, ep=8), kernels=Kernels(a2a="mori_ht"))
    assert env(mori)["SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK"] == "16384"
    small = replace(mori, scheduler=SchedulerSettings(chunk_size=4096))
    assert "SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK" not in env(small)


def test_sglang_sparse_attention_has_flags_of_its_own() -> None:
    sparse = Deployment("DeepSeek-V3.2", "MI355X", "SGLang", layout=Layout(tp=8), kernels=Kernels(attention="tilelang"))
    found = flags(server(sparse))
    assert found["--dsa-prefill-backend"] == found["--dsa-decode-backend"] == "tilelang"
    assert "--attention-backend" not in found


@settings(deadline=None, max_examples=60)
@given(
    dp=st.sampled_from([1, 2, 4, 8]),
    running=st.none() | st.integers(8, 4096),
    chunk=st.none() | st.sampled_from([2048, 4096, 16384, 65536]),
    fraction=st.none() | st.sampled_from([0.8, 0.9]),
    graph=st.none() | st.sampled_from([32, 256]),
    depth=st.sampled_from([0, 1, 3]),
)
def test_sglang_makes_of_the_flags_what_was_predicted(
    dp: int, running: int | None, chunk: int | None, fraction: float | None, graph: int | None, depth: int
) -> None:
    """Read the flags back as settings, apply the engine's own rules: the same effective limits come out."""
    deployment = replace(
        R1,
        layout=Layout(tp=8, ep=8, attn_dp=dp),
        scheduler=SchedulerSettings(
            max_running=running, chunk_size=chunk, kv_mem_fraction=fraction, graph_max_bs=graph
        ),
        speculation=Speculation("mtp", depth) if depth else Speculation(),
    )
    found = flags(server(deployment))

    def count(flag: str) -> int | None:
        return int(found[flag]) if flag in found else None

    read = SchedulerSettings(
        max_running=count("--max-running-requests"),
        chunk_size=count("--chunked-prefill-size"),
        kv_mem_fraction=float(found["--mem-fraction-static"]) if "--mem-fraction-static" in found else None,
        graph_max_bs=count("--cuda-graph-max-bs-decode"),
    )
    records = engine_profile("SGLang"), "0.5.23", platform("MI355X"), model_card("DeepSeek-R1")
    assert effective_settings(*records, replace(deployment, scheduler=read)) == effective_settings(*records, deployment)


# --- vLLM -----------------------------------------------------------------------------------------------------------


def test_vllm_on_amd_turns_aiter_on() -> None:
    assert env(replace(LLAMA, engine="vLLM"))["VLLM_ROCM_USE_AITER"] == "1"
    assert "VLLM_ROCM_USE_AITER" not in env(replace(LLAMA, engine="vLLM", gpu="H200"))


def test_vllm_attention_dp_divides_tp() -> None:
    found = flags(server(replace(R1, engine="vLLM", layout=Layout(tp=8, ep=8, attn_dp=4))))
    assert found["--tensor-parallel-size"] == "2"
    assert found["--data-parallel-size"] == "4"
    assert found["--enable-expert-parallel"] == ""


def test_vllm_graph_limit_counts_tokens() -> None:
    drafted = replace(
        R1,
        engine="vLLM",
        layout=Layout(tp=8),
        scheduler=SchedulerSettings(graph_max_bs=128),
        speculation=Speculation("mtp", 3),
    )
    assert flags(server(drafted))["--max-cudagraph-capture-size"] == "512"


def test_vllm_hand_off_and_offload_share_one_connector() -> None:
    """The offload flag would replace the hand-off's connector."""
    both = replace(
        R1, engine="vLLM", layout=Layout(tp=8), host_kv_gb=50.0, prefill=PrefillPool(Layout(tp=8), 1, "nixl")
    )
    found = flags(server(both, "decode"))
    config: dict[str, Any] = json.loads(found["--kv-transfer-config"])
    assert "--kv-offloading-size" not in found
    assert config["kv_connector"] == "MultiConnector"
    inner = config["kv_connector_extra_config"]["connectors"]
    assert [one["kv_connector"] for one in inner] == ["NixlConnector", "OffloadingConnector"]
    assert inner[1]["kv_connector_extra_config"]["cpu_bytes_to_use"] == 8 * 50 * 10**9  # for all eight TP ranks
    alone = flags(server(replace(both, prefill=None)))
    assert float(alone["--kv-offloading-size"]) * 2**30 == pytest.approx(8 * 50e9, rel=1e-5)


def test_vllm_over_two_nodes() -> None:
    pipeline = plan_of(Deployment("Llama-3.1-405B", "H100", "vLLM", layout=Layout(tp=8, pp=2)))
    head, worker = pipeline.processes
    assert (head.node, worker.node) == (0, 1)
    assert flags(head)["--node-rank"] == "0"
    assert flags(worker)["--node-rank"] == "1"
    assert "--headless" in flags(worker)
    assert flags(worker)["--master-addr"] == "@server-0@"
    assert "--master-addr node0" in launch_lines(pipeline)[1]
    assert "--master-addr 10.0.0.7" in launch_lines(pipeline, ["10.0.0.7", "10.0.0.8"])[1]


# --- ATOM -----------------------------------------------------------------------------------------------------------


def test_atom_writes_underscores_where_the_engine_does() -> None:
    plain = Deployment(
        "Llama-3.1-70B",
        "MI355X",
        "ATOM",
        layout=Layout(tp=8),
        precision=Precision(kv=Dtype.FP8),
        scheduler=SchedulerSettings(prefix_cache=False),
    )
    found = flags(server(plain))
    assert found["--kv_cache_dtype"] == "fp8"
    assert "--no-enable_prefix_caching" in found
    assert "--server-port" in found  # --port is the engine's own


def test_atom_kernels_are_environment_variables() -> None:
    triton = Deployment(
        "DeepSeek-R1", "MI355X", "ATOM", layout=Layout(tp=8), kernels=Kernels(attention="triton", moe="triton")
    )
    assert env(triton) == {"ATOM_USE_TRITON_MLA": "1", "ATOM_USE_TRITON_MOE": "1"}
    dense = Deployment("Llama-3.1-70B", "MI355X", "ATOM", layout=Layout(tp=8), kernels=Kernels(attention="triton"))
    assert env(dense) == {"ATOM_USE_UNIFIED_ATTN": "1"}


def test_atom_stays_on_one_node() -> None:
    with pytest.raises(BadInput, match="ATOM serves a replica on one node"):
        plan_of(Deployment("DeepSeek-R1", "MI355X", "ATOM", layout=Layout(tp=8, pp=2)))


# --- TensorRT-LLM ---------------------------------------------------------------------------------------------------


def trtllm_config(deployment: Deployment, role: str = "server") -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(server(deployment, role).command.files[0].text)
    return config


def test_trtllm_pads_batches_up_to_the_next_graph() -> None:
    """Without padding an unlisted batch size runs eager."""
    base = Deployment("Llama-3.1-70B", "B200", "TensorRT-LLM", layout=Layout(tp=4))
    padded = replace(base, scheduler=SchedulerSettings(graph_max_bs=256))
    assert trtllm_config(padded)["cuda_graph_config"] == {"max_batch_size": 256, "enable_padding": True}
    assert "cuda_graph_config" not in trtllm_config(base)
    assert any(note.code == "graph_padding" for note in plan_of(base).notes)
    assert trtllm_config(replace(padded, kernels=Kernels(graph_mode="none")))["cuda_graph_config"] is None


def test_trtllm_prefill_pool_runs_without_overlap() -> None:
    split = EXAMPLES["trtllm-b200-disaggregated"]
    assert trtllm_config(split, "prefill")["disable_overlap_scheduler"] is True
    assert "disable_overlap_scheduler" not in trtllm_config(split, "decode")
    assert trtllm_config(split, "decode")["cache_transceiver_config"] == {"backend": "NIXL"}


def test_trtllm_writes_only_keys_of_its_table() -> None:
    keys = engine_table("TensorRT-LLM").yaml
    assert keys is not None
    for context in contexts("TensorRT-LLM"):
        for deployment, workload in deployments(context):
            for process in plan_of(deployment, workload=workload).processes:
                for file in process.command.files if process.role != "router" else ():
                    tree = yaml.safe_load(file.text)
                    assert set(tree) <= set(keys)
                    inner = {name: set(value) for name, value in tree.items() if isinstance(value, dict)}
                    assert all(names <= set(keys[name]) for name, names in inner.items())


def test_trtllm_over_two_nodes_is_started_through_mpi() -> None:
    wide = plan_of(Deployment("DeepSeek-R1", "H200", "TensorRT-LLM", layout=Layout(tp=16, ep=16)))
    assert wide.nodes == 2
    (line,) = launch_lines(wide)
    assert line.startswith("mpirun -n 16 --host node0:8,node1:8 trtllm-llmapi-launch trtllm-serve ")
    assert "serve server-0 through MPI" in script(wide)
