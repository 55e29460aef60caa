"""The browser the page tests stand on tells what a page does wrong."""

from io import BytesIO
from pathlib import Path

import pytest

from tests.browser import PHONE, OpenPage, assert_like_golden


def test_a_clean_page_is_clean(open_page: OpenPage, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("<!doctype html><title>t</title><link rel=icon href='data:,'><p>fine</p>", encoding="utf-8")
    opened = open_page(path, size=PHONE)
    assert opened.page.inner_text("p") == "fine"
    opened.assert_clean()
    opened.assert_no_sideways_scroll()


def test_errors_requests_and_sideways_scroll_are_seen(open_page: OpenPage, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(
        "<!doctype html><title>t</title><img src='http://192.0.2.1/spy.png'>"
        "<div style='width:1000px'>wide</div><script>console.error('oh'); throw new Error('no')</script>",
        encoding="utf-8",
    )
    opened = open_page(path, size=PHONE)
    opened.page.wait_for_timeout(200)
    assert "http://192.0.2.1/spy.png" in opened.outgoing
    assert "oh" in opened.complaints
    assert "no" in opened.complaints
    with pytest.raises(AssertionError):
        opened.assert_clean()
    with pytest.raises(AssertionError, match="wide"):
        opened.assert_no_sideways_scroll()


def test_golden_pictures_differ_by_content_not_by_noise(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")

    def png(colour: tuple[int, int, int], bar: int) -> bytes:
        picture = image.new("RGB", (320, 320), "white")
        picture.paste(image.new("RGB", (bar, 160), colour), (0, 0))
        sink = BytesIO()
        picture.save(sink, "PNG")
        return sink.getvalue()

    golden = tmp_path / "golden.png"
    golden.write_bytes(png((0, 114, 178), 160))
    assert_like_golden(png((4, 110, 182), 161), golden)
    with pytest.raises(AssertionError, match="differs"):
        assert_like_golden(png((0, 114, 178), 320), golden)
