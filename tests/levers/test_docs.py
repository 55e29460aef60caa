"""The generated pages are current."""

from pathlib import Path

import pytest

from levers.docs import legality_page, levers_page
from levers.legality import NOTICES, RULES
from levers.legality.field import FIELD_FAILURES, MEMORY_CHECKS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("name", "page"), [("levers.md", levers_page()), ("legality.md", legality_page())])
def test_page_is_what_the_catalogue_says(name: str, page: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == page, "run python -m levers.docs"


def test_every_field_failure_is_answered_by_a_rule_that_exists() -> None:
    known = {rule.name for rule in (*RULES, *NOTICES)} | set(MEMORY_CHECKS)
    assert [failure.number for failure in FIELD_FAILURES] == list(range(1, 21))
    assert {name for failure in FIELD_FAILURES for name in failure.answered_by} <= known
