"""Explain: terms add up, mechanisms point the right way, both forms of input, errors in one line."""

import io
import itertools
import json
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cli.main import main
from agent.explain import Side, explain
from agent.explain.compare import changed_parts, path
from agent.explain.mechanisms import mechanisms
from agent.explain.terms import METRICS, terms
from agent.predict_request import PredictRequest
from predictor.predict import Catalogue
from predictor.profiles.loader import engine_profile, model_card, platform

CARD, GPU, ENGINE = model_card("GLM-5.2"), platform("MI355X"), engine_profile("sglang")
CATALOGUE = Catalogue(CARD, GPU, ENGINE)
BASE: dict[str, Any] = {
    "model": "GLM-5.2",
    "gpu": "MI355X",
    "engine": "sglang",
    "tp": 8,
    "isl": 1024,
    "osl": 256,
    "concurrency": 16,
    "weight_dtype": "fp4",
    "kv_dtype": "fp8",
}


def side(**changes: object) -> Side:
    request = PredictRequest(**{**BASE, **changes})
    deployment = request.deployment(CARD, "MI355X", ENGINE, ENGINE.versions[0].version)
    return Side("side", deployment, request.workload(), CATALOGUE)


SPLIT = {"prefill_tp": 4, "handoff": "mori", "tp": 4}


@settings(max_examples=12)
@given(
    concurrency=st.sampled_from([1, 16, 64]),
    osl=st.sampled_from([2, 256]),
    shape=st.sampled_from([{"tp": 4}, {"tp": 8, "ep": 8, "attn_dp": 8}, {"tp": 4, "pp": 2}, SPLIT]),
    drafting=st.sampled_from([{}, {"spec_method": "mtp", "spec_depth": 3}]),
    length_range=st.sampled_from([1.0, 0.8]),
    prefix_hit=st.sampled_from([0.0, 0.5]),
)
def test_terms_add_up_to_the_prediction(
    concurrency: int, osl: int, shape: dict[str, object], drafting: dict[str, object], length_range: float,
    prefix_hit: float,
) -> None:  # fmt: skip
    found = terms(
        side(
            concurrency=concurrency, osl=osl, length_range=length_range, prefix_hit=prefix_hit, **{**shape, **drafting}
        )
    )
    for metric in METRICS:
        assert sum(found.by_metric[metric].values()) == pytest.approx(found.total[metric], rel=1e-9)


def test_a_wider_replica_reads_less_and_talks_more() -> None:
    wide, narrow = terms(side(tp=8)), terms(side(tp=4))
    assert wide.by_metric["tpot_ms"]["weights"] < narrow.by_metric["tpot_ms"]["weights"]
    assert wide.by_metric["tpot_ms"]["experts"] < narrow.by_metric["tpot_ms"]["experts"]
    assert wide.by_metric["tpot_ms"]["collectives"] > 0.0


def test_a_split_has_no_stalls_and_pays_a_pool_of_prefill_gpus() -> None:
    split = terms(side(**SPLIT))
    assert abs(split.by_metric["tpot_ms"]["stalls"]) < 1e-9
    assert split.by_metric["ttft_ms"]["handoff"] > 0.0
    whole = split.total["gpu_ms_per_output_token"]
    assert split.by_metric["gpu_ms_per_output_token"]["prefill"] == pytest.approx(whole / 2.0)


def test_cached_prompts_show_as_a_term_of_their_own() -> None:
    cached = terms(side(tp=4, pp=2, prefix_hit=0.9))
    assert cached.by_metric["ttft_ms"]["cache"] < 0.0
    assert terms(side(tp=4, pp=2)).by_metric["ttft_ms"]["cache"] == 0.0


def test_changes_lead_from_b_to_a() -> None:
    a, b = side(tp=8, ep=8, attn_dp=8, spec_method="mtp", spec_depth=2, concurrency=64), side(tp=4)
    assert changed_parts(a, b) == ["workload", "layout", "speculation"]
    steps = list(path(a, b, "tpot_ms"))
    answer = explain(a, b, "tpot_ms")
    assert steps[0].before == answer["b_value"]
    assert steps[-1].after == answer["a_value"]
    assert all(one.after == two.before for one, two in itertools.pairwise(steps))


def test_the_verdict_follows_the_figures() -> None:
    fast, slow = side(tp=8), side(tp=8, graph_mode="none")
    for a, b in ((fast, slow), (slow, fast)):
        answer = explain(a, b, "tpot_ms")
        assert answer["a_beats_b"] == (answer["a_value"] < answer["b_value"])
    assert explain(fast, fast)["causes"] == []
    assert explain(fast, fast)["changes"] == []


def test_every_term_has_a_mechanism_and_a_reference() -> None:
    for one in (*mechanisms().terms.values(), *mechanisms().changes.values()):
        assert one.label
        assert one.mechanism
        assert one.reference.startswith(("paper", "predictor"))
    members = [member for term in mechanisms().terms.values() for member in term.members]
    assert len(members) == len(set(members))


def test_every_term_of_a_step_is_taken_in_by_name() -> None:
    known = {member for term in mechanisms().terms.values() for member in term.members}
    for one in (side(tp=8, ep=8, spec_method="mtp", spec_depth=2), side(tp=4, pp=2)):
        assert set(terms(one).prediction.step_ms) <= known


def test_another_model_has_no_path() -> None:
    other = replace(side(), deployment=replace(side().deployment, model="GLM-5"))
    assert list(path(other, side(), "tpot_ms")) == []


def test_command_with_files_and_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    book = str(tmp_path / "ledger.db")
    tune = "tune --model Llama-3.1-8B --cluster MI355X:8 --engine sglang --osl 128 --budget 6 --seed-only --json"
    assert run(*tune.split(), "--ledger", book)["search_id"] == 1
    request = {"model": "Llama-3.1-8B", "gpu": "MI355X", "engine": "sglang", "isl": 1024, "osl": 128, "tp": 2}
    file = tmp_path / "wide.json"
    file.write_text(json.dumps({**request, "concurrency": 64}))
    answer = run("explain", "1:best", str(file), "--ledger", book, "--json")
    assert answer["a"]["name"].startswith("1:")
    assert answer["a"]["anchor"] is not None
    assert answer["a_beats_b"]
    assert answer["causes"][0]["reference"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing.json", "1:0"), "nothing.json"),
        (("1:0", "1:1", "--ledger", "absent.db"), "absent.db"),
        (("a.json", "b.json", "--metric", "ttft"), "ttft_ms"),
    ],
)
def test_bad_input_is_one_line(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as leaving:
        main(["explain", *arguments])
    assert leaving.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def run(*arguments: str) -> dict[str, Any]:
    out = io.StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit) as leaving:
        main(list(arguments))
    assert leaving.value.code == 0
    answer: dict[str, Any] = json.loads(out.getvalue())
    return answer
