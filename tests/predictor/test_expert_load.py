"""Busiest-rank factors: published values, properties, and replay of a log."""

import pickle
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.errors import BadFile, BadInput, DataUnavailable, UnknownName
from predictor.expert_dispatch import moe_dispatch
from predictor.expert_load import (
    busiest_rank,
    distinct_experts,
    few_experts_slowdown,
    imbalance,
    imbalance_at_both,
    large_step_i_n,
    router_family,
    uniform_factors,
    with_replicas,
)
from predictor.expert_replay import balanced_slots, rank_loads, read_tables, recorded, replay, replay_table, tables_toml
from predictor.routing_log import RoutingLog, counts, read_array, read_sglang
from predictor.types import Layout

ROUTERS = st.sampled_from([(384, 6), (256, 8), (128, 4), (128, 8), (64, 6), (16, 1)])
WIDTHS = st.sampled_from([1, 2, 4, 8, 16])


@pytest.mark.parametrize(("tokens", "published"), [(4, 1.89), (64, 1.20), (8192, 1.02)])
def test_uniform_rows_of_384_experts_top_6_at_ep8(tokens: int, published: float) -> None:
    phase = "prefill" if tokens > 64 else "decode"
    assert imbalance(384, 6, 8, tokens, phase).i_n == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize(("tokens", "published"), [(4, 1.75), (16, 1.31), (64, 1.09)])
def test_uniform_experts_read_of_256_experts_top_8_at_ep8(tokens: int, published: float) -> None:
    assert imbalance(256, 8, 8, tokens, "decode").i_d == pytest.approx(published, rel=0.02)


def test_uniform_rows_are_even_from_512_tokens() -> None:
    assert imbalance(256, 8, 8, 512, "decode").i_n < 1.08


@pytest.mark.parametrize(
    ("bottom", "experts", "topk", "model"), [(0.89, 256, 8, "DeepSeek-V3"), (0.78, 128, 4, "gpt-oss-120b")]
)
def test_coverage_bottoms_as_published(bottom: float, experts: int, topk: int, model: str) -> None:
    share = [
        distinct_experts(experts, topk, t, router_family(model)) / distinct_experts(experts, topk, t)
        for t in (1, 8, 16, 32, 64, 128, 256, 4096)
    ]
    assert min(share) == pytest.approx(bottom, abs=1e-9)
    assert share.index(min(share)) == 4
    assert share[0] == pytest.approx(1.0)
    assert share[-1] == pytest.approx(1.0)


def test_few_experts_read_slowly() -> None:
    curve = ((1, 0.14), (16, 0.8))
    assert few_experts_slowdown(curve, 1) == pytest.approx(0.8 / 0.14)
    assert few_experts_slowdown(curve, 100) == 1.0
    with pytest.raises(DataUnavailable):
        few_experts_slowdown((), 1)


@given(ROUTERS, WIDTHS, st.integers(1, 4096))
def test_factors_are_at_least_one_and_at_most_the_width(router: tuple[int, int], ep: int, tokens: int) -> None:
    factors = imbalance(*router, ep, tokens, "decode")
    assert 1.0 <= factors.i_d <= ep + 1e-9
    assert 1.0 <= factors.i_n <= ep + 1e-9
    if ep == 1:
        assert (factors.i_n, factors.i_d) == (1.0, 1.0)


@given(ROUTERS, WIDTHS, st.integers(1, 20000), st.floats(1.0, 8.0))
def test_more_tokens_even_the_load(router: tuple[int, int], ep: int, tokens: int, times: float) -> None:
    few, many = imbalance(*router, ep, tokens, "decode"), imbalance(*router, ep, tokens * times, "decode")
    assert many.i_n <= few.i_n + 1e-12
    assert many.i_d <= few.i_d + 1e-12


@given(ROUTERS, st.sampled_from([1, 2, 4, 8]), st.integers(1, 512))
def test_wider_ep_is_never_more_even(router: tuple[int, int], ep: int, tokens: int) -> None:
    narrow, wide = imbalance_at_both(*router, ep, 2 * ep, tokens, "decode")
    assert wide.i_n >= narrow.i_n - 1e-9


