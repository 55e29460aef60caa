"""The catalogue: 36 levers and 24 objectives as the paper counts them, and legal sets per context."""

import pytest

from levers.build import search_context
from levers.catalog import BY_NAME, LEVERS, lever
from levers.catalog.backends import ATTENTION
from levers.catalog.common import ENGINES
from levers.context import SearchContext
from levers.lever import Group
from predictor.errors import BadInput, UnknownName
from predictor.profiles.loader import engine_names, engine_profile
from predictor.types import Workload

LOAD = Workload(isl_tokens=8192, osl_tokens=1024, concurrency=64)


def of(model: str = "DeepSeek-R1", gpu: str = "MI355X", engine: str = "vLLM", **more: object) -> SearchContext:
    return search_context(model=model, gpu=gpu, engine=engine, workload=LOAD, **more)  # type: ignore[arg-type]


def test_the_paper_counts_36_levers_in_these_groups() -> None:
    counts = {group: sum(x.group is group for x in LEVERS) for group in Group}
    assert len(LEVERS) == 36
    assert counts == {
        Group.PARALLEL: 6,
        Group.DISAGGREGATION: 5,
        Group.PRECISION: 4,
        Group.KERNELS: 6,
        Group.GRAPH: 2,
        Group.COLLECTIVES: 1,
        Group.SCHEDULER: 5,
        Group.SPECULATION: 2,
        Group.MEMORY: 2,
        Group.LOAD: 3,
    }


def test_every_lever_has_a_flag_on_every_engine() -> None:
    assert set(ENGINES) == set(engine_names())
    assert all({flag.engine for flag in x.flags} == set(ENGINES) for x in LEVERS)


def test_sglang_renamed_attention_dp() -> None:
    old, new = (BY_NAME["attn_dp"].flag("SGLang", version) for version in ("0.5.19", "0.5.23"))
    assert old is not None
    assert new is not None
    assert (old.text, new.text) == ("--dp-size N --enable-dp-attention", "--attn-dp-size")


def test_attention_backends_agree_with_the_engine_profiles() -> None:
    for (engine, vendor, kind), backends in ATTENTION.items():
        known = engine_profile(engine).attention_backends
        profile = known[f"{vendor}.{'gqa' if kind == 'mha' else kind}"]
        assert {backend.engine_name for backend in backends} <= set(profile), (engine, vendor, kind)


def test_every_default_is_legal_everywhere() -> None:
    for model, gpu, engine in (("DeepSeek-R1", "MI355X", "ATOM"), ("Llama-3.1-8B", "H100", "TensorRT-LLM")):
        here = of(model, gpu, engine)
        for x in LEVERS:
            assert x.illegal(here, x.default(here)) is None, (x.name, model, engine)


def test_load_and_precision_are_pinned_until_freed() -> None:
    closed, opened = of(), of(free=("load", "kv_dtype"))
    assert lever("concurrency").values(closed) == (64,)
    assert len(lever("concurrency").values(opened)) > 5
    assert len(lever("weight_dtype").values(opened)) == 1
    assert len(lever("kv_dtype").values(opened)) == 2


def test_a_pin_leaves_one_value_and_says_who_fixed_it() -> None:
    here = of(pins={"tp": 8})
    assert lever("tp").values(here) == (8,)
    reasons = dict(lever("tp").left_out(here))
    assert "pinned to 8 by the operator" in reasons[4].message


def test_a_pin_outside_the_legal_set_is_bad_input() -> None:
    with pytest.raises(BadInput, match="tp=3 is not in its legal set: 1, 2, 4, 8"):
        of(pins={"tp": 3})
    with pytest.raises(UnknownName, match="nearest: block_size"):
        of(pins={"blocksize": 16})
    with pytest.raises(UnknownName, match="lever to free"):
        of(free=("tp",))


def test_each_value_left_out_has_a_sentence() -> None:
    here = of("Llama-3.1-8B")
    for x in LEVERS:
        for value, reason in x.left_out(here):
            assert reason.message, (x.name, value)
            assert value not in x.values(here) or isinstance(value, bool)


def test_unknown_lever_names_its_neighbours() -> None:
    with pytest.raises(UnknownName, match="max_running"):
        lever("max_runing")


def test_an_engine_that_does_not_run_on_the_gpu() -> None:
    with pytest.raises(BadInput, match="ATOM runs on AMD GPUs, not on H100"):
        of(gpu="H100", engine="ATOM")
