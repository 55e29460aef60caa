"""Properties of the space: what is legal launches and is priced, what is not is refused, whatever the order."""

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levers.baseline import find_baseline
from levers.build import search_context
from levers.catalog import LEVERS
from levers.context import LeverValue, SearchContext
from levers.fusions import GENERIC, every_subset, fusion_reasons
from levers.legal_sets import legal_sets
from levers.legality import illegal_reasons, memory_fits
from levers.lever import Lever
from levers.space import defaults, merge, normalised, to_deployment
from predictor.engines import effective_settings
from predictor.errors import DataUnavailable, DoesNotFit
from predictor.fusion import FUSION_NAMES, illegal_fusions
from predictor.memory import memory
from predictor.predict import Catalogue, predict
from predictor.profiles.loader import engine_names, engine_profile, model_names, platform, platform_names
from predictor.types import Dtype, Mode, Precision, Workload

CASES = (
    ("DeepSeek-R1", "MI355X", "SGLang"),
    ("DeepSeek-V3.2", "MI355X", "vLLM"),
    ("DeepSeek-V4-Pro", "MI355X", "ATOM"),
    ("Kimi-K2.5", "B200", "vLLM"),
    ("Qwen3-235B-A22B", "H200", "TensorRT-LLM"),
    ("Qwen3.6-35B-A3B", "H100", "SGLang"),
    ("gpt-oss-120b", "MI300X", "vLLM"),
    ("Llama-3.1-8B", "H100", "vLLM"),
)


@cache
def context(case: tuple[str, str, str]) -> SearchContext:
    model, gpu, engine = case
    load = Workload(isl_tokens=2048, osl_tokens=512, concurrency=32)
    return search_context(model=model, gpu=gpu, engine=engine, workload=load, nodes=2, free=("load", "precision"))


contexts = st.sampled_from(CASES).map(context)


@st.composite
def partials(draw: st.DrawFn, legal_values: bool) -> tuple[SearchContext, dict[str, LeverValue]]:
    """A context and a partial configuration from the legal sets, or from all candidates."""
    here = draw(contexts)
    chosen = draw(st.lists(st.sampled_from(LEVERS), max_size=7, unique_by=lambda lever: lever.name))
    values = {}
    for lever in chosen:
        offered = lever.values(here) if legal_values else lever.candidates(here)
        values[lever.name] = draw(st.sampled_from(offered))
    return here, values


@given(partials(legal_values=True))
@settings(max_examples=150, deadline=None)
def test_a_legal_setting_launches_and_is_sized(drawn: tuple[SearchContext, dict[str, LeverValue]]) -> None:
    here, partial = drawn
    merged = merge(partial, defaults(here), here)
    if merged.setting is None:
        assert {reason.code for reason in merged.reasons} == {"no_effect"}
        return
    deployment, workload = to_deployment(merged.setting, here)
    if illegal_reasons(deployment, workload, here):
        return
    assert deployment.gpus <= here.cluster.gpus
    resolved = effective_settings(here.engine, here.release.version, here.platform, here.card, deployment)
    try:
        memory(here.card, here.platform, deployment, resolved)
    except DoesNotFit:
        assert memory_fits(deployment, workload, here)


@given(partials(legal_values=True))
@settings(max_examples=60, deadline=None)
def test_a_legal_setting_is_priced_or_says_what_is_missing(drawn: tuple[SearchContext, dict[str, LeverValue]]) -> None:
    here, partial = drawn
    clients = partial.get("concurrency", 1)
    partial["concurrency"] = min(int(str(clients)), 64)  # the load decides the time of a test, not what is tested
    merged = merge(partial, defaults(here), here)
    if merged.setting is None:
        return
    launched = to_deployment(merged.setting, here)
    if illegal_reasons(*launched, here) or memory_fits(*launched, here):
        return
    records = Catalogue(here.card, here.platform, here.engine)
    try:
        assert predict(*launched, records, mode=Mode.SIMULATE).output_tok_s > 0
    except DataUnavailable:
        assert launched[0].speculation.method == "ngram"  # nobody has published its acceptance


