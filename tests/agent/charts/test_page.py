"""The page opened in a real browser: every figure drawn, nothing complained of, nothing asked of a network."""

from pathlib import Path

import pytest

from agent.charts.page import embedded, page
from tests.agent.charts import example
from tests.browser import DESKTOP, PHONE, Opened, OpenPage, assert_like_golden

pytest.importorskip("plotly", reason="plotly is not installed")
GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(example.document()), encoding="utf-8")
    return path


def see_all(opened: Opened) -> None:
    """Scroll through the page, as a reader does: figures are drawn as they come into sight."""
    drawn = "document.querySelectorAll('.plot .main-svg').length > 0 && " + (
        "[...document.querySelectorAll('.plot')].every((place) => place.querySelector('.main-svg'))"
    )
    for place in opened.page.query_selector_all(".plot"):
        place.scroll_into_view_if_needed()
    opened.page.wait_for_function(drawn)
    opened.page.evaluate("window.scrollTo(0, 0)")


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_every_figure_is_drawn_and_the_page_asks_nothing(
    open_page: OpenPage, file: Path, size: tuple[int, int]
) -> None:
    opened = open_page(file, size=size)
    see_all(opened)
    assert len(opened.page.query_selector_all(".plot .main-svg")) >= len(example.document().figures)
    for figure in example.document().figures:
        place = opened.page.query_selector(f"#{figure.key}")
        assert place.query_selector("[role=img]").get_attribute("aria-label") == f"{figure.title}. {figure.caption}"
        assert len(place.query_selector_all("tbody tr")) == len(figure.rows)
        # A figure that draws no mark is a frame around nothing.
        marks = place.query_selector_all(".plot .points path, .plot .js-line, .plot .bars path")
        assert marks, f"{figure.key} shows no mark"
    opened.assert_clean()
    opened.assert_no_sideways_scroll()


def test_text_of_a_phone_is_readable_and_nothing_sticks_out(open_page: OpenPage, file: Path) -> None:
    opened = open_page(file, size=PHONE)
    see_all(opened)
    smallest = opened.page.evaluate(
        "Math.min(...[...document.querySelectorAll('main *, .plot text')]"
        ".filter((one) => one.childNodes.length && [...one.childNodes].some((c) => c.nodeType === 3 && c.data.trim()))"
        ".map((one) => parseFloat(getComputedStyle(one).fontSize)))"
    )
    assert smallest >= 10.0
    wide = opened.page.evaluate("Math.max(...[...document.querySelectorAll('.plot')].map((p) => p.scrollWidth))")
    assert wide <= PHONE[0]


def test_a_table_can_be_opened_by_the_keyboard(open_page: OpenPage, file: Path) -> None:
    opened = open_page(file)
    summary = opened.page.query_selector("#step summary")
    summary.focus()
    opened.page.keyboard.press("Enter")
    assert opened.page.query_selector("#step details[open] table") is not None
    assert opened.page.inner_text("#step th >> nth=0") == "deployment"


@pytest.mark.parametrize(("name", "size"), [("desktop", DESKTOP), ("phone", PHONE)])
def test_it_looks_as_it_was_accepted(open_page: OpenPage, file: Path, name: str, size: tuple[int, int]) -> None:
    opened = open_page(file, size=size)
    see_all(opened)
    assert_like_golden(opened.page.screenshot(full_page=True), GOLDEN / f"report-{name}.png")


def test_nothing_in_a_figure_can_break_out_of_its_script() -> None:
    assert "<" not in embedded({"text": "</script><img src=x onerror=alert(1)>"})


def test_names_are_text_and_never_markup() -> None:
    text = page(example.document())
    assert "deployments of one engine &lt;only&gt;." in text
    assert 'src="http' not in text
    assert '<link rel="stylesheet"' not in text
