"""The mix planner: the rule by hand and against a plain version, allocations against brute force, the command."""

import io
import itertools
import json
import math
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cli.main import main
from agent.mix import Demand, Slot, allocate, fill, parse_demands
from agent.mix.allocate import served
from agent.mix.pick import family, headroom, qualifies
from agent.pareto.frontier import X, Y
from agent.tiers import Tier, read_tiers
from predictor.errors import BadInput

FAST = Tier(name="fast", min_tok_s_user=70.0, max_ttft_ms=2500.0)
BULK = Tier(name="bulk")


def row(number: int, tok_s_user: float, tok_s_gpu: float, ttft_ms: float = 500.0, **more: Any) -> dict[str, Any]:
    base = {"i": number, X: tok_s_user, Y: tok_s_gpu, "ttft_ms": ttft_ms, "concurrency": 16, "gpus": 8}
    return {**base, "engine": "e", "weight": "fp8", "kv": "fp8", "label": f"tp{number}", "drafter": "none", **more}


def test_the_rule_by_hand() -> None:
    rows = [
        row(0, 75.0, 100.0),  # best throughput, little headroom
        row(1, 90.0, 96.0),  # within 5%, more headroom: the pick
        row(2, 140.0, 94.0),  # just outside 5%
        row(3, 200.0, 200.0, ttft_ms=1300.0),  # over half the TTFT limit, though under the limit itself
        row(4, 69.0, 300.0),  # too slow for users
    ]
    slot = fill("m", FAST, rows)
    assert slot.pick is not None
    assert (slot.pick["i"], slot.qualified) == (1, 3)
    assert [one["i"] for one in slot.shortlist] == [1, 0, 2]
    assert slot.headroom == pytest.approx(90.0 / 70.0)


def test_ttft_may_be_the_nearer_limit() -> None:
    assert headroom(row(0, 140.0, 1.0, ttft_ms=1000.0), FAST) == pytest.approx(1250.0 / 1000.0)


def test_a_tier_without_limits_takes_the_best() -> None:
    slot = fill("m", BULK, [row(0, 1.0, 100.0), row(1, 1.0, 99.0)])
    assert slot.pick is not None
    assert slot.pick["i"] == 0
    assert slot.headroom is None


def test_an_empty_slot_names_the_nearest_miss() -> None:
    slot = fill("m", FAST, [row(0, 35.0, 1.0), row(1, 63.0, 1.0), row(2, 80.0, 1.0, ttft_ms=2500.0)])
    assert slot.pick is None
    assert slot.nearest is not None
    assert slot.nearest.row["i"] == 1
    assert slot.nearest.shortfall == pytest.approx(0.1)
    assert slot.nearest.misses == ("interactivity 63 of 70 tok/s/user",)
    assert fill("m", FAST, []).nearest is None


def test_the_short_list_shows_a_choice_once_and_five_at_most() -> None:
    rows = [row(number, 80.0, 100.0 - number, label=f"tp{number // 2}") for number in range(20)]
    slot = fill("m", FAST, rows)
    assert len(slot.shortlist) == 5
    assert len({family(one) for one in slot.shortlist}) == 5


def plain(rows: list[dict[str, Any]], tier: Tier) -> int | None:
    """The paper's sentence, word for word."""
    fit = [one for one in rows if one[X] >= tier.min_tok_s_user and one["ttft_ms"] <= (tier.max_ttft_ms or 1e99) / 2]
    if not fit:
        return None
    best = max(one[Y] for one in fit)
    near = [one for one in fit if one[Y] >= 0.95 * best]
    return int(max(near, key=lambda one: (headroom(one, tier), one[Y], -one["i"]))["i"])


CANDIDATES = st.lists(
    st.tuples(st.integers(60, 90), st.integers(80, 100), st.sampled_from([100, 1000, 1249, 1251, 2600])), max_size=20
)


@given(CANDIDATES, st.sampled_from([FAST, BULK]), st.randoms(use_true_random=False))
def test_the_rule_in_any_order(found: list[tuple[int, int, int]], tier: Tier, order: Any) -> None:
    rows = [row(number, float(x), float(y), float(t)) for number, (x, y, t) in enumerate(found)]
    expected = plain(rows, tier)
    shuffled = list(rows)
    order.shuffle(shuffled)
    slot = fill("m", tier, shuffled)
    assert (None if slot.pick is None else slot.pick["i"]) == expected
    assert slot == fill("m", tier, rows)
    assert all(qualifies(one, tier) for one in slot.shortlist)


def slot_of(model: str, *options: dict[str, Any]) -> Slot:
    return Slot(model, BULK, len(options), options[0], options, None)


def test_whole_deployments_serve_the_demand_with_the_fewest_gpus() -> None:
    slots = [
        slot_of("a", row(0, 1.0, 10.0, gpus=8, concurrency=64), row(1, 1.0, 9.0, gpus=2, concurrency=12)),
        slot_of("b", row(2, 1.0, 100.0, gpus=4)),
    ]
    found = allocate(slots, [Demand("a", "bulk", users=70.0), Demand("b", "bulk", tok_s=700.0)], 32)
    assert {(one.model, one.row["i"], one.deployments) for one in found.grants} == {
        ("a", 0, 1),
        ("a", 1, 1),
        ("b", 2, 2),
    }
    assert (found.used_gpus, found.spare_gpus, found.unserved) == (18, 14, ())


