"""``inferasim report``."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from agent.charts.document import Document


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report", help="Charts of a search or a sweep: a page, pictures, or tables here.")(report)


def report(
    subject: Annotated[str, typer.Argument(metavar="ID", help="Id of a search in the ledger, or a sweep's file.")],
    out: Annotated[str | None, typer.Option("--out", "-o", help="Write one HTML page that needs nothing else.")] = None,
    plot: Annotated[
        str | None, typer.Option(help="Write every figure as a picture: NAME.png or NAME.svg gives NAME-FIGURE.")
    ] = None,
    measured: Annotated[
        str | None, typer.Option(help="CSV of measured points for a sweep's charts; see the guide on charts.")
    ] = None,
    tiers: Annotated[str | None, typer.Option(help="TOML file of latency tiers to use instead of the four.")] = None,
    ledger: Annotated[str | None, typer.Option(help="File or postgresql:// URL of the ledger.")] = None,
    anchors: Annotated[
        str | None, typer.Option(help="Folder or file of anchors a sweep used instead of the cache.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Charts of a search or a sweep."""
    from pathlib import Path

    from agent.cli.output import note, print_json

    document = _document(subject, measured, tiers, ledger, anchors)
    written = []
    if out is not None:
        from agent.charts.files import write_page

        written.append(str(write_page(document, Path(out))))
    if plot is not None:
        from agent.charts.files import write_pictures

        written += [str(path) for path in write_pictures(document.figures, Path(plot))]
    if json_output:
        figures = [{"key": one.key, "title": one.title, "caption": one.caption} for one in document.figures]
        print_json({"title": document.title, "figures": figures, "files": written, "notes": list(document.notes)})
    elif written:
        for name in written:
            note(f"wrote {name}")
    else:
        from agent.charts.shown import show_document

        show_document(document)


def _document(
    subject: str, measured: str | None, tiers: str | None, ledger: str | None, anchors: str | None
) -> "Document":
    """A number is a search of the ledger, everything else the name of a file."""
    from pathlib import Path

    from predictor.errors import BadInput

    if subject.isdecimal():
        from agent.charts.search_report import search_document
        from agent.cli.ledger import open_existing

        if measured is not None:
            raise BadInput("--measured is for sweeps; a search shows what `inferasim verify --trial` recorded")
        with open_existing(ledger) as book:
            return search_document(book, int(subject))
    from agent.charts.measured import read_measured
    from agent.charts.sweep_report import SweepSource, sweep_document
    from agent.tiers import read_tiers

    points = () if measured is None else read_measured(Path(measured))
    return sweep_document(SweepSource(Path(subject), read_tiers(tiers), anchors, points))
