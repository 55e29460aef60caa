"""Where the measured data lies, and how every eval prints its result."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

EXIT_NO_DATA = 3


class CorpusAbsent(Exception):
    """The measured data is not where it was looked for."""


def data_dir(option: str | None = None) -> Path:
    """Folder of the measured data: the option, else ``INFERASIM_CORPUS``, else ``../shared/data``."""
    folder = Path(option or os.environ.get("INFERASIM_CORPUS") or Path(__file__).parents[1].parent / "shared" / "data")
    if not folder.is_dir():
        raise CorpusAbsent(
            f"measured data not found at {folder}: pass --corpus DIR or set INFERASIM_CORPUS; the sources of each file "
            "are listed in docs/corpora.md"
        )
    return folder


def parser(description: str) -> argparse.ArgumentParser:
    """Arguments that every eval takes."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    result.add_argument("--corpus", metavar="DIR", help="folder of the measured data")
    return result


def run(evaluate: Callable[[argparse.Namespace], Mapping[str, Any]], arguments: argparse.ArgumentParser) -> int:
    """Parse, evaluate and print: one JSON object with ``--json``, else an indented view; absent data is exit 3."""
    args = arguments.parse_args()
    try:
        result = evaluate(args)
    except CorpusAbsent as absent:
        print(absent, file=sys.stderr)
        return EXIT_NO_DATA
    print(json.dumps(result, indent=None if args.json else 2, allow_nan=False))
    return 0