@given(ROUTERS, WIDTHS, st.integers(1, 4096), st.integers(0, 256))
def test_replicas_never_raise_the_factors(router: tuple[int, int], ep: int, tokens: int, redundant: int) -> None:
    plain, eplb = imbalance(*router, ep, tokens, "decode"), imbalance(*router, ep, tokens, "decode", redundant)
    assert 1.0 <= eplb.i_n <= plain.i_n
    assert 1.0 <= eplb.i_d <= plain.i_d


@given(ROUTERS, st.integers(1, 5000), st.integers(1, 5000), st.sampled_from(["independent", "deepseek", "gpt-oss"]))
def test_more_tokens_touch_no_fewer_experts(router: tuple[int, int], a: int, b: int, family: str) -> None:
    few, many = (distinct_experts(*router, t, family) for t in sorted((a, b)))
    assert few <= many + 1e-9
    assert router[1] - 1e-9 <= few <= router[0]


@given(ROUTERS, WIDTHS, st.integers(1, 4096))
def test_the_busiest_rank_reads_no_more_than_it_holds(router: tuple[int, int], ep: int, tokens: int) -> None:
    load = busiest_rank(*router, ep, tokens, "decode")
    assert load.experts_read <= router[0] / ep
    assert load.rows >= tokens * router[1] / ep - 1e-9


@pytest.mark.parametrize(("experts", "topk", "ep"), [(384, 6, 8), (256, 8, 16), (128, 4, 4)])
def test_the_gaussian_limit_meets_the_samples(experts: int, topk: int, ep: int) -> None:
    assert large_step_i_n(experts, topk, ep, 512) == pytest.approx(
        uniform_factors(experts, topk, ep, 512).i_n, rel=0.01
    )


def test_eq3_keeps_the_share_that_stays_on_one_slot() -> None:
    assert with_replicas(2.0, 384, 384) == 1.5
    assert with_replicas(1.0, 384, 48) == 1.0


def test_bad_widths_are_refused() -> None:
    with pytest.raises(BadInput, match="ep is 300"):
        imbalance(256, 8, 300, 4, "decode")
    with pytest.raises(BadInput, match="topk is 9"):
        imbalance(8, 9, 2, 4, "decode")


# ---- recordings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompts", "tokens", "phase", "redundant", "published"),
    [
        ("random", 4, "decode", 0, 2.03),
        ("random", 64, "decode", 0, 1.60),
        ("random", 64, "decode", 48, 1.41),
        ("random", 8192, "prefill", 0, 2.06),
        ("sonnet", 64, "decode", 48, 1.17),
        ("code", 8192, "prefill", 0, 1.44),
    ],
)
def test_published_recordings_come_back(
    prompts: str, tokens: int, phase: str, redundant: int, published: float
) -> None:
    table = recorded("DeepSeek-V4-Pro", prompts)
    factors = imbalance(384, 6, 8, tokens, "prefill" if phase == "prefill" else "decode", redundant, table)
    assert factors.i_n == pytest.approx(published, rel=1e-6)
    assert "recorded" in factors.source


def test_a_width_that_was_not_recorded_is_marked() -> None:
    factors = imbalance(384, 6, 4, 64, "decode", recording=recorded("DeepSeek-V4-Pro", "code"))
    assert "no decode at EP4" in factors.source
    assert factors.i_n == imbalance(384, 6, 4, 64, "decode").i_n


def test_a_recording_of_another_router_is_refused() -> None:
    with pytest.raises(BadInput, match="384 experts top-6"):
        imbalance(256, 8, 8, 64, "decode", recording=recorded("DeepSeek-V4-Pro", "code"))
    with pytest.raises(UnknownName):
        recorded("DeepSeek-V4-Pro", "poetry")


def uniform_log(experts: int, topk: int, layers: int, steps: int, batch: int) -> RoutingLog:
    rng = np.random.default_rng(7)
    draw = rng.random((steps, batch, layers, experts)).argsort(axis=-1)[..., :topk].astype(np.int32)
    return RoutingLog(experts, topk, tuple(draw), (draw.reshape(-1, layers, topk),), "synthetic uniform log")


