"""Anchor files come from people: each fault names the file, the field and what was expected."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.anchor_files import bundled_anchors
from predictor.anchors.check import doubts
from predictor.anchors.schema import Anchor, PackedProbe, all_fields, checked, parse_anchor
from predictor.errors import BadFile

GOOD = bundled_anchors()[0]
TEXT = json.dumps(all_fields(GOOD), separators=(",", ":"))


def changed(*path: str | int, value: object) -> str:
    raw = json.loads(TEXT)
    place = raw
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return json.dumps(raw)


def test_an_anchor_round_trips_with_its_hash() -> None:
    again = parse_anchor(TEXT, "again.json")
    assert again == GOOD
    assert again.content_hash == GOOD.content_hash


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TEXT[: len(TEXT) // 2], ("line 1", "not JSON")),
        ("[]", ("expected one JSON object",)),
        (changed("schema_version", value=99), ("schema_version", "99", "expected 2")),
        (
            changed("decode", 0, "points", 0, "step_ms", value=-1.0),
            ("decode[0].points[0].step_ms", "greater than 0", "-1.0"),
        ),
        (
            changed("decode", 0, "points", 0, "batch", value="many"),
            ("decode[0].points[0].batch", "a whole number", "many"),
        ),
        (changed("decode", value=[]), ("decode", "at least 1")),
        (changed("signature", "kv_dtype", value="int3"), ("signature.kv_dtype", "int3")),
        (changed("surprise", value=1), ("surprise", "unknown field")),
        (TEXT.replace('"step_ms":', '"step":', 1), ("decode[0].points[0]", "'step'", "did you mean 'step_ms'")),
        (changed("prefill", "per_token_ms", value=0), ("prefill.per_token_ms", "greater than 0")),
    ],
)
def test_a_malformed_anchor_is_one_line_naming_file_and_field(text: str, said: tuple[str, ...]) -> None:
    with pytest.raises(BadFile) as error:
        parse_anchor(text, "bad.json")
    message = str(error.value)
    assert message.startswith("bad.json: ")
    assert "\n" not in message
    assert all(word in message for word in said), message


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(number: str) -> None:
    raw = TEXT.replace(f'"step_ms":{GOOD.decode[0].points[0].step_ms}', f'"step_ms":{number}', 1)
    assert raw != TEXT
    with pytest.raises(BadFile, match="step_ms"):
        parse_anchor(raw, "bad.json")


@pytest.mark.parametrize("character", ["\0", "\ud800"])
def test_text_that_no_database_holds_is_refused(character: str) -> None:
    with pytest.raises(BadFile, match=r"signature\.engine_version: expected text that UTF-8 and a database can hold"):
        parse_anchor(changed("signature", "engine_version", value=f"0.5{character}"), "x.json")
    assert parse_anchor(changed("signature", "engine_version", value="0.5 \u00e9\n"), "x.json")


def test_batches_must_rise() -> None:
    points = [{"batch": 4, "step_ms": 1.0}, {"batch": 2, "step_ms": 1.0}]
    with pytest.raises(BadFile, match="rise strictly"):
        parse_anchor(changed("decode", 0, "points", value=points), "bad.json")


@given(st.text(max_size=60))
def test_any_text_is_refused_without_a_crash(text: str) -> None:
    with pytest.raises(BadFile):
        parse_anchor(text, "fuzz.json")


def test_doubts_are_raised_by_the_numbers() -> None:
    assert {doubt.code for doubt in doubts(GOOD)} == {"short_sweep"}
    tokens = 4096
    fit = GOOD.prefill
    single = fit.fixed_ms + fit.per_token_ms * tokens + fit.per_token2_ms * tokens**2
    for ratio, expected in ((1.0, set()), (3.59, {"probe_off"}), (7.06, {"probe_off"})):
        probe = PackedProbe(sequences=4, tokens_each=1024, step_ms=single * ratio, token_budget=8192)
        probed = replace(GOOD, packed_probe=probe)
        assert {doubt.code for doubt in doubts(probed)} - {"short_sweep"} == expected
    narrow = PackedProbe(sequences=4, tokens_each=1024, step_ms=single, token_budget=2048)
    assert "probe_serialised" in {one.code for one in doubts(replace(GOOD, packed_probe=narrow))}


def test_a_falling_sweep_is_doubted() -> None:
    points = [{"batch": 1, "step_ms": 10.0}, {"batch": 2, "step_ms": 9.0}]
    falling = checked(Anchor, {**all_fields(GOOD), "decode": [{**all_fields(GOOD.decode[0]), "points": points}]})
    assert "not_monotone" in {doubt.code for doubt in doubts(falling)}
