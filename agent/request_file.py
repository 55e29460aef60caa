"""A tuning request from a TOML or JSON file: the same fields as the options, no language model."""

import json
import tomllib
from pathlib import Path
from typing import Any

from agent.request import TuningRequest
from predictor.errors import BadFile, BadInput


def read_request_file(path: Path) -> dict[str, Any]:
    """The file's fields, unchecked but for their names; every fault names the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"request {str(path)!r}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise BadFile(f"{path}: not UTF-8 text (byte {error.start})") from None
    try:
        fields = json.loads(text) if path.suffix.lower() == ".json" else tomllib.loads(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadFile(
            f"{path}: not readable as {'JSON' if path.suffix.lower() == '.json' else 'TOML'}: {error}"
        ) from None
    if not isinstance(fields, dict):
        raise BadFile(f"{path}: expected an object of request fields")
    trace = fields.pop("trace", None)
    if trace is not None:
        from agent.trace_traffic import trace_traffic

        if not isinstance(trace, str):
            raise BadFile(f"{path}: trace {trace!r}: name a file")
        fields = {**trace_traffic(str(path.parent / trace)), **fields}
    unknown = [name for name in fields if name not in TuningRequest.model_fields]
    if unknown:
        legal = ", ".join((*TuningRequest.model_fields, "trace"))
        raise BadFile(f"{path}: {unknown[0]!r} is no field of a request; legal: {legal}")
    return fields