def test_replay_of_a_uniform_log_is_the_uniform_router() -> None:
    log = uniform_log(64, 6, 12, 40, 16)
    point = replay(log, 8, "decode", 16)
    sampled = imbalance(64, 6, 8, 16, "decode")
    assert point.i_n == pytest.approx(sampled.i_n, rel=0.02)
    assert point.i_d == pytest.approx(sampled.i_d, rel=0.02)
    assert replay(log, 1, "decode", 16).i_n == 1.0


def test_replicas_even_out_a_hot_expert_and_not_chance() -> None:
    ids = np.tile(np.arange(8, dtype=np.int32)[:, None, None], (64, 1, 1))
    ids[::2] = 0  # half of all routings go to expert 0
    log = RoutingLog(8, 1, (ids,), (), "one hot expert")
    plain, eplb = replay(log, 4, "decode", 512), replay(log, 4, "decode", 512, 4)
    assert plain.i_n > 2.0
    assert eplb.i_n < 1.35  # five copies of 51 and four experts of 64 on four ranks: 166 over 128


@given(st.integers(0, 2**31), st.sampled_from([2, 4, 8]), st.sampled_from([0, 8, 16]))
def test_every_routing_lands_on_exactly_one_rank(seed: int, ep: int, redundant: int) -> None:
    rng = np.random.default_rng(seed)
    routed = rng.integers(0, 50, 32)
    slots = balanced_slots(routed + 0.5, ep, redundant)
    rows, read = rank_loads(routed, slots, ep)
    assert rows.sum() == routed.sum()
    assert len(slots) == 32 + redundant
    assert (read <= (32 + redundant) / ep).all()
    assert {expert for expert, _ in slots} == set(range(32))


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    log = uniform_log(32, 4, 3, 10, 8)
    table = replay_table(log, "Tiny-MoE", "random", (2, 4), (4, 8, 64), (32,), (0, 8))
    assert {point.tokens for point in table.points} == {4, 8, 32}
    path = tmp_path / "tiny.toml"
    path.write_text(tables_toml([table]), encoding="utf-8")
    (back,) = read_tables(path)
    assert (back.model, back.experts, back.topk) == ("Tiny-MoE", 32, 4)
    assert [point.i_n for point in back.points] == pytest.approx([point.i_n for point in table.points], abs=1e-4)
    path.write_text("model = 'x'\n", encoding="utf-8")
    with pytest.raises(BadFile, match="not an expert table"):
        read_tables(path)


# ---- readers -------------------------------------------------------------------------------------------------------


def test_plain_arrays(tmp_path: Path) -> None:
    ids = np.array([[[0, 1]], [[2, 3]], [[0, 3]]])
    np.save(tmp_path / "log.npy", ids)
    log = read_array(tmp_path / "log.npy", 4, "prefill")
    assert (log.layers, log.topk) == (1, 2)
    assert counts(log.prefill_runs[0], 4).tolist() == [[2, 1, 1, 2]]
    assert log.windows("decode", 1) == ()
    with pytest.raises(BadFile, match="the model has 3 experts"):
        read_array(tmp_path / "log.npy", 3, "decode")
    np.save(tmp_path / "flat.npy", ids.ravel())
    with pytest.raises(BadFile, match="tokens × layers × top-k"):
        read_array(tmp_path / "flat.npy", 4, "decode")
    with pytest.raises(BadFile, match="not a NumPy array"):
        read_array(tmp_path / "absent.npy", 4, "decode")


class _Storage:
    def __init__(self, data: bytes, count: int) -> None:
        self.data, self.count = data, count


