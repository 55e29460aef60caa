"""The kernel eval: rules that drop rows, the figures on synthetic tables, and what absence looks like."""

import sys

import numpy as np
import pytest

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from evals import kernels  # noqa: E402
from evals.kernel_rows import Batch, attention_family, gemm_batches, moe_batches, moe_family  # noqa: E402
from evals.kernel_tables import RULES, Tables, find_tables, gpu  # noqa: E402


def write(folder, operation, engine, version, name, rows, system="h100_sxm"):
    path = folder / system / operation / engine / version
    path.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_parquet(path / f"{name}.parquet")


def gemm_row(dtype="bfloat16", m=8, n=4096, k=4096, latency=0.02):
    return {"gemm_dtype": dtype, "m": m, "n": n, "k": k, "latency": latency}


def moe_row(tokens=8, ep=1, distribution="balanced", latency=0.2, kernel="sglang_fused_moe_triton"):
    return {
        "moe_dtype": "fp8_block", "num_tokens": tokens, "hidden_size": 7168, "inter_size": 2048, "topk": 8,
        "num_experts": 256, "moe_tp_size": 8, "moe_ep_size": ep, "distribution": distribution, "kernel_source": kernel,
        "latency": latency,
    }  # fmt: skip


def test_host_bound_rows_of_one_engine_are_dropped_and_counted(tmp_path):
    rows = [gemm_row(), gemm_row("fp8_block"), gemm_row("int4_wo")]
    for engine in ("vllm", "sglang"):
        write(tmp_path, "gemm", engine, "1.0", "gemm_perf", rows)
    tables = Tables(tmp_path)
    kept = {(batch.engine, batch.key[1]) for batch in gemm_batches(tables)}
    assert kept == {("vllm", "bfloat16"), ("sglang", "bfloat16"), ("sglang", "fp8_block")}
    assert tables.dropped == {"weight_only_int": 2, "host_bound_fp8_block": 1}


def test_the_fullest_version_is_read(tmp_path):
    write(tmp_path, "gemm", "trtllm", "1.3.0rc20", "gemm_perf", [gemm_row(m=m) for m in range(1, 9)])
    write(tmp_path, "gemm", "trtllm", "1.3.0rc23", "gemm_perf", [gemm_row()])
    (batch,) = gemm_batches(Tables(tmp_path))
    assert len(batch.us) == 8


def test_expert_rows_that_no_router_or_memory_could_give_are_dropped(tmp_path):
    rows = [
        moe_row(),
        moe_row(distribution="power_law_1.2"),
        moe_row(ep=4, distribution="power_law_1.2"),
        moe_row(tokens=1024, latency=0.01),  # all experts' weights in 10 us: 70 TB/s
    ]
    write(tmp_path, "moe", "sglang", "1.0", "moe_perf", rows)
    tables = Tables(tmp_path)
    (batch,) = moe_batches(tables)
    assert batch.us.tolist() == [200.0]
    assert tables.dropped == {"light_busiest_rank": 1, "unknown_distribution": 1, "unphysical_bandwidth": 1}


def test_round_robin_tokens_touch_as_many_experts_as_they_can(tmp_path):
    write(tmp_path, "moe", "sglang", "1.0", "moe_perf", [moe_row(tokens=8), moe_row(tokens=512, ep=8)])
    (batch,) = moe_batches(Tables(tmp_path))
    assert batch.columns["read"].tolist() == [64.0, 32.0]
    assert batch.columns["rows"].tolist() == [64.0, 512.0]


@pytest.mark.parametrize(
    ("source", "family"),
    [
        ("vllm_flash_attn_fa3", "fa3"),
        ("vllm_flashinfer_trtllmdecode", "trtllm"),
        ("torch_flow_flashinfer", "flashinfer"),
        ("torch_flow", "trtllm"),
        ("vllm_triton_attn", "triton"),
    ],
)
def test_attention_kernels_are_recognised(source, family):
    assert attention_family(source) == family


def test_expert_kernels_are_recognised():
    assert moe_family("moe_torch_flow_min_latency") == "min_latency"
    assert moe_family("vllm_fp8moe_flashinfer_cutlass_flashinferexperts") == "cutlass"


def scored(dtype, us, times, engine="vllm"):
    shapes = {"m": np.array([8.0, 8.0]), "n": np.array([4096.0, 512.0]), "k": np.array([4096.0, 4096.0])}
    batch = Batch("gemm", gpu("H100"), engine, (engine, dtype), np.asarray(us, float), shapes["m"], shapes)
    return kernels.Scored(batch, np.asarray(times, float))


def test_faster_precision_counts_large_clear_shapes_of_one_stack():
    """The second shape is small, and SGLang's rows belong to another stack."""
    wide, narrow = scored("bfloat16", [30, 10], [28, 9]), scored("fp8", [20, 30], [19, 5])
    other = scored("fp8", [20, 30], [60, 60], engine="sglang")
    assert kernels.faster_precision([wide, narrow, other]) == (1, 1)
    assert kernels.faster_precision([wide, scored("fp8", [20, 30], [40, 5])]) == (0, 1)


def test_a_common_error_cancels_in_the_tp_ratio():
    layer = ((6144, 4096), (4096, 4096), (16384, 4096), (4096, 8192))
    shapes = [shape for width in (1, 2) for shape in kernels.shard(layer, width)]
    columns = {
        "m": np.full(8, 16.0),
        "n": np.array([float(n) for n, _ in shapes]),
        "k": np.array([float(k) for _, k in shapes]),
    }
    us = np.arange(1.0, 9.0)
    batch = Batch("gemm", gpu("H100"), "vllm", ("vllm", "bfloat16"), us, columns["m"], columns)
    errors = kernels.tp_ratio_errors(kernels.Scored(batch, 1.3 * us))
    assert len(errors) > 0
    assert np.abs(errors).max() < 1e-12


def test_absent_tables_are_exit_three_with_the_way_to_get_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["kernels", "--json", "--tables", str(tmp_path / "nowhere")])
    assert kernels.main() == 3
    assert "pip install --no-deps aiconfigurator-core" in capsys.readouterr().err


@pytest.mark.skipif(
    __import__("importlib.util", fromlist=["util"]).find_spec("aiconfigurator_core") is None,
    reason="aiconfigurator-core is not installed",
)
def test_measured_tables_hold_every_table_that_is_scored():
    tables = find_tables(None)
    for operation, name in (("gemm", "gemm_perf"), ("moe", "moe_perf"), ("mla", "generation_mla_perf")):
        assert {gpu_name for gpu_name, _, _ in tables.files(operation, name)} >= {"H100", "H200", "B200", "B300"}


def test_every_rule_says_why():
    assert all(len(why) > 20 for why in RULES.values())
