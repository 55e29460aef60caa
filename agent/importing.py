"""Bring one's own benchmark: files and stated facts in, a saved anchor out."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.anchor_store import Store
from predictor.anchors.check import doubts
from predictor.anchors.import_formats.run import Fact
from predictor.anchors.import_solve.artefact import BenchmarkFile, Imported, import_benchmark
from predictor.anchors.import_solve.facts import read_facts
from predictor.anchors.import_solve.setting import Lookups
from predictor.errors import BadFile, BadInput
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.types import Flag

LOOKUPS = Lookups(model_card, platform, engine_profile)
# Detailed files of long benchmarks run to some hundred MB; more is not a benchmark result.
MAX_BYTES = 2_000_000_000


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import made and what is to be said about it."""

    imported: Imported
    doubts: tuple[Flag, ...]
    saved: Path | None


def read_file(path: Path) -> BenchmarkFile:
    """A benchmark file's text; every fault names the file."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadFile(f"{path}: larger than {MAX_BYTES // 10**9} GB: not a benchmark result")
        return BenchmarkFile(str(path), path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise BadFile(f"{path}: not UTF-8 text (byte {error.start})") from None


def read_side_file(path: Path) -> dict[str, Fact]:
    """Facts of a TOML file: the flags' names as keys, at the top or in a table ``[facts]``."""
    try:
        with path.open("rb") as file:
            data = tomllib.load(file)
    except OSError as error:
        raise BadInput(f"--facts {path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadFile(f"--facts {path}: not TOML ({error})") from None
    table = data.get("facts", data)
    if not isinstance(table, Mapping):
        raise BadFile(f"--facts {path}: facts is no table")
    plain = {name: value for name, value in table.items() if isinstance(value, str | int | float | bool)}
    other = [name for name in table if name not in plain]
    if other:
        raise BadFile(f"--facts {path}: {other[0]} is neither text, number, true nor false")
    return read_facts(plain, f"--facts {path}")


def import_files(
    paths: Sequence[str],
    flags: Mapping[str, Fact],
    *,
    side_file: str | None = None,
    accepted_name: str | None = None,
    name: str | None = None,
    store: Store | None = None,
    replace: bool = False,
) -> ImportReport:
    """Import benchmark files of one deployment; ``store`` None only reports what would be saved."""
    stated = {**(read_side_file(Path(side_file)) if side_file else {}), **flags}
    files = [read_file(Path(path)) for path in paths]
    imported = import_benchmark(files, stated, LOOKUPS, accepted_name=accepted_name, name=name)
    saved = store.save(imported.anchor, replace=replace) if store is not None else None
    return ImportReport(imported, doubts(imported.anchor), saved)
