"""The examples in the docstrings of the ledger run."""

import doctest
import importlib

import pytest

MODULES = ("canonical", "database", "queries")


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"ledger.{name}"))
    assert found.failed == 0
    assert found.attempted > 0
