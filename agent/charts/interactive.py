"""The same figures as plotly's own JSON, for a page that carries plotly's script in itself (extra ``charts``)."""

from math import log10
from typing import Any

from agent.charts import palette
from agent.charts.figure import Axis, Figure, Mark, Series, Span
from predictor.errors import BadInput

LANE_PIXELS, BAR_PIXELS = 20, 58
HEIGHT_PIXELS = 440
NARROW_BAND = 0.12  # of the axis: its name is written upwards
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', 'DejaVu Sans', sans-serif"


def script() -> str:
    """plotly's script, which its wheel carries; no network is asked."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise BadInput("report: plotly is not installed; pip install 'inferasim[charts]'") from None
    text: str = get_plotlyjs()
    return text


def spec(figure: Figure) -> dict[str, Any]:
    """``data`` and ``layout`` for ``Plotly.newPlot``."""
    if figure.bars:
        data = [_bar(figure, number) for number in range(len(figure.bars))]
    elif figure.spans:
        data = [_span(figure, span) for span in figure.spans]
    else:
        data = [_series(one) for one in figure.series]
    return {"data": data, "layout": _layout(figure)}


def _series(series: Series) -> dict[str, Any]:
    colour, symbol = palette.colour(series.colour), palette.shape(series.shape)[0]
    trace: dict[str, Any] = {
        "type": "scatter",
        "name": series.name,
        "x": _short(series.x),
        "y": _short(series.y),
        "hovertemplate": "%{text}<extra></extra>"
        if series.notes
        else f"{series.name}<br>%{{x:,.4g}}, %{{y:,.4g}}<extra></extra>",
    }
    if series.notes:
        trace["text"] = list(series.notes)
    if series.mark is Mark.FAINT:
        return {**trace, "mode": "markers", "marker": {"size": 4, "color": palette.FAINT, "opacity": 0.45}}
    if series.mark is Mark.GUIDE:
        dash = "solid" if series.name == "exact" else "dot"
        line = {"color": palette.GUIDE, "width": 1, "dash": dash}
        return {**trace, "mode": "lines", "line": line, "showlegend": False, "hoverinfo": "skip", "hovertemplate": None}
    if series.mark in (Mark.LINE, Mark.STEPS):
        shape = "hv" if series.mark is Mark.STEPS else "linear"
        return {**trace, "mode": "lines", "line": {"color": colour, "width": 2, "shape": shape}}
    if series.mark is Mark.ANCHOR:
        ring = {"size": 17, "symbol": "circle-open", "color": colour, "line": {"width": 2.5, "color": colour}}
        return {**trace, "mode": "markers", "marker": ring, "hoverinfo": "skip", "hovertemplate": None}
    face = colour if series.mark is Mark.FILLED else "#FFFFFF"
    marker = {"size": 9, "symbol": symbol, "color": face, "line": {"width": 2, "color": colour}}
    mode = "lines+markers" if series.joined else "markers"
    return {**trace, "mode": mode, "marker": marker, "line": {"color": colour, "width": 1.6}}


def _bar(figure: Figure, number: int) -> dict[str, Any]:
    bar = figure.bars[number]
    return {
        "type": "bar",
        "orientation": "h",
        "name": bar.name,
        "x": _short(bar.values),
        "y": list(figure.categories),
        "marker": {"color": palette.colour(bar.colour), "line": {"color": "#FFFFFF", "width": 1}},
        "hovertemplate": f"%{{y}}<br>{bar.name}: %{{x:,.3g}} {figure.x.label}<extra></extra>",
    }


def _span(figure: Figure, span: Span) -> dict[str, Any]:
    """Stretches on lanes are bars that begin where their base says."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": span.name,
        "base": _short([begin for _, begin, _ in span.pieces]),
        "x": _short([end - begin for _, begin, end in span.pieces]),
        "y": [figure.categories[lane] for lane, _, _ in span.pieces],
        "width": 0.8,
        "marker": {"color": palette.colour(span.colour), "line": {"width": 0}},
        "hovertemplate": f"client %{{y}}, {span.name}<br>%{{base:.3f}} s, for %{{x:.3f}} s<extra></extra>",
    }


def _layout(figure: Figure) -> dict[str, Any]:
    layout: dict[str, Any] = {
        "height": HEIGHT_PIXELS,
        "margin": {"l": 58, "r": 14, "t": 14, "b": 48},
        "font": {"family": FONT, "size": 12, "color": palette.INK},
        "paper_bgcolor": "#FFFFFF",
        "plot_bgcolor": "#FFFFFF",
        "hoverlabel": {"align": "left", "bgcolor": "#FFFFFF", "font": {"color": palette.INK}},
        "legend": {"orientation": "h", "x": 0, "y": 0, "yref": "container", "yanchor": "bottom", "font": {"size": 12}},
        "xaxis": _axis(figure.x),
        "yaxis": _axis(figure.y),
        "shapes": [],
        "annotations": [],
    }
    if figure.lying:
        _lying(figure, layout)
    _bands(figure, layout)
    return layout