class _Tensor:
    """Pickles as PyTorch pickles an integer tensor."""

    def __init__(self, values: np.ndarray, torch: ModuleType) -> None:
        self.values, self.torch = values, torch

    def __reduce__(self) -> tuple[object, ...]:
        strides = tuple(s // self.values.itemsize for s in self.values.strides)
        storage = _Storage(self.values.tobytes(), self.values.size)
        rebuild = self.torch._utils._rebuild_tensor_v2
        return rebuild, (storage, 0, self.values.shape, strides, False, {})


def write_torch(path: Path, content: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the zip layout of ``torch.save`` for int32 tensors."""
    torch, utils = ModuleType("torch"), ModuleType("torch._utils")
    int_storage = type("IntStorage", (), {"__module__": "torch"})

    def _rebuild_tensor_v2() -> None: ...

    _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    torch.IntStorage, torch._utils, utils._rebuild_tensor_v2 = int_storage, utils, _rebuild_tensor_v2  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._utils", utils)
    blobs: list[bytes] = []

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: object) -> object:
            if not isinstance(obj, _Storage):
                return None
            blobs.append(obj.data)
            return ("storage", int_storage, str(len(blobs) - 1), "cpu", obj.count)

        def reducer_override(self, obj: object) -> object:
            return _Tensor(obj, torch).__reduce__() if isinstance(obj, np.ndarray) else NotImplemented

    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("dump/data.pkl", "w") as stream:
            Pickler(stream, protocol=2).dump(content)
        for key, blob in enumerate(blobs):
            archive.writestr(f"dump/data/{key}", blob)


def test_sglang_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ids(tokens: int, first: int) -> np.ndarray:
        block = np.full((3, tokens, 8), -1, dtype=np.int32)  # layer 0 is dense, top-2 of a buffer of 8
        block[1:, :, 0] = first
        block[1:, :, 1] = first + 1
        return block

    content = {
        "records": [
            {"forward_mode": 1, "extend_seq_lens": [3, 2], "topk_ids_of_layer": ids(5, 0)},
            {"forward_mode": 2, "extend_seq_lens": None, "topk_ids_of_layer": ids(4, 2)},
            {"forward_mode": 4, "extend_seq_lens": None, "topk_ids_of_layer": ids(9, 0)},
        ],
        "last_physical_to_logical_map": np.array([[3, 2, 1, 0]] * 3, dtype=np.int32),
    }
    write_torch(tmp_path / "dump.pt", content, monkeypatch)
    log = read_sglang(tmp_path / "dump.pt", 4)
    assert (log.layers, log.topk) == (2, 2)
    assert [len(run) for run in log.prefill_runs] == [3, 2]
    assert [step[0].tolist() for step in log.decode_steps] == [[[1, 0], [1, 0]]]
    assert log.loads().sum() == (5 + 4) * 2 * 2


def test_a_file_that_pytorch_wrote() -> None:
    """Written by ``torch.save`` of PyTorch 1.13 in the recorder's layout: two passes of 3 layers, the first dense."""
    path = Path(__file__).parent / "data" / "expert_distribution_recorder.pt"
    buffer = np.arange(3 * 40 * 8, dtype=np.int32).reshape(3, 40, 8) % 4
    log = read_sglang(path, 4)
    assert [len(run) for run in log.prefill_runs] == [3, 2]
    assert (log.prefill_runs[0] == buffer[1:, :3].transpose(1, 0, 2)).all()
    assert (log.decode_steps[0] == buffer[1:, 5:9].transpose(1, 0, 2)).all()


def test_sglang_dumps_that_cannot_be_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_torch(tmp_path / "stat.pt", {"logical_count": np.zeros((1, 2, 4), dtype=np.int32)}, monkeypatch)
    with pytest.raises(BadFile, match="per_token"):
        read_sglang(tmp_path / "stat.pt", 4)
    write_torch(tmp_path / "code.pt", {"records": [Path("x")]}, monkeypatch)
    with pytest.raises(BadFile, match="only tensors and plain containers"):
        read_sglang(tmp_path / "code.pt", 4)
    (tmp_path / "text.pt").write_text("no")
    with pytest.raises(BadFile, match="not a readable PyTorch file"):
        read_sglang(tmp_path / "text.pt", 4)


# ---- dispatch ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "layout", "a2a", "style"),
    [
        ("sglang", Layout(tp=8, ep=8), "none", "all_reduce"),
        ("sglang", Layout(tp=8, ep=8), "deepep_ll", "all_to_all"),
        ("vllm", Layout(tp=8, ep=8), "deepep_ll", "all_reduce"),
        ("vllm", Layout(tp=8, ep=8, attn_dp=8), "deepep_ll", "all_to_all"),
        ("atom", Layout(tp=8, ep=8, attn_dp=8), "none", "gather"),
        ("trtllm", Layout(), "none", "none"),
        ("vllm", Layout(tp=4), "none", "all_reduce"),
    ],
)
def test_dispatch_as_each_engine_does_it(engine: str, layout: Layout, a2a: str, style: str) -> None:
    assert moe_dispatch(engine, layout, a2a).style == style
