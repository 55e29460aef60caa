"""The check against an engine's own parser, on a stand-in engine whose parser lacks one flag."""

import argparse
import sys
from pathlib import Path

import pytest

from evals.launch_check import check

SERVER = """
import argparse
import tomllib
from pathlib import Path

TABLE = tomllib.loads(Path({table!r}).read_text())["flags"]

def make_arg_parser(parser):
    parser.add_argument("model")
    for flag, spec in TABLE.items():
        if flag == "--headless":
            continue
        if spec["type"] == "switch":
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type={{"int": int, "float": float}}.get(spec["type"], str))
    return parser
"""
BENCH = """
def add_cli_args(parser):
    parser.add_argument("--base-url")
"""


def test_what_a_parser_refuses_is_counted_and_shown(tmp_path: Path) -> None:
    table = Path(__file__).parents[2] / "agent" / "launch" / "flags" / "vllm.toml"
    for module, text in (
        ("vllm/__init__.py", "__version__ = '0.33.0-stand-in'"),
        ("vllm/utils/argparse_utils.py", "from argparse import ArgumentParser as FlexibleArgumentParser"),
        ("vllm/benchmarks/serve.py", BENCH),
        ("vllm/entrypoints/common/cli_args.py", SERVER.format(table=str(table))),
    ):
        path = tmp_path / module
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = check(argparse.Namespace(engine="vLLM", release="0.33.0", python=sys.executable, path=str(tmp_path)))
    assert found["parser_version"] == "0.33.0-stand-in"
    assert found["commands"] > 500
    refused = {failure["error"].partition("error: ")[2] for failure in found["failures"]}
    assert any(error.startswith("unrecognized arguments: --headless") for error in refused)
    assert any("--random-input-len" in error for error in refused)  # the stand-in's benchmark takes one flag only


def test_an_interpreter_without_the_engine(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is SGLang importable there"):
        check(argparse.Namespace(engine="SGLang", release="", python=sys.executable, path=str(tmp_path)))
