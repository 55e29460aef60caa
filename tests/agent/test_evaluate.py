"""The one door: what is illegal is never priced and never returned, whoever proposes it; what is legal never raises."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agent.evaluate
from agent.evaluate import Evaluator, Judged
from agent.search import seed_search
from levers.build import search_context
from levers.catalog import LEVERS
from levers.context import LeverValue, SearchContext
from levers.legality import illegal_reasons, memory_fits
from levers.objectives import objective, parse_slo
from levers.space import defaults, to_deployment
from predictor.predict import Catalogue
from predictor.types import Deployment, Mode, Prediction, Workload

CASES = (
    ("DeepSeek-R1", "MI355X", "SGLang"),
    ("Kimi-K2.5", "B200", "vLLM"),
    ("MiniMax-M2.5", "MI355X", "ATOM"),
    ("Qwen3-235B-A22B", "H200", "TensorRT-LLM"),
)
LOAD = Workload(isl_tokens=1024, osl_tokens=128, concurrency=8)


@cache
def evaluator(case: tuple[str, str, str]) -> Evaluator:
    model, gpu, engine = case
    here = search_context(model=model, gpu=gpu, engine=engine, workload=LOAD, nodes=2, free=("precision",))
    records = Catalogue(here.card, here.platform, here.engine)
    return Evaluator(here, records, objective("output_tok_s_per_gpu"), (parse_slo("tpot_ms<=30"),), Mode.SIMULATE)


@st.composite
def settings_of_any_kind(draw: st.DrawFn) -> tuple[Evaluator, Deployment, Workload]:
    """Some levers moved to any of their candidates, legal or not, with no check between."""
    door = draw(st.sampled_from(CASES).map(evaluator))
    chosen = draw(st.lists(st.sampled_from(LEVERS), max_size=6, unique_by=lambda lever: lever.name))
    opened = [lever for lever in chosen if lever.pinned_value(door.context) is None]
    changes: dict[str, LeverValue] = {x.name: draw(st.sampled_from(x.candidates(door.context))) for x in opened}
    return door, *to_deployment(defaults(door.context).changed(changes), door.context)


@given(settings_of_any_kind())
@settings(max_examples=150, deadline=None)
def test_the_door_prices_what_is_legal_and_nothing_else(drawn: tuple[Evaluator, Deployment, Workload]) -> None:
    door, deployment, workload = drawn
    priced: list[Deployment] = []

    def watched(*asked: object, **how: object) -> Prediction:
        priced.append(deployment)
        return real(*asked, **how)  # type: ignore[arg-type]

    real = agent.evaluate.predict
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent.evaluate, "predict", watched)
        judged = door.evaluate(deployment, workload)
    illegal = illegal_reasons(deployment, workload, door.context)
    assert bool(priced) == (not illegal)
    if illegal:
        assert (judged.legal, judged.score, judged.prediction, judged.reasons) == (False, None, None, illegal)
    elif judged.legal:
        assert judged.score is not None
        assert not memory_fits(deployment, workload, door.context)
    else:
        assert judged.reasons  # it says why: memory, a bound, or what nobody has measured


def returned(door: Evaluator, budget: int) -> tuple[Judged | None, list[Judged]]:
    found = seed_search(door, budget, lambda trial: None)
    return found.best and found.best.judged, [trial.judged for trial in found.trials]


@pytest.mark.parametrize("case", CASES)
def test_a_search_returns_the_best_of_what_is_legal(case: tuple[str, str, str]) -> None:
    door = evaluator(case)
    best, every = returned(door, 40)
    assert best is not None
    assert best.deployment is not None
    assert best.workload is not None
    assert _refusals(best.deployment, best.workload, door.context) == ()
    assert best.prediction is not None
    assert best.prediction.tpot_ms.mean <= 30
    for judged in every:
        if judged.prediction is not None:
            assert judged.deployment is not None
            assert judged.workload is not None
            assert illegal_reasons(judged.deployment, judged.workload, door.context) == ()
    scores = [judged.score for judged in every if judged.legal and judged.score is not None]
    assert best.score == max(scores)


def _refusals(deployment: Deployment, workload: Workload, context: SearchContext) -> tuple[object, ...]:
    return illegal_reasons(deployment, workload, context) or memory_fits(deployment, workload, context)
