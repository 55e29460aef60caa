"""Fixtures of harvest tests."""

import socket
from collections.abc import Iterator

import pytest

from agent.harvest import checks, sweeps
from tests.agent.harvest_requests import children


@pytest.fixture
def any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy test machine may starve the client at any moment: these tests are not about how steady it is."""
    for name in ("READING_PCT", "SPREAD_PCT"):
        monkeypatch.setattr(checks, name, 1e6)
        monkeypatch.setattr(sweeps, name, 1e6)


@pytest.fixture
def port() -> int:
    """A free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    return number


@pytest.fixture
def no_leftovers() -> Iterator[None]:
    """Fail where a process that the test started still runs."""
    before = children()
    yield
    assert children() <= before
