"""Pictures drawn by matplotlib (extra ``charts``): PNG or SVG files, the same bytes for the same figure."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.charts import palette
from agent.charts.figure import Axis, Figure, Mark, Series
from predictor.errors import BadInput

SUFFIXES = (".png", ".svg")
INCHES = (7.2, 4.6)
LANE_INCH, BAR_INCH = 0.2, 0.6  # height of one lane, of one bar
DPI = 160
POINT, FAINT_POINT, RING = 34.0, 7.0, 130.0  # areas in square points
NARROW_BAND = 0.12  # of the axis: its name is written upwards


def draw(figure: Figure, path: Path) -> None:
    """Write one picture; the suffix of ``path`` says which kind."""
    if path.suffix not in SUFFIXES:
        raise BadInput(f"picture {str(path)!r}: the name must end in {' or '.join(SUFFIXES)}")
    canvas_of, draw_figure, style = _matplotlib()
    with style(_STYLE):
        height = INCHES[1]
        if figure.lying:
            height = 1.7 + len(figure.categories) * (LANE_INCH if figure.spans else BAR_INCH)
        drawn = draw_figure(figsize=(INCHES[0], height), layout="constrained")
        canvas_of(drawn)
        _fill(drawn, drawn.add_subplot(), figure)
        # SVG ids are hashed from this salt, and dates are left out: the same figure gives the same bytes.
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        try:
            drawn.savefig(path, dpi=DPI, metadata=metadata)
        except OSError as error:
            raise BadInput(f"picture {str(path)!r}: cannot be written ({error.strerror})") from None


def _matplotlib() -> tuple[Any, Any, Any]:
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Drawn
    except ImportError:
        raise BadInput("pictures: matplotlib is not installed; pip install 'inferasim[charts]'") from None
    return FigureCanvasAgg, Drawn, matplotlib.rc_context


_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 11.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": palette.GUIDE,
    "axes.labelcolor": palette.INK,
    "text.color": palette.INK,
    "xtick.color": palette.INK,
    "ytick.color": palette.INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": palette.GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "svg.hashsalt": "inferasim",
    "svg.fonttype": "none",
}


def _fill(drawn: Any, axes: Any, figure: Figure) -> None:
    axes.set_title(figure.title)
    if figure.bars:
        _stack(axes, figure)
    elif figure.spans:
        _lay(axes, figure)
    else:
        _plot(axes, figure)
    axes.set_xlabel(figure.x.label)
    axes.set_ylabel(figure.y.label)
    handles, names = axes.get_legend_handles_labels()
    if figure.lying:
        drawn.legend(handles, names, loc="outside lower center", ncols=min(len(names), 5))
    elif len(names) > 1:
        axes.legend(handles, names, loc="best")


def _plot(axes: Any, figure: Figure) -> None:
    for series in figure.series:
        _draw_series(axes, series)
    _scale(figure.x, axes.xaxis, axes.set_xscale, axes.set_xlim)
    _scale(figure.y, axes.yaxis, axes.set_yscale, axes.set_ylim)
    low, high = axes.get_xlim()
    for number, band in enumerate(figure.bands):
        begin, end = max(low, band.low), high if band.high is None else min(high, band.high)
        if end <= begin:
            continue
        axes.axvspan(begin, end, color=palette.band_shade(number, len(figure.bands)), zorder=0, linewidth=0)
        narrow = figure.x.share(begin, end, low, high) < NARROW_BAND
        axes.annotate(
            band.name, (begin, 1.0), xycoords=("data", "axes fraction"), xytext=(3, -4), va="top",
            textcoords="offset points", fontsize=7.5, color=palette.GUIDE, rotation=90 if narrow else 0,
        )  # fmt: skip
    axes.set_xlim(low, high)


def _scale(axis: Axis, side: Any, set_scale: Any, set_limits: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if axis.log:
        set_scale("log")
        side.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
        side.set_minor_formatter(NullFormatter())
    if axis.low is not None or axis.high is not None:
        set_limits(axis.low, axis.high)


def _draw_series(axes: Any, series: Series) -> None:
    colour, shape = palette.colour(series.colour), palette.shape(series.shape)[1]
    if series.mark is Mark.FAINT:
        axes.scatter(series.x, series.y, s=FAINT_POINT, color=palette.FAINT, alpha=0.45, linewidths=0, zorder=1,
                     label=series.name)  # fmt: skip
    elif series.mark is Mark.GUIDE:
        solid = "-" if series.name == "exact" else ":"
        axes.plot(series.x, series.y, solid, color=palette.GUIDE, linewidth=0.9, zorder=1)
    elif series.mark is Mark.LINE:
        axes.plot(series.x, series.y, color=colour, linewidth=1.8, label=series.name)
    elif series.mark is Mark.STEPS:
        axes.step(series.x, series.y, where="post", color=colour, linewidth=1.4, label=series.name)
    elif series.mark is Mark.ANCHOR:
        axes.scatter(series.x, series.y, s=RING, facecolors="none", edgecolors=colour, linewidths=1.8, zorder=4,
                     label=series.name)  # fmt: skip
    else:
        if series.joined:
            axes.plot(series.x, series.y, color=colour, linewidth=1.3, zorder=2)
        face = colour if series.mark is Mark.FILLED else "white"
        axes.scatter(series.x, series.y, s=POINT, marker=shape, facecolors=face, edgecolors=colour, linewidths=1.4,
                     zorder=3, label=series.name)  # fmt: skip


def _stack(axes: Any, figure: Figure) -> None:
    places = range(len(figure.categories))
    left = [0.0] * len(figure.categories)
    for bar in figure.bars:
        axes.barh(places, bar.values, left=left, height=0.62, color=palette.colour(bar.colour), label=bar.name,
                  edgecolor="white", linewidth=0.6)  # fmt: skip
        left = [begin + value for begin, value in zip(left, bar.values, strict=True)]
    for place, whole in zip(places, left, strict=True):
        axes.annotate(
            f"{whole:,.3g}", (whole, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
        )
    if figure.limit is not None:
        axes.axvline(figure.limit, color=palette.INK, linestyle="--", linewidth=1.0, label=figure.limit_name)
    axes.set_xlim(0.0, 1.1 * max((*left, figure.limit or 0.0)))
    _name_lanes(axes, figure.categories)


def _lay(axes: Any, figure: Figure) -> None:
    for span in figure.spans:
        for lane in range(len(figure.categories)):
            pieces = [(begin, end - begin) for at, begin, end in span.pieces if at == lane]
            axes.broken_barh(pieces, (lane - 0.4, 0.8), facecolors=palette.colour(span.colour), linewidth=0)
        axes.broken_barh([], (0, 0), facecolors=palette.colour(span.colour), label=span.name)
    axes.set_xlim(figure.x.low, figure.x.high)
    _name_lanes(axes, figure.categories)


def _name_lanes(axes: Any, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
