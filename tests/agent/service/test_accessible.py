"""Who sees, hears or steers the page otherwise gets all of it: axe's WCAG rules, names, focus order, live news."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.agent.service.harness import REQUEST, Served, ended, service, until
from tests.browser import DESKTOP, PHONE, Opened, OpenPage

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

WCAG = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}}
# What Tab reaches, in order: kind, name, and whether the focus can be seen.
WALK = """() => {
  const one = document.activeElement, style = getComputedStyle(one), box = one.getBoundingClientRect();
  const named = one.getAttribute("aria-label") || (one.labels && one.labels.length && one.labels[0].textContent)
    || (one.getAttribute("aria-labelledby") && document.getElementById(one.getAttribute("aria-labelledby")).textContent)
    || one.textContent;
  return { tag: one.tagName, name: named.trim(), top: box.top + scrollY, shown: style.outlineStyle !== "none"
    && parseFloat(style.outlineWidth) >= 2, inside: box.bottom > 0 && box.top < innerHeight, group: one.name || "" };
}"""
STOPS = """() => [...document.querySelectorAll(
  "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']")].filter(
  (one) => one.checkVisibility() && !one.disabled && !(one.type === "radio" && !one.checked)).length"""


@pytest.fixture(scope="module")
def found(served: Served) -> dict[str, str]:
    """Pages of a service that has found something, found nothing, and is asked for what is not there."""
    with served.client() as client:
        done = client.post("/v1/tune", json={**REQUEST, "budget": 40}).json()["search_id"]
        none = client.post("/v1/tune", json={**REQUEST, "slos": ["tpot_ms<=0.01"], "budget": 20}).json()["search_id"]
        best = ended(client, done)["best"]["index"]
        ended(client, none)
    return {
        "home": "/",
        "form": "/new",
        "api": "/docs",
        "search": f"/searches/{done}",
        "nothing legal": f"/searches/{none}",
        "compare": f"/searches/{done}/compare?a={best}&b=0",
        "not there": "/searches/999999",
    }


PAGES = ("home", "form", "api", "search", "nothing legal", "compare", "not there")


@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")])
def test_axe_finds_no_fault(
    served: Served, open_page: OpenPage, found: dict[str, str], size: tuple[int, int], scheme: str
) -> None:
    opened = open_page(f"{served.base}/", size=size, allow=(served.base,))
    opened.page.emulate_media(color_scheme=scheme)
    faults = []
    for name in PAGES:
        opened.page.goto(served.base + found[name])
        faults += [f"{name}: {told}" for told in violations(opened.page)]
        opened.assert_no_sideways_scroll()
    assert not faults, "\n".join(faults)


def violations(page: Any) -> list[str]:
    """What axe holds against a page."""
    answer = axe.Axe().run(page, options=WCAG).response
    assert len(answer["passes"]) > 10, "the rules ran"
    return [f"{rule['id']}: {node['html'][:120]}" for rule in answer["violations"] for node in rule["nodes"]]


def test_axe_would_find_a_fault(served: Served, open_page: OpenPage) -> None:
    opened = open_page(f"{served.base}/", allow=(served.base,))
    opened.page.evaluate("document.querySelector('label').remove()")
    assert any(told.startswith("label: ") for told in violations(opened.page))


@pytest.mark.parametrize("name", ["home", "form", "search", "compare"])
def test_tab_reaches_everything_in_reading_order_and_shows_where_it_is(
    served: Served, open_page: OpenPage, found: dict[str, str], name: str
) -> None:
    page = open_page(f"{served.base}{found[name]}", allow=(served.base,)).page
    stops = []
    for _ in range(page.evaluate(STOPS)):
        page.keyboard.press("Tab")
        stops.append(page.evaluate(WALK))
    assert stops[0]["name"] == "Skip to content"
    assert all(stop["tag"] != "BODY" for stop in stops), "no stop is missing"
    assert [stop for stop in stops if not stop["name"]] == []
    assert [stop for stop in stops if not (stop["shown"] and stop["inside"])] == []
    # In one row of a form or a table the order is from left to right; down the page it never turns back.
    turns = [(a["name"], b["name"]) for a, b in pairwise(stops[1:]) if b["top"] < a["top"] - 60]
    assert turns == []


def test_the_skip_link_leads_past_the_menu(served: Served, open_page: OpenPage) -> None:
    page = open_page(f"{served.base}/", allow=(served.base,)).page
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "text"


def test_two_trials_are_chosen_and_compared_by_keyboard(
    served: Served, open_page: OpenPage, found: dict[str, str]
) -> None:
    page = open_page(f"{served.base}{found['search']}?all=true", allow=(served.base,)).page
    page.locator("input[name=a]:checked").focus()
    page.keyboard.press("ArrowDown")
    chosen = page.evaluate("document.querySelector('input[name=a]:checked').value")
    page.locator("input[name=b]:checked").focus()
    page.keyboard.press("Tab")
    while "Compare" not in page.evaluate("document.activeElement.textContent"):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/compare?**")
    assert f"trial {chosen}" in page.inner_text("h1").lower()
    heads = page.locator("h2").all_inner_texts()
    assert {"ttft_ms by term", "tpot_ms by term", "e2e_ms by term", "What differs"} <= set(heads)
    for table in page.locator("table:has(tr.sum)").all():
        rows = [
            [cell.replace(",", "") for cell in row.locator("td").all_inner_texts()] for row in table.locator("tr").all()
        ]
        terms = [[float(cell) for cell in row] for row in rows if row]
        for column in range(3):
            whole = terms[-1][column]
            parts = sum(row[column] for row in terms[:-1])
            assert abs(parts - whole) <= 0.02 * max(abs(row[column]) for row in terms), "the terms add up to the whole"
    assert "(" not in "".join(page.locator("table").last.locator("td").all_inner_texts()), "values in words"


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service with a search that runs for a while."""
    home: Path = tmp_path_factory.mktemp("busy")
    with service(home, str(home / "ledger.db"), workers=1) as one:
        yield one


def test_news_are_spoken_and_what_a_reader_chose_stays(busy: Served, open_page: OpenPage) -> None:
    with busy.client() as client:
        number = client.post("/v1/tune", json={**REQUEST, "cluster": "MI355X:8x2", "budget": 900}).json()["search_id"]
    opened: Opened = open_page(f"{busy.base}/searches/{number}", allow=(busy.base,))
    page = opened.page
    page.set_default_timeout(120_000)
    status = page.locator("#status")
    assert (status.get_attribute("role"), status.get_attribute("aria-live")) == ("status", "polite")
    page.locator("#status:has-text('trials')").wait_for(state="attached")
    page.wait_for_selector("input[name=b]")
    page.locator("input[name=b]").nth(1).check()
    chosen = page.evaluate("document.querySelector('input[name=b]:checked').value")
    page.locator("input[name=b]:checked").focus()
    before = page.inner_text(".progress-line")
    until(lambda: page.inner_text(".progress-line") != before)
    assert page.evaluate("document.querySelector('input[name=b]:checked').value") == chosen
    assert page.evaluate("[document.activeElement.name, document.activeElement.value]") == ["b", chosen]
    page.click("text=Stop")
    page.wait_for_selector(".state.cancelled, .state.done")
    opened.assert_clean()
