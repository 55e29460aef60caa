"""An engine's own argument parser as a filter: commands in as JSON lines, a verdict for each out.

Run by an interpreter that can import the engine: ``VENV/bin/python evals/launch_parser.py vLLM < commands``. The first
line out is the engine's version. Only the standard library and the engine are imported.
"""

import argparse
import contextlib
import importlib
import importlib.machinery
import importlib.util
import io
import json
import os
import sys
from collections.abc import Callable
from unittest.mock import MagicMock

SERVER_PARSERS = (  # modules where releases of vLLM keep it
    "vllm.entrypoints.common.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.openai.cli_args",
)
UNUSED_BY_SGLANG = ("torchvision", "torchvision.io", "torchvision.transforms", "torchaudio")  # imported on the way
Choose = Callable[[list[str]], tuple[argparse.ArgumentParser, list[str]] | None]


def vllm() -> tuple[str, Choose]:
    """Version, and the parser and arguments of ``vllm serve`` or ``vllm bench serve``."""
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")  # a wheel for GPUs looks for one otherwise
    make = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
    bench = make()
    importlib.import_module("vllm.benchmarks.serve").add_cli_args(bench)
    server = next(found for found in map(_vllm_server, SERVER_PARSERS) if found)(make())

    def choose(argv: list[str]) -> tuple[argparse.ArgumentParser, list[str]]:
        return (bench, argv[3:]) if argv[1] == "bench" else (server, argv[2:])

    return str(importlib.import_module("vllm").__version__), choose


def _vllm_server(module: str) -> Callable[[object], argparse.ArgumentParser] | None:
    try:
        make: Callable[[object], argparse.ArgumentParser] = importlib.import_module(module).make_arg_parser
    except ModuleNotFoundError:
        return None
    return make


def sglang() -> tuple[str, Choose]:
    """Version, and the parser and arguments of ``sglang.launch_server``; other commands are not SGLang's."""
    for name in UNUSED_BY_SGLANG:
        if importlib.util.find_spec(name.partition(".")[0]) is None or name.partition(".")[0] in _STOOD_IN:
            _stand_in(name)
    parser = argparse.ArgumentParser()
    importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)

    def choose(argv: list[str]) -> tuple[argparse.ArgumentParser, list[str]] | None:
        return (parser, argv[3:]) if argv[:3] == ["python3", "-m", "sglang.launch_server"] else None

    return str(importlib.import_module("sglang").__version__), choose


_STOOD_IN: set[str] = set()


def _stand_in(name: str) -> None:
    module = MagicMock()
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    sys.modules[name] = module
    _STOOD_IN.add(name)


def verdict(parser: argparse.ArgumentParser, argv: list[str]) -> str:
    """Empty if the parser takes the command, else what it says."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            parser.parse_args(argv)
    except SystemExit:
        return errors.getvalue().strip().splitlines()[-1]
    except Exception as error:  # noqa: BLE001 - whatever a parser raises is its verdict
        return f"{type(error).__name__}: {str(error)[:300]}"
    return ""


def main(engine: str) -> None:
    """Read, parse, print."""
    version, choose = {"vLLM": vllm, "SGLang": sglang}[engine]()
    print(json.dumps({"version": version}))
    for line in sys.stdin:
        argv = json.loads(line)
        chosen = choose(argv)
        error = verdict(*chosen) if chosen else ""
        print(json.dumps({"argv": argv, "error": error, "skipped": chosen is None}))


if __name__ == "__main__":
    main(sys.argv[1])