def test_a_fleet_that_is_too_small_says_what_it_leaves() -> None:
    slots = [slot_of("a", row(0, 1.0, 10.0, gpus=8, concurrency=50))]
    found = allocate(slots, [Demand("a", "bulk", users=200.0)], 20, keep_spare=2)
    assert (found.used_gpus, found.spare_gpus) == (16, 4)
    ((_, share),) = found.unserved
    assert share == pytest.approx(0.5)
    nothing = allocate([Slot("a", FAST, 0, None, (), None)], [Demand("a", "fast", users=1.0)], 8)
    assert (nothing.grants, nothing.unserved[0][1]) == ((), 1.0)
    with pytest.raises(BadInput, match="spare"):
        allocate(slots, [], 8, keep_spare=8)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(4, 40)), min_size=1, max_size=3),
    st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(4, 40)), min_size=1, max_size=2),
    st.integers(5, 90),
    st.integers(5, 90),
    st.integers(4, 24),
)
def test_against_brute_force(
    first: list[tuple[int, int]], second: list[tuple[int, int]], users_a: int, users_b: int, fleet: int
) -> None:
    options = [
        [row(number, 1.0, 1.0, gpus=gpus, concurrency=users) for number, (gpus, users) in enumerate(found)]
        for found in (first, second)
    ]
    demands = [Demand("a", "bulk", users=users_a), Demand("b", "bulk", users=users_b)]
    found = allocate([slot_of("a", *options[0]), slot_of("b", *options[1])], demands, fleet)
    every = [one for group in options for one in group]
    owner = [0] * len(options[0]) + [1] * len(options[1])
    best = (math.inf, math.inf)
    for counts in itertools.product(*(range(math.ceil(demands[o].users / one["concurrency"]) + 1)
                                      for o, one in zip(owner, every, strict=True))):  # fmt: skip
        gpus = sum(count * one["gpus"] for count, one in zip(counts, every, strict=True))
        if gpus > fleet:
            continue
        missing = 0.0
        for position, demand in enumerate(demands):
            has = sum(
                count * served(one, demand) for count, one, o in zip(counts, every, owner, strict=True) if o == position
            )
            missing += max(0.0, 1.0 - has)
        best = min(best, (round(missing, 6), gpus))
    assert (round(sum(share for _, share in found.unserved), 6), found.used_gpus) == best


def test_demands() -> None:
    tiers = read_tiers()
    found = parse_demands(["glm-5.2:bulk=200", "Qwen:3:realtime=1500.5tok/s"], ["GLM-5.2", "Qwen:3"], tiers)
    assert found == (Demand("GLM-5.2", "bulk", users=200.0), Demand("Qwen:3", "realtime", tok_s=1500.5))
    for text, said in (
        ("GLM-5.2=3", "write MODEL"),
        ("GLM-5.2:bulk=0", "write MODEL"),
        ("GLM-5.2:bulk=1.2.3", "write MODEL"),
        ("GLM-5:bulk=3", "demand's model"),
        ("GLM-5.2:bilk=3", "bulk"),
    ):
        with pytest.raises(BadInput, match=said):
            parse_demands([text], ["GLM-5.2"], tiers)
    with pytest.raises(BadInput, match="twice"):
        parse_demands(["a:bulk=1", "a:bulk=2"], ["a"], tiers)


def command(*arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit) as leaving:
        main(["mix", *arguments])
    return int(leaving.value.code or 0), out.getvalue()


ASK = [
    *("--model", "Llama-3.1-8B", "--cluster", "MI355X:2", "--engine", "sglang", "--shape", "256/64"),
    *("--concurrency", "4", "--depth", "1", "--weight-dtype", "bf16", "--kv-dtype", "bf16", "--no-schedules"),
]


def test_command_then_again_from_its_points(tmp_path: Path) -> None:
    points = str(tmp_path / "points.jsonl")
    code, text = command(*ASK, "--points", points, "--demand", "Llama-3.1-8B:bulk=9", "--fleet", "16", "--json")
    answer = json.loads(text)
    assert code == 0
    assert {slot["tier"] for slot in answer["slots"]} == {"realtime", "interactive", "responsive", "bulk"}
    bulk = answer["slots"][-1]
    assert bulk["launch"]
    assert "sglang" in bulk["launch"][0]
    assert sum(one["deployments"] for one in answer["allocation"]["grants"]) == 3
    code, text = command("--points", points, "--json")
    again = json.loads(text)
    assert [slot["pick"] for slot in again["slots"]] == [slot["pick"] for slot in answer["slots"]]
    code, text = command("--points", points, "--demand", "Llama-3.1-8B:bulk=9")
    assert "Fleet" in text


def test_nothing_meets_any_tier(tmp_path: Path) -> None:
    tiers = tmp_path / "tiers.toml"
    tiers.write_text('[[tier]]\nname = "absurd"\nmin_tok_s_user = 1e6\n')
    code, text = command(*ASK, "--tiers", str(tiers))
    assert code == 1
    assert "nothing meets" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--model and --cluster"),
        ([*ASK, "--fleet", "8"], "--demand"),
        ([*ASK, "--demand", "x:bulk=3"], "demand's model"),
        ([*ASK, "--jobs", "0"], "jobs"),
        (["--points", "absent.jsonl"], "--model"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as leaving:
        main(["mix", *arguments])
    assert leaving.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
