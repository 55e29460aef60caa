"""Every lever moves the prediction, in the direction its mechanism says."""

import json
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.anchor_files import bundled_anchors
from agent.playing import play_trace
from levers.build import search_context
from levers.catalog import LEVERS
from levers.context import LeverValue, SearchContext
from levers.legality import illegal_reasons, memory_fits
from levers.space import defaults, merge, to_deployment
from predictor.anchors.schema import Anchor
from predictor.des.play import PlayRules
from predictor.errors import BadInput
from predictor.predict import Catalogue, predict
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.structure import check_deployment
from predictor.types import Coverage, Deployment, Kernels, Layout, Mode, Prediction, Workload
from predictor.workload.block_size import BlockSize, Tail
from predictor.workload.trace import TraceReader
from tests.levers.direction_rules import ANCHORED, ELSEWHERE, RULES, Rule, workload


def test_every_lever_has_a_rule() -> None:
    assert {*(rule.lever for rule in RULES), *ELSEWHERE} == {lever.name for lever in LEVERS}
    assert all(rule.rises or rule.falls for rule in RULES)


@cache
def context(case: tuple[str, str, str], load: Workload) -> SearchContext:
    model, gpu, engine = case
    return search_context(model=model, gpu=gpu, engine=engine, workload=load, nodes=2, free=("load", "precision"))


@cache
def predicted(rule: Rule, value: LeverValue, load: Workload, mode: Mode) -> Prediction:
    """The prediction of the rule's deployment with its lever at one legal value."""
    here = context(rule.case, load)
    merged = merge({**rule.base, rule.lever: value}, defaults(here), here)
    assert merged.setting is not None, merged.reasons
    launched = to_deployment(merged.setting, here)
    assert illegal_reasons(*launched, here) == ()
    assert memory_fits(*launched, here) == ()
    anchors = bundled_anchors() if mode is Mode.ANCHORED else ()
    return predict(*launched, Catalogue(here.card, here.platform, here.engine, anchors), mode=mode)


def moves(rule: Rule, data: st.DataObject, mode: Mode) -> None:
    """Every reading of a rule goes the way it says, over each step of its values."""
    isl, osl, clients = (data.draw(st.sampled_from(each)) for each in (rule.load.isl, rule.load.osl, rule.load.clients))
    load = workload(rule.load, isl, osl, clients)
    for before, after in pairwise(rule.values):
        old, new = (predicted(rule, value, load, mode) for value in (before, after))
        for name, reading in rule.rises.items():
            assert reading(new) > reading(old), f"{rule.lever} {before} -> {after}: {name} must rise: {rule.why}"
        for name, reading in rule.falls.items():
            assert reading(new) < reading(old), f"{rule.lever} {before} -> {after}: {name} must fall: {rule.why}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.lever)
@given(data=st.data())
@settings(max_examples=6)
def test_a_lever_moves_what_its_mechanism_moves(rule: Rule, data: st.DataObject) -> None:
    moves(rule, data, Mode.SIMULATE)


@pytest.mark.parametrize("rule", ANCHORED, ids=lambda rule: rule.lever)
@given(data=st.data())
@settings(max_examples=6)
def test_a_lever_moves_a_measured_step_too(rule: Rule, data: st.DataObject) -> None:
    moves(rule, data, Mode.ANCHORED)


def test_an_expert_backend_is_priced_by_the_anchor_measured_with_it() -> None:
    """Kernels that no model tells apart: each has its own anchor, and without one the price is for ranking only."""
    usual = anchor_of("auto", faster=1.0)
    target = Deployment("Qwen3.6-35B-A3B", "MI355X", "SGLang", usual.signature.engine_version)
    load = Workload(1024, 128, 8)
    other = replace(target, kernels=replace(target.kernels, moe="triton"))

    def of(deployment: Deployment, *anchors: Anchor) -> Prediction:
        here = Catalogue(model_card(target.model), platform(target.gpu), engine_profile(target.engine), anchors)
        return predict(deployment, load, here)

    slower = anchor_of("triton", faster=0.5)
    plain, measured = (of(one, usual, slower) for one in (target, other))
    assert (plain.coverage, measured.coverage) == (Coverage.COVERED, Coverage.COVERED)
    assert measured.tpot_ms.mean > 1.5 * plain.tpot_ms.mean
    projected = of(other, usual)
    assert projected.coverage is Coverage.PROJECTED
    assert any("moe_backend" in flag.message for flag in projected.flags if flag.code == "kernel_set_differs")


