"""What all tests share."""

from hypothesis import settings

from tests.browser import browser, open_page

__all__ = ["browser", "open_page"]  # fixtures

# A busy machine must not fail a property: no time limit an example, and the same examples on every run.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")
