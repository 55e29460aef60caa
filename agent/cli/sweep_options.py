"""What ``pareto`` and ``mix`` share: the progress bar and a point in a few words."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def sweep_progress() -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on a terminal's stderr; nothing in a pipe."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("points", total=None)
        yield lambda done, points: progress.update(task, completed=done, total=points)


def deployment_name(row: Mapping[str, Any]) -> str:
    """A point's deployment in a few words."""
    drafter = "" if row["drafter"] == "none" else f" {row['drafter']}-{row['depth']}"
    return f"{row['engine']} {row['weight']} kv {row['kv']} {row['label']}{drafter}"
