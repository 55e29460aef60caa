"""Records of a JSON-lines or JSON-array text, one at a time, with the line each starts on.

Text comes as any iterable of strings: the lines of an open file, chunks of a stream, a list. Nothing is read ahead of
the record asked for, so memory does not grow with the text.
"""

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

from predictor.errors import BadFile

_CHUNK_CHARS = 1 << 16
_MAX_RECORD_CHARS = 1 << 26  # one array element; a larger one is a missing bracket
_SPACE = re.compile(r"\s*")
_LITERAL_CHARS = 16  # a number or word may be cut by the end of a chunk; longer ago it is an error


class Fault(StrEnum):
    """Why a text holds no record."""

    NOT_JSON = "not_json"
    TRUNCATED = "truncated"
    NOT_FINITE = "not_finite"
    UNSUPPORTED = "unsupported"  # readable, but without an equal in our records


@dataclass(frozen=True, slots=True)
class Document:
    """One decoded value or, where ``fault`` is set, why there is none; ``resumable`` says whether to read on."""

    line: int
    value: Any = None
    fault: str | None = None
    kind: Fault = Fault.NOT_JSON
    resumable: bool = True


def open_trace(path: str | Path) -> Iterator[str]:
    """Text of a trace file, gzip or plain: lines, or fixed chunks where it is one JSON array, often a single line."""
    file = Path(path)
    if not file.is_file():
        raise BadFile(f"{file}: no such file")
    with open(file, "rb") as probe:
        zipped = probe.read(2) == b"\x1f\x8b"
    opener = gzip.open if zipped else open
    try:
        with opener(file, "rt", encoding="utf-8") as text:
            head = text.read(1)
            while head.isspace():
                head = text.read(1)
            text.seek(0)
            if head == "[":
                while chunk := text.read(_CHUNK_CHARS):
                    yield chunk
            else:
                yield from text
    except (EOFError, zlib.error, gzip.BadGzipFile) as broken:
        raise BadFile(f"{file}: the gzip stream is cut short or damaged ({broken})") from broken
    except UnicodeDecodeError as broken:
        raise BadFile(f"{file}: not UTF-8 text ({broken})") from broken


def documents(text: Iterable[str]) -> Iterator[Document]:
    """Decode JSON lines, or the elements of one JSON array, whichever the first character says."""
    chunks = iter(text)
    line = 1
    for chunk in chunks:
        if not chunk.strip():
            line += chunk.count("\n") or 1
            continue
        if chunk.lstrip().startswith("["):
            yield from _array_elements(chunk, chunks, line)
        else:
            yield from _json_lines(chunk, chunks, line)
        return


def _reject(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number JSON knows")


_DECODER = json.JSONDecoder(parse_constant=_reject)
_TOO_DEEP = "not a record: lists or objects lie too deep in one another"


def _json_lines(first: str, rest: Iterator[str], line: int) -> Iterator[Document]:
    held: str | None = first
    while held is not None:
        following = next(rest, None)
        if held.strip():
            yield _decode_line(held, line, last=following is None)
        held, line = following, line + 1


def _decode_line(text: str, line: int, last: bool) -> Document:
    try:
        return Document(line, _DECODER.decode(text))
    except json.JSONDecodeError as broken:
        kind = Fault.TRUNCATED if last and _runs_out(broken, text) else Fault.NOT_JSON
        return Document(line, fault=f"not JSON: {broken.msg} at column {broken.colno}", kind=kind)
    except ValueError as broken:
        return Document(line, fault=str(broken), kind=Fault.NOT_FINITE)
    except RecursionError:
        return Document(line, fault=_TOO_DEEP, kind=Fault.NOT_JSON)


def _runs_out(broken: json.JSONDecodeError, text: str) -> bool:
    """Whether decoding failed because the text ended, and not because of what it says."""
    return broken.msg.startswith("Unterminated string") or broken.pos >= len(text.rstrip()) - _LITERAL_CHARS


def _array_elements(first: str, rest: Iterator[str], line: int) -> Iterator[Document]:
    buffer = _Buffer(first, rest, line)
    buffer.skip(1 + buffer.text.index("["))
    if buffer.peek() == "]":
        return
    while True:
        document = buffer.element()
        yield document
        if not document.resumable:
            return
        separator = buffer.peek()
        if separator not in (",", "]"):
            if separator:
                yield Document(
                    buffer.line, fault=f"not JSON: expected ',' or ']', found {separator!r}", resumable=False
                )
            else:
                yield Document(buffer.line, fault="the array is not closed", kind=Fault.TRUNCATED, resumable=False)
            return
        buffer.skip(1)
        if separator == "]":
            break
        buffer.peek()
    if buffer.peek():
        yield Document(buffer.line, fault="not JSON: text after the end of the array", resumable=False)


class _Buffer:
    """A window on the text: what is decoded is dropped, what is missing is fetched."""

    def __init__(self, first: str, rest: Iterator[str], line: int) -> None:
        self.text, self.rest, self.line, self.at = first, rest, line, 0

    def skip(self, chars: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + chars)
        self.at += chars

    def peek(self) -> str:
        """The next character that is no white space, '' at the end."""
        while True:
            space = _SPACE.match(self.text, self.at)
            assert space is not None
            self.skip(space.end() - self.at)
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.fetch():
                return ""

    def fetch(self) -> bool:
        chunk = next(self.rest, None)
        if chunk is None:
            return False
        self.text, self.at = self.text[self.at :] + chunk, 0
        return True

    def element(self) -> Document:
        start = self.line
        while True:
            try:
                value, end = _DECODER.raw_decode(self.text, self.at)
            except json.JSONDecodeError as broken:
                incomplete = _runs_out(broken, self.text) and len(self.text) - self.at < _MAX_RECORD_CHARS
                if incomplete and self.fetch():
                    continue
                where = self.line + self.text.count("\n", self.at, broken.pos)
                kind = Fault.TRUNCATED if incomplete else Fault.NOT_JSON
                return Document(where, fault=f"not JSON: {broken.msg}", kind=kind, resumable=False)
            except ValueError as broken:
                return Document(start, fault=str(broken), kind=Fault.NOT_FINITE, resumable=False)
            except RecursionError:
                return Document(start, fault=_TOO_DEEP, kind=Fault.NOT_JSON, resumable=False)
            self.skip(end - self.at)
            return Document(start, value)
