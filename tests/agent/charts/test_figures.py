"""What the figures say: their points, captions and tables."""

import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from agent.charts.accuracy import Pair, accuracy_figure
from agent.charts.drawn import draw
from agent.charts.figure import Axis, Figure, Mark, Series
from agent.charts.files import write_pictures
from agent.charts.frontiers import Point, frontier_figure, tier_bands
from agent.charts.interactive import spec
from agent.charts.latency import lanes_figure, load_figure
from agent.charts.shown import show_document
from agent.tiers import Tier
from predictor.errors import BadInput
from tests.agent.charts import example

FIGURES = {figure.key: figure for figure in example.document().figures}


def test_measured_points_are_filled_and_predicted_ones_open() -> None:
    marks = {one.name: one.mark for one in FIGURES["frontier"].series}
    assert marks["measured"] is Mark.FILLED
    assert marks["SGLang, predicted"] is Mark.OPEN
    assert marks["at its anchor's layout"] is Mark.ANCHOR
    drawn = {one["name"]: one for one in spec(FIGURES["frontier"])["data"]}
    assert drawn["measured"]["marker"]["color"] == drawn["measured"]["marker"]["line"]["color"]
    assert drawn["SGLang, predicted"]["marker"]["color"] == "#FFFFFF"


def test_tiers_are_shaded_from_their_least_rate_to_the_next() -> None:
    tiers = [Tier(name="fast", min_tok_s_user=100.0), Tier(name="slow"), Tier(name="mid", min_tok_s_user=40.0)]
    assert [(one.name, one.low, one.high) for one in tier_bands(tiers)] == [
        ("slow", 0.0, 40.0),
        ("mid", 40.0, 100.0),
        ("fast", 100.0, None),
    ]


def test_a_series_with_as_many_x_as_y_only() -> None:
    with pytest.raises(ValueError, match="2 x, 1 y"):
        Series("s", (1.0, 2.0), (1.0,), Mark.OPEN)


def test_accuracy_states_the_median_error_and_the_share_within_a_fifth() -> None:
    pairs = [Pair(100.0, 110.0, "a"), Pair(100.0, 95.0, "b"), Pair(100.0, 150.0, "c")]
    figure = accuracy_figure("k", "TPOT, ms", {"all": pairs})
    assert figure.caption == "3 points; median error 10.0%, 67% within 20%."
    assert [row[-1] for row in figure.rows] == pytest.approx([10.0, -5.0, 50.0])


@pytest.mark.parametrize("pairs", [[], [Pair(0.0, 1.0, "zero")]])
def test_accuracy_refuses_what_a_log_axis_cannot_show(pairs: list[Pair]) -> None:
    with pytest.raises(BadInput, match="chart of TPOT"):
        accuracy_figure("k", "TPOT", {"all": pairs})


def test_lanes_hold_each_client_s_requests_one_after_another() -> None:
    figure = lanes_figure("k", "best", example.result())
    assert len(figure.categories) == example.CLIENTS
    for lane in range(example.CLIENTS):
        pieces = sorted((begin, end) for span in figure.spans for at, begin, end in span.pieces if at == lane)
        assert all(end <= begin + 1e-9 for (_, end), (begin, _) in pairwise(pieces))


def test_load_counts_every_client_once() -> None:
    figure = load_figure("k", "best", example.result())
    moments = sorted({time for one in figure.series for time in one.x})

    def held(series: Series, moment: float) -> float:
        return next((y for x, y in reversed(list(zip(series.x, series.y, strict=True))) if x <= moment), 0.0)

    assert all(
        sum(held(one, moment) for one in figure.series) == example.CLIENTS for moment in moments[:-1] if moment < 2.0
    )


@pytest.mark.parametrize("key", sorted(FIGURES))
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_pictures_are_the_same_bytes_every_time(key: str, suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    draw(FIGURES[key], first)
    draw(FIGURES[key], second)
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" if suffix == ".png" else b"<svg" in first.read_bytes()


def test_several_figures_get_a_name_each(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    written = write_pictures([FIGURES["step"], FIGURES["memory"]], tmp_path / "new" / "out.svg")
    assert [path.name for path in written] == ["out-step.svg", "out-memory.svg"]
    assert all(path.stat().st_size > 1000 for path in written)


def test_a_picture_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"must end in \.png or \.svg"):
        write_pictures([FIGURES["step"]], tmp_path / "out.gif")


@pytest.mark.parametrize(("library", "call"), [("matplotlib", "draw"), ("plotly.offline", "page")])
def test_a_missing_extra_is_named(library: str, call: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from agent.charts.page import page

    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(BadInput, match=r"pip install 'inferasim\[charts\]'"):
        draw(FIGURES["step"], tmp_path / "a.png") if call == "draw" else page(example.document())


def test_the_terminal_shows_the_same_figures_as_tables(capsys: pytest.CaptureFixture[str]) -> None:
    show_document(example.document())
    captured = capsys.readouterr()
    for figure in FIGURES.values():
        assert figure.title in captured.out
    assert re.search(r"best.*7\.4", captured.out)  # the whole decode step
    assert FIGURES["frontier"].caption in captured.err


def test_an_empty_chart_is_a_frame_and_no_error(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    figure = frontier_figure("k", "Nothing", {}, tiers=[Tier(name="bulk")])
    draw(figure, tmp_path / "a.png")
    assert spec(figure)["data"] == []


def test_log_axes_place_points_where_plotly_wants_them() -> None:
    figure = Figure("k", "t", "c", Axis("x", log=True, low=10.0, high=1000.0), Axis("y"), ("x",), ((1,),))
    assert spec(figure)["layout"]["xaxis"]["range"] == [1.0, 3.0]


def test_a_single_point_still_has_bands() -> None:
    figure = frontier_figure("k", "t", {"one": [Point(50.0, 10.0, "p")]}, tiers=[Tier(name="bulk")])
    assert len(spec(figure)["layout"]["shapes"]) == 1