def anchor_of(backend: str, faster: float) -> Anchor:
    """The bundled anchor of Qwen3.6-35B-A3B as if measured with another expert backend."""
    found = next(anchor for anchor in bundled_anchors() if anchor.signature.model == "Qwen3.6-35B-A3B")
    sweeps = tuple(
        replace(sweep, points=tuple(replace(point, step_ms=point.step_ms / faster) for point in sweep.points))
        for sweep in found.decode
    )
    signature = replace(found.signature, moe_backend=backend)
    return replace(found, name=f"{found.name}-{backend}", signature=signature, decode=sweeps)


@given(isl=st.integers(8192, 60_000), clients=st.integers(1, 16))
@settings(max_examples=6)
def test_a_narrower_sparse_attention_reads_less(isl: int, clients: int) -> None:
    """The trained width is the only legal one; what a step costs follows the width all the same."""
    case = ("DeepSeek-V3.2", "MI355X", "SGLang")
    here = context(case, Workload(isl, 64, clients))
    records = Catalogue(here.card, here.platform, here.engine)
    base = Deployment(*case[:2], case[2], layout=Layout(tp=8))

    def attention_ms(topk: int) -> float:
        deployment = replace(base, kernels=replace(base.kernels, sparse_topk=topk))
        return predict(deployment, here.workload, records, mode=Mode.SIMULATE).step_ms["attention"]

    assert attention_ms(0) == attention_ms(2048) > attention_ms(1024) > attention_ms(512)
    with pytest.raises(BadInput, match="sparse_topk"):
        check_deployment(
            Deployment("Llama-3.1-8B", "MI355X", "SGLang", kernels=Kernels(sparse_topk=512)),
            model_card("Llama-3.1-8B"),
            engine_profile("SGLang"),
        )


@given(sessions=st.integers(30, 40), turns=st.integers(2, 3))
@settings(max_examples=2)
def test_host_memory_brings_back_what_the_pool_could_not_hold(sessions: int, turns: int) -> None:
    """Sessions of more tokens than the pool, in turn: the pool drops each before it returns, host memory keeps it."""
    card, gpu, engine = model_card("Llama-3.1-8B"), platform("H100"), engine_profile("vLLM")
    rows = [
        {
            "request_id": f"{name}:{turn}",
            "timestamp": 1000.0 * (turn * sessions + name),
            "input_length": 16384,
            "output_length": 2,
            "hash_ids": [name * 1000 + block for block in range(32)],
        }
        for turn in range(turns)
        for name in range(sessions)
    ]
    found = []
    for host_gb in (0.0, 400.0):
        block = BlockSize(512, Tail.CEIL)
        played = play_trace(
            Deployment(card.name, gpu.name, engine.name, host_kv_gb=host_gb),
            Workload(16384, 2, 1),
            Catalogue(card, gpu, engine),
            TraceReader(map(json.dumps, rows), block_size=block),
            block,
            PlayRules(),
        )
        columns = played.result.simulation.requests
        found.append((int(columns["cached_tokens"].sum()), played.result.simulation.ttft_ms.mean))
    assert played.memory.kv_pool_tokens < sessions * 16384
    (none, cold), (back, warm) = found
    assert none == 0  # the oldest is dropped just before it is asked for
    assert back == (turns - 1) * sessions * 15872  # all but the last block of 512
    assert warm < cold
