"""The generated pages are current."""

from pathlib import Path

import pytest

from levers.docs import legality_page, levers_page

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("name", "page"), [("levers.md", levers_page()), ("legality.md", legality_page())])
def test_page_is_what_the_catalogue_says(name: str, page: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == page, "run python -m levers.docs"
