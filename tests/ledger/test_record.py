"""Records refuse what a ledger must never hold, and normalise the rest."""

import math
from dataclasses import FrozenInstanceError, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import InputFile, RecordRefused, SearchEnd, SearchRecord, TrialRecord
from ledger.canonical import dumps, frozen, loads

TRIAL = TrialRecord(3, {"tp": 4}, "seed:tp", True, {"tpot_ms": 7.0}, 1.0)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", ["metrics", "score", "levers", "fusion_opportunities"])
def test_a_number_that_is_not_finite_is_refused_by_name(number: float, field: str) -> None:
    values: dict[str, Any] = {
        "metrics": {"ttft_ms": number},
        "score": number,
        "levers": {"request_rate": number},
        "fusion_opportunities": ({"gain_pct": number},),
    }
    with pytest.raises(RecordRefused, match=r"trial 3: .*not a finite number"):
        replace(TRIAL, **{field: values[field]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": -1}, "not a count"),
        ({"index": True}, "not a count"),
        ({"legal": False}, "gives no reason"),
        ({"reasons": (("", "why"),)}, "needs a code"),
        ({"origin": "seed\x00"}, "cannot be printed"),
        ({"levers": {"tp": object()}}, "levers.tp"),
        ({"levers": {"tp": np.int64(4)}}, "is a int64"),
        ({"levers": {4: "tp"}}, "key 4 is not a string"),
        ({"recorded_at": datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001 - the case under test
    ],
)
def test_a_malformed_trial_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordRefused, match=message):
        replace(TRIAL, **change)


def test_a_malformed_search_is_refused(search: SearchRecord) -> None:
    for change, message in (
        ({"model_card_sha256": "abc"}, "model_card_sha256: 'abc' is not a SHA-256"),
        ({"anchor_sha256s": ("G" * 64,)}, "anchor_sha256s"),
        ({"created_at": datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001 - the case under test
        ({"request": {"slo": {1, 2}}}, r"search\.request\.slo"),
    ):
        with pytest.raises(RecordRefused, match=message):
            replace(search, **change)  # type: ignore[arg-type]


def test_an_end_has_a_known_status(search: SearchRecord) -> None:
    with pytest.raises(RecordRefused, match="'finished'; legal: done, nothing_legal"):
        SearchEnd("finished", search.created_at)


def test_an_input_holds_text() -> None:
    with pytest.raises(RecordRefused, match="NUL"):
        InputFile("anchor", "x", "\x00")


def test_values_are_plain_and_cannot_be_reached_from_outside() -> None:
    class Dtype(StrEnum):
        FP8 = "fp8"

    fusions = ["norm_quant"]
    levers = {"fusions": fusions, "dtype": Dtype.FP8}
    trial = replace(TRIAL, levers=levers, metrics={"x": np.float64(0.5)})
    fusions.append("act_quant")
    levers["tp"] = 8  # type: ignore[assignment]
    assert trial.levers == {"dtype": "fp8", "fusions": ("norm_quant",)}
    assert type(trial.levers["dtype"]) is str
    assert type(trial.metrics["x"]) is float
    with pytest.raises(FrozenInstanceError):
        trial.index = 4  # type: ignore[misc]


def test_the_input_hash_names_the_input_and_not_the_run(search: SearchRecord) -> None:
    later = replace(search, created_at=search.created_at.replace(year=2027))
    assert later.input_sha256 == search.input_sha256
    for change in ({"seed": 8}, {"model": "x"}, {"request": {}}, {"anchor_sha256s": ()}, {"code_version": "0.2.0"}):
        assert replace(search, **change).input_sha256 != search.input_sha256  # type: ignore[arg-type]


@given(json_values)
def test_canonical_text_reads_back_to_the_same_value(value: Any) -> None:
    plain = frozen(value, "value")
    text = dumps(plain)
    assert text.isascii()
    assert loads(text, "value") == plain
    assert dumps(loads(text, "value")) == text


def test_key_order_and_minus_zero_do_not_change_the_text() -> None:
    assert dumps(frozen({"b": -0.0, "a": [1]}, "x")) == dumps(frozen({"a": (1,), "b": 0.0}, "x")) == '{"a":[1],"b":0.0}'
