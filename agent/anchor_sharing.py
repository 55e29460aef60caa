"""Sets of anchors as a folder or one archive, with a manifest of their hashes and of who vouches for them."""

import io
import json
import tarfile
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agent.anchor_store import MANIFEST, anchor_text, file_name, kernel_set, write_whole
from predictor.anchors.schema import Anchor, parse_anchor
from predictor.errors import BadFile, BadInput

# An archive of anchors is a few kB a file; anything far beyond is not one.
MAX_FILES, MAX_BYTES = 10_000, 50_000_000


def manifest(anchors: Sequence[Anchor], signed_off_by: str = "") -> str:
    """What a shared set holds, with the hash of each; ``signed_off_by`` says who vouches for it."""
    rows = [
        {
            "file": f"{one.name}.json",
            "sha256": one.content_hash,
            "kernel_set": kernel_set(one.signature),
            "layout": one.signature.layout.label(),
        }
        for one in anchors
    ]
    return json.dumps({"anchors": rows, "signed_off_by": signed_off_by}, indent=1) + "\n"


def export(anchors: Sequence[Anchor], target: Path, signed_off_by: str = "") -> None:
    """Write a set as a folder, or as one archive where the name ends in .tar.gz, .tgz or .zip."""
    names = [one.name for one in anchors]
    if not anchors:
        raise BadInput("nothing to export: no anchor has that name")
    if len(set(names)) < len(names):
        doubled = sorted(name for name in set(names) if names.count(name) > 1)
        raise BadInput(f"two anchors are named {doubled[0]!r}: export them apart")
    members = {file_name(one): anchor_text(one) for one in anchors}
    members[MANIFEST] = manifest(anchors, signed_off_by)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise BadInput(f"{target}: exists; name a new file or an empty folder")
    if target.name.endswith((".tar.gz", ".tgz")):
        _write_bytes(target, _tar(members))
    elif target.name.endswith(".zip"):
        _write_bytes(target, _zip(members))
    else:
        for name, text in members.items():
            write_whole(target / name, text)


def _tar(members: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in sorted(members.items()):
            data = text.encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _zip(members: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted(members.items()):
            archive.writestr(name, text)
    return buffer.getvalue()


def _write_bytes(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise BadInput(f"{path}: not written ({error.strerror})") from None


@dataclass(frozen=True, slots=True)
class SharedSet:
    """Anchors that came as a folder, an archive or single files."""

    anchors: tuple[Anchor, ...]
    signed_off_by: str = ""


def is_shared_set(path: Path) -> bool:
    """Whether a path is a set of anchors rather than a benchmark result."""
    if path.is_dir() or path.name.endswith((".tar.gz", ".tgz", ".zip")):
        return True
    return path.suffix == ".json" and _is_anchor(_text(path))


def _is_anchor(text: str) -> bool:
    try:
        raw = json.loads(text)
    except json.JSONDecodeError:
        return False
    return isinstance(raw, dict) and "signature" in raw and "schema_version" in raw


def read_shared(path: Path) -> SharedSet:
    """Read a shared set; every member is validated and held to its manifest's hash, where there is a manifest."""
    members = _members(path)
    texts = {name: text for name, text in members.items() if name != MANIFEST}
    if not texts:
        raise BadFile(f"{path}: holds no anchor (no .json file but the manifest)")
    anchors = {
        name: parse_anchor(text, f"{path}/{name}" if name != path.name else str(path)) for name, text in texts.items()
    }
    signed = ""
    if MANIFEST in members:
        signed = _check_manifest(members[MANIFEST], anchors, path)
    return SharedSet(tuple(anchors[name] for name in sorted(anchors)), signed)


def _check_manifest(text: str, anchors: dict[str, Anchor], path: Path) -> str:
    try:
        raw = json.loads(text)
        rows = {str(row["file"]): str(row["sha256"]) for row in raw["anchors"]}
        signed = str(raw.get("signed_off_by", ""))
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError):
        raise BadFile(f"{path}: {MANIFEST} is not a manifest of anchors") from None
    for name, expected in rows.items():
        if name not in anchors:
            raise BadFile(f"{path}: the manifest names {name}, which is missing")
        if anchors[name].content_hash != expected:
            raise BadFile(
                f"{path}: {name} has sha256 {anchors[name].content_hash[:12]}, the manifest says {expected[:12]}"
            )
    extra = sorted(set(anchors) - set(rows))
    if extra:
        raise BadFile(f"{path}: {extra[0]} is not in the manifest")
    return signed


def _members(path: Path) -> dict[str, str]:
    if path.is_dir():
        return {file.name: _text(file) for file in sorted(path.glob("*.json"))}
    if path.name.endswith(".zip"):
        return _unpacked(_zip_members(path), path)
    if path.name.endswith((".tar.gz", ".tgz")):
        return _unpacked(_tar_members(path), path)
    return {path.name: _text(path)}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise BadFile(f"{path}: not UTF-8 text") from None


def _zip_members(path: Path) -> Iterable[tuple[str, int, bytes]]:
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if not entry.is_dir():
                    yield entry.filename, entry.file_size, archive.read(entry) if entry.file_size <= MAX_BYTES else b""
    except (OSError, zipfile.BadZipFile) as error:
        raise BadFile(f"{path}: not a readable archive ({error})") from None


def _tar_members(path: Path) -> Iterable[tuple[str, int, bytes]]:
    try:
        with tarfile.open(path, "r:gz") as archive:
            for entry in archive:
                if entry.isdir():
                    continue
                if not entry.isfile():
                    raise BadFile(
                        f"{path}: {entry.name} is a link or a device; an archive of anchors holds plain files"
                    )
                file = archive.extractfile(entry)
                yield entry.name, entry.size, file.read() if file and entry.size <= MAX_BYTES else b""
    except (OSError, tarfile.TarError, EOFError) as error:
        raise BadFile(f"{path}: not a readable archive ({error})") from None


def _unpacked(members: Iterable[tuple[str, int, bytes]], path: Path) -> dict[str, str]:
    """Members by bare name. Nothing is written to disk, so a name can point nowhere; it is refused all the same."""
    found: dict[str, str] = {}
    total = 0
    for name, size, data in members:
        total += size
        inner = PurePosixPath(name.removeprefix("./"))
        if inner.is_absolute() or ".." in inner.parts or len(inner.parts) > 2:
            raise BadFile(f"{path}: member {name!r} points outside the archive or is nested")
        if total > MAX_BYTES or len(found) >= MAX_FILES:
            raise BadFile(f"{path}: larger than {MAX_BYTES // 10**6} MB or {MAX_FILES} files: not a set of anchors")
        if inner.suffix == ".json":
            try:
                found[inner.name] = data.decode("utf-8")
            except UnicodeDecodeError:
                raise BadFile(f"{path}: {name} is not UTF-8 text") from None
    return found
