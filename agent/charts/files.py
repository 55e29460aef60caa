"""Figures and reports as files."""

from collections.abc import Sequence
from pathlib import Path

from agent.charts.document import Document
from agent.charts.figure import Figure
from predictor.errors import BadInput


def write_page(document: Document, path: Path) -> Path:
    """The report as one HTML file."""
    from agent.charts.page import page

    text = page(document)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"out {str(path)!r}: cannot be written ({error.strerror})") from None
    return path


def write_pictures(figures: Sequence[Figure], path: Path) -> list[Path]:
    """PNG or SVG by the suffix of ``path``: one figure under that name, several as ``NAME-KEY``."""
    from agent.charts.drawn import SUFFIXES, draw

    if path.suffix not in SUFFIXES:
        raise BadInput(f"plot {str(path)!r}: the name must end in {' or '.join(SUFFIXES)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"plot {str(path)!r}: cannot be written ({error.strerror})") from None
    names = [path] if len(figures) == 1 else [path.with_stem(f"{path.stem}-{one.key}") for one in figures]
    for figure, name in zip(figures, names, strict=True):
        draw(figure, name)
    return names
