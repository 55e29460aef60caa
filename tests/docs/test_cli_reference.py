"""The reference cannot go stale, and every command is in the README or one page away."""

from pathlib import Path

from typer.main import get_command

from agent.cli.main import MODULES, assemble
from agent.cli.reference import reference

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_what_the_commands_say() -> None:
    """Regenerate with ``python -m agent.cli.reference > docs/cli.md``."""
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == reference()


def test_the_table_of_commands_is_what_the_modules_register() -> None:
    listed = [command for commands in MODULES.values() for command in commands]
    assert sorted(listed) == sorted(get_command(assemble()).commands)  # type: ignore[attr-defined]
    for command in listed:
        assert command in get_command(assemble(command)).commands  # type: ignore[attr-defined]
