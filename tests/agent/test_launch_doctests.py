"""The examples in the docstrings of the launch package run."""

import doctest
import importlib
import pkgutil

import agent.launch


def test_docstrings() -> None:
    ran = 0
    for module in pkgutil.walk_packages(agent.launch.__path__, "agent.launch."):
        found = doctest.testmod(importlib.import_module(module.name))
        assert found.failed == 0, module.name
        ran += found.attempted
    assert ran >= 4
