"""The cache keeps one anchor a kernel set and width, shares sets whole, and writes whole files or none."""

import errno
import io
import json
import os
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from agent import anchor_store
from agent.anchor_files import bundled_anchors
from agent.anchor_sharing import export, is_shared_set, read_shared
from agent.anchor_store import Store, anchor_text, diff, kernel_set, pair, write_whole
from predictor.anchors.schema import Anchor, all_fields, checked, parse_anchor
from predictor.errors import BadFile, BadInput
from predictor.types import Dtype

FIRST, SECOND, *_ = bundled_anchors()


def changed(anchor: Anchor, **signature: object) -> Anchor:
    return replace(anchor, signature=replace(anchor.signature, **signature))


def slower(anchor: Anchor, factor: float = 1.1) -> Anchor:
    raw = all_fields(anchor)
    for sweep in raw["decode"]:
        for point in sweep["points"]:
            point["step_ms"] *= factor
    return checked(Anchor, raw)


def test_a_kernel_set_is_everything_but_the_widths() -> None:
    key = kernel_set(FIRST.signature)
    for width in ("tp", "ep", "attn_dp", "dcp"):
        assert kernel_set(changed(FIRST, **{width: 8}).signature) == key
    for field, value in (
        ("engine_version", "9.9"),
        ("kv_dtype", Dtype.FP8),
        ("gpu", "H200"),
        ("fusions", ("norm_quant",)),
    ):
        assert kernel_set(changed(FIRST, **{field: value}).signature) != key
    assert pair(changed(FIRST, tp=8).signature) != pair(FIRST.signature)


def test_the_order_of_fusions_does_not_count() -> None:
    one, two = (changed(FIRST, fusions=order).signature for order in (("a", "b"), ("b", "a")))
    assert kernel_set(one) == kernel_set(two)


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    path = Store(tmp_path).save(FIRST)
    assert path.name == f"{FIRST.name}.json"
    ((_, again),) = Store(tmp_path).anchors()
    assert again == FIRST
    assert Store(tmp_path).save(FIRST) == path  # the same measurement again is no news


def test_a_second_measurement_of_the_same_pair_is_refused_or_replaces(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(FIRST)
    again = slower(FIRST)
    with pytest.raises(BadInput, match=r"already holds this kernel set at tp1 .* --replace"):
        store.save(again)
    assert [anchor for _, anchor in store.anchors()] == [FIRST]
    store.save(again, replace=True)
    assert [anchor for _, anchor in store.anchors()] == [again]
    (kept,) = (tmp_path / "replaced").glob("*.json")
    assert parse_anchor(kept.read_text(), "kept") == FIRST


def test_a_new_build_is_another_anchor_and_needs_another_name(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(FIRST)
    newer = changed(FIRST, engine_version="9.9.9")
    with pytest.raises(BadInput, match=r"another kernel set \(engine_version: 0\.5\.19 / 9\.9\.9\): give --name"):
        store.save(newer)
    store.save(replace(newer, name="newer"))
    assert len(store.anchors()) == 2


def test_diff_names_fields_and_steps() -> None:
    found = diff(FIRST, changed(slower(FIRST, 1.25), kv_dtype=Dtype.FP8))
    assert found.fields == ("kv_dtype: bf16 / fp8",)
    decode = [step for step in found.steps if step.what.startswith("decode")]
    assert decode
    assert all(step.change_pct == pytest.approx(25.0) for step in decode)
    assert not found.same_content
    assert diff(FIRST, FIRST).same_content


@pytest.mark.parametrize("name", ["set", "set.tar.gz", "set.tgz", "set.zip"])
def test_a_set_travels_whole(tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    export([FIRST, SECOND], target, "A. Operator")
    assert is_shared_set(target)
    shared = read_shared(target)
    assert {anchor.content_hash for anchor in shared.anchors} == {FIRST.content_hash, SECOND.content_hash}
    assert shared.signed_off_by == "A. Operator"
    with pytest.raises(BadInput, match="exists; name a new file or an empty folder"):
        export([FIRST], target)


def test_an_archive_is_the_same_bytes_every_time(tmp_path: Path) -> None:
    export([FIRST, SECOND], tmp_path / "a.tar", "")
    names = sorted(path.name for path in (tmp_path / "a.tar").iterdir())
    assert names == sorted([f"{FIRST.name}.json", f"{SECOND.name}.json", "manifest.json"])


def test_a_changed_member_does_not_pass_its_manifest(tmp_path: Path) -> None:
    target = tmp_path / "set"
    export([FIRST], target)
    (target / f"{FIRST.name}.json").write_text(anchor_text(slower(FIRST)))
    with pytest.raises(BadFile, match="the manifest says"):
        read_shared(target)
    (target / f"{FIRST.name}.json").unlink()
    (target / "other.json").write_text(anchor_text(FIRST))
    with pytest.raises(BadFile, match=f"the manifest names {FIRST.name}.json, which is missing"):
        read_shared(target)


def tar_of(path: Path, name: str, data: bytes, kind: bytes = tarfile.REGTYPE) -> None:
    with tarfile.open(path, "w:gz") as archive:
        entry = tarfile.TarInfo(name)
        entry.size, entry.type, entry.linkname = len(data), kind, "/etc/passwd"
        archive.addfile(entry, io.BytesIO(data))


@pytest.mark.parametrize("name", ["../evil.json", "/abs.json", "a/b/c.json"])
def test_a_member_that_points_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    tar_of(tmp_path / "t.tar.gz", name, anchor_text(FIRST).encode())
    with pytest.raises(BadFile, match="points outside the archive or is nested"):
        read_shared(tmp_path / "t.tar.gz")
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr(name, anchor_text(FIRST))
    with pytest.raises(BadFile, match="points outside the archive or is nested"):
        read_shared(tmp_path / "t.zip")


def test_links_broken_archives_and_empty_ones_are_refused(tmp_path: Path) -> None:
    tar_of(tmp_path / "l.tar.gz", "a.json", b"", tarfile.SYMTYPE)
    with pytest.raises(BadFile, match="is a link or a device"):
        read_shared(tmp_path / "l.tar.gz")
    (tmp_path / "b.tar.gz").write_bytes(b"\x1f\x8b broken")
    (tmp_path / "b.zip").write_bytes(b"PK broken")
    for broken in ("b.tar.gz", "b.zip"):
        with pytest.raises(BadFile, match="not a readable archive"):
            read_shared(tmp_path / broken)
    tar_of(tmp_path / "e.tar.gz", "readme.txt", b"hello")
    with pytest.raises(BadFile, match="holds no anchor"):
        read_shared(tmp_path / "e.tar.gz")


def test_a_malformed_member_is_named(tmp_path: Path) -> None:
    raw = json.loads(anchor_text(FIRST))
    raw["decode"][0]["points"][0]["step_ms"] = -1
    tar_of(tmp_path / "m.tar.gz", "bad.json", json.dumps(raw).encode())
    with pytest.raises(BadFile, match=r"m\.tar\.gz/bad\.json: decode\[0\]\.points\[0\]\.step_ms"):
        read_shared(tmp_path / "m.tar.gz")


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_whole(path, "old")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(anchor_store.os, "fsync", full)
    with pytest.raises(BadInput, match=r"a\.json: not written \(No space left on device\); nothing was left behind"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_an_interrupt_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(handle: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(anchor_store.os, "fsync", stopped)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "a.json", "new")
    assert not list(tmp_path.iterdir())
