"""Anchor files: the bundled ones, the user's cache folder and folders named on the command line."""

import os
from pathlib import Path

from predictor import anchors
from predictor.anchors.schema import Anchor, parse_anchor
from predictor.errors import BadFile, BadInput


def bundled_anchors() -> tuple[Anchor, ...]:
    """Anchors that ship with the package, by file name."""
    files = sorted((Path(anchors.__file__).parent / "bundled").glob("*.json"))
    return tuple(parse_anchor(file.read_text(encoding="utf-8"), file.name) for file in files)


def cache_folder() -> Path:
    """``INFERASIM_ANCHORS``, else the per-user cache folder."""
    named = os.environ.get("INFERASIM_ANCHORS")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "inferasim" / "anchors"


def read_anchor(path: Path) -> Anchor:
    """One anchor file; every fault names the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise BadFile(f"{path}: not UTF-8 text (byte {error.start}): expected an anchor in JSON") from None
    return parse_anchor(text, str(path))


def load_anchors(folder: str | None = None) -> tuple[Anchor, ...]:
    """Anchors to choose from: those of ``folder`` alone when given (a folder or one file), else bundled and cached."""
    if folder is not None:
        path = Path(folder)
        if path.is_file():
            return (read_anchor(path),)
        if not path.is_dir():
            raise BadInput(f"--anchors {folder}: no such file or folder")
        return tuple(read_anchor(file) for file in sorted(path.glob("*.json")))
    cached = cache_folder()
    extra = tuple(read_anchor(file) for file in sorted(cached.glob("*.json"))) if cached.is_dir() else ()
    return (*bundled_anchors(), *extra)
