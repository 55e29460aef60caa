"""The same figures as compact tables in a terminal."""

from collections.abc import Sequence

from agent.charts.document import Block, Commands, Document, Facts, Table
from agent.charts.figure import Figure

MOST_ROWS = 20


def show_document(document: Document) -> None:
    """A whole report as tables, in the page's order."""
    from agent.cli.output import facts, note

    facts(document.title, [("about", document.subtitle), *document.answer])
    for section in document.sections:
        for block in section.blocks:
            show_block(block)
    for text in document.notes:
        note(f"note: {text}")


def show_block(block: Block) -> None:
    """One figure as its table with its caption, or one table, list of facts or commands."""
    from agent.cli.output import facts, note, table

    if isinstance(block, Figure):
        rows, left = _cut(block.rows)
        table(block.title, block.columns, rows)
        note(block.caption if not left else f"{block.caption} {left} more rows are on the page.")
    elif isinstance(block, Table):
        table(block.title, block.columns, block.rows)
    elif isinstance(block, Facts):
        facts(block.title, block.pairs)
    elif isinstance(block, Commands):
        facts(block.title, [("", line) for line in block.lines])
    else:
        note(block.text)


def _cut(rows: Sequence[Sequence[object]]) -> tuple[Sequence[Sequence[object]], int]:
    """Rows evenly out of a long table, and how many are left out."""
    if len(rows) <= MOST_ROWS:
        return rows, 0
    step = (len(rows) - 1) / (MOST_ROWS - 1)
    return [rows[round(number * step)] for number in range(MOST_ROWS)], len(rows) - MOST_ROWS
