"""How commands print: one JSON object on stdout with ``--json``, tables for people otherwise; words go to stderr."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object and nothing else."""
    sys.stdout.write(json.dumps(value, allow_nan=False, ensure_ascii=False) + "\n")


def note(text: str) -> None:
    """A line for people, on stderr."""
    sys.stderr.write(text + "\n")


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on stdout."""
    from rich.table import Table

    grid = Table(show_edge=False, pad_edge=False)
    for position, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[position], int | float) for row in rows)
        grid.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(_cell(value) for value in row))
    _print(title, grid)


def facts(title: str, pairs: Sequence[tuple[str, object]]) -> None:
    """Name and value, one a line."""
    from rich.table import Table

    grid = Table(show_header=False, show_edge=False, pad_edge=False, box=None)
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(name, _cell(value))
    _print(title, grid)


def _print(title: str, grid: "Table") -> None:
    """Title and table with an empty line after; a narrow table does not fold its title."""
    from rich.console import Console

    console = Console()
    console.print(f"[bold]{title}[/bold]", highlight=False)
    console.print(grid)
    console.print()


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "" if value is None else str(value)
