"""The examples in the docstrings hold."""

import doctest
from importlib import import_module

import pytest

MODULES = ("retrying", "quantities", "mentions", "proposals", "tokens", "inputs")


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    result = doctest.testmod(import_module(f"agent.llm.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
