"""Models, platforms and engines by name: the only place of the core that reads files.

Bundled records are TOML beside this module, one a file, named by the slug of the record, so that a lookup by name opens
one file. A lookup by alias or Hugging Face id reads the folder once. All lookups are cached.
"""

import tomllib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from predictor.cards import EngineProfile, ModelCard, Platform
from predictor.errors import BadFile, unknown_name
from predictor.profiles.decode import decode

_HERE = Path(__file__).parent

Named = TypeVar("Named", ModelCard, Platform, EngineProfile)


def slug(name: str) -> str:
    """Lookup key of a name: case and punctuation do not count; dots between digits do.

    >>> slug("Qwen/Qwen3.5-397B_A17B")
    'qwen-qwen3.5-397b-a17b'
    """
    return "".join(c if c.isalnum() or c == "." else "-" for c in name.lower()).strip("-")


def read_toml(path: Path, record: type[Named]) -> Named:
    """Read one record.

    Raises BadFile naming the file and the line or field.
    """
    try:
        with path.open("rb") as file:
            data = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: not readable as TOML: {error}") from None
    return decode(record, data, str(path))


def _names_of(record: ModelCard | Platform | EngineProfile) -> tuple[str, ...]:
    ids = record.hf_ids if isinstance(record, ModelCard) else ()
    return (record.name, *ids, *(hf_id.split("/")[-1] for hf_id in ids), *record.aliases)


def _find(kind: str, name: str, read: Callable[[str], Named], stems: tuple[str, ...]) -> Named:
    wanted = slug(name)
    if wanted in stems:
        return read(wanted)
    for stem in stems:
        record = read(stem)
        if any(slug(known) == wanted for known in _names_of(record)):
            return record
    raise unknown_name(kind, name, (read(stem).name for stem in stems))


@lru_cache(maxsize=8)
def _stems(folder: str) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (_HERE / folder).glob("*.toml")))


@lru_cache(maxsize=256)
def _model(stem: str) -> ModelCard:
    return read_toml(_HERE / "models" / f"{stem}.toml", ModelCard)


@lru_cache(maxsize=256)
def _platform(stem: str) -> Platform:
    return read_toml(_HERE / "platforms" / f"{stem}.toml", Platform)


@lru_cache(maxsize=64)
def _engine(stem: str) -> EngineProfile:
    return read_toml(_HERE / "engines" / f"{stem}.toml", EngineProfile)


@lru_cache(maxsize=256)
def model_card(name_or_path: str) -> ModelCard:
    """Card of a bundled model (name, alias or Hugging Face id, case does not count) or of a ``config.json`` path.

    A path is anything that exists on disk: a ``config.json``, a folder that holds one, or a card as TOML.
    Raises UnknownName with the nearest names, or BadFile.
    """
    path = Path(name_or_path)
    if path.suffix == ".toml" and path.is_file():
        return read_toml(path, ModelCard)
    if path.suffix == ".json" or (path / "config.json").is_file():
        from predictor.profiles.hf import read_config  # rarely needed

        return read_config(path if path.suffix == ".json" else path / "config.json")
    return _find("model", name_or_path, _model, _stems("models"))


@lru_cache(maxsize=256)
def platform(name: str) -> Platform:
    """Platform by name or alias; raises UnknownName with the nearest names."""
    return _find("gpu", name, _platform, _stems("platforms"))


@lru_cache(maxsize=64)
def engine_profile(name: str) -> EngineProfile:
    """Engine by name or alias; raises UnknownName with the nearest names."""
    return _find("engine", name, _engine, _stems("engines"))


def model_names() -> tuple[str, ...]:
    """Names of the bundled models."""
    return tuple(_model(stem).name for stem in _stems("models"))


def platform_names() -> tuple[str, ...]:
    """Names of the bundled platforms."""
    return tuple(_platform(stem).name for stem in _stems("platforms"))


def engine_names() -> tuple[str, ...]:
    """Names of the bundled engines."""
    return tuple(_engine(stem).name for stem in _stems("engines"))
