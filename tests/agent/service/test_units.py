"""The service's small parts: settings, limits, words without places, forms, charts."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

from agent.failures import EngineFailed
from agent.service.limits import Rate
from agent.service.problems import TITLES, problem_of, public
from agent.service.settings import ServiceSettings, load_settings
from agent.web.chart import axis, chart
from agent.web.forms import DEFAULTS, typed
from ledger import Conflict, LedgerError, TrialRecord, UnknownSearch
from ledger.queue import KeyReused, QueueFull
from predictor.errors import BadInput, DataUnavailable, DoesNotFit, UnknownName


@pytest.mark.parametrize(
    "name",
    ["agent.service.problems", "agent.service.views", "agent.web.chart", "agent.web.routes", "evals.service_load"],
)
def test_examples_in_the_text_hold(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0


def test_settings_come_from_file_environment_and_options_in_that_order(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('workers = 3\nport = 1\nallowed_hosts = ["a"]\nlease_s = 9', encoding="utf-8")
    variables = {"INFERASIM_SERVE_PORT": "2", "INFERASIM_SERVE_LEASE_S": "8", "INFERASIM_SERVE_CONFIG": str(file)}
    found = load_settings({"port": 3, "workers": None}, environment=variables)
    assert (found.workers, found.port, found.lease_s, found.allowed_hosts) == (3, 3, 8.0, ("a",))
    assert load_settings({}, environment={"INFERASIM_SERVE_ALLOWED_HOSTS": "a, b"}).allowed_hosts == ("a", "b")
    assert "workers = 3" in found.as_toml()


@pytest.mark.parametrize(
    ("given", "variables", "words"),
    [
        ({"port": 99999}, {}, "--port: port 99999"),
        ({}, {"INFERASIM_SERVE_WORKERS": "many"}, "INFERASIM_SERVE_WORKERS: workers 'many'"),
        ({}, {"INFERASIM_SERVE_WORKER": "2"}, "INFERASIM_SERVE_WORKER: no such setting; legal: host"),
        ({}, {"INFERASIM_SERVE_CONFIG": "/nowhere.toml"}, "cannot be read"),
    ],
)
def test_a_wrong_setting_is_named_with_its_source(
    given: dict[str, object], variables: dict[str, str], words: str
) -> None:
    with pytest.raises(BadInput) as caught:
        load_settings(given, environment=variables)
    assert words in str(caught.value)


def test_a_rate_lets_a_burst_through_and_then_so_many_a_second() -> None:
    now_s = [0.0]
    rate = Rate(2.0, 4.0, lambda: now_s[0])
    assert [rate.wait_s("ann") for _ in range(5)] == [0.0, 0.0, 0.0, 0.0, 0.5]
    assert rate.wait_s("bob") == 0.0
    now_s[0] += 0.5
    assert rate.wait_s("ann") == 0.0
    now_s[0] -= 100.0
    assert rate.wait_s("ann") == pytest.approx(0.5), "a clock that steps back gives and takes nothing"


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (UnknownName("x"), 422, "unknown-name"),
        (BadInput("x"), 422, "bad-input"),
        (DoesNotFit("x"), 422, "refused"),
        (DataUnavailable("x"), 422, "data-unavailable"),
        (EngineFailed("x"), 503, "dependency-failed"),
        (UnknownSearch("ledger /a/b: no search 7; `inferasim ledger list`"), 404, "not-found"),
        (Conflict("ledger /a/b: search 7 is finished"), 409, "conflict"),
        (KeyReused("x"), 422, "key-reused"),
        (QueueFull("x"), 429, "queue-full"),
        (LedgerError("ledger postgresql://a:b@c/d: cannot be reached"), 503, "ledger-unavailable"),
    ],
)
def test_every_expected_error_is_a_problem_that_names_no_place(error: Exception, status: int, kind: str) -> None:
    found = problem_of(error)
    assert found is not None
    assert (found.status, found.kind) == (status, kind)
    assert found.kind in TITLES
    assert "/a/" not in found.detail
    assert "postgresql" not in found.detail
    assert problem_of(ZeroDivisionError()) is None


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("/var/lib/x/anchors/a.json: not JSON", "a.json: not JSON"),
        ("read C:\\Users\\ann\\a.json", "read a.json"),
        ("ledger postgresql+psycopg://ann:***@db/x: away", "ledger (address): away"),
        ("pin 'tp=4': write LEVER=VALUE", "pin 'tp=4': write LEVER=VALUE"),
        ("request_rate 3 requests/s", "request_rate 3 requests/s"),
        ("model meta-llama/Llama-3.1-8B is known", "model meta-llama/Llama-3.1-8B is known"),
    ],
)
def test_places_are_left_out_of_words(said: str, shown: str) -> None:
    assert public(said) == shown


def test_the_form_says_what_the_options_say() -> None:
    filled = {**DEFAULTS, "model": "M", "gpu": "H200", "engine": "vllm", "nodes": "2", "slos": "tpot_ms<=10\n\nx<=1"}
    found = typed({**filled, "concurrency": "1,000", "request_rate": "2.5"})
    assert found["cluster"] == "H200:8x2"
    assert found["slos"] == ("tpot_ms<=10", "x<=1")
    assert (found["concurrency"], found["request_rate"], found["arrival"]) == (1000, 2.5, "poisson")
    assert "nodes" not in found
    for name, words in (
        ("isl", "isl 'many': must be a whole number"),
        ("prefix_hit", "prefix_hit 'many': must be a num"),
    ):
        with pytest.raises(BadInput, match=words):
            typed({**filled, name: "many"})
    with pytest.raises(BadInput, match="engine: choose one"):
        typed({**filled, "engine": ""})


def trial(index: int, x: float, y: float, name: str = "") -> TrialRecord:
    metrics = {"interactivity_tok_s_user": x, "output_tok_s_per_gpu": y}
    return TrialRecord(index, {}, "seed", True, metrics, score=y, hypothesis=name)


def test_the_chart_escapes_what_it_shows_and_survives_anything() -> None:
    best = trial(0, 10.0, 200.0, "<script>alert(1)</script>")
    text = chart([best, trial(1, 0.0, 0.0), TrialRecord(2, {}, "seed", False, reasons=(("a", "b"),))], best)
    assert "<script" not in text
    assert text.count("<circle") == 2
    assert 'class="mark best"' in text
    assert "<svg" in chart([], None)
    for most in (1e-9, 0.3, 7.0, 1e12):
        found = axis([most])
        assert list(found.ticks())[-1] >= most * 0.999
        assert 2 <= len(list(found.ticks())) <= 12


def test_defaults_need_no_setting() -> None:
    assert ServiceSettings().workers == 2
