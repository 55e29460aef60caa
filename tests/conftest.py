"""What all tests share."""

from typing import Any

import pytest
from hypothesis import settings

from tests.browser import browser, open_page

__all__ = ["browser", "open_page"]  # fixtures

# A busy machine must not fail a property: no time limit an example, and the same examples on every run.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")

# Files whose tests wait for one thing that only one of them can have: spread over workers, all of them would wait.
TOGETHER = ("tests/agent/llm/test_real_model.py",)  # one small model on one core


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Spread tests one by one, and each file of ``TOGETHER`` whole, to one worker.

    xdist's own groups (``--dist loadgroup``) are silently ignored from pytest 9.2 on, which keeps node ids elsewhere.
    """
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if file in TOGETHER else nodeid

    return Together(config, log)
