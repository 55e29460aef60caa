"""Fixtures of the service's tests."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.agent.service.harness import Served, service
from tests.ledger.conftest import new_database, postgres_url

pytest.importorskip("fastapi", reason="the extra 'service' is not installed")
__all__ = ["new_database", "postgres_url"]  # fixtures


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service on a SQLite ledger, for one file of tests."""
    home: Path = tmp_path_factory.mktemp("service")
    with service(home, str(home / "ledger.db"), anchors="", writes_per_min=100_000) as found:
        yield found


@pytest.fixture
def client(served: Served) -> Iterator[httpx.Client]:
    """A client of that service."""
    with served.client() as found:
        yield found