def _axis(axis: Axis) -> dict[str, Any]:
    found: dict[str, Any] = {
        "title": {"text": axis.label, "standoff": 8},
        "type": "log" if axis.log else "linear",
        "gridcolor": palette.GRID,
        "linecolor": palette.GUIDE,
        "ticks": "outside",
        "tickcolor": palette.GUIDE,
        "zeroline": False,
        "automargin": True,
    }
    if axis.log:
        # 1, 2 and 5 of each decade, as numbers: powers of ten alone leave most charts with one tick.
        found |= {"dtick": "D2", "tickformat": ",~g", "minor": {"showgrid": False}}
    if axis.low is not None and axis.high is not None:
        found["range"] = [_place(axis, axis.low), _place(axis, axis.high)]
    elif axis.low is not None:
        found["rangemode"] = "tozero"
    return found


def _place(axis: Axis, value: float) -> float:
    """A value where plotly wants it: log axes count in powers of ten."""
    return log10(value) if axis.log else value


def _lying(figure: Figure, layout: dict[str, Any]) -> None:
    pixels = LANE_PIXELS if figure.spans else BAR_PIXELS
    layout["height"] = 130 + pixels * len(figure.categories)
    layout["barmode"] = "overlay" if figure.spans else "stack"
    layout["legend"] |= {"traceorder": "normal"}
    names = list(figure.categories)
    layout["yaxis"] |= {"type": "category", "categoryorder": "array", "categoryarray": names, "autorange": "reversed"}
    layout["yaxis"] |= {"showgrid": False, "ticks": ""}
    if figure.bars:
        whole = [sum(bar.values[number] for bar in figure.bars) for number in range(len(names))]
        layout["annotations"] += [
            {"x": value, "y": name, "text": f"{value:,.3g}", "xanchor": "left", "showarrow": False, "xshift": 3,
             "bgcolor": "#FFFFFF", "borderpad": 1}
            for name, value in zip(names, whole, strict=True)
        ]  # fmt: skip
        layout["xaxis"]["range"] = [0.0, 1.15 * max((*whole, figure.limit or 0.0))]
    if figure.limit is not None:
        layout["shapes"].append(
            {"type": "line", "x0": figure.limit, "x1": figure.limit, "yref": "paper", "y0": 0, "y1": 1,
             "line": {"color": palette.INK, "width": 1.5, "dash": "dash"}}
        )  # fmt: skip
        layout["annotations"].append(
            {"x": figure.limit, "yref": "paper", "y": 1.0, "yanchor": "bottom", "text": figure.limit_name,
             "showarrow": False, "font": {"size": 11, "color": palette.GUIDE}}
        )  # fmt: skip
        layout["margin"]["t"] = 28


def _bands(figure: Figure, layout: dict[str, Any]) -> None:
    """Shaded stretches; the axis is fixed to the points, which a band without an end must not stretch."""
    if not figure.bands:
        return
    values = [value for one in figure.series for value in one.x if value > 0.0]
    if not values:
        return
    low, high = min(values) / 1.15, max(values) * 1.15
    layout["xaxis"]["range"] = [_place(figure.x, low), _place(figure.x, high)]
    for number, band in enumerate(figure.bands):
        begin, end = max(low, band.low), high if band.high is None else min(high, band.high)
        if end <= begin:
            continue
        layout["shapes"].append(
            {"type": "rect", "layer": "below", "x0": begin, "x1": end, "yref": "paper", "y0": 0, "y1": 1,
             "fillcolor": palette.band_shade(number, len(figure.bands)), "line": {"width": 0}}
        )  # fmt: skip
        name = {"text": band.name, "name": "band", "showarrow": False, "font": {"size": 11, "color": palette.GUIDE}}
        place = {"x": _place(figure.x, begin), "xanchor": "left", "yref": "paper", "y": 1.0, "yanchor": "top"}
        angle = -90 if figure.x.share(begin, end, low, high) < NARROW_BAND else 0
        layout["annotations"].append({**name, **place, "textangle": angle})


def _short(values: Any) -> list[float]:
    """Six digits: far below what a screen shows, and half a file."""
    return [float(f"{value:.6g}") for value in values]
