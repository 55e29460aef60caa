"""A real headless browser for tests of pages: ``open_page`` is a fixture for every test (see ``conftest.py``).

The page it opens has no network but the origins the test names; what the page asks of any other, and what it complains
of, is kept. Chromium is taken from the machine (Debian's ``chromium``, or ``CHROMIUM`` names the program); without it
or Playwright the tests say so and skip.

Screenshots are kept beside their test and compared with tolerance. After a wanted change:
``REGENERATE_SCREENSHOTS=1 pytest PATH``, then look at the pictures.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PHONE = (390, 844)  # CSS pixels of a common phone, upright
DESKTOP = (1280, 900)
OWN_SCHEMES = ("data", "blob", "about")  # hold their content themselves
# Fonts and their smoothing differ between machines, so pictures are compared cell by cell, in means.
CELL_PIXELS = 16
CELL_LEVELS = 40.0  # of 255: a cell further off than this counts as changed
CHANGED_SHARE = 0.06  # of the cells


@dataclass(slots=True)
class Opened:
    """An open page with everything it complained of and every address it wanted outside what was allowed."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    outgoing: list[str] = field(default_factory=list)

    def assert_clean(self) -> None:
        """Nothing on the console at level error, no uncaught exception, no request elsewhere."""
        assert self.complaints == []
        assert self.outgoing == []

    def assert_no_sideways_scroll(self) -> None:
        """The page fits the width of its window."""
        wide, window = self.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert wide <= window, f"the page is {wide} pixels wide in a window of {window}"


OpenPage = Callable[..., Opened]


def browser_program() -> str | None:
    """The browser's program, or None."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless browser for one file of tests: Playwright holds the thread's event loop while it runs."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = browser_program()
    if program is None:
        pytest.skip("no browser: install Debian's chromium, or name one in CHROMIUM")
    with sync_api.sync_playwright() as playwright:
        # Its sandbox does not start for root; /dev/shm is small in containers.
        started = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage", "--force-color-profile=srgb"]
        )
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[OpenPage]:
    """``open_page(address_or_path, size=PHONE, allow=("http://127.0.0.1:8000",))``."""
    contexts: list[Any] = []

    def opened(target: str | Path, *, size: tuple[int, int] = DESKTOP, allow: tuple[str, ...] = ()) -> Opened:
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, reduced_motion="reduce", color_scheme="light"
        )
        contexts.append(context)
        address = target.resolve().as_uri() if isinstance(target, Path) else target
        found = Opened(context.new_page())

        def decide(route: Any) -> None:
            wanted = route.request.url
            if wanted == address or _allowed(wanted, allow):
                route.continue_()
            else:
                found.outgoing.append(wanted)
                route.abort()

        def heard(message: Any) -> None:
            if message.type == "error":
                found.complaints.append(message.text)

        context.route("**/*", decide)
        found.page.on("console", heard)
        found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
        found.page.goto(address)
        return found

    yield opened
    for context in contexts:
        context.close()


def _allowed(address: str, allow: tuple[str, ...]) -> bool:
    parts = urlsplit(address)
    return parts.scheme in OWN_SCHEMES or f"{parts.scheme}://{parts.netloc}" in allow


def assert_like_golden(picture: bytes, golden: Path) -> None:
    """The PNG shows what ``golden`` shows, but for fonts and smoothing."""
    if os.environ.get("REGENERATE_SCREENSHOTS"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        _small(picture).save(golden, "PNG", optimize=True)
    ours, kept = _cells(picture), _cells(golden.read_bytes())
    assert abs(ours.shape[0] - kept.shape[0]) <= 0.05 * kept.shape[0], "the page's height has changed"
    assert ours.shape[1] == kept.shape[1], "the page's width has changed"
    rows = min(ours.shape[0], kept.shape[0])
    changed = float((np.abs(ours[:rows] - kept[:rows]).max(axis=2) > CELL_LEVELS).mean())
    assert changed <= CHANGED_SHARE, f"{changed:.1%} of the picture differs from {golden.name}"


def _small(picture: bytes) -> Any:
    """The picture in few colours: a third of the bytes, and no visible difference."""
    from PIL import Image

    return Image.open(BytesIO(picture)).convert("RGB").quantize(96, dither=Image.Dither.NONE)


def _cells(picture: bytes) -> Any:
    """Mean colour of each square of ``CELL_PIXELS``; shape (rows, columns, 3)."""
    from PIL import Image

    image = Image.open(BytesIO(picture)).convert("RGB")
    size = (max(1, image.width // CELL_PIXELS), max(1, image.height // CELL_PIXELS))
    return np.asarray(image.resize(size, Image.Resampling.BOX), dtype=float)
