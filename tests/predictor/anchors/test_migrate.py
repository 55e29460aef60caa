"""Anchor files of earlier schema versions are read as they were meant."""

import json

import pytest

from agent.anchor_files import bundled_anchors
from predictor.anchors.migrate import MIGRATIONS, migrated
from predictor.anchors.schema import SCHEMA_VERSION, parse_anchor, stated_fields
from predictor.errors import BadFile

GOOD = bundled_anchors()[0]


def first_version() -> dict[str, object]:
    """The anchor as version 1 wrote it: none of what version 2 added."""
    raw: dict[str, object] = json.loads(json.dumps(stated_fields(GOOD)))
    raw["schema_version"] = 1
    provenance = raw["provenance"]
    assert isinstance(provenance, dict)
    provenance |= {"real_weights": True, "prefix_cache_off": True}
    return raw


def test_version_1_is_read_and_keeps_its_identity() -> None:
    anchor = parse_anchor(json.dumps(first_version()), "old.json")
    assert anchor.schema_version == SCHEMA_VERSION
    assert anchor.content_hash == GOOD.content_hash


def test_there_is_a_step_from_every_earlier_version() -> None:
    assert sorted(MIGRATIONS) == list(range(1, SCHEMA_VERSION))


@pytest.mark.parametrize(
    ("version", "said"),
    [(None, "is None"), ("2", "is '2'"), (0, "is 0"), (True, "is True"), (99, "written by a newer release")],
)
def test_other_versions_are_refused(version: object, said: str) -> None:
    with pytest.raises(BadFile, match=said):
        migrated(first_version() | {"schema_version": version}, SCHEMA_VERSION, "f.json")


def test_reading_does_not_change_what_was_read() -> None:
    raw = first_version()
    before = json.dumps(raw)
    migrated(raw, SCHEMA_VERSION, "f.json")
    assert json.dumps(raw) == before