@given(partials(legal_values=False), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_the_order_of_levers_decides_nothing(drawn: tuple[SearchContext, dict[str, LeverValue]], shuffle: Any) -> None:
    here, partial = drawn
    names = list(partial)
    shuffle.shuffle(names)
    one, other = (merge(p, defaults(here), here) for p in (partial, {name: partial[name] for name in names}))
    assert one.setting == other.setting
    assert set(one.reasons) == set(other.reasons)


@given(contexts, st.sampled_from(LEVERS), st.sampled_from([-3, 7, 3.5, "nonsense", True, 10**9, ("norm_quant", "x")]))
@settings(max_examples=150, deadline=None)
def test_a_value_outside_the_set_is_refused(here: SearchContext, lever: Lever, value: LeverValue) -> None:
    value = normalised(lever.name, value)
    inside = any(value == legal and type(value) is type(legal) for legal in lever.values(here))
    if inside or (lever.accepts is not None and lever.accepts.refuse(lever.name, value) is None):
        return
    merged = merge({lever.name: value}, defaults(here), here)
    assert merged.setting is None
    assert merged.reasons[0].message


@given(partials(legal_values=False))
@settings(max_examples=100, deadline=None)
def test_left_out_values_are_refused_with_their_reason(drawn: tuple[SearchContext, dict[str, LeverValue]]) -> None:
    here, partial = drawn
    for name, value in partial.items():
        left_out = dict(next(lever for lever in LEVERS if lever.name == name).left_out(here))
        if value in left_out and not isinstance(value, bool):
            assert left_out[value] in merge({name: value}, defaults(here), here).reasons


@given(partials(legal_values=True))
@settings(max_examples=100, deadline=None)
def test_json_and_back_is_the_same_setting(drawn: tuple[SearchContext, dict[str, LeverValue]]) -> None:
    here, partial = drawn
    merged = merge(partial, defaults(here), here)
    if merged.setting is not None:
        read = json.loads(json.dumps(merged.setting.as_json()))
        again = defaults(here).changed({name: normalised(name, value) for name, value in read.items()})
        assert again == merged.setting
        assert to_deployment(again, here) == to_deployment(merged.setting, here)


@pytest.mark.parametrize("engine", engine_names())
def test_the_baseline_is_legal_and_fits_wherever_one_is_found(engine: str) -> None:
    load = Workload(isl_tokens=1024, osl_tokens=1024, concurrency=16)
    found = 0
    for gpu in platform_names():
        if platform(gpu).vendor not in engine_profile(engine).vendors:
            continue
        for model in model_names():
            here = search_context(model=model, gpu=gpu, engine=engine, workload=load, gpus_per_node=8, nodes=2)
            merged = find_baseline(here)
            if merged.setting is None:
                assert merged.reasons, (model, gpu)
                continue
            launched = to_deployment(merged.setting, here)
            assert illegal_reasons(*launched, here) == ()
            assert memory_fits(*launched, here) == ()
            found += 1
    assert found > 50


def test_legal_sets_are_json_with_a_reason_for_every_value_left_out() -> None:
    sets = legal_sets(context(CASES[0]))
    assert list(sets) == [lever.name for lever in LEVERS]
    assert json.loads(json.dumps(sets)) == sets
    assert all(entry["reason"] for each in sets.values() for entry in each["left_out"])
    assert sets["tp"]["values"] == [1, 2, 4, 8]


@pytest.mark.parametrize("linear", list(Dtype))
def test_the_three_rules_of_named_fusions(linear: Dtype) -> None:
    for case in (CASES[0], CASES[7]):
        card = context(case).card
        formats = Precision(linear, linear, linear, Dtype.BF16)
        for names in every_subset(FUSION_NAMES):
            assert bool(fusion_reasons(names, card, formats)) == bool(illegal_fusions(card, formats, names))
            if names and not fusion_reasons(names, card, formats):
                assert {r.code for r in fusion_reasons((*names, names[0]), card, formats)} == {"fusion_repeated"}
                assert {r.code for r in fusion_reasons((*names, GENERIC), card, formats)} == {"fusion_generic"}
        assert fusion_reasons((GENERIC,), card, formats) == ()
