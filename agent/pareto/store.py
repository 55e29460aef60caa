"""The sweep's file: one JSON line a point behind a header that says what was asked; append-only, so a killed sweep goes
on where it stopped. A point that was refused keeps its reason and no figures.
"""

import json
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import IO, Any

from predictor.errors import BadFile, BadInput

FORMAT = "inferasim-sweep-2"


def header_line(request: Mapping[str, Any], identity: str, points: int) -> str:
    """The first line: format, request, identity of all that decides the result, and how many points there are."""
    return json.dumps({"format": FORMAT, "request": dict(request), "identity": identity, "points": points}) + "\n"


class SweepFile:
    """A file being written, or text in memory where no path is given."""

    def __init__(self, path: Path | None, header: str) -> None:
        self.path = path
        self.done: set[int] = set()
        self._memory = StringIO() if path is None else None
        if path is not None and path.exists() and path.stat().st_size:
            self._resume(path, header)
        self._out: IO[str] = self._memory if self._memory is not None else self._open(path)
        if not self.done and self._out.tell() == 0:
            self._out.write(header)
            self._out.flush()

    def write(self, lines: str) -> None:
        """Append whole lines."""
        self._out.write(lines)
        self._out.flush()

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every point so far, refused ones too."""
        if self._memory is not None:
            yield from _points(StringIO(self._memory.getvalue()))
            return
        assert self.path is not None
        yield from read_rows(self.path)

    def close(self) -> None:
        """Done writing."""
        if self._memory is None:
            self._out.close()

    def _open(self, path: Path | None) -> IO[str]:
        assert path is not None
        try:
            return path.open("a", encoding="utf-8")
        except OSError as error:
            raise BadInput(f"out {str(path)!r}: cannot be written ({error.strerror})") from None

    def _resume(self, path: Path, header: str) -> None:
        """Take what is there: cut a torn last line off, and refuse another sweep's file."""
        with path.open("rb+") as file:
            first = file.readline()
            if first and not first.endswith(b"\n"):  # killed while it wrote the header
                file.truncate(0)
                return
            if first.decode(errors="replace") != header:
                raise BadInput(
                    f"out {str(path)!r}: holds another sweep (other request, version, cards or anchors); name a new "
                    "file or remove it"
                )
            end = file.tell()
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.done.add(_number(line, path))
                end += len(line)
            file.truncate(end)


def _number(line: bytes, path: Path) -> int:
    try:
        number = json.loads(line)["i"]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
        raise BadFile(f"{path}: a line is no point of a sweep: {line[:60].decode(errors='replace')!r}") from None
    assert isinstance(number, int)
    return number


def read_header(path: Path) -> dict[str, Any]:
    """The header of a sweep's file."""
    try:
        with path.open(encoding="utf-8") as file:
            found = json.loads(file.readline())
    except OSError as error:
        raise BadInput(f"sweep {str(path)!r}: cannot be read ({error.strerror})") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise BadFile(f"{path}: no sweep's file: the first line is not JSON") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise BadFile(f"{path}: no sweep's file of format {FORMAT!r}")
    return found


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Points of a sweep's file, refused ones too; a torn last line is left out."""
    read_header(path)
    with path.open(encoding="utf-8") as file:
        yield from _points(file)


def _points(file: IO[str]) -> Iterator[dict[str, Any]]:
    file.readline()
    for line in file:
        if line.endswith("\n"):
            row: dict[str, Any] = json.loads(line)
            yield row


def write_parquet(path: Path, rows: Iterator[dict[str, Any]], batch: int = 10_000) -> int:
    """Points as a Parquet file, refused ones with empty figures; needs the extra ``parquet``."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise BadInput("parquet: pyarrow is not installed; pip install 'inferasim[parquet]', or write .jsonl") from None
    from agent.pareto.price import COLUMNS

    kinds = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
    written = 0
    with pq.ParquetWriter(path, schema) as writer:
        for chunk in _batches(rows, batch):
            flat = [{**row, "levers": json.dumps(row["levers"])} for row in chunk]
            writer.write_table(
                pa.Table.from_pylist([{name: row.get(name) for name in COLUMNS} for row in flat], schema)
            )
            written += len(chunk)
    return written


def _batches(rows: Iterator[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    chunk: list[dict[str, Any]] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
