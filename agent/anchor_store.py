"""The anchor cache: one measured kernel set at one width a file, found by its signature.

Two anchors are of one *kernel set* when every anchor-defining field of their signatures is equal, the engine's build
included; they then differ in width only, and each (kernel set, width) pair is measured once (paper §3.1.1). Saving a
second one of the same pair is refused unless it shall replace the first, which is then kept beside under ``replaced/``.
"""

import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from agent.anchor_files import read_anchor
from predictor.anchors.schema import Anchor, Signature, all_fields, stated_fields
from predictor.errors import BadInput

WIDTHS = ("tp", "ep", "attn_dp", "dcp")
MANIFEST = "manifest.json"
REPLACED = "replaced"
MOST_NAME_BYTES = 200  # file systems take 255, and what is replaced gets a longer name


def kernel_set(signature: Signature) -> str:
    """Identity of a kernel set: a short hash over every anchor-defining field.

    Widths are left out, and graph sizes, which follow from the running cap and change no kernel.
    """
    fields = {name: value for name, value in all_fields(signature).items() if name not in (*WIDTHS, "capture_sizes")}
    fields["fusions"] = sorted(fields["fusions"])
    return sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:12]


def pair(signature: Signature) -> tuple[str, str]:
    """Kernel set and width."""
    return kernel_set(signature), signature.layout.label()


def listing(anchors: Iterable[Anchor]) -> list[dict[str, Any]]:
    """One row an anchor: what ``anchors list`` and the service show."""
    return [
        {
            "name": one.name,
            "model": one.signature.model,
            "gpu": one.signature.gpu,
            "engine": f"{one.signature.engine} {one.signature.engine_version}".strip(),
            "layout": one.signature.layout.label(),
            "weights": str(one.signature.weight_dtype),
            "batches": [point.batch for point in one.decode[0].points],
            "prompts": [sweep.prompt_tokens for sweep in one.decode],
            "kind": one.decode[0].kind,
            "coarse": one.provenance.coarse,
            "kernel_set": kernel_set(one.signature),
            "sha256": one.content_hash,
        }
        for one in anchors
    ]


def anchor_text(anchor: Anchor) -> str:
    """The file's text: defaults left out, so that a person can read it."""
    return json.dumps({"schema_version": anchor.schema_version, **_stated(anchor)}, indent=1, allow_nan=False) + "\n"


def _stated(anchor: Anchor) -> dict[str, object]:
    stated = stated_fields(anchor)
    stated["provenance"] = stated_fields(anchor.provenance) | {
        "real_weights": anchor.provenance.real_weights,
        "prefix_cache_off": anchor.provenance.prefix_cache_off,
    }
    return stated


def file_name(anchor: Anchor) -> str:
    """The anchor's file; a name that is no plain file name is refused, so that a file can point nowhere else."""
    name = anchor.name
    plain = name.isprintable() and not name.startswith(".") and not set(name) & set("/\\:")
    if not name or not plain or len(name.encode("utf-8", "replace")) > MOST_NAME_BYTES:
        raise BadInput(
            f"name {name[:40]!r}: must be a plain file name of at most {MOST_NAME_BYTES} bytes, "
            "without /, \\ and :, and not begin with a dot"
        )
    return f"{name}.json"


def write_whole(path: Path, text: str) -> None:
    """Write a file or nothing: a full disk or an interrupt leaves no half artefact behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise BadInput(f"{path}: not written ({error.strerror}); nothing was left behind") from None
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of anchors."""

    folder: Path

    def files(self) -> list[Path]:
        """Anchor files, by name."""
        return sorted(self.folder.glob("*.json")) if self.folder.is_dir() else []

    def anchors(self) -> list[tuple[Path, Anchor]]:
        """Every anchor with its file; raises BadFile naming the first malformed one."""
        return [(path, read_anchor(path)) for path in self.files() if path.name != MANIFEST]

    def same_pair(self, signature: Signature) -> list[tuple[Path, Anchor]]:
        """Anchors on hand of the same kernel set and width."""
        wanted = pair(signature)
        return [(path, other) for path, other in self.anchors() if pair(other.signature) == wanted]

    def save(self, anchor: Anchor, *, replace: bool = False) -> Path:
        """Keep an anchor; refuses to shadow one of the same kernel set and width silently."""
        path = self.folder / file_name(anchor)
        for held, other in self.same_pair(anchor.signature):
            if other.content_hash == anchor.content_hash:
                return held
            if not replace:
                raise BadInput(
                    f"{held}: already holds this kernel set at {anchor.signature.layout.label()} "
                    f"(sha256 {other.content_hash[:12]}); compare with anchors diff, or replace it with --replace"
                )
            self._retire(held, other)
        if path.exists():
            other = read_anchor(path)
            raise BadInput(
                f"{path}: the name is taken by another kernel set ({'; '.join(signature_differences(other, anchor))}): "
                "give --name"
            )
        write_whole(path, anchor_text(anchor))
        return path

    def _retire(self, path: Path, anchor: Anchor) -> None:
        target = self.folder / REPLACED / f"{anchor.name}-{anchor.content_hash[:12]}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)


def signature_differences(left: Anchor, right: Anchor) -> tuple[str, ...]:
    """Fields of two signatures that differ, with both values."""
    one, two = all_fields(left.signature), all_fields(right.signature)
    return tuple(f"{name}: {one[name] or 'none'} / {two[name] or 'none'}" for name in one if one[name] != two[name])


@dataclass(frozen=True, slots=True)
class StepChange:
    """One measured step in two anchors, ms."""

    what: str
    left_ms: float
    right_ms: float

    @property
    def change_pct(self) -> float:
        """Right over left."""
        return (self.right_ms / self.left_ms - 1.0) * 100.0


@dataclass(frozen=True, slots=True)
class Difference:
    """Two anchors compared."""

    fields: tuple[str, ...]
    steps: tuple[StepChange, ...]
    same_content: bool


def diff(left: Anchor, right: Anchor) -> Difference:
    """Differing signature fields, and the change of every step and prompt both measured."""
    steps = []
    theirs = {sweep.prompt_tokens: {point.batch: point.step_ms for point in sweep.points} for sweep in right.decode}
    for sweep in left.decode:
        other = theirs.get(sweep.prompt_tokens, {})
        for point in sweep.points:
            if point.batch in other:
                what = f"decode, batch {point.batch} at {sweep.prompt_tokens}"
                steps.append(StepChange(what, point.step_ms, other[point.batch]))
    lengths = {point.tokens for point in left.prefill.points} | {point.tokens for point in right.prefill.points}
    for tokens in sorted(lengths):
        one, two = (
            a.prefill.fixed_ms + a.prefill.per_token_ms * tokens + a.prefill.per_token2_ms * tokens**2
            for a in (left, right)
        )
        steps.append(StepChange(f"prefill, {tokens} tokens", one, two))
    return Difference(signature_differences(left, right), tuple(steps), left.content_hash == right.content_hash)
