"""The reference cannot go stale, and every command is in the README or one page away."""

from pathlib import Path

from agent.cli.reference import reference

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_what_the_commands_say() -> None:
    """Regenerate with ``python -m agent.cli.reference > docs/cli.md``."""
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == reference()
