"""The page in a real browser: from words to a launch command on the clipboard, by keyboard, in light and dark."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.service.harness import Served, service
from tests.browser import PHONE, Opened, OpenPage

TEXT = "Tune Llama-3.1-8B on 8 MI355X with SGLang, TPOT under 10 ms"
PATIENCE_MS = 120_000


@pytest.fixture
def opened(served: Served, open_page: OpenPage) -> Opened:
    """The first page."""
    found = open_page(f"{served.base}/", allow=(served.base,))
    found.page.set_default_timeout(PATIENCE_MS)
    return found


def submit(page: Any, budget: str = "40") -> None:
    """From words to a running search, by keyboard alone."""
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.locator("#text").focus()
    page.keyboard.type(TEXT)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('This is what was understood')")
    page.locator("#budget").fill(budget)
    page.locator("#budget").press("Enter")
    page.wait_for_url("**/searches/*")


def test_words_typed_in_the_page_end_with_a_launch_command_on_the_clipboard(opened: Opened) -> None:
    page = opened.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    submit(page, "120")
    page.wait_for_selector("#launch-1")
    command = page.inner_text("#launch-1")
    assert "sglang.launch_server" in command
    assert "meta-llama/Llama-3.1-8B-Instruct" in command
    page.locator("[data-copy='launch-1']").first.press("Enter")
    page.wait_for_selector("[data-copy='launch-1']:has-text('Copied')")
    assert page.evaluate("navigator.clipboard.readText()") == command
    assert page.locator(".state.done").count() == 1
    assert page.locator("circle.mark.legal").count() > 50, "the trials are on the chart"
    assert page.locator("path.mark.best").count() == 2, "the best, and the legend's"
    opened.assert_clean()


def test_what_was_understood_can_be_corrected(opened: Opened) -> None:
    page = opened.page
    page.fill("#text", "Llama-3.1-8B on 8 MI355X, TPOT under 10 ms, 2000 in, 500 out")
    page.click("button.main")
    assert "which engine" in page.inner_text(".questions")
    assert page.input_value("#isl") == "2000"
    assert page.input_value("#slos") == "tpot_ms<=10"
    page.select_option("#engine", "SGLang")
    page.fill("#slos", "tpotms<=10")
    page.click("button.main")
    page.wait_for_selector("[role=alert]")
    assert "tpot_ms" in page.inner_text("[role=alert]")
    assert page.input_value("#isl") == "2000", "what was typed is still there"
    page.fill("#slos", "tpot_ms<=12")
    page.fill("#budget", "5")
    page.click("button.main")
    page.wait_for_url("**/searches/*")
    assert "tpot_ms<=12; 2000 tokens in, 500 out" in page.inner_text(".lead")


def test_refusals_are_told_and_two_trials_compared(opened: Opened) -> None:
    page = opened.page
    submit(page)
    page.wait_for_selector(".state.done")
    page.locator("#refused-title ~ details summary").first.click()
    assert "GPUs" in page.locator("#refused-title ~ details ul").first.inner_text()
    page.click("form.compare button")
    page.wait_for_selector("h1:has-text('beat')")
    assert page.locator("table").count() >= 2
    opened.assert_clean()


def test_the_report_is_downloaded_and_opens_without_the_service(
    opened: Opened, open_page: OpenPage, tmp_path: Path
) -> None:
    page = opened.page
    submit(page)
    page.wait_for_selector(".state.done")
    with page.expect_download() as waiting:
        page.click("text=Download the report")
    search_id = page.url.rpartition("/")[2]
    assert waiting.value.suggested_filename == f"search-{search_id}.html"
    path = tmp_path / "report.html"
    waiting.value.save_as(path)
    opened.assert_clean()
    report = open_page(path)
    assert "Llama-3.1-8B" in report.page.inner_text("h1")
    plot = report.page.locator(".plot").first
    plot.scroll_into_view_if_needed()
    plot.locator("svg").first.wait_for()
    report.assert_clean()


@pytest.mark.parametrize("size", [PHONE, (1280, 900)])
def test_pages_fit_and_name_what_they_hold(opened: Opened, served: Served, size: tuple[int, int]) -> None:
    """Structure a screen reader needs, on every page; nothing is wider than the window."""
    page = opened.page
    page.set_viewport_size({"width": size[0], "height": size[1]})
    submit(page, "20")
    page.wait_for_selector(".state.done")
    here = page.url
    for path in ("/", "/new", "/docs", here.removeprefix(served.base)):
        page.goto(served.base + path)
        assert page.locator("h1").count() == 1
        assert page.locator("main").count() == 1
        assert page.evaluate("document.documentElement.lang") == "en"
        unlabelled = page.evaluate(
            """[...document.querySelectorAll("input:not([type=hidden]), select, textarea")]
               .filter((one) => !one.labels.length && !one.getAttribute("aria-label")).map((one) => one.name)"""
        )
        assert unlabelled == []
        assert page.locator("table:not(:has(th[scope]))").count() == 0
        opened.assert_no_sideways_scroll()
    opened.assert_clean()


CONTRAST = """
(() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const lit = (v) => v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
  const shine = ([r, g, b]) => 0.2126 * lit(r) + 0.7152 * lit(g) + 0.0722 * lit(b);
  const behind = (one) => { for (let at = one; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor; const [r, g, b, a] = parse(colour);
    if (colour.startsWith("rgb") && (a === undefined || a > 0.99)) return [r, g, b]; }
    return [255, 255, 255]; };
  const poor = [];
  for (const one of document.querySelectorAll("main *, header *, footer")) {
    if (one.closest("svg") || ![...one.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    if (!one.checkVisibility() || one.disabled) continue;
    const a = shine(parse(getComputedStyle(one).color)), b = shine(behind(one));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const what = `${one.tagName} ${one.className} ${one.textContent.trim().slice(0, 30)}`;
    if (ratio < 4.5) poor.push(`${what} ${ratio.toFixed(2)}`);
  }
  return poor;
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(opened: Opened, served: Served, scheme: str) -> None:
    """WCAG's 4.5 to 1 for every text outside the chart."""
    page = opened.page
    page.emulate_media(color_scheme=scheme)
    submit(page, "20")
    page.wait_for_selector(".state.done")
    for path in (page.url, f"{served.base}/", f"{served.base}/new"):
        page.goto(path)
        assert page.evaluate(CONTRAST) == []


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service whose searches wait: nobody works."""
    home: Path = tmp_path_factory.mktemp("slow")
    with service(home, str(home / "ledger.db"), workers=0) as found:
        yield found


def test_a_waiting_search_can_be_stopped(slow: Served, open_page: OpenPage) -> None:
    with slow.client() as client:
        client.get("/readyz")
    opened = open_page(f"{slow.base}/", allow=(slow.base,))
    opened.page.set_default_timeout(PATIENCE_MS)
    submit(opened.page)
    assert opened.page.inner_text(".state") == "queued"
    opened.page.click("text=Stop")
    opened.page.wait_for_selector(".state.cancelled")
    opened.assert_clean()
