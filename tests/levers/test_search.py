"""The seed search: deterministic, the same in any batch size, nothing illegal or repeated asked."""

from collections.abc import Callable

import pytest

from levers.build import search_context
from levers.context import SearchContext
from levers.legality import illegal_reasons
from levers.search import Candidate, SeedSearch
from predictor.types import Workload


def of(model: str = "DeepSeek-R1", engine: str = "SGLang", **more: object) -> SearchContext:
    load = Workload(isl_tokens=8192, osl_tokens=1024, concurrency=64)
    return search_context(model=model, gpu="MI355X", engine=engine, workload=load, **more)  # type: ignore[arg-type]


def toy_score(candidate: Candidate) -> float:
    """A bumpy function of layout, speculation and scheduler with one optimum."""
    d = candidate.deployment
    layout = -abs(d.layout.tp - 4) - abs(d.layout.attn_dp - 4) - abs(d.replicas - 2)
    drafting = -abs(d.speculation.depth - 3)
    scheduler = -1.0 * (d.scheduler.token_budget != 4096) - 1.0 * (d.scheduler.max_running != 64)
    return layout + drafting + scheduler


def run(search: SeedSearch, batch: int, score: Callable[[Candidate], float] = toy_score) -> list[Candidate]:
    """Drive a search with up to ``batch`` candidates in flight, told last first."""
    asked: list[Candidate] = []
    while not search.done:
        flight = [candidate for _ in range(batch) if (candidate := search.ask())]
        asked += flight
        for candidate in reversed(flight):
            search.tell(candidate, score(candidate), legal=True)
    return asked


def test_serial_and_batched_searches_ask_the_same() -> None:
    serial, batched = (run(SeedSearch(of(), budget=150), batch) for batch in (1, 7))
    assert [candidate.name for candidate in serial] == [candidate.name for candidate in batched]
    assert serial == batched


def test_everything_asked_is_legal_distinct_and_within_the_budget() -> None:
    here = of()
    asked = run(SeedSearch(here, budget=120), 1)
    assert len(asked) == 120
    assert len({(candidate.deployment, candidate.workload) for candidate in asked}) == len(asked)
    assert not any(illegal_reasons(candidate.deployment, candidate.workload, here) for candidate in asked)


@pytest.mark.parametrize("engine", ["SGLang", "vLLM"])
def test_combining_and_polishing_reaches_the_optimum(engine: str) -> None:
    search = SeedSearch(of(engine=engine), budget=300)
    run(search, 1)
    assert search.best is not None
    assert search.best.score == 0.0


def test_an_unreachable_bound_still_yields_the_nearest_candidate() -> None:
    search = SeedSearch(of(), budget=60)
    while not search.done:
        candidate = search.ask()
        assert candidate is not None
        search.tell(candidate, toy_score(candidate), legal=False, shortfall=float(candidate.deployment.layout.tp))
    assert search.best is not None
    assert not search.best.legal
    assert search.best.candidate.deployment.layout.tp == 4  # the narrowest that fits


def test_a_legal_result_far_behind_does_not_hold_the_search() -> None:
    """A cap on running requests meets the bound at a tenth of the score; a near miss meets it with one step more."""
    search = SeedSearch(of(), budget=100)

    def judged(candidate: Candidate) -> tuple[float, float]:
        d = candidate.deployment
        if d.scheduler.max_running is not None:
            return 1.0, 0.0
        wide = d.layout.tp == 8 and d.layout.ep == 8
        met = wide and d.scheduler.chunk_size == 1024
        return 10.0, 0.0 if met else 0.01 if wide else 0.5

    while not search.done:
        candidate = search.ask()
        assert candidate is not None
        score, shortfall = judged(candidate)
        search.tell(candidate, score, legal=not shortfall, shortfall=shortfall)
    assert search.best is not None
    assert (search.best.legal, search.best.score) == (True, 10.0)
